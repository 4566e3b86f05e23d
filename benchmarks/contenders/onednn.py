"""oneDNN, through the int8 calls that PyTorch's compiler emits for quantized models.

The call is timed from Python with weights prepacked, scales of one and no zero
points, so that nothing is requantized: ``f32`` outputs are the sums, converted. The
primitive is what oneDNN's own profile says of the same call. ``u8`` outputs move a
quarter of the bytes and are what a quantized network asks for.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from contenders.workloads import Workload, chosen_dtype

#: Operators that these calls compute.
CONVOLUTIONS = {"conv1d": 1, "conv2d": 2, "dilated_conv2d": 2, "conv3d": 3}
CONVOLUTIONS |= {"grouped_conv2d": 2, "depthwise_conv2d": 2, "capsule_conv2d": 2}
PRODUCTS = ("gemm", "gemv")


def supported(work: Workload) -> bool:
    return chosen_dtype() != "f32" and work.operator in (*CONVOLUTIONS, *PRODUCTS)


def load(
    work: Workload, output: str, inputs: dict[str, np.ndarray], expected: np.ndarray
) -> dict[str, Callable[[int], float]]:
    """Prepack, check, and say how to time the call and the primitive inside it.

    Raises:
        ValueError: the call computes something else.
    """
    torch = prepare()
    scale = 1.0 if output == "f32" else max(1.0, float(np.abs(expected).max()) / 200)
    kind = torch.float32 if output == "f32" else torch.uint8
    made = _product if work.operator in PRODUCTS else _convolution
    call, back = made(torch, work, inputs, scale, kind)
    got = back(call().float().numpy())
    wanted = expected.astype(np.float32)
    if output == "u8":
        wanted = np.clip(np.rint(expected / scale), 0, 255)
    # Sums beyond 2^24 are rounded as they become f32; u8 may round halves either way.
    slack = 1.0 if output == "u8" else 1e-6 * max(1.0, float(np.abs(wanted).max()))
    if got.shape != wanted.shape or np.abs(got - wanted).max() > slack:
        raise ValueError("differs from NumPy")

    def timed(runs: int) -> float:
        start = time.perf_counter()
        for _ in range(runs):
            call()
        return (time.perf_counter() - start) / runs

    if os.environ.get("ONEDNN_VERBOSE"):
        return {"primitive": lambda runs: _profiled(call, runs)}
    return {"call": timed}


def prepare() -> Any:
    """PyTorch with all cores and without gradients."""
    import torch

    # Not the cores of this thread, which is bound to one of them by now.
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.set_grad_enabled(False)
    return torch


def owned(torch: Any, array: np.ndarray) -> Any:
    """A copy in PyTorch's own memory, which begins at a cache line as everybody's does."""
    return torch.from_numpy(np.ascontiguousarray(array)).clone()


def _convolution(
    torch: Any, work: Workload, inputs: dict[str, np.ndarray], scale: float, kind: Any
) -> tuple[Callable[[], Any], Callable[[np.ndarray], np.ndarray]]:
    rank = CONVOLUTIONS[work.operator]
    image, weight = inputs["image"], inputs["weight"]
    groups, batch = 1, image.shape[0]
    if work.operator == "grouped_conv2d":
        groups = weight.shape[0]
        image = image.reshape(*image.shape[:-2], -1)
        weight = weight.reshape(-1, *weight.shape[2:])
    elif work.operator == "depthwise_conv2d":
        groups = weight.shape[0]
        weight = weight.reshape(-1, 1, *weight.shape[2:])
    elif work.operator == "capsule_conv2d":
        # The elements of a capsule are channels; the image has channels last for this call.
        image = np.moveaxis(image, 1, -1)
        capsules, width = weight.shape[0], weight.shape[-1]
        weight = np.moveaxis(weight, -1, 1).reshape(-1, *weight.shape[1:-1])
    last = 1 + rank
    x = owned(torch, image).permute(0, last, *range(1, last))
    each = [[int(work.op_parameter(name))] * rank for name in ("stride", "padding", "dilation")]
    ones = torch.ones(weight.shape[0])
    zeros = torch.zeros(weight.shape[0], dtype=torch.int32)
    packed = torch.ops.onednn.qconv_prepack(
        torch.from_numpy(weight.copy()), ones, 1.0, 0, *each, groups, list(x.shape)
    )
    function = torch.ops.onednn.qconv_pointwise

    def call() -> Any:
        return function(
            x, 1.0, 0, packed, ones, zeros, None, *each, groups, scale, 0, kind, "none", [], ""
        )

    def back(got: np.ndarray) -> np.ndarray:
        if work.operator == "capsule_conv2d":
            return np.moveaxis(got.reshape(batch, capsules, width, *got.shape[2:]), 2, -1)
        flat = np.moveaxis(got, 1, -1)
        return flat.reshape(batch, *flat.shape[1:-1], *_tail(work, weight.shape[0], groups))

    return call, back


def _tail(work: Workload, channels: int, groups: int) -> tuple[int, ...]:
    split = work.operator in ("grouped_conv2d", "depthwise_conv2d")
    return (groups, channels // groups) if split else (channels,)


def _product(
    torch: Any, work: Workload, inputs: dict[str, np.ndarray], scale: float, kind: Any
) -> tuple[Callable[[], Any], Callable[[np.ndarray], np.ndarray]]:
    if work.operator == "gemv":
        rows, weight = inputs["x"][None, :], inputs["a"]
    else:
        rows, weight = inputs["a"], inputs["b"].T
    x = owned(torch, rows)
    given = torch.from_numpy(np.ascontiguousarray(weight))
    packed = torch.ops.onednn.qlinear_prepack(given, list(x.shape))
    ones = torch.ones(weight.shape[0])
    zeros = torch.zeros(weight.shape[0], dtype=torch.int32)
    function = torch.ops.onednn.qlinear_pointwise

    def call() -> Any:
        return function(x, 1.0, 0, packed, ones, zeros, None, scale, 0, kind, "none", [], "")

    return call, lambda got: got[0] if work.operator == "gemv" else got


def _profiled(call: Callable[[], Any], runs: int) -> float:
    """Seconds of the primitives of one call, as oneDNN prints them on standard output."""
    with tempfile.TemporaryFile() as printed:
        kept = os.dup(1)
        os.dup2(printed.fileno(), 1)
        try:
            for _ in range(runs):
                call()
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        printed.seek(0)
        text = printed.read().decode(errors="replace")
    times: list[float] = []
    for line in text.splitlines():
        found = re.match(r"onednn_verbose,.*\bexec,cpu,(\w+),.*,([\d.eE+-]+)$", line)
        if found and found[1] in ("convolution", "matmul", "inner_product"):
            times.append(float(found[2]) * 1e-3)
    if len(times) < runs:
        raise ValueError(f"{runs} calls, but {len(times)} primitives in oneDNN's profile")
    # The clock of the profile ticks about once a microsecond: only a mean tells less than that.
    return sum(times) / runs
