"""``pad(image[…], 128)``: read, written, checked against the dtype, and computed."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

import amos
from amos.errors import AmosError, MappingError, OperatorError, ParseError
from amos.ir import Operator
from amos.records.canonical import operator_from, operator_values
from amos.validate import evaluate, execute_matching, random_inputs
from amos.viz.latex import compute_latex

#: Text, extents, dtypes and an instruction: both sources padded, each by its own value.
SPACES = {
    "u8 x s8": (
        "out[k,p,q] += pad(image[c,p*2+r-1,q+s-1], 128) * weight[k,c,r,s]",
        dict(k=3, p=2, q=3, c=2, r=3, s=2),
        ("u8", "s8", "s32"),
        "vnni_dpbusd_m16k4_u8_s8_s32",
    ),
    "f32": (
        "out[k,p] += pad(image[c,p+r-1], 0.5) * weight[k,c,r]",
        dict(k=3, p=4, c=2, r=3),
        ("f32", "f32", "f32"),
        "avx512_fmadd_m16_f32_f32",
    ),
    "s8": (
        "out[k,p,q] += pad(image[c,p+r-1,q+s-1], -5) * pad(weight[k,c+1,r-1,s], 7)",
        dict(k=2, p=2, q=3, c=2, r=3, s=2),
        ("s8", "s8", "s32"),
        "wmma_m16n16k16_s8_s32",
    ),
}


def operator(name: str) -> Operator:
    text, extents, kinds, _ = SPACES[name]
    return Operator.parse(text, extents, dict(zip(("image", "weight", "out"), kinds, strict=True)))


def point_by_point(op: Operator, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """The statement at every point, with no array but the inputs."""
    out = np.zeros(op.output.tensor.shape, dtype=np.float64)
    for point in np.ndindex(*op.extents.values()):
        at = dict(zip(op.extents, point, strict=True))
        read = []
        for load in op.sources:
            where = tuple(int(index.evaluate(at)) for index in load.indices)
            in_bounds = all(0 <= n < size for n, size in zip(where, load.tensor.shape, strict=True))
            read.append(float(inputs[load.tensor.name][where]) if in_bounds else load.padding)
        out[tuple(int(index.evaluate(at)) for index in op.output.indices)] += prod(read)
    return out


@pytest.mark.parametrize("name", SPACES)
def test_every_mapping_equals_the_loops(name: str) -> None:
    op, unit = operator(name), amos.intrinsics.get(SPACES[name][-1])
    inputs = random_inputs(op, np.random.default_rng(0))
    expected = point_by_point(op, inputs)
    np.testing.assert_array_equal(evaluate(op, inputs), expected)
    plain = {load.tensor.name: np.zeros_like(inputs[load.tensor.name]) for load in op.sources}
    assert evaluate(op, plain | {"weight": inputs["weight"]}).any()
    space = amos.enumerate_mappings(op, unit, rule="gather", commute=True)
    for mapping in space:
        np.testing.assert_array_equal(amos.simulate(mapping, inputs), expected, mapping.name)
        done = execute_matching(op, unit, mapping.matching, inputs, order=mapping.order)
        np.testing.assert_array_equal(done, expected, mapping.name)


@pytest.mark.parametrize("name", SPACES)
def test_text_records_and_names_keep_it(name: str) -> None:
    op = operator(name)
    text, extents, kinds, _ = SPACES[name]
    written = str(op.compute)
    kinds_by_name = dict(zip(("image", "weight", "out"), kinds, strict=True))
    assert Operator.parse(written, extents, kinds_by_name) == op
    assert operator_from(operator_values(op)) == op
    renamed = op.rename("t_{}".format, "x_{}".format)
    assert [load.padding for load in renamed.sources] == [load.padding for load in op.sources]
    assert f", {op.sources[0].padding})" in written
    assert f", {op.sources[0].padding})" in compute_latex(op.compute)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-0.0", 0),
        ("128.0", 128),
        ("1e2", 100),
        ("- -3", 3),
        (".5", 0.5),
        ("-1e-3", -1e-3),
    ],
)
def test_numbers(text: str, value: float) -> None:
    op = Operator.parse(f"o[i] = pad(a[i-1], {text})", {"i": 3})
    assert op.sources[0].padding == value
    again = Operator.parse(str(op.compute), {"i": 3})
    assert again == op and (value or str(op.compute) == "o[i] = pad(a[i - 1])")


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("u8", "300", "300 is no value of uint8, which are 0 to 255"),
        ("u8", "-1", "-1 is no value of uint8"),
        ("s8", "0.5", "0.5 is no value of int8"),
        ("u7", "128", "128 is no value of uint8 in [0, 127], which"),
        ("f32", "0.1", "0.1 is no value of float32; the nearest is 0.10000000149011612"),
        ("bf16", "257", "257 is no value of bfloat16; the nearest is 256.0"),
        ("f16", "70000", "70000 is no value of float16, which are -65504.0 to 65504.0"),
    ],
)
def test_no_value_of_the_dtype(kind: str, value: str, message: str) -> None:
    text = f"o[i] = pad(a[i-1], {value})"
    with pytest.raises(OperatorError, match=message.replace("[", r"\[")) as caught:
        Operator.parse(text, {"i": 3}, {"a": kind})
    assert "\n" not in str(caught.value)
    open_ = Operator.parse(text, {"i": 3})
    with pytest.raises(OperatorError, match="is no value of"):
        open_.with_dtypes({"a": kind})


@pytest.mark.parametrize("value", ["", "x", "(3)", "1e400", "3, 4", "--"])
def test_no_number(value: str) -> None:
    with pytest.raises(ParseError):
        Operator.parse(f"o[i] = pad(a[i-1], {value})", {"i": 3})


def test_open_dtypes_are_checked_by_what_fills_them_in() -> None:
    text, extents, *_ = SPACES["u8 x s8"]
    op = Operator.parse(text, extents)
    assert len(amos.enumerate_mappings(op, "vnni_dpbusd_m16k4_u8_s8_s32"))
    with pytest.raises(MappingError, match="128 is no value of int8") as caught:
        amos.enumerate_mappings(op, "wmma_m16n16k16_s8_s32")
    assert "\n" not in str(caught.value)
    arrays = {t.name: np.ones(t.shape, np.int8) for t in op.inputs}
    with pytest.raises(OperatorError, match="128 is no value of int8"):
        evaluate(op, arrays)


def test_a_value_without_padding() -> None:
    load = Operator.parse("o[i] = a[i]", {"i": 3}).sources[0]
    with pytest.raises(OperatorError, match="is not padded"):
        replace(load, padding=1)
    wrong: tuple[Any, ...] = (float("nan"), "1", True)
    for value in wrong:
        with pytest.raises(AmosError, match="expected a"):
            replace(load, padded=True, padding=value)
