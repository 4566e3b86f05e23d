"""Cascades: right for every height of bands, and only where nothing else reads between them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from amos.chains.writer import schedule_products
from amos.errors import BuildError, ScheduleError
from amos.ir import Operator
from amos.machine.limits import CpuLimits
from amos.measure.reference import References
from amos.network.kernels import TaskKernel, check_kernel
from amos.network.lowerings import fused
from amos.network.lowerings.cascade import bands_of, lower_cascade
from amos.network.lowerings.cascade_matching import chain_layers
from tests.network.cascades import (
    CHOOSER,
    choose_chains_of,
    small_network,
)
from tests.network.models import Builder, load_whole

_PREDICT_SEPARATE = fused.predict_separate


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
    choice = lower_cascade(bands_of(chain_layers(layers), rows), CHOOSER)
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
    choice = lower_cascade(bands_of(chain_layers(layers), 4), CHOOSER)
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


@pytest.mark.usefixtures("cascades_pay")
@pytest.mark.parametrize(("observed", "layers"), [("", 3), ("second", 2), ("first", 0)])
def test_what_is_read_elsewhere_too_is_not_between(observed: str, layers: int) -> None:
    network, _ = small_network(observed=observed)
    cascades = choose_chains_of(network)
    assert [len(each.steps) for each in cascades] == [layers] * bool(layers)


@pytest.mark.usefixtures("cascades_pay")
def test_a_residual_of_the_first_result_is_read_of_memory() -> None:
    b = Builder()
    x = b.input("x", (1, 16, 8, 8))
    first = b.node("Relu", b.convolution(x, (16, 16, 1, 1)))
    second = b.node("Add", b.convolution(first, (16, 1, 3, 3), group=16), first)
    assert not choose_chains_of(load_whole(b.model(second)))


@pytest.mark.usefixtures("cascades_pay")
def test_a_pointwise_convolution_of_padding_is_no_stage() -> None:
    b = Builder()
    first = b.convolution(b.input("x", (1, 16, 8, 8)), (16, 16, 1, 1), pads=[0, 0, 1, 1])
    network = load_whole(b.model(b.convolution(first, (16, 1, 3, 3), group=16)))
    assert not choose_chains_of(network)


def test_what_stays_near_the_cores_is_no_cascade() -> None:
    assert not choose_chains_of(small_network()[0])


@pytest.mark.usefixtures("cascades_pay")
def test_a_convolution_by_tiles_is_no_part_of_a_cascade(monkeypatch: pytest.MonkeyPatch) -> None:
    network = small_network()[0]
    monkeypatch.setattr(fused, "predict_separate", _PREDICT_SEPARATE)
    for seconds, is_fused in ((1.0, True), (0.0, False)):  # as it is, and by tiles
        choice = SimpleNamespace(predicted=seconds)
        monkeypatch.setattr(fused, "predict_lowering", lambda task, chooser, choice=choice: choice)
        assert bool(choose_chains_of(network)) == is_fused


@pytest.mark.usefixtures("cascades_pay")
@pytest.mark.parametrize(("constant", "expected_count"), [(False, 1), (True, 0)])
def test_a_constant_image_is_no_part_of_a_cascade(constant: bool, expected_count: int) -> None:
    b = Builder()
    x = b.input("x", (1, 16, 8, 8))
    image = b.random(1, 16, 8, 8) if constant else x
    y = b.node("Relu", b.convolution(image, (32, 16, 1, 1)))
    y = b.convolution(y, (32, 1, 3, 3), group=32)
    if constant:
        y = b.node("Add", y, b.convolution(x, (32, 16, 1, 1)))
    assert len(choose_chains_of(load_whole(b.model(y)))) == expected_count
