"""Where results are stored: what the text means, how it prints, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

from amos.errors import AmosError, OperatorError, ParseError
from amos.ir import Digit, Operator
from amos.records.canonical import operator_from, operator_values
from amos.validate import evaluate, random_inputs

OP = Operator.parse(
    "out[n,p,k] += a[n,p+r,c] * weight[k,r,c]",
    extents=dict(n=2, p=12, k=8, r=3, c=4),
    dtypes=dict(a="uint8", weight="int8", out="int32"),
)


@pytest.mark.parametrize(
    ("text", "printed", "shape"),
    [
        ("y[n,p,k]", "y[n, p, k]", (2, 12, 8)),
        ("y[k, 2*p+1+n*24]", "y[k, p*2 + n*24 + 1]", (8, 48)),
        ("y[n, k + 8*p]", "y[n, k + p*8]", (2, 96)),
        ("y[p//4, n, p%4*8 + k]", "y[p//4, n, p%4*8 + k]", (3, 2, 32)),
        ("y[(p//2%3), p%2, n*2 + p//6, k]", "y[p//2%3, p%2, n*2 + p//6, k]", (3, 2, 4, 8)),
        ("y[p//5*5 + p%5, n, k]", "y[p//5*5 + p%5, n, k]", (15, 2, 8)),
        ("y[p//1, p%2 - p%2, n, 7 - k]", "y[p, 0, n, -k + 7]", (12, 1, 2, 8)),
        ("out[n, p%12, k]", "out[n, p%12, k]", (2, 12, 8)),
        ("y[p, n, p, k]", "y[p, n, p, k]", (12, 2, 12, 8)),
        ("y[p + k, n + k, k]", "y[p + k, n + k, k]", (19, 9, 8)),
        ("y[n, p%4, p//2, k, p]", "y[n, p%4, p//2, k, p]", (2, 4, 6, 8, 12)),
    ],
)
def test_text(text: str, printed: str, shape: tuple[int, ...]) -> None:
    op = OP.with_output(text)
    assert (str(op.store), op.result.shape, op.result.dtype) == (printed, shape, "int32")
    assert str(op).endswith(f"  to {printed}")
    assert OP.with_output(printed) == op
    assert operator_from(operator_values(op)) == op


@pytest.mark.parametrize(
    "text",
    [
        "y[p//2%3, p%2, n*2 + p//6, k]",
        "y[p, p, n + k*2]",
        "y[n + p, p + k, k]",
        "y[p%4, k, n, p//2]",
    ],
)
def test_every_point_has_an_element_of_its_own(text: str) -> None:
    op = OP.with_output(text)
    inputs = random_inputs(op, np.random.default_rng(0))
    plain, got = evaluate(OP, inputs), evaluate(op, inputs)
    at = {(n, p, k): tuple(op.stored.at({"n": n, "p": p, "k": k})) for n in range(2)
          for p in range(12) for k in range(8)}  # fmt: skip
    assert len({*at.values()}) == 2 * 12 * 8
    expected = np.zeros_like(got)
    for point, where in at.items():
        expected[where] = plain[point]
    np.testing.assert_array_equal(got, expected)


def test_digits() -> None:
    store = OP.with_output("y[p//2%3, p%2, n*2 + p//6, k]").stored
    assert store.at({"n": 1, "p": 11, "k": 3}) == [2, 1, 3, 3]
    assert store.names == {"n", "p", "k"}
    assert store.digits == (Digit("p", 2, 3), Digit("p", 1, 2), Digit("p", 6))


def test_a_larger_tensor() -> None:
    op = OP.with_output("y[n, p, k + 8]", {"y": (2, 12, 20)}).with_epilogue("f32(acc)")
    assert (op.result.shape, op.result.dtype, op.whole) == ((2, 12, 20), "float32", False)
    assert OP.whole and OP.with_output("y[p, n, k]").whole
    assert operator_from(operator_values(op)) == op


def test_other_names() -> None:
    op = OP.with_output("y[p//4, n, p%4*8 + k]").rename(lambda t: f"t_{t}", lambda i: f"x_{i}")
    assert str(op.store) == "t_y[x_p//4, x_n, x_p%4*8 + x_k]"
    strange = OP.with_output("y[p//4, n, p%4*8 + k]").rename(lambda t: t + ".1", lambda i: i + "!")
    assert operator_from(operator_values(strange)) == strange


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("y[n, p]", OperatorError, "'k' does not index it, so that 8 results would be stored"),
        ("y[n, p//2, k]", OperatorError, "p//2 do not tell each of 12 steps of 'p'"),
        ("y[n, p//4, p%2, k]", OperatorError, "p//4 and p%2 do not tell each of 12 steps"),
        ("y[n, p%4, p//6, k]", OperatorError, "p%4 and p//6 do not tell each of 12 steps"),
        ("y[n, p*7 + k]", OperatorError, "the coefficient 7 of p must exceed 7"),
        ("y[n, p*8 + k*3]", OperatorError, "coefficient 8 of p must exceed 21"),
        ("y[n, p + k, p + k]", OperatorError, "index p + k the coefficient 1 of k must exceed 11"),
        ("y[n, p, k - 1]", OperatorError, "index k - 1 of 'y' runs from -1 to 6"),
        ("y[n, p, k*2]", OperatorError, "outside dimension 2 of size 8"),
        ("a[n, p, k]", OperatorError, "'a' is a tensor that the operator reads"),
        ("y[n, p, r]", ParseError, "'r', which is no iteration of the output"),
        ("y[n, p/2, k]", ParseError, "division"),
        ("y[n, p%0, k]", ParseError, "expected a positive integer"),
        ("y[n, p*k, k]", ParseError, "not affine"),
        ("y[n, (n + p)//2, k]", ParseError, "not affine"),
        ("y[n, p]", ParseError, "shape of tensor 'y' has 3 sizes for 2 indices"),
        ("y", ParseError, "expected '['"),
        ("y[n, p, k] + 1", ParseError, "expected the end of the text"),
        ("", ParseError, "expected where results are stored"),
    ],
)
def test_refused(text: str, error: type[AmosError], says: str) -> None:
    shapes = {"y": (2, 12, 8)} if "shape" in says or "size 8" in says else {}
    with pytest.raises(error, match=re.escape(says)) as caught:
        OP.with_output(text, shapes)
    assert len(str(caught.value).splitlines()) <= 3


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"z": (1, 2)}, "shape given for 'z', which is not stored to"),
        ({"y": "2x3"}, "shape of tensor 'y': expected a tuple, got '2x3'"),
        ({"y": (2, 12, 0)}, "expected a positive integer"),
        ({"y": (2, 12, 2**60)}, "at most 2**56 elements"),
    ],
)
def test_shapes(shapes: dict[str, object], says: str) -> None:
    with pytest.raises(OperatorError, match=re.escape(says)):
        OP.with_output("y[n, p, k]", shapes)  # type: ignore[arg-type]
