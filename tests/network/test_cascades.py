"""Cascades: right for every height of bands, and only where nothing else reads between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from amos.chains import rebuild_chain
from amos.chains.writer import schedule_products
from amos.errors import BuildError, ScheduleError
from amos.explore.choosing import Chooser
from amos.ir import Chain, Operator
from amos.machine.limits import CpuLimits
from amos.measure.reference import References
from amos.network import CompiledNetwork, Network
from amos.network.building import check_kernel
from amos.network.candidates import records_by_operator
from amos.network.kernels import TaskKernel
from amos.network.lowerings import cascade as cuts
from amos.network.lowerings.cascade import bands_of, choose_cascades, lower_cascade
from amos.network.lowerings.cascade_matching import chain_layers
from amos.network.lowerings.chains import FusedChain
from amos.network.profile import time_calls
from amos.network.tuning import tune
from amos.records import Records
from tests.network.models import Builder, compile_whole, load_whole
from tests.network.quantized_models import Model
from tests.network.test_export import needs_compiler

_CHOOSER = Chooser("host")
_PREDICT_SEPARATE = cuts._predict_separate


@pytest.fixture
def paying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cascades pay everywhere, the longer ones more."""
    monkeypatch.setattr(cuts, "_has_resident_intermediate", lambda cascade, machine: False)
    monkeypatch.setattr(cuts, "_predict_separate", lambda tasks, chooser: float(len(tasks)))


def depthwise(
    images: int = 2,
    rows: int = 6,
    stride: int = 1,
    taps: int = 3,
    above: int = 1,
    dilation: int = 1,
    padding: int = 0,
    kinds: tuple[str, str, str] = ("float32", "float32", "float32"),
    channels: int = 16,
) -> Operator:
    """A depthwise convolution, of as many rows as its results need but for those above."""
    read = (rows - 1) * stride + (taps - 1) * dilation + 1 - 2 * above
    index = f"{{}}*{stride}+{{}}*{dilation}-{above}"
    at = f"{index.format('p', 'r')},{index.format('q', 's')}"
    return Operator.parse(
        f"out[n,p,q,g] += pad(image[n,{at},g], {padding}) * weight[g,r,s]",
        {"n": images, "p": rows, "q": rows, "g": channels, "r": taps, "s": taps},
        dict(zip(("image", "weight", "out"), kinds, strict=True)),
        name="depthwise_conv2d",
        shapes={"image": (images, read, read, channels)},
    )


def pointwise(operator: Operator, channels: int, *, before: bool, factors: str = "") -> Operator:
    """A pointwise convolution before or behind a depthwise one, by default of its dtypes."""
    tensor = operator.inputs[0] if before else operator.result
    n, p, q, g = tensor.shape
    k, c = (g, channels) if before else (channels, g)
    kinds = {load.tensor.name: factors or str(load.tensor.dtype) for load in operator.sources}
    return Operator.parse(
        "out[n,p,q,k] += image[n,p+r,q+s,c] * weight[k,c,r,s]",
        {"n": n, "p": p, "q": q, "k": k, "c": c, "r": 1, "s": 1},
        kinds | {"out": str(operator.output.tensor.dtype)},
        name="conv2d",
    )


def _kernel(layers: Sequence[Operator], rows: int) -> TaskKernel:
    choice = lower_cascade(bands_of(chain_layers(layers), rows), _CHOOSER)
    assert choice is not None
    return choice.build("kernel")


@pytest.mark.parametrize(
    ("rows", "more"),
    [
        (2, {}),
        (6, {}),
        (3, {"channels": 20}),
        (1, {"stride": 2}),
        (3, {"stride": 2, "taps": 5, "above": 2}),
        (6, {"dilation": 2, "above": 2}),
    ],
)
def test_floats(rows: int, more: dict[str, Any]) -> None:
    """Of three images, whose bands no two cores share evenly."""
    middle = depthwise(images=3, **more).with_epilogue("relu(acc + bias[g])")
    first = pointwise(middle, 8, before=True).with_epilogue("min(acc + bias[k], 6.0)")
    last = pointwise(middle, 24, before=False).with_epilogue("acc + bias[k] + residual[n,p,q,k]")
    for layers in ((first, middle), (first, middle, last)):
        assert check_kernel(_kernel(layers, rows), References()).passed


@pytest.mark.long
def test_rounded_factors_lie_between() -> None:
    """Pointwise convolutions of bfloat16, whose tensors the depthwise one reads and writes."""
    middle = depthwise(images=3, channels=32).with_epilogue("bf16(relu(acc + bias[g]))")
    first = pointwise(middle, 8, before=True, factors="bfloat16").with_epilogue("relu(acc)")
    last = pointwise(middle, 16, before=False, factors="bfloat16").with_epilogue("bf16(acc)")
    cascade = chain_layers((first, middle, last))
    assert [tensor.dtype for tensor in cascade.temporaries] == ["float32", "bfloat16"]
    assert cascade.result.stored_bytes == 2 * cascade.result.elements
    assert check_kernel(_kernel((first, middle, last), 2), References()).passed


def test_bands_are_those_of_a_chain() -> None:
    middle = depthwise(images=3, stride=2)
    first = pointwise(middle, 8, before=True)
    last = pointwise(middle, 24, before=False).with_epilogue("acc + residual[n,p,q,k]")
    cascade = chain_layers((first, middle, last))
    assert cascade.name == "conv2d + depthwise_conv2d + conv2d"
    names = [tensor.name for tensor in cascade.inputs]
    assert names == ["image_0", "weight_0", "weight_1", "weight_2", "residual_2"]
    bands = bands_of(cascade, 3)
    assert str(bands) == "n:1, p:3 rolling"
    assert bands.size("rows_0")[:2] == (1, 7) and bands.size("rows_1")[:2] == (1, 3)
    (rows,) = bands.layout.rolling.values()
    assert (rows.halo, rows.fresh, rows.unit) == (1, 6, 1)
    middle = depthwise(taps=2, above=0, stride=2)
    with pytest.raises(ScheduleError, match="no rows roll"):
        bands_of(chain_layers((pointwise(middle, 8, before=True), middle)), 2)


def test_products_are_planned_for_the_core_that_computes_them() -> None:
    """Copies stand where the model of one core took them to be."""
    limits = CpuLimits(cores=8, cache=1 << 20)
    layers = pointwise(middle := depthwise(rows=12, channels=48), 8, before=True), middle
    choice = lower_cascade(bands_of(chain_layers(layers), 4), _CHOOSER)
    assert choice is not None
    kinds = dict.fromkeys(choice.candidate.products, "generic")
    plans = [each.program.plan for each in schedule_products(choice.candidate, kinds, limits)]
    assert len(plans) == 2 and {plan.ranges for plan in plans} == {1}
    assert any(plan.steps > 1 for plan in plans)


@pytest.mark.parametrize(("rows", "padding"), [(2, 0), (3, 7)])
@pytest.mark.long
def test_bytes_are_exact(rows: int, padding: int) -> None:
    """Rows beside an image hold the zero point."""
    bytes_ = ("uint8", "int8", "int32")
    middle = depthwise(padding=padding, kinds=bytes_)
    quantized = "u8(acc * 0.001 + shift[{}])"
    first = pointwise(middle, 16, before=True).with_epilogue(quantized.format("k"))
    middle = middle.with_epilogue(quantized.format("g"))
    last = pointwise(middle, 16, before=False).with_epilogue(quantized.format("k"))
    try:
        kernel = _kernel((first, middle, last), rows)
    except BuildError as error:  # no instruction for them, of which loops stand for one
        pytest.skip(str(error))
    check = check_kernel(kernel, References())
    assert check.difference == check.allowed == 0


def _inverted(b: Builder, x: str, channels: int, stride: int = 1) -> tuple[str, str, str]:
    wide = 6 * channels
    first = b.node("Relu", b.convolution(x, (wide, channels, 1, 1)))
    second = b.node("Relu", b.convolution(first, (wide, 1, 3, 3), stride, group=wide))
    return first, second, b.convolution(second, (channels, wide, 1, 1))


def _network(*, residual: bool = False, observed: str = "") -> tuple[Network, Any]:
    b = Builder()
    x = b.node("Relu", b.convolution(b.input("x", (2, 3, 16, 16)), (16, 3, 3, 3), 2))
    first, second, y = _inverted(b, x, 16)
    if residual:
        y = b.node("Add", y, x)
    more = {"first": [first], "second": [second]}.get(observed, [])
    model = b.model(b.node("Relu", y), *more)
    return load_whole(model), model


def _choose(network: Network) -> list[Chain]:
    return [kernel.operator for kernel, *_ in choose_cascades(network, _CHOOSER).values()]


def _used(compiled: CompiledNetwork) -> list[Chain]:
    lowerings = [kernel.lowering for kernel in compiled.kernels.values()]
    return [each.operator for each in lowerings if isinstance(each, FusedChain)]


@pytest.mark.usefixtures("paying")
@pytest.mark.parametrize(("observed", "layers"), [("", 3), ("second", 2), ("first", 0)])
def test_what_is_read_elsewhere_too_is_not_between(observed: str, layers: int) -> None:
    network, _ = _network(observed=observed)
    cascades = _choose(network)
    assert [len(each.steps) for each in cascades] == [layers] * bool(layers)


@pytest.mark.usefixtures("paying")
def test_a_residual_of_the_first_result_is_read_of_memory() -> None:
    b = Builder()
    x = b.input("x", (1, 16, 8, 8))
    first = b.node("Relu", b.convolution(x, (16, 16, 1, 1)))
    second = b.node("Add", b.convolution(first, (16, 1, 3, 3), group=16), first)
    assert not _choose(load_whole(b.model(second)))


@pytest.mark.usefixtures("paying")
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.long
def test_a_network_with_a_cascade_computes_the_same(residual: bool) -> None:
    network, model = _network(residual=residual)
    compiled = compile_whole(network, progress=False)
    assert [len(each.steps) for each in _used(compiled)] == [3]
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


@pytest.mark.usefixtures("paying")
@pytest.mark.long
def test_records_decide_where_they_have_a_cascade_and_its_convolutions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = Builder()
    network = load_whole(b.model(_inverted(b, b.input("x", (1, 8, 8, 8)), 8)[2]))
    tuning = tune(network, trials=4, records=tmp_path / "x.db", progress=False)
    (row,) = tuning.chains
    assert row.kind == "conv2d + depthwise_conv2d + conv2d" and row.count == 1 and row.trials
    with Records(tmp_path / "x.db", readonly=True) as store:
        ranked = records_by_operator(store.all())
    monkeypatch.setattr(FusedChain, "measured", property(lambda self: self.seconds and 0.0))
    ((_, kernels),) = choose_cascades(network, _CHOOSER, 3, ranked).items()
    assert kernels[0].seconds == row.seconds and len(kernels) > row.trials
    best = (record for record in sum(ranked.values(), []) if record.is_chain)
    assert str(kernels[0].candidate) == str(rebuild_chain(next(best)))
    monkeypatch.setattr(FusedChain, "measured", property(lambda self: self.seconds and 1.0))
    assert not choose_cascades(network, _CHOOSER, 3, ranked)


@pytest.mark.usefixtures("paying")
def test_convolutions_of_a_cascade_that_cannot_be_built_are_computed_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(choice: FusedChain, symbol: str) -> TaskKernel:
        raise BuildError("none")

    monkeypatch.setattr(FusedChain, "build", failing)
    compiled = compile_whole(_network()[0], progress=False)
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


@pytest.mark.usefixtures("paying")
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
    compiled = compile_whole(_network()[0], measure=True, progress=False)
    assert len(_used(compiled)) == (not slower)
    assert sum(task.weight for task in compiled.kernels) == (4 if slower else 2)


@pytest.mark.usefixtures("paying")
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
    if not _used(compiled):
        pytest.skip("this CPU has no instruction for bytes in one of them")
    (whole,) = [each for each in compiled.checks if each.reference == "onnxruntime"]
    assert whole.difference == 0


@pytest.mark.usefixtures("paying")
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
    assert len(_choose(network)) == expected_count
    compiled = compile_whole(network, progress=False)
    assert all(check.passed for check in compiled.checks)
    assert bool(_used(compiled)) == bool(expected_count)


@pytest.mark.usefixtures("paying")
def test_equal_cascades_that_overlap_are_one() -> None:
    b = Builder()
    x = b.node("Relu", b.convolution(b.input("x", (1, 16, 8, 8)), (16, 16, 1, 1)))
    for _ in range(2):
        x = b.node("Relu", b.convolution(x, (16, 1, 3, 3), group=16))
        x = b.node("Relu", b.convolution(x, (16, 16, 1, 1)))
    compiled = compile_whole(load_whole(b.model(x)), progress=False)
    assert sorted(task.weight for task in compiled.kernels) == [1, 1, 1]
    assert len(_used(compiled)) == 1


@pytest.mark.usefixtures("paying")
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
    compiled = compile_whole(_network()[0], measure=True, progress=False)
    assert len(_used(compiled)) == (not slower)
    fallbacks = [task.operator.name for task in compiled.fallbacks]
    assert fallbacks == ["depthwise_conv2d"] * slower


@pytest.mark.usefixtures("paying")
def test_a_pointwise_convolution_of_padding_is_no_stage() -> None:
    b = Builder()
    first = b.convolution(b.input("x", (1, 16, 8, 8)), (16, 16, 1, 1), pads=[0, 0, 1, 1])
    network = load_whole(b.model(b.convolution(first, (16, 1, 3, 3), group=16)))
    assert not _choose(network)


def test_what_stays_near_the_cores_is_no_cascade() -> None:
    assert not _choose(_network()[0])


@pytest.mark.usefixtures("paying")
def test_a_convolution_by_tiles_is_no_part_of_a_cascade(monkeypatch: pytest.MonkeyPatch) -> None:
    network = _network()[0]
    monkeypatch.setattr(cuts, "_predict_separate", _PREDICT_SEPARATE)
    for seconds, is_fused in ((1.0, True), (0.0, False)):  # as it is, and by tiles
        choice = SimpleNamespace(predicted=seconds)
        monkeypatch.setattr(cuts, "predict_lowering", lambda task, chooser, choice=choice: choice)
        assert bool(_choose(network)) == is_fused


@pytest.mark.usefixtures("paying")
@pytest.mark.parametrize(("constant", "expected_count"), [(False, 1), (True, 0)])
def test_a_constant_image_is_no_part_of_a_cascade(constant: bool, expected_count: int) -> None:
    b = Builder()
    x = b.input("x", (1, 16, 8, 8))
    image = b.random(1, 16, 8, 8) if constant else x
    y = b.node("Relu", b.convolution(image, (32, 16, 1, 1)))
    y = b.convolution(y, (32, 1, 3, 3), group=32)
    if constant:
        y = b.node("Add", y, b.convolution(x, (32, 16, 1, 1)))
    assert len(_choose(load_whole(b.model(y)))) == expected_count


@pytest.mark.usefixtures("paying")
@needs_compiler
def test_a_library_holds_cascades(tmp_path: Path) -> None:
    compiled = compile_whole(_network(residual=True)[0], verify=False, progress=False)
    files = compiled.export(tmp_path)
    assert {file.name for file in files} >= {"libamos.so", "model.onnx"}
