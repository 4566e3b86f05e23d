"""Source text that implements an intrinsic, separate from its meaning.

An intrinsic may have one implementation of each kind, and needs none: without
any it is still mapped, modelled and simulated, and compiled through loops that
are generated from its meaning.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass

from amos.errors import IntrinsicError

#: Languages of the source, each with the compiler that reads it.
KINDS = {
    "llvm": "TVMScript body of a tensor intrinsic, compiled by TVM's LLVM",
    "c": "C statements, compiled by a C compiler",
    "cuda": "CUDA C++ statements of one warp, compiled by nvcc",
    "opencl": "OpenCL C statements of one work-item",
}
#: Name of a CUDA architecture among features.
_ARCHITECTURE = re.compile(r"sm_(\d+)a?", re.ASCII)
_MACHINES = ("x86_64", "aarch64")


@dataclass(frozen=True)
class Implementation:
    """One implementation of one intrinsic.

    The source is the body of a function whose arguments have the operands'
    names. Each is one fragment, contiguous, its last index fastest: buffers in
    TVMScript, pointers in the C family. The destination is read and written.

    Attributes:
        intrinsic: name of the intrinsic.
        kind: a key of :data:`KINDS`.
        source: the body.
        machine: ``"x86_64"`` or ``"aarch64"`` if the source is for one of them.
        requires: features that a CPU needs to run it, as the system spells them;
            for OpenCL the extensions that the source cannot do without.
        flags: for ``c`` options of the compiler, for ``llvm`` attributes of the
            target that have to be named (``"+dotprod"``).
        headers: text before the function: ``#include`` lines, helpers.
        architectures: for ``cuda`` every architecture that it is compiled for.
        partial: for ``llvm`` number of partial sums of each sum that the source keeps: the
            destination gets that many elements as a last dimension, each adds
            consecutive products of a call, and the caller adds them up in the end. Only
            for an intrinsic with one reduction.
        instruction: for ``llvm`` LLVM's name of the instruction, where it multiplies tile
            registers (:attr:`~amos.intrinsics.Intrinsic.tile_registers`), which kernels
            load and hold themselves: ``"llvm.x86.tdpbusd"``.
        function: for ``opencl`` a function of the headers that takes fragments as vectors,
            sources first, and returns the destination's. Kernels call it, so that fragments
            stay in registers; without one they call the source, on pointers.
    """

    intrinsic: str
    kind: str
    source: str
    machine: str = ""
    requires: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    headers: str = ""
    architectures: tuple[str, ...] = ()
    partial: int = 1
    instruction: str = ""
    function: str = ""

    @property
    def runs_here(self) -> bool:
        """Whether it is for this machine's architecture, whatever its features."""
        return self.machine in ("", platform.machine())

    def __post_init__(self) -> None:
        where = f"implementation of {self.intrinsic!r}"
        if self.kind not in KINDS:
            raise IntrinsicError(f"{where}: expected kind {', '.join(KINDS)}, got {self.kind!r}")
        if not self.source.strip():
            raise IntrinsicError(f"{where}: source: expected statements, got {self.source!r}")
        if self.machine not in ("", *_MACHINES):
            raise IntrinsicError(
                f"{where}: machine: expected {' or '.join(_MACHINES)}, got {self.machine!r}"
            )
        if self.partial < 1 or (self.partial > 1 and self.kind != "llvm"):
            raise IntrinsicError(f"{where}: partial: expected 1, or more for llvm")
        if self.function and self.kind != "opencl":
            raise IntrinsicError(f"{where}: function: expected none, or kind opencl")
        if self.kind == "cuda" and not self.architectures:
            raise IntrinsicError(f"{where}: architectures: expected at least one, such as 'sm_80'")


def newest_architecture(features: Iterable[str]) -> int:
    """Return the newest CUDA architecture among names of features; 0 if there is none.

    >>> newest_architecture(["sm_70", "sm_80", "avx2"])
    80
    """
    matches = map(_ARCHITECTURE.fullmatch, features)
    return max((int(match[1]) for match in matches if match), default=0)
