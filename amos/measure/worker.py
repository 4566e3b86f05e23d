"""The process that builds and times candidates, and may die doing so.

Forked by :mod:`amos.measure.guard`, which has loaded TVM and computed the
reference results. Anything that a kernel or a compiler prints goes to standard
error.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from amos.errors import AmosError
from amos.intrinsics import provide
from amos.ir import Operator, dtype
from amos.measure.limits import address_space, lower
from amos.measure.protocol import encode, receive, send
from amos.records.measurement import noise_of

__all__ = ["References", "serve"]

_PR_SET_PDEATHSIG = 1
#: Operators whose inputs and reference result are kept; one exploration has one.
_KEPT = 2
_SEED = 20220618
#: Elements that are compared at a time.
_BLOCK = 1 << 20
#: A measurement noisier than this is prolonged, at most so many times.
_NOISE, _ROUNDS_OF_REPEATS = 0.02, 3
#: Share of the limit that timing may take, and repeats that there are whatever they take.
_SHARE, _FEWEST = 0.25, 3
#: Most bytes that a worker may write to one file.
_LARGEST_FILE = 64 << 20
#: Share of the memory limit that compiling may leave behind before a worker retires.
_GROWTH = 0.25
_NO_MEMORY = ("bad_alloc", "cannot allocate memory", "out of memory")

Wait = Callable[[], None]


class References:
    """Inputs and expected outputs, computed once for each operator."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Operator, tuple[dict[str, np.ndarray], np.ndarray]] = OrderedDict()

    def get(self, operator: Operator) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Random inputs, and what the operator makes of them."""
        from amos.validate import evaluate, random_inputs

        if operator not in self._kept:
            inputs = random_inputs(operator, np.random.default_rng(_SEED))
            self._kept[operator] = inputs, evaluate(operator, inputs)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return self._kept[operator]

    @property
    def operators(self) -> frozenset[Operator]:
        """Operators whose results are there."""
        return frozenset(self._kept)

    @property
    def bytes(self) -> int:
        """Bytes of everything that is kept."""
        arrays = [x for inputs, result in self._kept.values() for x in (result, *inputs.values())]
        return sum(array.nbytes for array in arrays)


def _measure(request: dict[str, Any], references: References, wait: Wait) -> dict[str, Any]:
    """Build, verify, then time one candidate; nothing runs before the cores are ours."""
    candidate = request["candidate"]
    kernel: Any
    try:
        kernel = _built(request)
    except AmosError as error:
        if _lacks_memory(error):
            raise MemoryError(str(error)) from error
        return {"failure": "build", "message": str(error)}
    inputs, expected = references.get(candidate.mapping.operator)
    if request.get("board"):
        from amos.runtime.remote import RemoteKernel

        try:
            kernel = RemoteKernel(kernel, request["board"])
        except AmosError as error:
            return {"failure": "unreachable", "message": str(error)}
    try:
        arguments = kernel.prepare(inputs)
        wait()
        start = time.perf_counter()
        kernel.run(arguments)
        once = time.perf_counter() - start
        reply = _judged(kernel, request, arguments, references)
        if "failure" not in reply:
            reply["times"] = _times(kernel, request, inputs, once)
        return reply
    finally:
        if request.get("gpu"):  # the driver keeps what is not given back
            kernel.close()


def _judged(
    kernel: Any, request: dict[str, Any], arguments: Any, references: References
) -> dict[str, Any]:
    """What a kernel has computed, held against the reference."""
    candidate = request["candidate"]
    _, expected = references.get(candidate.mapping.operator)
    got = kernel.result(arguments)
    difference, strange = _compared(got, expected)
    reply: dict[str, Any] = {
        "implementation": kernel.implementation,
        "verified_elements": int(expected.size),
        "max_difference": difference,
    }
    if strange:
        message = f"{strange} of {expected.size} elements are not a number"
        return reply | {"failure": "nan", "message": message}
    # An infinite difference of infinities is NaN and must count as wrong, hence "not <=".
    if not difference <= _tolerance(candidate.mapping.operator, expected):
        return reply | {"failure": "wrong", "message": f"largest difference {difference:g}"}
    return reply


def _times(
    kernel: Any, request: dict[str, Any], inputs: dict[str, np.ndarray], once: float
) -> tuple[float, ...]:
    """Seconds of a run, repeated as often as asked for or as the limit has room for.

    Args:
        kernel: a kernel that was verified.
        request: how often, with cold caches or not, and the limit.
        inputs: what it runs on.
        once: seconds of its first run.
    """
    repeat, flush = int(request.get("repeat", 10)), int(request.get("flush") or 0)
    room = _SHARE * float(request.get("limit", math.inf))
    if repeat * once > room:
        repeat = min(repeat, max(_FEWEST, int(room / once)))
    times: tuple[float, ...] = kernel.times(inputs, repeat=repeat, flush=flush)
    for _ in range(1, _ROUNDS_OF_REPEATS):
        if noise_of(times) <= _NOISE or (len(times) + repeat) * once > room:
            break
        times += kernel.times(inputs, repeat=repeat, flush=flush)
    return times


def _built(request: dict[str, Any]) -> Any:
    """The candidate's kernel: on the GPU that is named, or on this CPU."""
    if request.get("gpu"):
        from amos.runtime.cuda.gpu_kernel import GpuKernel

        return GpuKernel(request["candidate"], *request["gpu"])
    from amos.runtime import build

    return build(request["candidate"], implementation=request.get("implementation"))


def _compared(got: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """Largest difference, and how many elements are not a number though they should be.

    In blocks: as floats and differences the whole would take many times its memory.
    """
    difference, strange = 0.0, 0
    for one, other in zip(_blocks(got), _blocks(expected), strict=True):
        difference = max(difference, _difference(one, other))
        strange += int(np.count_nonzero(_not_numbers(one) & ~_not_numbers(other)))
    return difference, strange


def _blocks(values: np.ndarray) -> Iterator[np.ndarray]:
    flat = values.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        yield flat[start : start + _BLOCK]


def _not_numbers(values: np.ndarray) -> np.ndarray:
    if np.issubdtype(values.dtype, np.integer):
        return np.zeros(values.shape, dtype=bool)
    return np.isnan(values.astype(np.float64))


def _difference(got: np.ndarray, expected: np.ndarray) -> float:
    """Largest absolute difference; NaN against a number counts as infinite."""
    if got.size == 0:
        return 0.0
    apart = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    return float(np.where(np.isnan(apart), np.inf, apart).max())


def _tolerance(operator: Operator, expected: np.ndarray) -> float:
    """Zero for integers; for floats, rounding of a sum as long as the reduction.

    Integers that an epilogue makes of float sums may round to a neighbour.
    """
    if np.issubdtype(expected.dtype, np.integer):
        return 0.0 if dtype(operator.output.tensor.dtype or "int32").is_integer else 1.0
    length = operator.points / max(1, expected.size)
    largest = (float(np.abs(x.astype(np.float64)).max(initial=0.0)) for x in _blocks(expected))
    scale = max(1.0, *largest)
    step = np.finfo(expected.dtype).eps
    if operator.result_dtype == "bfloat16":
        step = np.float32(2.0**-8)
    return float(step * scale * max(8.0, length))


def _call(request: dict[str, Any]) -> dict[str, Any]:
    """Run one intrinsic on fragments; see :meth:`amos.measure.Runner.call`."""
    from amos.codegen.tir.tensor_intrin import holdable
    from amos.runtime.calls import run_calls

    try:
        holdable(request["intrinsic"])
    except AmosError as error:
        return {"failure": "unheld", "message": str(error)}
    try:
        result = run_calls(request["intrinsic"], request["implementation"], request["arrays"])
    except AmosError as error:
        return {"failure": "build", "message": str(error)}
    return {"result": result}


#: Rounds of a probe; the best of each figure counts, since whatever else runs on
#: the machine can only make a round worse.
_ROUNDS = 2
#: Seconds after which no other round begins.
_LONG = 20.0


def _probe(request: dict[str, Any]) -> dict[str, Any]:
    from amos.codegen.probes import memory as probe
    from amos.codegen.tir.tensor_intrin import implementation
    from amos.machine.cpu import cpu

    cores, best = request["cores"], dict[tuple[str, ...], float]()

    def keep(key: tuple[str, ...], value: float, better: Callable[..., float]) -> None:
        best[key] = better(value, best.get(key, value))

    start, clock = time.perf_counter(), probe.probe_clock()
    for done in range(_ROUNDS):
        if done and time.perf_counter() - start > _LONG:
            break
        for unit in request["intrinsics"]:
            kind = request["implementation"] or implementation(unit, cpu().features)
            try:
                rates = probe.probe_rates(unit, kind, cores)
                probe.check_rates(unit, kind, rates, clock)
            except AmosError as error:
                return {"failure": "probe", "message": str(error)}
            for name, seconds in rates.items():
                keep(("peaks", unit.name, name), seconds, min)
        for name, runs in request["levels"].items():
            for who, (size, busy) in runs.items():
                for key, write in (("read", False), ("write", True)):
                    rate = probe.probe_bandwidth(size, busy, write=write)
                    keep((key, name, who), rate, max)
        if request["levels"]:
            keep(("launch",), probe.probe_launch(cores), min)
            keep(("clock",), max(clock, probe.probe_clock()), max)
    return _nested(best)


def _nested(flat: dict[tuple[str, ...], float]) -> dict[str, Any]:
    """``{("a", "b"): 1}`` as ``{"a": {"b": 1}}``."""
    tree: dict[str, Any] = {"peaks": {}, "read": {}, "write": {}}
    for path, value in flat.items():
        branch = tree
        for key in path[:-1]:
            branch = branch.setdefault(key, {})
        branch[path[-1]] = value
    return tree


def serve(inward: int, outward: int, references: References, memory: int, guard: int) -> None:
    """Answer requests until the guard closes the pipe.

    Args:
        inward: descriptor to read requests from.
        outward: descriptor to write replies to.
        references: what the guard has computed so far.
        memory: bytes that this process may allocate, with the references that it
            inherits; 0 for no limit.
        guard: process number of the guard.
    """
    _settle(memory and max(1, memory - references.bytes), guard)
    before = address_space()

    def wait() -> None:
        send(outward, encode({"needs_cores": True}))
        receive(inward)

    while True:
        try:
            request = receive(inward)
        except EOFError:
            return
        start = time.perf_counter()
        reply = _guarded(request, references, wait)
        reply["work_seconds"] = time.perf_counter() - start
        reply["retire"] = bool(memory) and address_space() - before > _GROWTH * memory
        send(outward, encode(reply))


def _guarded(request: dict[str, Any], references: References, wait: Wait) -> dict[str, Any]:
    try:
        return _answer(request, references, wait)
    except MemoryError as error:
        return {"failure": "memory", "message": _one_line(error)}
    except Exception as error:
        traceback.print_exc()
        kind = "memory" if _lacks_memory(error) else "error"
        return {"failure": kind, "message": _one_line(error)}


def _answer(request: dict[str, Any], references: References, wait: Wait) -> dict[str, Any]:
    kind = request["kind"]
    provide(request.get("provided", ()))
    if kind == "measure":
        return _measure(request, references, wait)
    if kind == "probe":
        wait()
        return _probe(request)
    if kind == "call":
        return _call(request)
    if kind == "drill":
        from amos.measure.drill import misbehave

        return misbehave(request["how"], wait)
    return {"failure": "error", "message": f"unknown request {kind!r}"}


def _settle(memory: int, guard: int) -> None:
    """Limits, and an end that comes with the guard's."""
    # The guard decides when we stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # the guard died before we asked
            os._exit(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    tempfile.tempdir = None
    lower("RLIMIT_CORE", 0)
    lower("RLIMIT_FSIZE", _LARGEST_FILE)
    if memory and (taken := address_space()):
        lower("RLIMIT_AS", taken + memory)


def _lacks_memory(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY)


def _one_line(error: BaseException) -> str:
    """TVM names the cause in its last line; our errors begin with it."""
    lines = str(error).strip().splitlines()
    if isinstance(error, AmosError):
        return "; ".join(lines)
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
