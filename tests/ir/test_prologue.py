"""The text of a prologue: what it means, how it prints, and what is refused."""

from __future__ import annotations

import re

import pytest

from amos.errors import AmosError
from amos.ir import Operator
from amos.records.canonical import operator_from, operator_values

CONV = Operator.parse(
    "out[n,k,p,q] += pad(image[n,c,p+r-1,q+s-1]) * weight[k,c,r,s]",
    extents=dict(n=1, c=4, k=8, p=5, q=5, r=3, s=3),
)


@pytest.mark.parametrize(
    ("source", "text", "printed", "kind"),
    [
        (
            "image",
            "relu(x[n,c,h,w] * scale[c])",
            "image[n, c, h, w] = relu(x[n, c, h, w] * scale[c])",
            "float32",
        ),
        (
            "image[n,c,h,w]",
            "u8(x[n, h, w, c] - zero[])",
            "image[n, c, h, w] = u8(x[n, h, w, c] - zero[])",
            "uint8",
        ),
        # The first tensor with a name for each dimension, not the first tensor.
        (
            "weight",
            "s8(scale[a] * w[a, b, r, s])",
            "weight[a, b, r, s] = s8(scale[a] * w[a, b, r, s])",
            "int8",
        ),
        (
            "image",
            "relu(image[n,c,h,w]) + x[c*5 + h]",
            "image[n, c, h, w] = relu(image[n, c, h, w]) + x[c*5 + h]",
            "float32",
        ),
    ],
)
def test_text(source: str, text: str, printed: str, kind: str) -> None:
    op = CONV.with_prologue(source, text)
    (prologue,) = op.prologues
    assert str(prologue) == printed
    assert printed in str(op)
    (value,) = {x.tensor for x in op.sources if x.tensor.name == prologue.tensor}
    assert value.dtype == prologue.dtype == kind
    # What is printed is read again as the same, and is what records hold.
    assert CONV.with_prologue(prologue.head, prologue.text) == op
    assert operator_from(operator_values(op)) == op
    assert (op.access_matrix == CONV.access_matrix).all()


def test_inputs_stand_in_place_of_the_source() -> None:
    op = CONV.with_prologue(
        "image[n,c,h,w]", "u8(x[n,h,w,c] * scale[c])", dict(x="s16"), dict(scale=(6,))
    )
    assert [(t.name, t.shape, t.dtype) for t in op.inputs] == [
        ("x", (1, 5, 5, 4), "int16"),
        ("scale", (6,), "float32"),
        ("weight", (8, 4, 3, 3), None),
    ]
    # One tensor may be read before and behind a sum.
    op = op.with_dtypes(dict(out="int32")).with_epilogue("acc * scale[k*0 + 1]", {}, {"scale": [6]})
    assert [t.name for t in op.inputs] == ["x", "scale", "weight"]


def test_own_name_keeps_the_dtype_of_the_statement() -> None:
    op = CONV.with_dtypes(dict(image="uint8")).with_prologue("image", "max(image[n,c,h,w], 7)")
    assert op.inputs[0].dtype == "uint8"
    assert op.prologues[0].dtype == "uint8"


def test_renamed() -> None:
    op = CONV.with_prologue("image", "x[n,c,h,w] * scale[c]")
    names = op.rename(lambda name: f"{name}.1", lambda name: f"{name}.2")
    assert [t.name for t in names.inputs] == ["x.1", "scale.1", "weight.1"]
    assert names.prologues[0].tensor == "image.1"
    # Names that no text can spell are aliases in a record.
    assert operator_from(operator_values(names)) == names


@pytest.mark.parametrize(
    ("source", "text", "message"),
    [
        ("images", "x[n]", "prologue of 'images': it is not a source; sources are image, weight"),
        ("out", "x[n]", "it is not a source; sources are image, weight"),
        ("image", "x[n,c,h,w] + y[k]", "'y' is indexed by 'k', which is no dimension of image"),
        ("image", "x[n,c,h+w]", "no tensor of 'x[n,c,h+w]' has 4 plain names as indices"),
        ("image[n,c,h,w]", "x[n,c,h+w]", "index h + w of 'x' is the same for different elements"),
        ("image[n,c,h]", "x[n,c,h]", "3 dimensions are named, 'image' has 4"),
        ("image[n,c,h,h]", "x[n,c,h,h]", "expected a source with a name for each dimension"),
        ("image[n,c,h,2*w]", "x[n,c,h,w]", "expected a source with a name for each dimension"),
        ("image[n,c,h,w]", "3", "expected an expression of a tensor, got none in it"),
        ("image", "acc + x[n,c,h,w]", "acc is what a sum has accumulated"),
        ("image", "sum(x[n,c,h,w])", "functions of one element are"),
        ("image", "x[n,c,h,w] * out[n,c,h,w]", "'out' is a tensor of the statement already"),
        ("image", "x[n,c,h,w] * weight[n,c,h,w]", "'weight' is a tensor of the statement already"),
        ("weight", "s8(w[k,c,r,s])", None),
        ("image", "x[n,c,h-1,w]", "no tensor of"),
        ("image[n,c,h,w]", "x[n,c,h-1,w]", "index h - 1 of 'x' runs from -1 to 3"),
    ],
)
def test_refusals(source: str, text: str, message: str | None) -> None:
    if message is None:
        once = CONV.with_prologue(source, text)
        with pytest.raises(AmosError, match="'weight' has a prologue already"):
            once.with_prologue(source, text)
        return
    with pytest.raises(AmosError, match=re.escape(message)) as caught:
        CONV.with_prologue(source, text)
    assert len(str(caught.value).splitlines()[0]) < 250


def test_dtypes_and_shapes_that_do_not_fit() -> None:
    with pytest.raises(
        AmosError, match="index c of 'scale' runs from 0 to 3, outside dimension 0 of size 2"
    ):
        CONV.with_prologue("image", "x[n,c,h,w] * scale[c]", {}, {"scale": (2,)})
    with pytest.raises(AmosError, match="dtype given for 'y', which the prologue does not read"):
        CONV.with_prologue("image", "x[n,c,h,w]", {"y": "s8"})
    with pytest.raises(AmosError, match="prologue tensor 'x': expected int32"):
        CONV.with_prologue("image", "x[n,c,h,w]", {"x": "f64"})
    signed = CONV.with_dtypes(dict(image="int8"))
    with pytest.raises(AmosError, match="it gives uint8, but the statement has it as int8"):
        signed.with_prologue("image", "u8(x[n,c,h,w])")
    with pytest.raises(AmosError, match="expected a source of .*, got float64"):
        CONV.with_dtypes(dict(image="f64")).with_prologue("image[n,c,h,w]", "x[n,c,h,w]")
    padded = Operator.parse("o[i] += pad(a[i+j], 300) * b[j]", dict(i=4, j=3))
    with pytest.raises(AmosError, match="padding of 'a': 300 is no value of uint8"):
        padded.with_prologue("a", "u8(x[i])")
    twice = CONV.with_prologue("image", "x[n,c,h,w] * s[c]")
    with pytest.raises(AmosError, match="tensor 's' is read with two shapes or dtypes"):
        twice.with_prologue("weight", "w[k,c,r,s] * s[k]")


@pytest.mark.parametrize("shape", ["44", 4, (4.5,), (0,)])
def test_what_is_no_shape_is_refused(shape: object) -> None:
    op = Operator.parse("out[i,j] += a[i,k] * w[k,j]", dict(i=4, j=4, k=4))
    with pytest.raises(AmosError, match="shape of 's'"):
        op.with_epilogue("acc + s[i]", shapes={"s": shape})  # type: ignore[dict-item]
