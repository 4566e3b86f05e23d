"""The operator language: what is read, and what is refused with which words."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amos.errors import AmosError, OperatorError, ParseError
from amos.ir import Affine, Operator
from amos.ir.grammar import Reference
from amos.ir.parser import parse_statement


def indices(text: str) -> list[str]:
    """Indices of the only source, as they print; every iteration has extent 4."""
    names = sorted({c for c in text if c.isalpha()})
    statement = f"o[{','.join(names)}] += a[{text}]"
    compute = parse_statement(statement, dict.fromkeys(names, 4), {})
    return [str(index) for index in compute.sources[0].indices]


def test_convolution() -> None:
    extents = {"n": 1, "k": 64, "p": 28, "q": 28, "c": 64, "r": 3, "s": 3}
    op = Operator.parse(
        "out[n,k,p,q] += image[n,c,p*2+r,q*2+s] * weight[k,c,r,s]",
        extents,
        {"image": "u8", "weight": "int8", "out": "s32"},
    )
    assert op.name == "out"
    assert op.extents == extents
    assert [it.name for it in op.reduce] == ["c", "r", "s"]
    assert [t.tensor.shape for t in op.operands] == [
        (1, 64, 57, 57),
        (64, 64, 3, 3),
        (1, 64, 28, 28),
    ]
    assert [t.tensor.dtype for t in op.operands] == ["uint8", "int8", "int32"]


def test_loop_order_is_output_then_first_appearance() -> None:
    extents = dict.fromkeys("abcde", 2)
    op = Operator.parse("o[b,a] += x[e,a,d] * y[c,d,b]", extents, {}, "named")
    assert "".join(it.name for it in op.iterations) == "baedc"
    assert op.name == "named"


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("p*2 + r", ["p*2 + r"]),
        ("2*p", ["p*2"]),
        ("-p + 3", ["-p + 3"]),
        ("3 - p", ["-p + 3"]),
        ("--p", ["p"]),
        ("2*(p + 1)*3 - 6", ["p*6"]),
        ("(p + 1)*2", ["p*2 + 2"]),
        ("((p))", ["p"]),
        ("p - 2*-q", ["p + q*2"]),
        ("p, 3, q", ["p", "3", "q"]),
        ("p + q - p + p", ["q + p"]),
        (" p\n\t,q ", ["p", "q"]),
        ("p, p", ["p", "p"]),
    ],
)
def test_affine_indices(text: str, printed: list[str]) -> None:
    assert indices(text) == printed


def test_scalars_constants_and_a_tensor_named_pad() -> None:
    axpy = parse_statement("Dst[i1] += Src1[] * Src2[i1]", {"i1": 4}, {})
    assert axpy.sources[0].tensor.shape == ()
    assert str(Operator.parse("o[] += a[k]", {"k": 3}, {}).compute) == "o[] += a[k]"
    op = Operator.parse("o[i,0] += a[i,0] * a[i,3]", {"i": 3}, {})
    assert [t.tensor.shape for t in op.operands] == [(3, 4), (3, 4), (3, 1)]
    assert Operator.parse("o[i] = pad[i]", {"i": 3}, {}).sources[0].padded is False


def test_padding_is_symmetric_unless_the_shape_is_given() -> None:
    text, extents = "o[p] += pad(a[p*2 + r - 1]) * w[r]", {"p": 28, "r": 3}
    # Indices -1 … 55; as much padding after the data as before it.
    assert Operator.parse(text, extents, {}).inputs[0].shape == (55,)
    assert Operator.parse(text, extents, {}, None, {"a": (56,)}).inputs[0].shape == (56,)
    assert Operator.parse("o[p] += pad(a[p - 9])", {"p": 2}, {}).inputs[0].shape == (1,)
    assert Operator.parse("o[p] += pad(a[p + 1])", {"p": 2}, {}).inputs[0].shape == (3,)


PARSE_ERRORS = [
    ("", 0, "the text is empty"),
    (" \n ", 0, "the text is empty"),
    ("o[i", 1, "'[' is never closed"),
    ("o[i += a[i]", 1, "'[' is never closed"),
    ("o[i] += a[i]]", 12, "']' closes nothing"),
    ("o[i] += a[i)", 11, "expected ']' to close '['"),
    ("o[i] += a[(i]", 12, "expected ')' to close '('"),
    ("o[i] += a[i] $", 13, "unexpected character '$'"),
    ("o[i]\t+=\ta[i] @", 13, "unexpected character '@'"),
    ("o[i] += a[1.5]", 10, "expected an index (an iteration or an integer), found '1.5'"),
    ("o[i] += a[i:2]", 11, "unexpected character ':'"),
    ("o[ï] += a[i]", 2, "unexpected character 'ï'"),
    ("o[i]", 4, "expected '+=' or '='"),
    ("o[i] a[i]", 5, "expected '+=' or '=' after the output, found 'a'"),
    ("o[i] -= a[i]", 5, "unknown combining operator '-=': expected '*=', '+=', 'max=', 'min='"),
    ("o[i] avg= a[i]", 5, "unknown combining operator 'avg='"),
    ("o[i] = a[i] + b[i]*c[i]", 18, "'*' beside '+': all sources of a statement are joined by one"),
    ("o[i] = a[i] + b[i] - c[i]", 19, "'-' beside '+'"),
    ("o[i] = max(a[i])", 16, "max(...) of one source"),
    ("o[i] = max(a[i], 0)", 17, "a constant is not supported"),
    ("o[i] max= pad(a[i], -nan)", 21, "expected a number"),
    ("o[i] == a[i]", 6, "expected a source"),
    ("o[i] +=", 7, "expected a source"),
    ("o[i] += a[i] *", 14, "expected a source"),
    ("[i] += a[i]", 0, "expected the output"),
    ("3 += a[i]", 0, "expected the output"),
    ("o[i] += a[i*j]", 11, "not affine: product of i and j"),
    ("o[i] += a[(i+1)*(2*j)]", 15, "not affine: product of i + 1 and j*2"),
    ("o[i] += a[b[i]]", 10, "data-dependent index: 'b'"),
    ("o[i] += a[f(i)]", 10, "not affine: call of 'f'"),
    ("o[i] += a[i/2]", 11, "not affine: division (/)"),
    ("o[i] += a[i//2]", 11, "not affine: division (//)"),
    ("o[i] += a[i%2]", 11, "not affine: modulo (%)"),
    ("o[i] += a[(i%2)*3]", 12, "not affine: '%'"),
    ("o[i] += a[2i]", 11, "expected '*' between 2 and i"),
    ("o[i] += a[i j]", 12, "expected ',' or ']' in the indices of 'a'"),
    ("o[i] += a[i,]", 12, "expected an index"),
    ("o[i] += a[+i]", 10, "expected an index"),
    ("o[i] += a[()]", 11, "expected an index"),
    ("o[i] += a[(i,j)]", 12, "expected ')'"),
    ("o[i] += a[i][j]", 12, "write a[i, j]"),
    ("o[i] += a[i]*b[i] + c[i]", 18, "a sum of products is not supported"),
    ("o[i] += a[i] / b[i]", 13, "'/' between sources"),
    ("o[i] = a[i] = b[i]", 12, "a second assignment"),
    ("o[i] += a[i] b[i]", 13, "unexpected 'b' after the statement"),
    ("o[i] += 2 * a[i]", 8, "a constant is not supported"),
    ("o[i] += -a[i]", 8, "a negated source is not supported"),
    ("o[i] += (a[i] * b[i])", 8, "parentheses around sources"),
    ("o[i] += a", 8, "write a[i] for a tensor or a[] for a scalar"),
    ("o[i] += relu(a[i])", 8, "unknown function 'relu'"),
    ("pad(o[i]) += a[i]", 0, "only a source can be padded"),
    ("o[i] += pad(pad(a[i]))", 12, "pads twice"),
    ("o[i] += pad(a[i] * b[i])", 17, "expected ')' after the access"),
    ("o[i] += a[" + "(" * 99 + "i" + ")" * 99 + "]", 74, "nested deeper than 64"),
    ("o[i] += a[" + "9" * 5000 + "]", 10, "5000 digits is too large"),
]


@pytest.mark.parametrize(("text", "column", "message"), PARSE_ERRORS)
def test_parse_errors_mark_their_column(text: str, column: int, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        Operator.parse(text, {"i": 4, "j": 4}, {})
    first, *lines = str(caught.value).split("\n")
    assert message in first
    assert caught.value.column == column
    assert len(lines) == (2 if text else 0)
    if lines and len(text) <= 160:
        assert lines == [re.sub(r"\s", " ", text), " " * column + "^"]


def test_of_a_long_text_what_is_around_the_caret_is_shown() -> None:
    text = "o[i] += " + "".join(f"a{number}[i] * " for number in range(900)) + "!"
    with pytest.raises(ParseError) as caught:
        Operator.parse(text, {"i": 4}, {})
    _, line, caret = str(caught.value).split("\n")
    assert len(line) < 170
    assert (line[0], line[caret.index("^")], line[-8:]) == ("…", "!", "9[i] * !")
    with pytest.raises(ParseError) as caught:
        Operator.parse(text[:-1].replace("a4[i]", "a4[/]"), {"i": 4}, {})
    _, line, caret = str(caught.value).split("\n")
    assert (line[:5], line[caret.index("^")], line[-1]) == ("o[i] ", "/", "…")


@pytest.mark.parametrize("text", [None, 3, b"o[i] += a[i]"])
def test_what_is_no_text(text: object) -> None:
    with pytest.raises(ParseError, match="expected a text"):
        Operator.parse(text, {}, {})  # type: ignore[arg-type]


def test_many_signs_do_not_exhaust_the_stack() -> None:
    assert indices("-" * 5000 + "p") == ["p"]


EXTENT_ERRORS = [
    ({}, "no extent given for i, k; given are none"),
    ({"i": 3}, "no extent given for k; given are i"),
    (
        {"i": 3, "k": 2, "kk": 2},
        "'kk', which indexes nothing; iterations are i, k; did you mean 'k'",
    ),
    ({"i": 0, "k": 2}, "extent of iteration 'i': expected a positive integer, got 0"),
    ({"i": 3, "k": -2}, "extent of iteration 'k': expected a positive integer, got -2"),
    ({"i": 3.0, "k": 2}, "extent of iteration 'i': expected a positive integer, got 3.0"),
    ({"i": "3", "k": 2}, "extent of iteration 'i': expected a positive integer, got '3'"),
    ({"i": True, "k": 2}, "extent of iteration 'i': expected a positive integer, got True"),
]


@pytest.mark.parametrize(("extents", "message"), EXTENT_ERRORS)
def test_wrong_extents(extents: dict[str, int], message: str) -> None:
    with pytest.raises(OperatorError) as caught:
        Operator.parse("o[i] += a[i,k]", extents, {})
    assert message in str(caught.value)


def test_numpy_integers_are_integers() -> None:
    op = Operator.parse("o[i] = a[i]", {"i": np.int64(3)}, {}, None, {"a": (np.int32(5),)})  # type: ignore[dict-item]
    assert type(op.iterations[0].extent) is int
    assert type(op.inputs[0].shape[0]) is int


def test_iterations_that_cancel() -> None:
    with pytest.raises(OperatorError, match="iteration p cancels out"):
        Operator.parse("o[i] += a[i + p - p]", {"i": 3, "p": 3}, {})
    with pytest.raises(OperatorError, match="iteration p cancels out"):
        Operator.parse("o[i] += a[i + 0*p]", {"i": 3}, {})


TENSOR_ERRORS = [
    ({"b": "f16"}, {}, "dtype given for 'b', which does not occur; tensors are o, a"),
    ({"a": "f17"}, {}, "unknown dtype 'f17'"),
    ({"a": 16}, {}, "unknown dtype 16"),
    ({}, {"aa": (3,)}, "shape given for 'aa', which does not occur; tensors are o, a; did you"),
    ({}, {"a": (3, 4)}, "a[i] has 1 indices, but the shape is (3, 4)"),
    ({}, {"a": 3}, "expected a tuple, got 3"),
    ({}, {"a": "3"}, "expected a tuple, got '3'"),
    ({}, {"a": (0,)}, "shape of tensor 'a': expected a positive integer, got 0"),
    ({}, {"a": (2.0,)}, "shape of tensor 'a': expected a positive integer, got 2.0"),
    ({}, {"a": (2,)}, "outside dimension 0 of size 2"),
]


@pytest.mark.parametrize(("dtypes", "shapes", "message"), TENSOR_ERRORS)
def test_wrong_dtypes_and_shapes(
    dtypes: dict[str, str], shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(OperatorError) as caught:
        Operator.parse("o[i] += a[i]", {"i": 3}, dtypes, None, shapes)
    assert message in str(caught.value)


def test_a_tensor_has_one_rank_and_its_largest_shape() -> None:
    op = Operator.parse("o[i,j] = a[i,2] * a[1,j]", {"i": 4, "j": 5}, {})
    assert op.inputs[0].shape == (4, 5)
    with pytest.raises(OperatorError, match="'a' is accessed with 1 and 2 indices"):
        Operator.parse("o[i] = a[i] * a[i,i]", {"i": 4}, {})


NAMES = ("i", "j", "k", "r_1", "C")
affine = st.builds(
    Affine.of,
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(-3, 3)), max_size=3),
    st.integers(-4, 9),
)
sources = st.lists(
    st.builds(
        Reference,
        st.sampled_from(("a", "b", "pad", "weight")),
        st.lists(affine, max_size=3).map(tuple),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda reference: reference.name,
)


@given(sources, st.lists(st.sampled_from(NAMES), unique=True), st.integers(1, 4))
def test_printed_operators_read_back_the_same(
    factors: list[Reference], spatial: list[str], extent: int
) -> None:
    out = Reference("out", tuple(Affine(((name, 1),)) for name in spatial))
    text = f"{out} += {' * '.join(map(str, factors))}"
    used = {n for ref in (out, *factors) for index in ref.indices for n in index.names}
    extents = {name: extent + i for i, name in enumerate(sorted(used))}
    compute = parse_statement(text, extents, {"out": "f32"})
    shapes = {load.tensor.name: load.tensor.shape for load in compute.operands}
    assert parse_statement(str(compute), extents, {"out": "f32"}, shapes) == compute
    assert parse_statement(str(compute), extents, {"out": "f32"}) == compute


@given(st.text(alphabet="oaik[]()+-*=,/% 0123pd", max_size=30))
def test_no_text_escapes_the_error_types(text: str) -> None:
    try:
        op = Operator.parse(text, {"i": 2, "k": 2})
    except AmosError:
        return
    assert Operator.parse(str(op.compute), op.extents).compute.dst == op.compute.dst
