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
from collections import OrderedDict
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


def _probe(request: dict[str, Any]) -> dict[str, Any]:
    from amos.codegen import probe

    cores = request["cores"]
    result: dict[str, Any] = {"peaks": {}, "read": {}, "write": {}}
    for intrinsic in request["intrinsics"]:
        chains = request["chains"]
        result["peaks"][intrinsic.name] = {
            "latency": probe.probe_intrinsic(intrinsic, 1),
            "interval": min(probe.probe_intrinsic(intrinsic, n, cores) for n in chains),
        }
    for name, (size, busy) in request["levels"].items():
        result["read"][name] = probe.probe_bandwidth(size, busy, write=False)
        result["write"][name] = probe.probe_bandwidth(size, busy, write=True)
    if request["levels"]:
        result["launch"] = probe.probe_launch(cores)
    return result


def _serve(requests: BinaryIO, replies: BinaryIO) -> None:
    references = _References()
    while header := requests.read(_HEADER.size):
        (size,) = _HEADER.unpack(header)
        request = pickle.loads(requests.read(size))
        kind = request["kind"]
        provide(request.get("provided", ()))
        if kind == "measure":
            reply = _measure(request, references)
        elif kind == "probe":
            reply = _probe(request)
        elif kind == "call":
            reply = _call(request)
        elif kind == "drill":
            reply = _drill(request["how"])
        else:
            reply = {"failure": "error", "message": f"unknown request {kind!r}"}
        data = pickle.dumps(reply)
        replies.write(_HEADER.pack(len(data)) + data)
        replies.flush()


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
