"""Matrices that are read in place or copied: those of which each step reads another page."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import amos
from amos.errors import ScheduleError
from amos.explore.objective import Problem
from amos.ir import Operator
from amos.machine.limits import CpuLimits
from amos.machine.makers import FITTED
from amos.mapping import Mapping
from amos.plan import Candidate, CpuSchedule, Schedule, Structure
from amos.plan.cpu_plan import CpuPlan
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs

FLOATS, TILES = "avx512_fmadd_m16_f32_f32", "amx_tdpbf16ps_m16n16k32_bf16_f32"
PRODUCT, TRANSPOSED = "out[i,j] += a[i,k] * b[k,j]", "out[i,j] += a[k,i] * b[k,j]"
_LIMITS = CpuLimits(cores=2, cache=1 << 20)
XEON = amos.machines.get("xeon_6240", [amos.intrinsics.get(FLOATS)])


def _mapping(sizes: dict[str, int], text: str = PRODUCT, unit: str = FLOATS) -> Mapping:
    dtype = "f32" if unit == FLOATS else "bf16"
    dtypes = dict(a=dtype, b=dtype, out="f32")
    operator = Operator.parse(text, dict(i=24, k=8, j=1024) | sizes, dtypes)
    return amos.enumerate_mappings(operator, unit)[0]


def _optional(mapping: Mapping) -> list[str]:
    return [op.name for op in Structure(mapping).sources if op.optional]


@pytest.mark.parametrize(
    ("text", "sizes", "names"),
    [
        (PRODUCT, {}, ["Src2"]),
        (PRODUCT, dict(j=1040), ["Src2"]),
        (PRODUCT, dict(j=1008), []),  # rows shorter than a page
        (PRODUCT, dict(j=1025), []),  # copied anyway, as vectors do not divide its rows
        (PRODUCT, dict(i=2048, k=2048, j=16), []),  # steps go on along rows
        (TRANSPOSED, dict(i=1024, j=16), ["Src1"]),
    ],
)
def test_a_source_whose_steps_go_to_other_pages_has_the_choice(
    text: str, sizes: dict[str, int], names: list[str]
) -> None:
    mapping = _mapping(sizes, text)
    assert _optional(mapping) == names
    variables = ScheduleSpace(mapping).variables
    choices = {key: domain for key, domain in variables.items() if "none" in domain}
    assert choices == {f"stage.{name}": ("none", "whole", "tile") for name in names}


def test_tile_registers_have_no_further_choice() -> None:
    assert not _optional(_mapping(dict(i=64, k=4096, j=2048), unit=TILES))


def test_a_schedule_that_does_not_say_reads_in_place() -> None:
    mapping = _mapping({})
    plan = CpuPlan(mapping, CpuSchedule.of({"tile.i": 4}), _LIMITS)
    stated = CpuPlan(mapping, CpuSchedule.of({"tile.i": 4, "stage.Src2": "none"}), _LIMITS)
    assert [plan.form(op) for op in plan.sources] == ["in place", "in place"]
    assert not plan.copies
    assert Candidate(mapping, plan.schedule).memory == 0
    assert str(plan) == str(stated)


def test_what_cannot_be_read_in_place_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"stage.Src2 = 'none': expected whole or tile"):
        CpuSchedule.of({"stage.Src2": "none"}).batch(Structure(_mapping(dict(j=1025))))


@pytest.mark.parametrize("place", ["none", "whole", "tile"])
def test_kernels_are_right(place: str) -> None:
    mapping, rng = _mapping(dict(i=23)), np.random.default_rng(0)
    inputs = random_inputs(mapping.operator, rng)
    expected = evaluate(mapping.operator, inputs)
    space = ScheduleSpace(mapping)
    for copy, parallel in (("elements", 1), ("vectors", 2)):
        values: dict[str, int | str] = {
            "tile.i": 4,
            "tile.i1.tile": 3,
            "copy": copy,
            "parallel": parallel,
        }
        schedule = space.repair(values | {"stage.Src2": place}, rng)
        assert schedule.as_dict().get("stage.Src2", "none") == place
        kernel = amos.build(Candidate(mapping, schedule))
        assert ("stage_Src2" in kernel.source) == (place != "none")
        np.testing.assert_allclose(kernel(**inputs), expected, rtol=1e-5, atol=1e-4)


def test_how_to_copy_is_not_decided_where_nothing_is_copied() -> None:
    space = ScheduleSpace(_mapping({}))
    drawn = [x.as_dict() for x in space.draw(100, np.random.default_rng(0))]
    in_place = [values for values in drawn if "stage.Src2" not in values]
    assert len(in_place) > 10
    assert not any({"vector", "copy"} & values.keys() for values in in_place)
    fixed = Problem([space.mapping], XEON, fixes=[("vector", 16)]).space(space.mapping)
    for schedule in fixed.draw(20, np.random.default_rng(0)):
        assert fixed.is_feasible(schedule)


@pytest.mark.parametrize("maker", FITTED)
def test_copies_of_tiles_are_predicted_faster_where_rows_are_read_often(maker: str) -> None:
    machine = replace(XEON, maker=maker, costs=FITTED[maker])
    base: dict[str, int | str] = {
        "tile.i": 6,
        "tile.i1.tile": 4,
        "order": "i1.tile i",
        "parallel": 1,
        "unroll": 4,
    }

    def seconds(place: str, sizes: dict[str, int]) -> float:
        mapping = _mapping(sizes)
        return amos.predict(mapping, machine, Schedule.of(base | {"stage.Src2": place})).seconds

    large, once = dict(i=2048, k=2048, j=2048), dict(i=6, k=256, j=1024)
    assert seconds("tile", large) < 0.9 * seconds("none", large)
    assert seconds("none", once) < seconds("tile", once)
