"""PyTorch's own calls, for operators that have no single int8 call of oneDNN's, and in f32.

Each way a user would write the operator is timed, int8 where PyTorch has it, and named
for the dtype that it computes in: ``sum_s32`` adds bytes into int32, ``mean_f32`` takes
the same numbers stored as float32. Stored in whatever form the call likes best, weights
prepacked; every result is checked. ``_u8`` and ``_s8`` are int8 products with u8 and f32
results.

* Mean, variance and scan are the reductions themselves (``coefficient`` is all ones and
  ``triangle`` one below its diagonal), not products with constants. ``var_f32`` also
  centres and squares, which ``variance`` is given done.
* A transposed convolution starts from the image without the inserted zeros, as ours does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from contenders.onednn import owned, prepare
from contenders.workloads import Workload, chosen_dtype

#: How far a result may be off, as a share of the largest, by the dtype in a call's name.
_SLACK = {"f32": 2e-6, "bf16": 1e-2, "s32": 0.0, "s8": 2e-6, "u8": 1e-2}

Call = Callable[[], Any]
#: What is called, and how its result becomes the operator's.
Way = tuple[Call, Callable[[np.ndarray], np.ndarray]]
Arrays = dict[str, np.ndarray]


def supported(work: Workload) -> bool:
    return work.operator in _ways()


def computed_in(name: str) -> str:
    """The dtypes of a call, from its name."""
    kind = name.rpartition("_")[2]
    return {"s8": "u8s8f32", "u8": "u8s8u8", "s32": "u8s32"}.get(kind, kind)


def load(work: Workload, inputs: Arrays, expected: np.ndarray) -> dict[str, Callable[[int], float]]:
    """Prepare and check every way; seconds of one run by its name.

    Raises:
        ValueError: a call computes something else.
    """
    torch = prepare()
    made = {}
    for name, (call, back) in _ways()[work.operator](torch, work, inputs).items():
        result, wanted = call(), expected.astype(np.float64)
        plain = result.dequantize() if result.is_quantized else result
        got = back(plain.float().numpy())
        if name == "var_f32":
            wanted = inputs["square"].astype(np.float64).var(axis=1)
        slack = _SLACK[name.rpartition("_")[2]] * max(1.0, float(np.abs(wanted).max()))
        if got.shape != wanted.shape or np.abs(got - wanted).max() > slack:
            raise ValueError(f"{name} differs from NumPy")
        made[name] = _timed(call)
    return made


def _timed(call: Call) -> Callable[[int], float]:
    def timed(runs: int) -> float:
        start = time.perf_counter()
        for _ in range(runs):
            call()
        return (time.perf_counter() - start) / runs

    return timed


def _same(got: np.ndarray) -> np.ndarray:
    return got


def _row_sums(torch: Any, work: Workload, inputs: Arrays) -> dict[str, Way]:
    array = inputs["x" if work.operator == "mean" else "square"]
    count, bytes_, floats = array.shape[1], owned(torch, array), _floats(torch, array)
    ways: dict[str, Way] = {
        "sum_s32": (lambda: torch.sum(bytes_, 1, dtype=torch.int32), _same),
        "mean_f32": (lambda: torch.mean(floats, 1), lambda got: got * count),
    }
    if work.operator == "variance":
        ways["var_f32"] = (lambda: torch.var(floats, 1, correction=0), _same)
    return ways


def _scan(torch: Any, work: Workload, inputs: Arrays) -> dict[str, Way]:
    bytes_, floats = owned(torch, inputs["data"]), _floats(torch, inputs["data"])
    return {
        "cumsum_s32": (lambda: torch.cumsum(bytes_, 1, dtype=torch.int32), _same),
        "cumsum_f32": (lambda: torch.cumsum(floats, 1), _same),
    }


def _bmm(torch: Any, work: Workload, inputs: Arrays) -> dict[str, Way]:
    return _products(torch, inputs["x"], inputs["y"], _same)


def _grouped_fc(torch: Any, work: Workload, inputs: Arrays) -> dict[str, Way]:
    """A batched product, or one int8 call a group."""
    x, weight = inputs["x"].transpose(1, 0, 2), inputs["weight"]

    def back(got: np.ndarray) -> np.ndarray:
        return got.transpose(1, 0, 2)

    ways = _products(torch, x, weight.transpose(0, 2, 1), back)
    function, each = torch.ops.onednn.qlinear_pointwise, []
    for rows, matrix in zip(x, weight, strict=True):
        given = owned(torch, rows)
        packed = torch.ops.onednn.qlinear_prepack(torch.from_numpy(matrix.copy()), given.shape)
        each.append((given, packed, *_unscaled(torch, len(matrix))))

    def calls() -> Any:
        return torch.stack(
            [
                function(g, 1.0, 0, p, o, z, None, 1.0, 0, torch.float32, "none", [], "")
                for g, p, o, z in each
            ]
        )

    return ways | {"linears_s8": (calls, back)}


def _products(torch: Any, x: np.ndarray, y: np.ndarray, back: Any) -> dict[str, Way]:
    ways = {}
    for name, kind in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        left, right = (_floats(torch, a).to(kind) for a in (x, y))
        ways[f"bmm_{name}"] = (lambda left=left, right=right: torch.bmm(left, right), back)
    return ways


def _batched_conv2d(torch: Any, work: Workload, inputs: Arrays) -> dict[str, Way]:
    """One int8 call for each sample, or all of them as groups of one convolution."""
    weight = inputs["weight"]
    image = owned(torch, inputs["image"])
    if work.op_parameter("layout") == "NHWC":
        image = image.permute(0, 3, 1, 2)
    samples, channels = weight.shape[:2]
    each = [[int(work.op_parameter(name))] * 2 for name in ("stride", "padding", "dilation")]

    def convolution(x: Any, w: np.ndarray, groups: int) -> Call:
        ones, zeros = _unscaled(torch, len(w))
        packed = torch.ops.onednn.qconv_prepack(
            torch.from_numpy(w.copy()), ones, 1.0, 0, *each, groups, list(x.shape)
        )
        rest = (None, *each, groups, 1.0, 0, torch.float32, "none", [], "")
        return lambda: torch.ops.onednn.qconv_pointwise(x, 1.0, 0, packed, ones, zeros, *rest)

    singles = [convolution(image[n : n + 1], weight[n], 1) for n in range(samples)]
    together = image.reshape(1, -1, *image.shape[2:])
    grouped = convolution(together, weight.reshape(-1, *weight.shape[2:]), samples)
    nhwc = work.op_parameter("layout") == "NHWC"

    def back(got: np.ndarray) -> np.ndarray:
        flat = got.reshape(samples, channels, *got.shape[-2:])
        return np.moveaxis(flat, 1, -1) if nhwc else flat

    return {
        "convs_s8": (lambda: torch.cat([call() for call in singles]), back),
        "grouped_s8": (grouped, back),
    }


def _transposed_conv2d(torch: Any, work: Workload, inputs: Arrays) -> dict[str, Way]:
    stride, padding = int(work.op_parameter("stride")), int(work.op_parameter("padding"))
    image = np.ascontiguousarray(np.moveaxis(inputs["image"], -1, 1))
    weight = inputs["weight"]
    sizes = [int(work.op_parameter(name)) for name in ("p", "q")]

    def back(got: np.ndarray) -> np.ndarray:
        return np.moveaxis(got, 1, -1)

    each = [[n] * 2 for n in (stride, padding)]
    missing = [
        size - ((n - 1) * stride - 2 * padding + window)
        for size, n, window in zip(sizes, image.shape[2:], weight.shape[2:], strict=True)
    ]
    function, ways = torch.nn.functional.conv_transpose2d, {}
    for name, kind in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        x, w = (_floats(torch, a).to(kind) for a in (image, weight))
        x = x.to(memory_format=torch.channels_last)
        ways[f"deconv_{name}"] = (
            lambda x=x, w=w: function(x, w, None, *each, missing),
            back,
        )
    # PyTorch 2.13's other engine, oneDNN, computes something else.
    torch.backends.quantized.engine = "fbgemm"
    # Results must fit the byte that this call returns.
    scale = float(ways["deconv_f32"][0]().abs().max()) / 120
    x8 = torch._make_per_tensor_quantized_tensor(owned(torch, image), 1.0, 0)
    x8 = x8.contiguous(memory_format=torch.channels_last)
    w8 = torch._make_per_tensor_quantized_tensor(torch.from_numpy(weight.copy()), 1.0, 0)
    packed = torch.ops.quantized.conv_transpose2d_prepack(w8, None, *each, missing, [1, 1], 1)
    call = torch.ops.quantized.conv_transpose2d
    return ways | {"deconv_u8": (lambda: call(x8, packed, scale, 128), back)}


def _conv2d(torch: Any, work: Workload, inputs: Arrays) -> dict[str, Way]:
    """Image and weights with their channels last."""
    last = work.op_parameter("layout") == "NHWC"
    image = np.moveaxis(inputs["image"], -1, 1) if last else inputs["image"]
    x, w = (
        _floats(torch, array).contiguous(memory_format=torch.channels_last)
        for array in (image, inputs["weight"])
    )
    each = [[int(work.op_parameter(name))] * 2 for name in ("stride", "padding", "dilation")]

    def back(got: np.ndarray) -> np.ndarray:
        return np.moveaxis(got, 1, -1) if last else got

    return {"conv_f32": (lambda: torch.nn.functional.conv2d(x, w, None, *each), back)}


def _gemm(torch: Any, work: Workload, inputs: Arrays) -> dict[str, Way]:
    left, right = (_floats(torch, inputs[name]) for name in ("a", "b"))
    return {"matmul_f32": (lambda: left @ right, _same)}


def _floats(torch: Any, array: np.ndarray) -> Any:
    return torch.from_numpy(np.ascontiguousarray(array)).float()


def _unscaled(torch: Any, count: int) -> tuple[Any, Any]:
    return torch.ones(count), torch.zeros(count, dtype=torch.int32)


_Ways = dict[str, Callable[[Any, Workload, Arrays], dict[str, Way]]]

_F32: _Ways = {"conv2d": _conv2d, "gemm": _gemm}
_WAYS: _Ways = {
    "mean": _row_sums,
    "variance": _row_sums,
    "scan": _scan,
    "bmm": _bmm,
    "grouped_fc": _grouped_fc,
    "batched_conv2d": _batched_conv2d,
    "transposed_conv2d": _transposed_conv2d,
}


def _ways() -> _Ways:
    return _F32 if chosen_dtype() == "f32" else _WAYS
