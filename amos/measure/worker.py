"""The process that builds and times candidates, and may die doing so.

Started as ``python -m amos.measure.worker``. Requests and replies are
length-prefixed pickles over its own standard input and output, between two
processes of one program; nothing is ever read from disk. Anything that a kernel
or a compiler prints goes to standard error.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import struct
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from amos.errors import AmosError
from amos.intrinsics import provide
from amos.ir import Operator

__all__ = ["main"]

_HEADER = struct.Struct("<Q")
_PR_SET_PDEATHSIG = 1
#: Operators whose inputs and reference result are kept; one exploration has one.
_KEPT = 2
_SEED = 20220618


class _References:
    """Inputs and expected outputs, computed once for each operator."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Operator, tuple[dict[str, np.ndarray], np.ndarray]] = OrderedDict()

    def get(self, operator: Operator) -> tuple[dict[str, np.ndarray], np.ndarray]:
        from amos.validate import evaluate, random_inputs

        if operator not in self._kept:
            inputs = random_inputs(operator, np.random.default_rng(_SEED))
            self._kept[operator] = inputs, evaluate(operator, inputs)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return self._kept[operator]


def _measure(request: dict[str, Any], references: _References) -> dict[str, Any]:
    """Build, verify, then time one candidate."""
    from amos.codegen import build

    candidate = request["candidate"]
    try:
        kernel = build(candidate, implementation=request.get("implementation"))
    except AmosError as error:
        return {"failure": "build", "message": str(error)}
    inputs, expected = references.get(candidate.mapping.operator)
    arguments = kernel.prepare(inputs)
    kernel.run(arguments)
    got = arguments[-1].numpy().reshape(expected.shape)
    difference = _difference(got, expected)
    reply: dict[str, Any] = {
        "implementation": kernel.implementation,
        "verified_elements": int(expected.size),
        "max_difference": difference,
    }
    # A NaN difference must count as wrong, hence "not <=".
    if not difference <= _tolerance(candidate.mapping.operator, expected):
        return reply | {"failure": "wrong", "message": f"largest difference {difference:g}"}
    return reply | {"times": kernel.times(inputs, repeat=request.get("repeat", 10))}


def _difference(got: np.ndarray, expected: np.ndarray) -> float:
    """Largest absolute difference; NaN against a number counts as infinite."""
    if got.size == 0:
        return 0.0
    apart = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    return float(np.where(np.isnan(apart), np.inf, apart).max())


def _tolerance(operator: Operator, expected: np.ndarray) -> float:
    """Zero for integers; for floats, rounding of a sum as long as the reduction."""
    if np.issubdtype(expected.dtype, np.integer):
        return 0.0
    length = operator.points / max(1, expected.size)
    scale = max(1.0, float(np.abs(expected.astype(np.float64)).max(initial=0.0)))
    return float(np.finfo(expected.dtype).eps * scale * max(8.0, length))


def _call(request: dict[str, Any]) -> dict[str, Any]:
    """Run one intrinsic on fragments; see :meth:`amos.measure.Runner.call`."""
    from amos.codegen.calls import run_calls
    from amos.codegen.tensor_intrin import holdable

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


def _probe(request: dict[str, Any]) -> dict[str, Any]:
    from amos.codegen import probe

    cores, best = request["cores"], dict[tuple[str, ...], float]()

    def keep(key: tuple[str, ...], value: float, better: Callable[..., float]) -> None:
        best[key] = better(value, best.get(key, value))

    for _ in range(_ROUNDS):
        for unit in request["intrinsics"]:
            keep(("peaks", unit.name, "latency"), probe.probe_intrinsic(unit, 1), min)
            for chains in request["chains"]:
                # Cores share no execution units; alone, a core is disturbed less.
                for busy in {1, cores}:
                    interval = probe.probe_intrinsic(unit, chains, busy)
                    keep(("peaks", unit.name, "interval"), interval, min)
        for name, runs in request["levels"].items():
            for who, (size, busy) in runs.items():
                for key, write in (("read", False), ("write", True)):
                    rate = probe.probe_bandwidth(size, busy, write=write)
                    keep((key, name, who), rate, max)
        if request["levels"]:
            keep(("launch",), probe.probe_launch(cores), min)
            keep(("clock",), probe.probe_clock(), max)
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


def _serve(requests: BinaryIO, replies: BinaryIO) -> None:
    references = _References()
    while header := requests.read(_HEADER.size):
        (size,) = _HEADER.unpack(header)
        request = pickle.loads(requests.read(size))
        try:
            reply = _answer(request, references)
        except Exception as error:
            traceback.print_exc()
            reply = {"failure": "error", "message": _one_line(error)}
        data = pickle.dumps(reply)
        replies.write(_HEADER.pack(len(data)) + data)
        replies.flush()


def _answer(request: dict[str, Any], references: _References) -> dict[str, Any]:
    kind = request["kind"]
    provide(request.get("provided", ()))
    if kind == "measure":
        return _measure(request, references)
    if kind == "probe":
        return _probe(request)
    if kind == "call":
        return _call(request)
    if kind == "drill":
        return _drill(request["how"])
    return {"failure": "error", "message": f"unknown request {kind!r}"}


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__


def _drill(how: str) -> dict[str, Any]:
    """Misbehave on purpose, so that tests can see the parent survive it."""
    import time

    if how == "segfault":
        ctypes.string_at(0)
    if how == "abort":
        os.abort()
    if how == "hang":
        while True:
            time.sleep(1)
    if how == "raise":
        raise RuntimeError("raised on purpose")
    return {"pid": os.getpid()}


def main() -> None:
    """Serve requests until standard input closes."""
    # The parent decides when we stop: Ctrl-C reaches the whole process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = int(sys.argv[1]) if len(sys.argv) > 1 else os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before we asked
            return
    requests = sys.stdin.buffer
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _serve(requests, replies)


if __name__ == "__main__":
    main()
