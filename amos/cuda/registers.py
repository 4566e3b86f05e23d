"""Registers of a thread: the schedule's count, and the compiler's limit.

A thread keeps all its accumulators. Of the sources, the one that takes fewer registers
is held whole, of the other one fragment at a time (:mod:`amos.cuda.codegen.kernel` loads
them so). What else it needs, addresses, guards, copies on their way and one step's
fragments loaded ahead, is one number for all kernels: compilers use as much of that as
they are given, and do with far less.

The count is a promise that the kernel makes its compiler keep (``__launch_bounds__``
with a least number of blocks): a thread gets what :func:`grant_registers` says, and no more.
"""

from __future__ import annotations

import numpy as np

from amos.intrinsics import Intrinsic
from amos.ir import dtype
from amos.machine.gpu_costs import REGISTER_FILE, THREAD_REGISTERS, WARP, multiprocessor

#: Registers are given to a warp in groups of this many for each thread (CUDA Occupancy
#: Calculator: register allocation unit size 256 a warp, the same from sm_70 to sm_120).
_GROUP = 8
#: Parts of a multiprocessor with registers of their own (NVIDIA V100, A100 and H100 white
#: papers; the same on their smaller relatives).
_SUB_CORES = 4
#: Registers of a source of 16-bit floats in WMMA, whatever its shape (PTX ISA, matrix
#: fragments for WMMA): elements are held more than once.
_HALVES = 8


def fragment_registers(intrinsic: Intrinsic) -> tuple[int, ...]:
    """Count 32-bit registers of a thread for a fragment of each operand.

    Eight-bit floats are multiplied as 16-bit ones by the Tensor Cores of sm_90, and
    their sums added up apart: machine code for sm_90 has both forms at once.
    """
    hidden = {m.operand for m in intrinsic.memory if m.layout is None}
    counts = []
    for operand, kind in zip(intrinsic.operands, intrinsic.dtypes, strict=True):
        words = max(1, -(-intrinsic.fragment_bytes(operand) // (4 * WARP)))
        source = operand is not intrinsic.destination
        if source and operand.tensor.name in hidden and dtype(kind).short == "f16":
            words = _HALVES
        counts.append(words)
    if any(dtype(kind).short in ("e4m3", "e5m2") for kind in intrinsic.dtypes[:-1]):
        counts = [3 * words for words in counts[:-1]] + [2 * counts[-1]]
    return tuple(counts)


def blocks_by_registers(threads: np.ndarray, registers: np.ndarray) -> np.ndarray:
    """Count blocks whose registers fit one multiprocessor.

    A multiprocessor is four sub-cores with a quarter of the registers each, among which
    its warps are dealt out.
    """
    allocated = np.ceil(np.asarray(registers) / _GROUP) * _GROUP
    warps = _SUB_CORES * (REGISTER_FILE // _SUB_CORES // (allocated * WARP))
    blocks = warps // (np.asarray(threads) / WARP)
    return np.where(np.asarray(registers) > THREAD_REGISTERS, 0, blocks)


def grant_registers(threads: int, registers: int, architecture: int) -> tuple[int, int]:
    """Return the registers that a thread may use, and the number of blocks that then fit.

    The most that cost the multiprocessor none of the blocks that the count promises.

    Returns:
        registers of a thread; blocks of one multiprocessor, at least 1.
    """
    limit = multiprocessor(architecture)
    fits = int(blocks_by_registers(np.asarray(threads), np.asarray(registers)))
    blocks = max(1, min(fits, limit.threads // threads, limit.blocks))
    warps = -(-blocks * threads // (WARP * _SUB_CORES))
    per_thread = REGISTER_FILE // _SUB_CORES // (warps * WARP) // _GROUP * _GROUP
    return min(per_thread, THREAD_REGISTERS), blocks
