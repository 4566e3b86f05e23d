"""Weights of the next register tile and residuals of this one: what is fetched ahead."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import amos
from amos.codegen.scheduling import schedule_candidate
from amos.ir import Operator
from amos.machine.limits import CpuLimits
from amos.plan import Candidate, Schedule
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs

FMA = amos.intrinsics.get("avx512_fmadd_m16_f32_f32")


def _convolution(p: int = 4) -> Operator:
    return Operator.parse(
        "out[p,q,k] += image[p+r,q+s,c] * weight[k,c,r,s]",
        dict(p=p, q=6, k=96, c=4, r=3, s=3),
        dict(image="float32", weight="float32", out="float32"),
    )


def _added(p: int = 4) -> Operator:
    return _convolution(p).with_epilogue("acc + residual[p,q,k]", {"residual": "float32"})


CONV, RESIDUAL = _convolution(), _added()
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
}
#: Tensors that blocks read, and what they do with them.
BLOCKS = {"main_update_o": ("weight", "read"), "unstage": ("residual", "added")}
#: Machines whose cores can keep nothing of the tensors, and all of them.
SMALL, LARGE = (CpuLimits(cores=2, cache=1 << n) for n in (10, 20))
SCHEDULES = {
    "one tile after the other": {"order": "i1.tile p q", "parallel": 1},
    "two loops shared out": {"order": "i1.tile p q", "parallel": 2, "tile.p": 2, "tile.q": 3},
    "weights inside": {"order": "p i1.tile q", "parallel": 1, "tile.i1.tile": 2, "tile.q": 2},
    "blocks": {"order": "i1.tile q p", "block.i1.tile": 2, "tile.i1.tile": 1, "block.p": 2},
    "unrolled": {"order": "i1.tile p q", "reduce": "r s c", "unroll": 4},
}


def _candidate(values: dict[str, Any], operation: Operator = CONV) -> Candidate:
    mapping = amos.enumerate_mappings(operation, FMA).find("k")
    smallest = ScheduleSpace(mapping).smallest().as_dict()
    return Candidate(mapping, Schedule.of({**smallest, **values}))


def _run(stmt: Any, values: dict[str, int]) -> Iterator[tuple[str, int]]:
    """What a scheduled function reads, adds and fetches, in order: numbers of elements."""
    kind = type(stmt).__name__
    if kind == "For":
        for step in range(int(stmt.extent)):
            yield from _run(stmt.body, {**values, stmt.loop_var.name: step})
    elif kind == "SeqStmt":
        for statement in stmt.seq:
            yield from _run(statement, values)
    elif kind == "Evaluate":
        load = stmt.value.args[0].args[0]
        weight = load.source.name.startswith("weight")
        what = "fetched" if weight else "residual fetched"
        yield what, _place(load.source, load.indices, values)
    elif kind == "SBlockRealize":
        block = stmt.block
        if block.name_hint == "root":
            yield from _run(block.body, values)
        name, what = BLOCKS.get(block.name_hint, ("", ""))
        variables = (x.var.name for x in block.iter_vars)
        bound = {n: _value(v, values) for n, v in zip(variables, stmt.iter_values, strict=True)}
        for region in block.reads if name else ():
            if region.source.name.startswith(name):
                yield (
                    what,
                    _place(region.source, [statement.min for statement in region.region], bound),
                )


def _place(buffer: Any, indices: Any, values: dict[str, int]) -> int:
    """Number of an element in a buffer."""
    number = 0
    for extent, index in zip(buffer.shape, indices, strict=True):
        number = number * int(extent) + _value(index, values)
    return number


def _shared(stmt: Any) -> Any:
    """The loop that is shared out to cores."""
    from tvm import tirx

    while type(stmt).__name__ != "For" or stmt.kind != tirx.ForKind.PARALLEL:
        stmt = stmt.block.body if type(stmt).__name__ == "SBlockRealize" else stmt.body
    return stmt


def _value(expression: Any, values: dict[str, int]) -> int:
    kind = type(expression).__name__
    if kind in ("Var", "IntImm"):
        return values[expression.name] if kind == "Var" else int(expression.value)
    return OPERATIONS[kind](_value(expression.a, values), _value(expression.b, values))


@pytest.mark.parametrize("name", SCHEDULES)
def test_all_lines_of_the_next_tile_are_fetched_before_it_runs(name: str) -> None:
    program, module = schedule_candidate(_candidate(SCHEDULES[name]), "generic", SMALL)
    (function,) = module.functions.values()
    tile = 4 * 3 * 3 * program.plan.tile.get("i1.tile", 1) * 16
    nest = _shared(function.body)
    turns = 0
    for core in range(int(nest.extent)):
        fetched: set[int] = set()
        running: int | None = None
        for kind, element in _run(nest.body, {nest.loop_var.name: core}):
            if kind == "fetched":
                fetched.add(element * 4 // 64)
            elif element // tile != running:
                last, running = running, element // tile
                lines = range(running * tile * 4 // 64, (running + 1) * tile * 4 // 64)
                assert last is None or fetched.issuperset(lines)
                turns += last is not None
                fetched.clear()
    assert turns


def test_a_kernel_that_fetches_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuLimits, "here", staticmethod(lambda: SMALL))
    inputs = random_inputs(CONV, np.random.default_rng(0))
    for values in SCHEDULES.values():
        candidate = _candidate(values)
        kernel = amos.build(candidate.mapping, candidate.schedule)
        assert "T.prefetch" in kernel.source
        np.testing.assert_allclose(kernel(**inputs), evaluate(CONV, inputs), rtol=1e-5)


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_an_epilogue_adds_is_fetched_before_its_tile_runs(name: str) -> None:
    _, module = schedule_candidate(_candidate(SCHEDULES[name], RESIDUAL), "generic", SMALL)
    (function,) = module.functions.values()
    nest = _shared(function.body)
    fetched: set[int] = set()
    added, running = 0, False
    for kind, element in _run(nest.body, {nest.loop_var.name: 0}):
        if kind == "residual fetched":
            fetched = {element * 4 // 64} if running else fetched | {element * 4 // 64}
            running = False
        elif kind == "added":
            assert element * 4 // 64 in fetched
            added += 1
        else:
            running |= kind == "read"
    assert added
    # What a core's own cache holds is not fetched.
    _, module = schedule_candidate(_candidate(SCHEDULES[name], RESIDUAL), "generic", LARGE)
    assert "T.prefetch" not in module.script()


def test_a_kernel_that_fetches_what_it_adds_computes_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CpuLimits, "here", staticmethod(lambda: SMALL))
    cases = [(RESIDUAL, values) for values in SCHEDULES.values()]
    for operation, values in [*cases, (_added(p=7), {"order": "i1.tile p q", "tile.p": 4})]:
        inputs = random_inputs(operation, np.random.default_rng(0))
        candidate = _candidate(values, operation)
        kernel = amos.build(candidate.mapping, candidate.schedule)
        assert "address_of(residual" in kernel.source
        np.testing.assert_allclose(kernel(**inputs), evaluate(operation, inputs), rtol=1e-5)
