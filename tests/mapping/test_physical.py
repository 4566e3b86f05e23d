"""Figure 3 and Table 5, and the numbers of a physical mapping."""

from __future__ import annotations

import sys
from itertools import product
from subprocess import run

import numpy as np
import pytest
import sympy

from amos import intrinsics
from amos.intrinsics.virtual import unit
from amos.ir import Operator
from amos.mapping import Mapping, enumerate_mappings

TEXT = "out[n,k,p,q] += image[n,c,p+r,q+s] * weight[k,c,r,s]"
WMMA = intrinsics.get("wmma_m16n16k16_f16_f32")
SMALL = unit(
    "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]", dict(i1=2, i2=2, r1=2), name="matmul_m2n2k2"
)
FIGURE_3 = Operator.parse(TEXT, dict(n=1, k=4, p=2, q=2, c=1, r=3, s=3), name="conv2d")


@pytest.fixture(scope="module")
def figure_3() -> Mapping:
    return enumerate_mappings(FIGURE_3, SMALL)[0]


def test_physical_compute(figure_3: Mapping) -> None:
    assert {t: str(e) for t, e in figure_3.physical().compute.items()} == {
        "i1": "Mod(4*n + 2*p + q, 2)",
        "i2": "Mod(k, 2)",
        "r1": "Mod(9*c + 3*r + s, 2)",
    }


def test_physical_memory(figure_3: Mapping) -> None:
    memory = figure_3.physical().memory
    address, strides = memory["Src1"]
    expected = sympy.sympify("floor((n*4 + p*2 + q)/2)*20 + floor((c*9 + r*3 + s)/2)*4")
    assert address == expected
    assert strides == (2, 1)
    assert memory["Src2"][0] == sympy.sympify("floor((c*9 + r*3 + s)/2)*8 + floor(k/2)*4")
    assert memory["Dst"][0] == sympy.sympify("floor((n*4 + p*2 + q)/2)*8 + floor(k/2)*4")


def test_physical_numbers(figure_3: Mapping) -> None:
    physical = figure_3.physical()
    assert physical.calls == 2 * 2 * 5
    assert physical.padded == {"i1": 4, "i2": 4, "r1": 10}
    assert physical.utilization == pytest.approx(9 / 10)
    assert physical.fragments == {"Src1": 4, "Src2": 4, "Dst": 4}
    assert physical.staging == {"Src1": 40, "Src2": 40, "Dst": 16}


def test_virtual(figure_3: Mapping) -> None:
    virtual = figure_3.virtual()
    assert str(virtual.compute["r1"]) == "9*c + 3*r + s"
    assert virtual.memory == {"Src1": (0, (9, 1)), "Src2": (0, (4, 1)), "Dst": (0, (4, 1))}


def test_text_is_that_of_table_5(figure_3: Mapping) -> None:
    assert str(figure_3) == (
        "[i1, i2, r1] ← [(n*4 + p*2 + q) mod 2, k mod 2, (c*9 + r*3 + s) mod 2]"
    )
    vector = Operator.parse("y[m] += a[m,k] * x[k]", dict(m=4, k=4))
    assert str(enumerate_mappings(vector, WMMA)[0]) == "[i1, i2, r1] ← [m mod 16, 0, k mod 16]"


def test_latex_and_print(figure_3: Mapping) -> None:
    latex = figure_3.physical().latex()
    assert latex.startswith("\\begin{aligned}")
    assert r"i_{1} &\leftarrow" in latex
    assert r"\mathrm{Src1}" in latex
    assert str(figure_3.physical()).splitlines()[0] == "i1 = Mod(4*n + 2*p + q, 2)"


def test_matching_is_read_only_and_that_of_figure_4(figure_3: Mapping) -> None:
    assert figure_3.matching.astype(int).tolist() == [
        [1, 0, 1, 1, 0, 0, 0],
        [0, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 1],
    ]
    with pytest.raises(ValueError, match="read-only"):
        figure_3.matching[0, 0] = False


def test_outer_iterations_come_first_in_a_staged_operand() -> None:
    op = Operator.parse(TEXT, dict(n=2, k=5, p=3, q=4, c=3, r=2, s=2))
    mapping = next(m for m in enumerate_mappings(op, SMALL) if m.name == "pq-k-c")
    assert mapping.outer == ("n", "r", "s")
    physical = mapping.physical()
    fragments = 6 * 2  # of 12 rows and 3 columns, in fragments of 2 × 2
    assert physical.memory["Src1"][0] == sympy.sympify(
        f"n*{4 * fragments * 4} + r*{2 * fragments * 4} + s*{fragments * 4}"
        "+ floor((p*4 + q)/2)*8 + floor(c/2)*4"
    )
    assert physical.staging["Src1"] == 8 * fragments * 4
    assert physical.calls == 2 * 2 * 2 * 6 * 3 * 2
    assert physical.utilization == pytest.approx(op.points / (physical.calls * 8))


@pytest.mark.parametrize("index", [0, 7, 20, 34])
def test_expressions_are_the_layouts(index: int) -> None:
    """Every scalar statement lands on the element that its address and slot say."""
    op = Operator.parse(TEXT, dict(n=2, k=3, p=3, q=2, c=2, r=2, s=3))
    mapping = enumerate_mappings(op, SMALL)[index]
    physical = mapping.physical()
    names = list(op.extents)
    for operand in SMALL.operands:
        name = operand.tensor.name
        axes = [i.names[0] for i in operand.indices]
        address, strides = physical.memory[name]
        element = address + sum(physical.compute[t] * s for t, s in zip(axes, strides, strict=True))
        at = sympy.lambdify(names, element, "math")
        load = physical.layouts[name].load
        places: dict[tuple[int, ...], int] = {}
        for point in product(*map(range, op.extents.values())):
            values = dict(zip(names, point, strict=True))
            place = int(at(**values))
            assert 0 <= place < physical.staging[name]
            # A staged element holds one element of the tensor, whoever asks.
            expected = [int(i.evaluate(values)) for i in load.indices]
            assert places.setdefault((place,), hash(tuple(expected))) == hash(tuple(expected))


def test_utilization_is_of_useful_points() -> None:
    op = Operator.parse("out[i,j] += a[i,k] * b[k,j]", dict(i=17, j=16, k=8))
    physical = enumerate_mappings(op, WMMA)[0].physical()
    assert physical.calls == 2
    assert physical.utilization == pytest.approx(17 * 8 / (2 * 16 * 16))


def test_extents_at_their_limit() -> None:
    op = Operator.parse("out[i,j] += a[i,k] * b[k,j]", dict(i=2**21, j=2**21, k=2**20), name="huge")
    physical = enumerate_mappings(op, WMMA)[0].physical()
    assert physical.calls == 2**50
    assert physical.utilization == 1


def test_importing_loads_neither_sympy_nor_pandas() -> None:
    code = (
        "import sys, amos.mapping, amos.validate, amos.intrinsics;"
        "print(sorted({'sympy', 'pandas', 'tvm'} & set(sys.modules)))"
    )
    done = run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_of_longer_iterations_are_joined_by_dots() -> None:
    op = Operator.parse("out[row,j] += a[row,k1,k] * b[k1,k,j]", dict(row=2, j=2, k1=2, k=2))
    assert enumerate_mappings(op, WMMA)[0].name == "row-j-k1.k"
    assert np.array_equal(enumerate_mappings(op, WMMA)[0].matching.sum(axis=1), [1, 1, 2])
