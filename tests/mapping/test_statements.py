"""Physical addresses follow memory statements, and calls at them compute the operator."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import sympy

import amos
from amos.cuda.codegen import draw_inputs, emulate
from amos.cuda.codegen.emulate import compiler
from amos.cuda.fragment_tiles import tiles_of
from amos.cuda.plan import GpuPlan
from amos.errors import BuildError, ScheduleError
from amos.intrinsics import Implementation, Intrinsic, Memory, execute, registry
from amos.mapping import Mapping
from amos.schedule import ScheduleSpace
from amos.selfcheck import check

OP = amos.Operator.parse(
    "out[i,j] += a[i,k] * b[k,j]",
    extents=dict(i=6, j=9, k=5),
    dtypes=dict(a="s8", b="s8", out="s32"),
)
ROWS = {"Src1": "i1 * stride_a + r1", "Src2": "r1 * stride_b + i2", "Dst": "i1 * stride_c + i2"}
COLUMNS = {"Src1": "i1 + r1 * stride_a", "Src2": "r1 + i2 * stride_b", "Dst": "i1 + i2 * stride_c"}
GAPS = {"Src1": "i1 * 7 + r1 * 3", "Src2": "r1 * 40 + i2 * 2", "Dst": "i1 + i2 * 5"}


def unit(
    lies: dict[str, str], name: str = "acme_dot_m4n8k2_s8_s32", **changes: object
) -> Intrinsic:
    """A product of 4 x 2 and 2 x 8 elements; operands that are not named lie by rows."""
    lies = {**ROWS, **lies}
    return Intrinsic.define(
        name,
        "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]",
        {"i1": 4, "i2": 8, "r1": 2},
        {"Src1": "s8", "Src2": "s8", "Dst": "s32"},
        [
            Memory.parse(f"reg.Src1[i1, r1] = memory.Src1[addr_a + {lies['Src1']}]", **changes),
            f"reg.Src2[r1, i2] = memory.Src2[addr_b + {lies['Src2']}]",
            f"memory.Dst[addr_c + {lies['Dst']}] = reg.Dst[i1, i2]",
        ],
        family="acme",
        source="test",
    )


def _data() -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-99, 99, shape).astype(np.int8) for shape in ((6, 5), (5, 9)))
    return {"a": a, "b": b}, a.astype(np.int32) @ b.astype(np.int32)


@pytest.mark.parametrize(
    "lies", [ROWS, COLUMNS, GAPS, *({k: source[k]} for source in (COLUMNS, GAPS) for k in ROWS)]
)
def test_simulated_calls_use_the_addresses_of_the_statement(lies: dict[str, str]) -> None:
    (mapping,) = amos.enumerate_mappings(OP, unit(lies, alignment=16))
    inputs, expected = _data()
    assert np.array_equal(amos.simulate(mapping, inputs), expected)
    for name, layout in mapping.physical().layouts.items():
        own = mapping.intrinsic.placements[name]
        assert (layout.strides, layout.step) == (own.strides, own.step)
        assert len(np.unique(layout.places)) == layout.places.size
        assert layout.elements % own.step == 0
        assert layout.places.max() < layout.elements
    assert all(layout.step % 16 == 0 for layout in [mapping.physical().layouts["Src1"]])


def _literally(mapping: Mapping, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """The product, call by call: every element moves by the nodes of the memory abstraction."""
    unit, physical = mapping.intrinsic, mapping.physical()
    loops, ranges = zip(*OP.extents.items(), strict=True)
    functions = {t: sympy.lambdify(loops, e, "math") for t, e in physical.compute.items()}
    bases = {x: sympy.lambdify(loops, e, "math") for x, (e, _) in physical.memory.items()}
    memory = {name: np.zeros(size, np.int64) for name, size in physical.staging.items()}

    def moved(node: Memory, base: int, at: dict[str, int]) -> tuple[int, tuple[int, ...]]:
        """Address of an element in memory, and where it is in the fragment."""
        load = node.direction == "load"
        fragment, memory_access = (node.store, node.load) if load else (node.load, node.store)
        (address,) = (i.evaluate({node.address: base, **at}) for i in memory_access.indices)
        return address, tuple(i.evaluate(at) for i in fragment.indices)

    points = list(itertools.product(*map(range, ranges)))
    at = {point: {t: e(*point) for t, e in functions.items()} for point in points}
    for node, x in zip(unit.memory, OP.sources, strict=False):
        for point in points:
            address, _ = moved(node, bases[node.operand](*point), at[point])
            where = tuple(i.evaluate(dict(zip(loops, point, strict=True))) for i in x.indices)
            memory[node.operand][address] = inputs[x.tensor.name][where]
    for call in dict.fromkeys(tuple(bases[m.operand](*p) for m in unit.memory) for p in points):
        fragments: dict[str, np.ndarray] = {}
        places = {}
        for node, base, x in zip(unit.memory, call, unit.operands, strict=True):
            grid = itertools.product(*map(range, x.tensor.shape))
            ats = (dict(zip(node.indices, indices, strict=True)) for indices in grid)
            places[node.operand] = [moved(node, base, each) for each in ats]
            fragments[node.operand] = np.zeros(x.tensor.shape, x.tensor.dtype)
            for address, element in places[node.operand]:
                fragments[node.operand][element] = memory[node.operand][address]
        result = execute(unit, fragments)
        for address, element in places["Dst"]:
            memory["Dst"][address] = result[element]
    out = np.zeros((ranges[0], ranges[1]), np.int64)
    for point in points:
        address, _ = moved(unit.memory[-1], bases["Dst"](*point), at[point])
        out[point[:2]] = memory["Dst"][address]
    return out


@pytest.mark.parametrize("lies", [ROWS, COLUMNS, GAPS])
def test_literal_loads_and_stores_compute_what_is_simulated(lies: dict[str, str]) -> None:
    (mapping,) = amos.enumerate_mappings(OP, unit(lies, alignment=16))
    inputs, expected = _data()
    assert np.array_equal(_literally(mapping, inputs), expected)
    assert np.array_equal(amos.simulate(mapping, inputs), expected)


def test_columns_have_addresses_of_columns() -> None:
    (mapping,) = amos.enumerate_mappings(OP, unit({"Src1": COLUMNS["Src1"]}))
    assert "Src1: address 24*floor(i/4) + 8*floor(k/2), strides (1, 4)" in str(mapping.physical())
    assert mapping.virtual().memory["Src1"][1] == (1, 6)


@pytest.mark.parametrize("operand", ["Src1", "Src2", "Dst"])
def test_kernels_stage_columns_where_the_statement_has_them(operand: str) -> None:
    (mapping,) = amos.enumerate_mappings(OP, unit({operand: COLUMNS[operand]}))
    inputs, expected = _data()
    kernel = amos.build(mapping)
    assert np.array_equal(kernel(**inputs), expected)
    shape = {"Src1": "2, 4", "Src2": "8, 2", "Dst": "8, 4"}[operand]
    assert f", {shape})" in kernel.source


@pytest.mark.long
def test_implementations_take_fragments_as_the_statement_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry.names()
    for table in ("_registered", "_implemented"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    described = unit(COLUMNS, "acme_columns_m4n8k2_s8_s32")
    loops = "for (int i = 0; i < 4; ++i) for (int j = 0; j < 8; ++j) for (int k = 0; k < 2; ++k) "
    right = loops + "Dst[i + 4 * j] += Src1[i + 4 * k] * Src2[k + 2 * j];"
    amos.intrinsics.register(described, Implementation(described.name, "c", right))
    (report,) = check([described])
    assert report.equal
    assert "c: x86_64" in report.ran_on
    rows = unit({}, "acme_rows_m4n8k2_s8_s32")
    amos.intrinsics.register(rows, Implementation(rows.name, "c", right))
    assert not check([rows])[0].equal


def test_kernels_refuse_layouts_that_they_cannot_stage() -> None:
    (gaps,) = amos.enumerate_mappings(OP, unit({"Src1": GAPS["Src1"]}))
    with pytest.raises(BuildError, match=r"without gaps; those of 'Src1' have strides \(7, 3\)"):
        amos.build(gaps)
    (mapping,) = amos.enumerate_mappings(OP, unit({}, alignment=16))
    with pytest.raises(BuildError, match="begin every 16 elements"):
        amos.build(mapping)


def test_a_scope_that_no_machine_has_is_refused() -> None:
    changed = unit({})
    memory = [str(m).replace("memory.Src2", "lds.Src2") for m in changed.memory]
    lds = Intrinsic.define(
        changed.name,
        str(changed.compute),
        changed.extents,
        {x.tensor.name: str(x.tensor.dtype) for x in changed.operands},
        memory,
        family="acme",
        source="test",
    )
    (mapping,) = amos.enumerate_mappings(OP, lds)
    with pytest.raises(ScheduleError, match="scope 'lds' of Src2 is declared nowhere: xeon_4110"):
        ScheduleSpace(mapping, amos.machines.get("xeon_4110")).sample(np.random.default_rng(0))


def test_a_warp_loads_rows_along_the_side_that_the_statement_has() -> None:
    """Where the image is contiguous does not matter to an instruction that loads rows only."""
    intrinsic = amos.intrinsics.get("mma_sync_m16n8k8_f16_f32")
    op = amos.operators.get("gemm", dtype="f16", m=20, n=12, k=20)
    machine = amos.machines.get("a100")

    def kernels(unit: Intrinsic) -> GpuPlan:
        mapping = amos.enumerate_mappings(op, unit)[0]
        schedule = ScheduleSpace(mapping, machine).sample(np.random.default_rng(1))
        return GpuPlan.of(mapping, schedule, "sm_80")

    free = kernels(intrinsic)
    sides = [tile.columns.target for tile in tiles_of(free.structure)[:-1]]
    strict = replace(
        intrinsic, memory=tuple(replace(m, transposes=False) for m in intrinsic.memory)
    )
    assert [t.columns.target for t in tiles_of(kernels(strict).structure)[:-1]] == ["r1", "i2"]
    columns = replace(
        strict,
        memory=(
            replace(strict.memory[0], strides=("1", "stride_a")),
            replace(strict.memory[1], strides=("1", "stride_b")),
            strict.memory[2],
        ),
    )
    turned = kernels(columns)
    assert [t.columns.target for t in tiles_of(turned.structure)[:-1]] == ["i1", "r1"] != sides
    if compiler() is not None:
        assert emulate(turned, draw_inputs(turned, np.random.default_rng(0))).equal
    for changes, message in (
        ({"strides": ("8", "1")}, "choose how far rows of Src1 are apart; expected a symbol"),
        ({"alignment": 64}, "fragments of Src1 begin at multiples of 32 bytes, not of 64"),
    ):
        first, *further = intrinsic.memory
        with pytest.raises(BuildError, match=message):
            kernels(replace(intrinsic, memory=(replace(first, **changes), *further)))
