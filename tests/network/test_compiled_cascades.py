"""Networks with cascades, compiled, tuned and exported; slower cascades are taken apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amos.chains import rebuild_chain
from amos.errors import BuildError
from amos.network.kernels import TaskKernel
from amos.network.lowerings import fused
from amos.network.lowerings.chains import FusedChain
from amos.network.lowerings.fused import choose_fused
from amos.network.profile import time_calls
from amos.network.task_records import rank_records
from amos.network.tuning import tune
from tests.network.cascades import (
    CHOOSER,
    choose_chains_of,
    inverted_bottleneck,
    small_network,
    used_chains,
)
from tests.network.models import Builder, compile_whole, load_whole
from tests.network.quantized_models import Model
from tests.network.test_export import needs_compiler


@pytest.mark.usefixtures("cascades_pay")
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.long
def test_a_network_with_a_cascade_computes_the_same(residual: bool) -> None:
    network, model = small_network(residual=residual)
    compiled = compile_whole(network, progress=False)
    assert [len(each.steps) for each in used_chains(compiled)] == [3]
    assert len(compiled.kernels) == 2 and all(check.passed for check in compiled.checks)
    reports = network.report(), compiled.report()
    for report in reports:
        row = next(row for row in report.tasks if "+" in row.kind)
        assert row.kind == "conv2d + depthwise_conv2d + conv2d"
        assert row.count == 1 and row.seconds and row.mappings > 1
    kernel = next(each for each in compiled.to_dict()["kernels"] if "tiles" in each)
    assert len(kernel["products"]) == 3 and kernel["tiles"]["p"] > 0
    profile = compiled.profile(repeat=1)
    assert {row.name for row in profile.rows} >= {"conv2d + depthwise_conv2d + conv2d"}


@pytest.mark.usefixtures("cascades_pay")
@pytest.mark.long
def test_records_decide_where_they_have_a_cascade_and_its_convolutions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = Builder()
    network = load_whole(b.model(inverted_bottleneck(b, b.input("x", (1, 8, 8, 8)), 8)[2]))
    tuning = tune(network, trials=4, records=tmp_path / "x.db", progress=False)
    (row,) = tuning.chains
    assert row.kind == "conv2d + depthwise_conv2d + conv2d" and row.count == 1 and row.trials
    ranked = rank_records(tmp_path / "x.db")
    monkeypatch.setattr(fused, "_find_measured", lambda *_: 1.0)
    ((_, kernels),) = choose_fused(network, CHOOSER, 3, ranked).items()
    assert kernels[0].measured == row.seconds and len(kernels) > row.trials
    best = (record for record in sum(ranked.values(), []) if record.is_chain)
    assert str(kernels[0].candidate) == str(rebuild_chain(next(best)))
    monkeypatch.setattr(fused, "_find_measured", lambda *_: 0.0)
    ((job, _),) = choose_fused(network, CHOOSER, 3, ranked).items()
    assert job.operator.name == "conv2d + depthwise_conv2d"  # of which there is no record


@pytest.mark.usefixtures("cascades_pay")
def test_convolutions_of_a_cascade_that_cannot_be_built_are_computed_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(choice: FusedChain, symbol: str) -> TaskKernel:
        raise BuildError("none")

    monkeypatch.setattr(FusedChain, "build", failing)
    compiled = compile_whole(small_network()[0], progress=False)
    assert len(compiled.kernels) == 4 and not compiled.fallbacks


def _timed(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """What is seen of each call in a network with cascades."""

    def rigged(models: Any, arrays: Any, turns: Iterator[int]) -> Any:
        alone, fused = time_calls(models, arrays, turns)
        for run in fused:
            for calls in run.values():
                calls[:] = [seconds for _ in calls]
        return [alone, fused]

    monkeypatch.setattr("amos.network.comparison.time_calls", rigged)
    monkeypatch.setattr("amos.network.compilation._FINALISTS", 1)


@pytest.mark.usefixtures("cascades_pay")
@pytest.mark.parametrize("slower", [False, True])
@pytest.mark.long
def test_a_cascade_that_is_slower_in_the_network_is_taken_apart(
    slower: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _timed(monkeypatch, 9.0 if slower else 0.0)
    monkeypatch.setattr("amos.network.compilation._MEASURED", 1)
    monkeypatch.setattr(
        "amos.network.compilation.compare_alone",
        lambda kernels, task: [*(1.0 for _ in kernels), 2.0],
    )
    compiled = compile_whole(small_network()[0], measure=True, progress=False)
    assert len(used_chains(compiled)) == (not slower)
    assert sum(task.weight for task in compiled.kernels) == (4 if slower else 2)


@pytest.mark.usefixtures("cascades_pay")
@pytest.mark.long
def test_quantized_cascades_are_exact() -> None:
    g = Model(0)
    x = g.pair("x", 0.03, 7)
    for shape, more in (
        ((16, 4, 1, 1), {}),
        ((16, 1, 3, 3), {"group": 16, "pads": [1, 1, 1, 1]}),
        ((8, 16, 1, 1), {}),
    ):
        weight, scales = g.weight(*shape)
        # What is padded by other values than zeros is padded by the engine.
        x = g.pair(g.add("Conv", x, weight, g.bias(np.float32(0.03) * scales), **more), 0.03, 0)
    network = load_whole(g.model(x))
    compiled = compile_whole(network, progress=False)
    if not used_chains(compiled):
        pytest.skip("this CPU has no instruction for bytes in one of them")
    (whole,) = [each for each in compiled.checks if each.reference == "onnxruntime"]
    assert whole.difference == 0


@pytest.mark.usefixtures("cascades_pay")
@pytest.mark.parametrize(
    ("shape", "images", "expected_count"),
    [
        ((2, 24, 1, 1), 2, 1),  # differs from image to image
        ((1, 24, 8, 8), 2, 1),  # the same rows for all images
        ((1, 24, 1, 8), 2, 1),  # the same for all rows
        ((1, 24, 8, 8), 1, 1),
        ((2, 24, 8, 8), 2, 1),
    ],
)
def test_what_an_epilogue_reads_of_bands(
    shape: tuple[int, ...], images: int, expected_count: int
) -> None:
    b = Builder()
    x, factor = b.input("x", (images, 16, 8, 8)), b.input("factor", shape)
    first = b.node("Relu", b.convolution(x, (24, 16, 1, 1)))
    y = b.node("Mul", b.convolution(first, (24, 1, 3, 3), group=24), factor)
    network = load_whole(b.model(y))
    assert len(choose_chains_of(network)) == expected_count
    compiled = compile_whole(network, progress=False)
    assert all(check.passed for check in compiled.checks)
    assert bool(used_chains(compiled)) == bool(expected_count)


@pytest.mark.usefixtures("cascades_pay")
def test_equal_cascades_that_overlap_are_one() -> None:
    b = Builder()
    x = b.node("Relu", b.convolution(b.input("x", (1, 16, 8, 8)), (16, 16, 1, 1)))
    for _ in range(2):
        x = b.node("Relu", b.convolution(x, (16, 1, 3, 3), group=16))
        x = b.node("Relu", b.convolution(x, (16, 16, 1, 1)))
    compiled = compile_whole(load_whole(b.model(x)), progress=False)
    assert sorted(task.weight for task in compiled.kernels) == [1, 1, 1]
    assert len(used_chains(compiled)) == 1


@pytest.mark.usefixtures("cascades_pay")
@pytest.mark.parametrize("slower", [False, True])
@pytest.mark.long
def test_a_cascade_is_timed_against_plain_loops(
    slower: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def engine_is_fast(kernels: Any, group: Any) -> list[float]:
        fast = group.operator.name == "depthwise_conv2d"
        return [*(1.0 for _ in kernels), 0.5 if fast else 2.0]

    _timed(monkeypatch, 9.0 if slower else 0.0)
    monkeypatch.setattr("amos.network.compilation.compare_alone", engine_is_fast)
    monkeypatch.setattr("amos.network.compilation._HEAVY_SHARE", 1.0)
    compiled = compile_whole(small_network()[0], measure=True, progress=False)
    assert len(used_chains(compiled)) == (not slower)
    fallbacks = [task.operator.name for task in compiled.fallbacks]
    assert fallbacks == ["depthwise_conv2d"] * slower


@pytest.mark.usefixtures("cascades_pay")
@needs_compiler
def test_a_library_holds_cascades(tmp_path: Path) -> None:
    compiled = compile_whole(small_network(residual=True)[0], verify=False, progress=False)
    files = compiled.export(tmp_path)
    assert {file.name for file in files} >= {"libamos.so", "model.onnx"}
