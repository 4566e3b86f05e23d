"""PyTorch on the operator of an exported kernel: what the kernel is compared with."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

#: Ends the name of a way whose calls are made by a CUDA graph.
GRAPH = ", graph"

#: Seconds of calls before the first timing.
_WARM_UP = 0.1
_TYPES = {
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float32": "float32",
    "tfloat32": "float32",
    "float64": "float64",
}


def baseline(launch: dict[str, Any]) -> dict[str, float]:
    """Measure the seconds of each of PyTorch's calls for an operator.

    Returns:
        ``eager``, ``channels_last``, ``mm``, ``mean`` and ``cumsum``, as far as they are
        there, each also with its calls made by a CUDA graph; nothing where PyTorch is not
        installed, sees no GPU, or has no such operator.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return {}
    inputs = launch["arguments"][:-1]
    if not torch.cuda.is_available() or any(a["dtype"] not in _TYPES for a in inputs):
        return {}
    operator = launch["operator"]
    fused = any(operator.get(key) for key in ("epilogue", "store", "further"))
    if fused or any("prologue" in operand for operand in operator["operands"]):
        return {}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    tensors = {
        a["name"]: torch.randn(a["shape"], device="cuda").to(getattr(torch, _TYPES[a["dtype"]]))
        for a in inputs
    }
    seconds = {}
    with torch.no_grad():
        calls = library_calls(torch, launch, tensors) | own_calls(launch, tensors)
        for variant, run in calls.items():
            seconds[variant] = _time_call(torch, run)
            if recorded := _record_graph(torch, run):
                seconds[variant + GRAPH] = _time_call(torch, recorded) / _CALLS
    del tensors
    torch.cuda.empty_cache()
    return seconds


def library_calls(
    torch: Any, launch: dict[str, Any], tensors: dict[str, Any]
) -> dict[str, Callable[[], Any]]:
    """Return PyTorch's calls for an operator: products by einsum, convolutions directly.

    Tensors are brought into the form that a convolution asks for ahead of time. A
    transposed convolution, whose zeros our kernel reads like any other value, is
    PyTorch's own on the image without them where ``launch`` says how many there are.
    """
    operands = launch["operator"]["operands"]
    if any(operand.get("padding") for operand in operands):
        return {}  # PyTorch's convolutions read zeros around the image
    if all(_plain(index) for operand in operands for index in operand["indices"]):
        names = list(launch["operator"]["iterations"])
        letters = {name: chr(ord("a") + n) for n, name in enumerate(names)}
        terms = ["".join(letters[_only(index)] for index in x["indices"]) for x in operands]
        formula = f"{','.join(terms[:-1])}->{terms[-1]}"
        sources = [tensors[operand["tensor"]] for operand in operands[:-1]]
        calls = {"eager": lambda: torch.einsum(formula, *sources)}
        if [len(t) for t in terms] == [2, 2, 2] and terms[0][1] == terms[1][0]:
            calls["mm"] = lambda: torch.mm(*sources)
        return calls
    image, *weights = (tensors[operand["tensor"]] for operand in operands[:-1])
    if stride := launch.get("upsampled"):
        return _transposed_calls(torch, launch, image, weights[0], stride)
    form = Convolution.of(launch["operator"])
    if form is None:
        return {}
    function = getattr(torch.nn.functional, f"conv{len(form.stride)}d")
    return _formats(torch, function, [form.image(image), form.weight(weights[0])], form.arguments)


def own_calls(launch: dict[str, Any], tensors: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return PyTorch's own functions for operators that are products here.

    A mean is a product with equal coefficients, a scan one with a triangle of ones, so
    that Tensor Cores can have them. PyTorch is spared these.
    """
    first = tensors[launch["operator"]["operands"][0]["tensor"]]
    kind = launch["operator"].get("name", "")
    if kind in ("mean", "variance"):  # the squares are there
        return {"mean": lambda: first.mean(1)}
    return {"cumsum": lambda: first.cumsum(1)} if kind == "scan" else {}


def _formats(
    torch: Any, function: Any, tensors: list[Any], arguments: dict[str, Any]
) -> dict[str, Callable[[], Any]]:
    """Return a convolution on tensors as stored, and channels last where PyTorch has that."""
    calls = {"eager": lambda: function(*tensors, **arguments)}
    if tensors[0].ndim > 3:
        last = torch.channels_last if tensors[0].ndim == 4 else torch.channels_last_3d
        channels_last = [x.to(memory_format=last) for x in tensors]
        calls["channels_last"] = lambda: function(*channels_last, **arguments)
    return calls


def _transposed_calls(
    torch: Any, launch: dict[str, Any], image: Any, weight: Any, stride: int
) -> dict[str, Callable[[], Any]]:
    """Return ``conv_transpose2d`` on the image without the zeros between its elements."""
    operator = launch["operator"]
    compact = image[..., ::stride, ::stride].contiguous()
    window = weight.shape[-2:]
    border = [-index["constant"] for index in operator["operands"][0]["indices"][-2:]]
    padding = [size - 1 - b for size, b in zip(window, border, strict=True)]
    out = [operator["iterations"][_only(i)] for i in operator["operands"][-1]["indices"][-2:]]
    plain = [
        (n - 1) * stride - 2 * p + size
        for n, p, size in zip(compact.shape[-2:], padding, window, strict=True)
    ]
    more = [o - n for o, n in zip(out, plain, strict=True)]
    arguments = {"stride": stride, "padding": padding, "output_padding": more}
    function = torch.nn.functional.conv_transpose2d
    return _formats(torch, function, [compact, weight], arguments)


@dataclass(frozen=True)
class Convolution:
    """A convolution in the form that PyTorch has it.

    Attributes:
        orders: for image, weight and output the order of dimensions: samples, groups,
            channels (input, or output and input), then the image or the window.
        parts: for each how many dimensions become one.
    """

    orders: tuple[tuple[int, ...], ...]
    parts: tuple[tuple[int, ...], ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of ``torch.nn.functional.conv…d``."""
        names = ("stride", "dilation", "padding", "groups")
        return {name: getattr(self, name) for name in names}

    @staticmethod
    def of(operator: dict[str, Any]) -> Convolution | None:
        """Return the convolution that ``launch.json`` describes."""
        if len(operator["operands"]) != 3:
            return None
        image, weight, out = (x["indices"] for x in operator["operands"])
        windows = [index for index in image if not _plain(index)]
        if not 1 <= len(windows) <= 3 or not all(map(_plain, (*weight, *out))):
            return None
        outer, inner = [_only(x) for x in out], [_only(x) for x in weight]
        places = [next((n for n in x["terms"] if n in outer), "") for x in windows]
        taps = [next((n for n in x["terms"] if n in inner), "") for x in windows]
        if "" in (*places, *taps) or any(len(x["terms"]) != 2 for x in windows):
            return None
        stride = tuple(x["terms"][p] for x, p in zip(windows, places, strict=True))
        dilation = tuple(x["terms"][t] for x, t in zip(windows, taps, strict=True))
        padding = tuple(-x["constant"] for x in windows)
        if min(*stride, *dilation) < 1 or min(padding) < 0:
            return None
        lead = [_only(x) for x in image if _plain(x)]
        samples = [n for n in lead if n in outer and n not in inner]
        groups = [n for n in lead if n in outer and n in inner]
        channels = [n for n in lead if n in inner and n not in outer]
        filters = [n for n in outer if n in inner and n not in lead]
        # A window goes by the place it is at.
        remaining = iter(places)
        seen = [_only(x) if _plain(x) else next(remaining) for x in image]
        return Convolution(
            orders=(
                tuple(map(seen.index, (*samples, *groups, *channels, *places))),
                tuple(map(inner.index, (*groups, *filters, *channels, *taps))),
                tuple(map(outer.index, (*samples, *groups, *filters, *places))),
            ),
            parts=(
                (len(samples), len(groups + channels)),
                (len(groups + filters), len(channels)),
                (len(samples), len(groups + filters)),
            ),
            stride=stride,
            dilation=dilation,
            padding=padding,
            groups=prod(operator["iterations"][n] for n in groups),
        )

    def image(self, x: Any) -> Any:
        """Return the image as samples × channels × image."""
        return self._form(x, 0)

    def weight(self, x: Any) -> Any:
        """Return the weight as output channels × input channels of a group × window."""
        return self._form(x, 1)

    def output(self, x: Any) -> Any:
        """Return the operator's output of the convolution's result."""
        return self._form(x, 2)

    def _form(self, x: Any, which: int) -> Any:
        x = x.permute(self.orders[which])
        first, second = self.parts[which]
        sizes: Sequence[int] = x.shape
        lead = (prod(sizes[:first]), prod(sizes[first : first + second]))
        return x.reshape(*lead, *sizes[first + second :]).contiguous()


def _plain(index: dict[str, Any]) -> bool:
    return list(index["terms"].values()) == [1] and not index["constant"]


def _only(index: dict[str, Any]) -> str:
    return str(next(iter(index["terms"])))


#: Calls in one span that is timed, and in one graph; and spans, of which the median counts.
_CALLS, _TIMINGS = 10, 20


def _record_graph(torch: Any, run: Callable[[], Any]) -> Callable[[], Any] | None:
    """Record a graph of several calls; ``None`` where a call cannot be recorded."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    try:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            for _ in range(_CALLS):
                run()
    except RuntimeError:
        torch.cuda.synchronize()  # raises if it is the GPU that failed
        return None
    replay: Callable[[], Any] = graph.replay
    return replay


def _time_call(torch: Any, run: Callable[[], Any]) -> float:
    """Measure median seconds of one call, over spans of several."""
    end = time.perf_counter() + _WARM_UP
    while True:  # the clocks of the GPU rise, and cuDNN chooses
        run()
        torch.cuda.synchronize()
        if time.perf_counter() >= end:
            break
    spans = []
    for _ in range(_TIMINGS):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(_CALLS):
            run()
        stop.record()
        torch.cuda.synchronize()
        spans.append(start.elapsed_time(stop) / _CALLS)
    return float(statistics.median(spans)) / 1e3
