"""The threads of kernels: one pool a process, in place of TVM's pool for each calling thread.

TVM's pool belongs to the calling thread, spins for long when idle, pins its threads to the first
cores, and does not survive a fork. ``pool.ll`` beside this file is another one, in LLVM IR, which
needs no compiler but TVM's. It replaces ``TVMBackendParallelLaunch`` in code that is compiled or
loaded from then on.

``TVM_NUM_THREADS`` sets the number of threads, by default one for each CPU that the process
may use; with ``TVM_BIND_THREADS=1`` each stays on a CPU of its own among these;
``TVM_THREAD_POOL_SPIN_COUNT`` is how many times an idle thread polls for work before it sleeps.

Where PyTorch was imported before, its OpenMP team of the main thread runs kernels, too: while
two pools take turns, each finds cores on which the other's threads still spin.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from amos._toolchain import load_tvm, torch_came_first, tvm, tvm_ffi

#: Pauses of a processor, each of 15 to 50 ns, before a thread sleeps: more than there is
#: between two loops of a network, less than another framework would miss.
SPINS = 1000
#: Bytes of a set of CPUs.
_SET = 128
_LAUNCH = b"__TVMBackendParallelLaunch"
_RESET = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_ADOPT = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_size_t)
#: Functions that start an OpenMP region, give the size of its team, and a thread's number: GCC's
#: names, which the runtimes of LLVM and Intel have, too.
_OPENMP = ("GOMP_parallel", "omp_get_max_threads", "omp_get_thread_num")
#: Objects that native code refers to, which must not be freed before the process ends.
_immortal: list[Any] = []
#: Of a process's flags in Linux.
_PF_FORKNOEXEC = 0x40


@cache
def use_pool() -> bool:
    """Have the kernels that are compiled from now on share one pool.

    No thread is started before a kernel runs.

    Returns:
        False where TVM's LLVM does not take the pool, on other systems than Linux on x86-64:
        there TVM's own pools are kept from spinning and pinning.
    """
    load_tvm()
    try:
        module = tvm.runtime.load_module(str(Path(__file__).with_name("pool.ll")))
        launch, reset, adopt = (ctypes.c_size_t * 3).from_address(module["table"]())
        ffi = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
        failure = ctypes.cast(ffi.TVMFFIErrorSetRaisedFromCStr, ctypes.c_void_p)
    except (RuntimeError, OSError, AttributeError):
        os.environ.setdefault("TVM_NUM_THREADS", str(len(allowed_cpus())))
        os.environ.setdefault("TVM_BIND_THREADS", "0")
        os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
        return False
    # The threads run this module's code until the process ends, after Python's last object.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
    clear = _RESET(reset)

    def begin() -> None:
        size, sets = thread_count(), _affinity_sets()
        _immortal.append(sets)
        clear(size, _number("TVM_THREAD_POOL_SPIN_COUNT", SPINS, least=0), sets, failure)

    begin()
    # The last registration counts.
    ffi.TVMFFIEnvModRegisterContextSymbol(_LAUNCH, ctypes.c_void_p(launch))
    os.register_at_fork(after_in_child=begin)
    _share_team(_ADOPT(adopt))
    return True


def _share_team(adopt: Callable[..., None]) -> None:
    """Have kernels that the main thread calls run in PyTorch's OpenMP team.

    Only while the team has as many threads as the pool (``torch.set_num_threads``). Not in a forked
    process: there a team that the parent has used waits for its threads forever.
    """
    torch = sys.modules.get("torch")
    bound = _number("TVM_BIND_THREADS", 0, least=0)
    if bound or _was_forked() or not torch_came_first() or torch is None:
        return
    try:  # the runtime that this library was linked to, of several in the process
        library = ctypes.CDLL(str(Path(str(torch.__file__)).with_name("lib") / "libtorch_cpu.so"))
        functions = [ctypes.cast(getattr(library, name), ctypes.c_void_p) for name in _OPENMP]
    except (OSError, AttributeError):  # a PyTorch without OpenMP
        return
    adopt(*functions, threading.main_thread().ident)


def _was_forked() -> bool:
    """Return whether this process began as a fork of another one and not as a program."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="utf-8")
    except OSError:
        return True
    return bool(int(stat.rpartition(")")[2].split()[6]) & _PF_FORKNOEXEC)


def thread_count() -> int:
    """Return the number of threads that a kernel runs on, its caller included."""
    return _number("TVM_NUM_THREADS", len(allowed_cpus()), least=1)


def allowed_cpus() -> list[int]:
    """Return the numbers of the CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _affinity_sets() -> Any:
    """Return each thread's set of one CPU; ``None`` unless the environment asks for binding."""
    if not _number("TVM_BIND_THREADS", 0, least=0):
        return None
    cpus = allowed_cpus()
    chosen = [cpus[thread % len(cpus)] for thread in range(thread_count())]
    return ctypes.create_string_buffer(
        b"".join((1 << cpu).to_bytes(_SET, "little") for cpu in chosen)
    )


def _number(name: str, default: int, *, least: int) -> int:
    """Read a number from the environment; a missing or invalid one is the default."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() and least <= int(text) < 1 << 31 else default
