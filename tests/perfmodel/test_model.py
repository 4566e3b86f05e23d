"""The model as a whole: what must be monotone, batches, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import amos
from amos.errors import MachineError
from amos.ir import Operator
from amos.machine import Peak
from amos.mapping import Mapping
from amos.perfmodel import MODELS, batch, evaluate, predict
from amos.plan import Schedule, Structure, batch_of
from amos.plan.nest import Nest
from amos.schedule import ScheduleSpace
from tests.support.models import VNNI, gemm

XEON = amos.machines.get("xeon_6240")

CONV = Operator.parse(
    "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
    extents=dict(n=1, p=4, q=6, k=32, c=6, r=2, s=3),
    shapes=dict(image=(1, 4, 6, 6)),
)
MAPPINGS = list(amos.enumerate_mappings(CONV, VNNI, rule="gather"))

seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=8)
@given(st.sampled_from(MAPPINGS), seeds, st.sampled_from(MODELS))
def test_a_batch_is_its_rows(mapping: Mapping, seed: int, model: str) -> None:
    space, rng, structure = ScheduleSpace(mapping), np.random.default_rng(seed), Structure(mapping)
    drawn = [space.sample(rng) for _ in range(7)]
    alone = [predict(mapping, XEON, schedule, model=model).seconds for schedule in drawn]
    with pytest.MonkeyPatch.context() as patch:
        for chunk in (3, 100):
            patch.setattr(batch, "_CHUNK", chunk)
            predicted = evaluate(structure, XEON, batch_of(structure, drawn), model)
            assert predicted.seconds.tolist() == pytest.approx(alone, rel=1e-12)


@settings(max_examples=40)
@given(st.sampled_from(MAPPINGS), seeds, st.sampled_from([2.0, 3.0, 10.0]))
def test_a_slower_machine_is_never_faster(mapping: Mapping, seed: int, factor: float) -> None:
    schedule = ScheduleSpace(mapping).sample(np.random.default_rng(seed))
    before = predict(mapping, XEON, schedule).seconds
    levels = tuple(
        replace(
            level,
            read_bandwidth=level.read_bandwidth / factor,
            write_bandwidth=level.write_bandwidth / factor,
            core_read=level.core_read / factor,
            core_write=level.core_write / factor,
        )
        for level in XEON.levels
    )
    peaks = {
        name: Peak(peak.latency * factor, peak.interval * factor)
        for name, peak in XEON.peaks.items()
    }
    memory, compute = replace(XEON, levels=levels), replace(XEON, peaks=peaks)
    clock, launch = XEON.clock / factor, XEON.launch * factor
    everything = replace(memory, peaks=peaks, launch=launch, clock=clock)
    assert before <= predict(mapping, memory, schedule).seconds
    assert before <= predict(mapping, compute, schedule).seconds
    assert predict(mapping, everything, schedule).seconds == pytest.approx(before * factor)


@settings(max_examples=40)
@given(st.sampled_from(MAPPINGS), seeds)
def test_nothing_beats_the_peak(mapping: Mapping, seed: int) -> None:
    schedule = ScheduleSpace(mapping).sample(np.random.default_rng(seed))
    prediction = predict(mapping, XEON, schedule)
    interval = XEON.peak(VNNI.name).interval
    assert prediction.seconds >= Nest(mapping).calls * interval / XEON.cores
    compute_seconds = [row.compute for row in prediction.rows]
    assert compute_seconds == sorted(compute_seconds)
    assert all(
        min(row.read, row.write, row.bytes_in, row.bytes_out) >= 0 for row in prediction.rows
    )


def test_of_loops_no_time_is_told() -> None:
    """Their rate ranks the schedules of a search, and is good for nothing else."""
    loops = replace(XEON, peaks={VNNI.name: replace(XEON.peak(VNNI.name), generic=True)})
    schedule = ScheduleSpace(MAPPINGS[0]).sample(np.random.default_rng(0))
    with pytest.raises(MachineError, match="no time is predicted of vnni_.*: loops stand for"):
        predict(MAPPINGS[0], loops, schedule)
    result = amos.explore(MAPPINGS[0].operator, VNNI, machine=loops, trials=2)
    assert result.prediction is None and len(result.trials) == 2
    assert list(result.to_frame()["predicted_seconds"]) == [None, None]
    assert result.to_dict()["predicted_seconds"] is None
    native = amos.explore(MAPPINGS[0].operator, VNNI, machine=XEON, trials=2)
    assert native.prediction is not None and native.to_dict()["predicted_seconds"] > 0


def test_an_intrinsic_without_a_rate_is_refused() -> None:
    with pytest.raises(MachineError, match=r"machine 'a100' has no rate for intrinsic 'vnni"):
        predict(gemm(), amos.machines.get("a100"), Schedule.of({}))
    with pytest.raises(MachineError, match="model 'best': expected one of amos, amos"):
        predict(gemm(), XEON, Schedule.of({}), model="best")
