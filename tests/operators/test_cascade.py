"""Convolutions on fewer rows: put together, their results are those of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amos.ir import Operator
from amos.operators.cascade import Cascade, Window, rows_of
from amos.validate import evaluate, random_inputs


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


@pytest.mark.parametrize(
    ("more", "window"),
    [
        ({}, Window(1, 3, 1)),
        ({"stride": 2}, Window(2, 3, 1)),
        ({"taps": 5, "above": 2, "stride": 2}, Window(2, 5, 2)),
        ({"dilation": 2, "above": 2}, Window(1, 5, 2)),
        ({"taps": 2, "above": 0, "stride": 2}, Window(2, 2, 0)),
    ],
)
def test_the_window_of_a_convolution(more: dict[str, Any], window: Window) -> None:
    operator = depthwise(**more)
    assert Window.of(operator) == window
    band = rows_of(operator, 3)
    assert band.inputs[0].shape[1] == 2 * window.stride + window.rows
    assert band.extents == operator.extents | {"n": 1, "p": 3}
    assert band.result.shape == (1, 3, *operator.result.shape[2:])


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_bands_put_together_are_the_whole(stride: int, rows: int) -> None:
    operator = depthwise(stride=stride, padding=5).with_epilogue(
        "relu(acc + bias[g] + residual[n,p,q,g])"
    )
    inputs = random_inputs(operator, np.random.default_rng(0))
    window, band = Window.of(operator), rows_of(operator, rows)
    needed = (rows - 1) * stride + window.rows
    image = np.pad(inputs["image"], [(0, 0), (window.above, 9), (0, 0), (0, 0)], constant_values=5)
    expected = evaluate(operator, inputs)
    for n in range(2):
        for at in range(0, 6, rows):
            begin, here = at * stride, np.s_[n : n + 1, at : at + rows]
            own = inputs | {
                "image": image[n : n + 1, begin : begin + needed],
                "residual": inputs["residual"][here],
            }
            np.testing.assert_array_equal(evaluate(band, own), expected[here])


def test_a_cascade_names_what_its_stages_read() -> None:
    middle = depthwise(stride=2)
    last = pointwise(middle, 8, before=False).with_epilogue("acc + residual[n,p,q,k]")
    cascade = Cascade((pointwise(middle, 4, before=True), middle, last))
    assert cascade.name == "conv2d + depthwise_conv2d + conv2d"
    names = [tensor.name for tensor in cascade.inputs]
    assert names == ["0.image", "0.weight", "1.weight", "2.weight", "2.residual"]
    assert cascade.result.shape == (2, 6, 6, 8)
    assert (cascade.images, cascade.rows, cascade.window.halo) == (2, 6, 1)
    # Five rows of eleven columns for two rows of six, 16 channels each.
    assert cascade.between(2) == [5 * 11 * 16 * 4, 2 * 6 * 16 * 4]
