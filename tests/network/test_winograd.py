"""Convolutions by tiles in networks: exact where they are integers, and only where they may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amos
from amos.chains import Tiling
from amos.errors import BuildError
from amos.explore.choosing import Chooser
from amos.measure.reference import References, compare_arrays, tolerance
from amos.network import Network
from amos.network.checks import check_results
from amos.network.groups import Task
from amos.network.kernels import TaskKernel
from amos.network.lowerings import choosing, winograd
from amos.network.lowerings.base import Direct, Lowering
from amos.network.lowerings.choosing import (
    list_lowerings,
    predict_lowering,
    select_tuned_task,
)
from amos.network.lowerings.winograd import (
    BandedTiles,
    WinogradTiles,
    fit_band,
    lower_winograd,
    match_winograd,
)
from amos.operators.winograd import INTO_TILES, Winograd
from tests.network.models import Builder, compile_whole, load_whole

_CHOOSER = Chooser("host")


def _band(task: Task, rows: int, cooperative: bool) -> BandedTiles:
    form = match_winograd(task)
    assert form is not None
    tiles = {"y": rows} if cooperative else {"n": 1, "y": rows}
    return BandedTiles(form, Tiling.of(form.build_chain(task.operator), tiles), cooperative)


def _check(task: Task, rows: int = 1, cooperative: bool = True) -> None:
    bands = _band(task, rows, cooperative)
    tiles = lower_winograd(bands, task.operator, _CHOOSER, _CHOOSER.choose)
    assert tiles is not None
    kernel = tiles.build("kernel")
    inputs, (expected,) = References().get(task.operator)
    got = kernel.run(inputs)
    difference, strange = compare_arrays(got, expected)
    assert got.shape == expected.shape and got.dtype == expected.dtype and not strange
    assert difference <= tolerance(task.operator, expected)
    assert np.abs(expected.astype(float)).max() > 0


def _floats(
    image: tuple[int, ...], features: int, pads: list[int], residual: bool = False, **more: Any
) -> Network:
    b = Builder()
    x = b.input("x", image)
    weight = (features, image[1] // more.get("group", 1), *more.pop("window", (3, 3)))
    y = b.convolution(x, weight, pads=pads, **more)
    if residual:
        y = b.node("Relu", b.node("Add", y, x))
    return load_whole(b.model(y))


@pytest.mark.parametrize(
    ("image", "features", "pads"),
    [
        ((1, 16, 8, 8), 16, [1, 1, 1, 1]),
        ((2, 16, 5, 7), 32, [1, 1, 1, 1]),
        ((1, 32, 3, 4), 16, [0, 0, 0, 0]),
        ((1, 16, 9, 6), 16, [2, 0, 1, 2]),
        ((3, 16, 2, 3), 48, [1, 1, 1, 1]),
        ((2, 24, 5, 7), 40, [1, 1, 1, 1]),
        ((1, 16, 5, 7), 8, [1, 1, 1, 1]),
    ],
)
def test_floats_are_as_near_as_sums_in_any_order(
    image: tuple[int, ...], features: int, pads: list[int]
) -> None:
    (task,) = _floats(image, features, pads).tasks
    _check(task)


def test_the_epilogue_is_computed_where_results_leave_tiles() -> None:
    (task,) = _floats((2, 16, 6, 9), 16, [1, 1, 1, 1], residual=True).tasks
    assert task.operator.epilogue is not None
    _check(task)


@pytest.mark.parametrize("function", ["Sigmoid", "Tanh"])
def test_small_results_of_large_sums_are_right(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd, "SAFETY_FACTOR", np.inf)
    b = Builder()
    x = b.node("Mul", b.input("x", (1, 16, 16, 16)), b.constant(4.0))
    network = load_whole(b.model(b.node(function, b.convolution(x, (16, 16, 3, 3)))))
    compiled = compile_whole(network, progress=False)
    (kernel,) = compiled.kernels.values()
    assert isinstance(kernel.lowering, WinogradTiles)
    assert kernel.lowering.operator.epilogue is not None


@pytest.mark.parametrize(
    ("channels", "rows", "cooperative"),
    [(16, 3, True), (8, 2, True), (24, 5, False), (40, 3, False), (72, 2, False)],
)
@pytest.mark.long
def test_bands_need_not_divide_rows_of_tiles(channels: int, rows: int, cooperative: bool) -> None:
    shape, pads = (2, channels, 17, 7), [1, 1, 1, 1]  # five rows of tiles
    (task,) = _floats(shape, channels, pads, residual=True).tasks
    _check(task, rows, cooperative)
    for task in load_whole(_quantized(channels=channels, images=2, height=17)).tasks:
        _check(task, rows, cooperative)


def test_bands_are_few_and_leave_no_core_many_more_rows() -> None:
    """Two images of 113 rows of 15 tiles."""
    (task,) = _floats((2, 32, 450, 60), 32, [1] * 4).tasks
    form = match_winograd(task)
    assert form is not None
    chain = form.build_chain(task.operator)
    row_bytes = 2 * 36 * 32 * 4 * 15
    assert fit_band(chain, {}, 1, 10**9) == {"y": 113}
    assert fit_band(chain, {"n": 1}, 2, 3 * row_bytes) == {"n": 1, "y": 3}
    assert fit_band(chain, {"n": 1}, 3, 1) == {"n": 1, "y": 1}


@pytest.mark.parametrize(("taps", "cooperative"), [(1, True), (2, True), (2, False), (3, False)])
def test_three_dimensions(taps: int, cooperative: bool) -> None:
    pads = [taps // 2, 1, 1, (taps - 1) // 2, 1, 1]
    (task,) = _floats((2, 16, 3, 5, 6), 16, pads, window=(taps, 3, 3)).tasks
    _check(task, cooperative=cooperative)


def _quantized(
    kind: str = "uint8",
    zero: int = 0,
    weight: int | None = None,
    channels: int = 16,
    images: int = 1,
    height: int = 7,
) -> Any:
    """Two convolutions, the second of which is added to what the first one reads."""
    b, features = Builder(seed=5), channels
    x = b.input("x", (images, channels, height, 9))

    def pair(value: str, scale: float, zero: int) -> str:
        names = b.constant(scale), b.constant(zero, kind)
        return b.node("DequantizeLinear", b.node("QuantizeLinear", value, *names), *names)

    def convolution(value: str) -> str:
        shape = (features, channels, 3, 3)
        values = b.rng.integers(-127, 128, shape) if weight is None else np.full(shape, weight)
        names = b.constant(values, "int8"), b.constant(np.full(features, 0.002))
        kernel = b.node("DequantizeLinear", *names, b.constant(np.zeros(features), "int8"), axis=0)
        return b.node("Conv", value, kernel, pads=[1, 1, 1, 1])

    x = pair(x, 0.02, zero)
    y = pair(b.node("Relu", convolution(x)), 0.05, zero)
    return b.model(pair(b.node("Add", convolution(y), x), 0.05, zero))


@pytest.mark.parametrize(
    ("kind", "zero", "channels"), [("uint8", 9, 16), ("int8", 0, 24), ("int8", -5, 16)]
)
@pytest.mark.long
def test_integers_are_exact(
    kind: str, zero: int, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd, "SAFETY_FACTOR", np.inf)
    network = load_whole(_quantized(kind, zero, channels=channels))
    # Signed bytes whose zero point is another than 0 are stored from 0.
    stored = kind if zero == 0 else "uint8"
    assert {form.dtype for form in map(match_winograd, network.tasks) if form} == {stored}
    compiled = compile_whole(network, progress=False)
    assert len(compiled.kernels) == 2
    differences = {check.reference: check.difference for check in compiled.checks}
    assert differences["NumPy"] == 0
    assert differences["onnxruntime"] < 0.051  # a quantum, where its sums of floats round apart
    assert all(each["winograd"] for each in compiled.to_dict()["kernels"])
    rows = {row.operator: row.predicted for row in compiled.profile(repeat=1).rows}
    kernels = compiled.kernels.items()
    assert all(rows[str(task.operator)] == each.lowering.predicted for task, each in kernels)
    assert compiled.report().tasks[0].winograd
    assert " by Winograd's tiles, " in str(compiled.report())


def test_sums_may_wrap_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the worst image for one position of a tile: its sum of products needs 33 bits."""
    monkeypatch.setattr(winograd, "SAFETY_FACTOR", np.inf)
    (into, pairs), channels = INTO_TILES[True], 112
    row = (pairs @ into)[1]
    image = np.where(np.multiply.outer(row, row) > 0, 255, 0)
    position = (np.multiply.outer(row, row) * image).sum()
    form = Winograd((1, 6, 6, channels), (1, 4, 4, 16), (0, 0), dtype="uint8")
    weight = np.full((16, channels, 3, 3), 127, np.int8)
    assert position * int(form.windows(weight)[1, 1, 0, 0]) * channels > 2**31
    assert form.is_exact(weight)
    b = Builder()
    names = b.constant(1.0), b.constant(0, "uint8")
    x = b.node(
        "DequantizeLinear", b.node("QuantizeLinear", b.input("x", (1, 112, 6, 6)), *names), *names
    )
    kernel = b.node(
        "DequantizeLinear", b.constant(weight, "int8"), b.constant(1e-3), b.constant(0, "int8")
    )
    network = load_whole(b.model(b.node("Conv", x, kernel)))
    compiled = compile_whole(network, progress=False)
    (used,) = compiled.kernels.values()
    assert used.lowering.by_tiles
    values = np.broadcast_to(image.astype(np.float32), (1, channels, 6, 6))
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3)).sum((2, 3))
    expected = np.broadcast_to(windows * channels * 127 * 1e-3, (1, 16, 4, 4))
    np.testing.assert_allclose(compiled(np.ascontiguousarray(values)), expected, rtol=1e-6)


def test_what_cannot_be_built_by_tiles_is_built_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "SAFETY_FACTOR", np.inf)

    def refusing(tiles: WinogradTiles, symbol: str) -> TaskKernel:
        raise BuildError("tiles")

    monkeypatch.setattr(WinogradTiles, "build", refusing)
    compiled = compile_whole(_floats((1, 16, 8, 8), 16, [1] * 4), progress=False)
    (kernel,) = compiled.kernels.values()
    assert not kernel.lowering.by_tiles and not compiled.fallbacks


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2},
        {"dilations": [2, 2]},
        {"group": 2},
        {"window": (5, 5)},
        {"window": (1, 3)},
        {"features": 20},
    ],
)
def test_others_are_computed_as_they_are(options: Mapping[str, Any]) -> None:
    settings: dict[str, Any] = {"image": (1, 32, 9, 9), "features": 32, "pads": [1] * 4, **options}
    for task in _floats(**settings).tasks:
        assert match_winograd(task) is None
        assert select_tuned_task(task, _CHOOSER) is task


def test_results_that_may_be_too_large_are_computed_as_they_are() -> None:
    """Of weights of 127, 16 channels of bytes sum up to 4.7 million; 128 channels to too much."""
    tasks = load_whole(_quantized(weight=127)).tasks
    assert all(map(match_winograd, tasks))
    b = Builder()
    x = b.input("x", (1, 128, 5, 5))
    names = b.constant(0.02), b.constant(0, "uint8")
    x = b.node("DequantizeLinear", b.node("QuantizeLinear", x, *names), *names)
    parameters = [b.constant(0.01), b.constant(0, "int8")]
    kernel = b.constant(np.full((16, 128, 3, 3), 127), "int8")
    y = b.node("Conv", x, b.node("DequantizeLinear", kernel, *parameters), pads=[1, 1, 1, 1])
    (task,) = load_whole(b.model(y)).tasks
    assert task.operator.output.tensor.dtype == "int32" and match_winograd(task) is None


def test_windows_that_a_network_computes_are_none_of_a_constant() -> None:
    b = Builder()
    x, weight = b.input("x", (1, 16, 8, 8)), b.input("weight", (16, 16, 3, 3))
    (task,) = load_whole(b.model(b.node("Conv", x, weight, pads=[1] * 4))).tasks
    assert match_winograd(task) is None


@pytest.mark.long
def test_products_are_tuned_and_compiled_from_records(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both convolutions have one product, though their epilogues differ."""
    monkeypatch.setattr(winograd, "SAFETY_FACTOR", np.inf)
    # Of a single row of tiles, which cores cannot share.
    network, records = load_whole(_quantized(height=4)), tmp_path / "tuning.db"
    assert len(network.tasks) == 2
    tuning = amos.tune(network, trials=2, records=records, progress=False)
    (row,) = tuning.tasks
    assert row.kind == "winograd" and row.count == 2 and row.seconds is not None
    # What was measured is taken, whatever is predicted of the other way.
    monkeypatch.setattr(winograd, "SAFETY_FACTOR", 0.0)
    compiled = compile_whole(network, records=records, progress=False)
    for kernel in compiled.kernels.values():
        tiles = kernel.lowering
        assert isinstance(tiles, WinogradTiles) and tiles.product.seconds is not None
        assert tiles.measured == tiles.total(tiles.product.seconds)


@pytest.mark.long
def test_both_ways_are_timed_with_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    network = _floats((1, 32, 28, 28), 32, [1] * 4)
    seen: list[type] = []

    def recorded(kind: type[Lowering]) -> None:
        build = kind.build

        def recording(lowering: Lowering, symbol: str) -> TaskKernel:
            seen.append(kind)
            return build(lowering, symbol)

        monkeypatch.setattr(kind, "build", recording)

    recorded(Direct)
    recorded(WinogradTiles)
    compile_whole(network, measure=True, progress=False)
    assert seen.count(WinogradTiles) in (1, 2) and seen.count(Direct) >= 1


def test_measured_tiles_win_beside_others_that_are_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (task,) = _floats((1, 16, 16, 8), 16, [1] * 4).tasks
    bands = _band(task, 4, cooperative=True), _band(task, 2, cooperative=False)
    monkeypatch.setattr(choosing, "list_bands", lambda task, chooser: bands)
    monkeypatch.setattr(winograd, "SAFETY_FACTOR", 0.0)
    direct = _CHOOSER.choose(task.operator)
    first, *later = list_lowerings(task, _CHOOSER, {}).add_winograd(
        [direct], _CHOOSER, lambda operator: replace(_CHOOSER.choose(operator), seconds=1.0)
    )
    assert isinstance(first, WinogradTiles) and first.bands == bands[0]
    assert [type(each) for each in later] == [Direct, WinogradTiles]


def _list_single_rows(task: Task, chooser: Chooser) -> tuple[BandedTiles, ...]:
    return (_band(task, 1, cooperative=True),)


def test_products_of_bands_occur_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "SAFETY_FACTOR", np.inf)
    monkeypatch.setattr(choosing, "list_bands", _list_single_rows)
    (task,) = _floats((1, 16, 16, 8), 16, [1] * 4).tasks
    product = select_tuned_task(task, _CHOOSER)
    assert product.operator.name == "winograd" and product.weight == 4
    tiles = predict_lowering(task, _CHOOSER)
    assert isinstance(tiles, WinogradTiles)
    assert tiles.predicted - tiles.total(0.0) == pytest.approx(4 * tiles.product.prediction.seconds)


def test_the_check_allows_spoiled_tiles_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "SAFETY_FACTOR", np.inf)
    b = Builder()
    x = b.input("x", (1, 16, 16, 16))
    network = load_whole(b.model(b.node("Relu", b.convolution(x, (16, 16, 3, 3)))))
    compiled = compile_whole(network, progress=False)
    assert all(each.spreads for each in compiled.regions.values())
    assert "spoil" in str(compiled.report())
    image = np.random.default_rng(0).standard_normal((1, 16, 16, 16)).astype(np.float32)
    image[0, 3, 9, 9] = np.nan
    result = compiled(image)
    wrong = np.isnan(result).any((0, 1)) if result.shape[1] == 16 else np.isnan(result).any((0, 3))
    assert wrong[8:11, 8:11].all() and wrong.sum() <= 64  # tiles of 4x4 results that read it
    check = compiled.check(image)[0]
    assert check.passed and check.spread == 16 * (wrong.sum() - 9)
    assert f"without {check.spread} that tiles spoil" in str(check)
    got = [np.nan_to_num(result)]
    assert not check_results("", "itself", got, [result], rounded=False).passed
    assert not check_results("", "itself", [result], got, rounded=False).passed
