"""Layer tables and the way from a user's word to an operator."""

from __future__ import annotations

import pytest

from amos import operators
from amos.errors import OperatorError, ParseError, UnknownNameError


def test_resnet18_is_table_5() -> None:
    names = operators.layers("resnet18")
    assert names == tuple(f"resnet18:C{i}" for i in range(12))
    rows = []
    for name in names:
        op = operators.layer(name, n=16)
        extents = op.extents
        stride = op.sources[0].indices[1].coefficient("p")
        rows.append((*(extents[x] for x in "nckpqrs"), stride))
    assert rows == [
        (16, 3, 64, 112, 112, 7, 7, 2),
        (16, 64, 64, 56, 56, 3, 3, 1),
        (16, 64, 64, 56, 56, 1, 1, 1),
        (16, 64, 128, 28, 28, 3, 3, 2),
        (16, 64, 128, 28, 28, 1, 1, 2),
        (16, 128, 128, 28, 28, 3, 3, 1),
        (16, 128, 256, 14, 14, 3, 3, 2),
        (16, 128, 256, 14, 14, 1, 1, 2),
        (16, 256, 256, 14, 14, 3, 3, 1),
        (16, 256, 512, 7, 7, 3, 3, 2),
        (16, 256, 512, 7, 7, 1, 1, 2),
        (16, 512, 512, 7, 7, 3, 3, 1),
    ]


def test_strided_layers_keep_the_networks_image() -> None:
    heights = [operators.layer(name).inputs[0].shape[1] for name in operators.layers("resnet18")]
    assert heights == [224, 56, 56, 56, 56, 28, 28, 28, 14, 14, 14, 7]


def test_layer_defaults_and_changes() -> None:
    op = operators.layer("resnet18:C5", dtype="u8s8")
    assert op.name == "resnet18:C5"
    assert str(op) == (
        "out[n, p, q, k] += pad(image[n, p + r - 1, q + s - 1, c]) * weight[k, c, r, s]"
        "  with n=1, p=28, q=28, k=128, r=3, s=3, c=128  (image: u8, weight: s8, out: s32)"
    )
    assert operators.layer("resnet18:C3", layout="NCHW").inputs[0].shape == (1, 64, 56, 56)
    # A smaller output asks for another image; the other dimension keeps its own.
    assert operators.layer("resnet18:C3", p=4).inputs[0].shape == (1, 7, 56, 64)
    assert operators.layer("resnet18:C3", p=28).inputs[0].shape == (1, 56, 56, 64)


def test_heron_is_table_9() -> None:
    assert len(operators.layers("heron")) == 10
    assert operators.layer("heron:G3").extents == {"m": 32, "n": 1000, "k": 2048}
    assert operators.layer("heron:C2").extents["p"] == 30
    assert operators.layer("heron:C3").inputs[0].shape == (16, 14, 14, 1024)


def test_every_layer_builds() -> None:
    assert [operators.layer(name).name for name in operators.layers()] == list(operators.layers())


def test_unknown_layers_and_tables() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'resnet18:C"):
        operators.layer("resnet18:C12")
    with pytest.raises(UnknownNameError, match="unknown layer table 'resnet'"):
        operators.layers("resnet")
    with pytest.raises(OperatorError, match="has no parameter 'foo'"):
        operators.layer("resnet18:C1", foo=1)
    with pytest.raises(OperatorError, match="has no parameter 'layout'"):
        operators.layer("heron:G1", layout="NHWC")


def test_resolve_finds_names_codes_layers_and_math() -> None:
    assert operators.resolve("conv2d") == operators.conv2d()
    assert operators.resolve(" C2D ", {"n": 4}) == operators.conv2d(n=4)
    assert operators.resolve("resnet18:C5", {"n": 4}, "u8s8") == operators.layer(
        "resnet18:C5", "u8s8", n=4
    )
    assert operators.resolve("conv2d", layout="NHWC") == operators.conv2d(layout="NHWC")
    math = operators.resolve("o[i] += a[i,k] * x[k]", {"i": 2, "k": 3}, "u8, s8, s32", {"x": "u8"})
    assert [load.tensor.dtype for load in math.operands] == ["uint8", "uint8", "int32"]


def test_resolve_replaces_dtypes_and_shapes_of_named_operators() -> None:
    op = operators.resolve("gemm", dtype="f16", dtypes={"out": "f16"})
    assert [load.tensor.dtype for load in op.operands] == ["float16"] * 3
    op = operators.resolve("gemm", {"m": 4, "n": 4, "k": 4}, shapes={"a": (8, 8)})
    assert op.inputs[0].shape == (8, 8)
    assert op.name == "gemm"


def test_resolve_refuses() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'resnet18:C"):
        operators.resolve("resnet18C5")
    with pytest.raises(UnknownNameError, match="unknown operator ''"):
        operators.resolve("")
    with pytest.raises(ParseError):
        operators.resolve("o[i")
    with pytest.raises(OperatorError, match="expected an operator's name or its math, got None"):
        operators.resolve(None)  # type: ignore[arg-type]
    with pytest.raises(OperatorError, match="parameter 'n' of operator 'conv2d': expected"):
        operators.resolve("resnet18:C5", {"n": 0})
    with pytest.raises(OperatorError, match="no extent given for i; given are none"):
        operators.resolve("o[i] += a[i]")
    with pytest.raises(OperatorError, match="does not apply to math"):
        operators.resolve("o[i] += a[i]", {"i": 3}, layout="NHWC")
    with pytest.raises(OperatorError, match="has no layout"):
        operators.resolve("gemm", layout="NHWC")
    with pytest.raises(OperatorError, match="dtype given for 'z'"):
        operators.resolve("gemm", dtypes={"z": "f16"})
    with pytest.raises(OperatorError, match="expected 3"):
        operators.resolve("gemm", dtype="f16,f16")
