"""The threads of kernels: how many there are, who starts them, and what a fork does to them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

import amos
from amos._toolchain import load_tvm
from amos.codegen.tir import pool

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.uname().machine != "x86_64",
    reason="the pool is for Linux on x86-64",
)

#: A kernel that was compiled before, whether a call is right, and the threads of this process.
_KERNEL = """
import os, signal, sys, threading
import numpy as np
from amos.codegen.tir.pool import use_pool
use_pool()
import tvm
kernel = tvm.runtime.load_module(os.environ["AMOS_KERNEL"])["main"]

def right(seed=0):
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 255, (64, 64), dtype=np.uint8)
    b = rng.integers(-128, 127, (64, 64), dtype=np.int8)
    pieces = a.reshape(64, 16, 4), b, np.zeros((64, 4, 16), np.int32)
    arrays = [tvm.runtime.tensor(x) for x in pieces]
    kernel(*arrays)
    out = arrays[2].numpy().reshape(64, 64)
    return bool((out == a.astype(int) @ b.T.astype(int)).all())

def pool():
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            names.append(open(f"/proc/self/task/{task}/comm").read().strip())
        except OSError:  # it has ended
            pass
    return names.count("amos-pool")

def cpus():
    tasks = os.listdir("/proc/self/task")
    named = {t: open(f"/proc/self/task/{t}/comm").read().strip() for t in tasks}
    return [sorted(os.sched_getaffinity(int(t))) for t in tasks if named[t] == "amos-pool"]
"""


@pytest.fixture(scope="module", autouse=True)
def _kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A library of a kernel with a parallel loop, which the processes load."""
    path = tmp_path_factory.mktemp("kernel") / "kernel.so"
    op = amos.Operator.parse(
        "out[i,j] += a[i,k] * b[j,k]", extents=dict(i=64, j=64, k=64), constants=()
    )
    kernel = amos.build(amos.enumerate_mappings(op, "vnni_dpbusd_m16k4_u8_s8_s32")[0])
    kernel._library.export_library(str(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AMOS_KERNEL", str(path))
        yield


def _run(
    code: str,
    *,
    first: str = "",
    cpus: set[int] | None = None,
    inherited: Mapping[str, str] = MappingProxyType({}),
    **environment: str,
) -> str:
    """What a program prints that has the kernel, in a process of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TVM_")}
    done = subprocess.run(
        [sys.executable, "-c", first + _KERNEL + textwrap.dedent(code)],
        env=clean | dict(inherited) | environment,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=(lambda: os.sched_setaffinity(0, cpus)) if cpus else None,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_this_machine_has_the_pool() -> None:
    load_tvm()
    assert pool.use_pool()


def test_threads_that_call_leave_none_behind() -> None:
    """One by one and at once, callers share the workers that the first one started."""
    code = """
    assert right()
    for seed in range(100):
        thread = threading.Thread(target=right, args=(seed,))
        thread.start()
        thread.join()
    wrong = []
    def call(seed):
        wrong.extend(n for n in range(20) if not right(seed + n))
    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(pool(), wrong)
    """
    assert _run(code, TVM_NUM_THREADS="4") == "3 []"


def test_a_forked_child_has_a_pool_of_its_own() -> None:
    """In a child nobody runs that the parent started, and its children fare alike."""
    code = """
    assert right() and pool() == 2
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        before, fine, after = pool(), right(1), pool()
        grandchild = os.fork()
        if grandchild == 0:
            signal.alarm(60)
            os._exit(0 if right(2) else 1)
        _, status = os.waitpid(grandchild, 0)
        print(before, fine, after, status, flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(status, right(3), pool())
    """
    assert _run(code, TVM_NUM_THREADS="3").split("\n") == ["0 True 2 0", "0 True 2"]


def test_a_fork_before_the_first_call() -> None:
    code = """
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if right() and pool() == 2 else 1)
    print(os.waitpid(child, 0)[1], pool())
    """
    assert _run(code, TVM_NUM_THREADS="3") == "0 0"


def test_as_many_threads_as_the_process_may_use_cpus() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    assert _run("print(right(), pool())") == f"True {len(allowed) - 1}"
    assert _run("print(right(), pool())", cpus={allowed[-1]}) == "True 0"


@pytest.mark.long
def test_threads_are_bound_if_that_is_asked_for() -> None:
    """To the CPUs that the process may use, not to the first ones of the machine."""
    allowed = sorted(os.sched_getaffinity(0))
    code = "print(right(), sorted(cpus()))"
    assert _run(code, TVM_NUM_THREADS="3") == f"True {[allowed] * 2}"
    bound = sorted([allowed[n % len(allowed)]] for n in (1, 2))
    assert _run(code, TVM_NUM_THREADS="3", TVM_BIND_THREADS="1") == f"True {bound}"
    last = allowed[-1]
    free = _run(code, cpus={last}, TVM_NUM_THREADS="3", TVM_BIND_THREADS="1")
    assert free == f"True {[[last]] * 2}"


def test_threads_may_sleep_at_once() -> None:
    code = "print(all(right(seed) for seed in range(50)), pool())"
    assert _run(code, TVM_NUM_THREADS="4", TVM_THREAD_POOL_SPIN_COUNT="0") == "True 3"


#: Launches pieces that are written in Python.
_PIECES = """
import ctypes, time
from amos.codegen.tir import pool as ours
import tvm
module = tvm.runtime.load_module(ours.__file__.replace("pool.py", "pool.ll"))
launch, reset, _ = (ctypes.c_void_p * 3).from_address(module["table"]())
seen = []
report = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)(lambda *text: seen.append(text))
Piece = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
launch = ctypes.CFUNCTYPE(ctypes.c_int, Piece, ctypes.c_void_p, ctypes.c_int)(launch)
ours._RESET(reset)(3, 10, None, ctypes.cast(report, ctypes.c_void_p))
"""


@pytest.mark.long
def test_a_piece_that_fails_is_an_error() -> None:
    """Whoever ran it; all of the others have run."""
    code = """
    ran = []
    def piece(number, environment, data):
        ran.append(number)
        return -1 if number == 5 else 0
    status = launch(Piece(piece), None, 8)
    print(status, sorted(ran) == [*range(8)], seen, flush=True)
    os._exit(0)
    """
    printed = _run(code, first=_PIECES)
    assert printed == "-1 True [(b'RuntimeError', b'a piece of a parallel loop failed')]"


@pytest.mark.long
def test_callers_do_without_workers_that_come_late() -> None:
    code = """
    main, runs = threading.get_ident(), []
    def piece(number, environment, data):
        runs[-1].add(threading.get_ident())
        time.sleep(0.005 if threading.get_ident() == main else 0.05)
        return 0
    for _ in range(24):
        runs.append(set())
        launch(Piece(piece), None, 2)
    print(max(map(len, runs)), sum(run == {main} for run in runs) > 12, flush=True)
    os._exit(0)
    """
    assert _run(code, first=_PIECES) == "2 True"


@pytest.mark.long
def test_many_slow_workers_are_faster_than_none() -> None:
    """As small cores of a CPU are: eight that take twice as long save most of the time."""
    code = """
    ours._RESET(reset)(9, 10, None, ctypes.cast(report, ctypes.c_void_p))
    main, runs = threading.get_ident(), []
    def piece(number, environment, data):
        runs[-1].add(threading.get_ident())
        time.sleep(0.005 if threading.get_ident() == main else 0.012)
        return 0
    for _ in range(24):
        runs.append(set())
        launch(Piece(piece), None, 9)
    print(sum(len(run) > 4 for run in runs) > 18, flush=True)
    os._exit(0)
    """
    assert _run(code, first=_PIECES) == "True"


#: A package of PyTorch's name and layout, with a library that is linked to OpenMP.
_TORCH = """
import ctypes, pathlib
_library = ctypes.CDLL(str(pathlib.Path(__file__).parent / "lib" / "libtorch_cpu.so"))
set_num_threads = _library.omp_set_num_threads
def __getattr__(name):  # types that TVM looks for
    if name.startswith("_"):
        raise AttributeError(name)
    return type(name, (), {})
"""
_LINKED = "#include <omp.h>\nint linked(void) { return omp_get_max_threads(); }\n"


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that imports that package; its team has three threads."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("site")
    library = folder / "torch" / "lib" / "libtorch_cpu.so"
    library.parent.mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(_TORCH)
    (folder / "linked.c").write_text(_LINKED)
    command = [compiler, "-shared", "-fPIC", "-fopenmp", "-o", str(library), "linked.c"]
    if subprocess.run(command, cwd=folder, capture_output=True).returncode:
        pytest.skip("the C compiler has no OpenMP")
    threads = {"OMP_NUM_THREADS": "3", "TVM_NUM_THREADS": "3"}
    return threads | {"PYTHONPATH": str(folder), "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}


def test_kernels_run_in_the_openmp_team_of_pytorch(with_torch: dict[str, str]) -> None:
    code = """
    fine = all(right(seed) for seed in range(50))
    print(fine, pool(), len(os.listdir('/proc/self/task')))
    """
    fine, own, threads = _run(code, first="import torch", inherited=with_torch).split()
    assert (fine, own) == ("True", "0")
    alone = _run(code, first="import torch", inherited=with_torch | {"TVM_NUM_THREADS": "1"})
    assert int(threads) - int(alone.split()[-1]) == 2


@pytest.mark.long
def test_the_team_is_left_alone_where_it_does_not_fit(with_torch: dict[str, str]) -> None:
    """It has another size, threads are bound, another thread calls, the process was forked."""
    own, first = "print(right(), pool())", "import torch"
    assert (
        _run(own, first="import torch; torch.set_num_threads(2)", inherited=with_torch) == "True 2"
    )
    assert _run(own, first=first, TVM_BIND_THREADS="1", inherited=with_torch) == "True 2"
    assert _run(own, inherited=with_torch) == "True 2"  # TVM imports it, and nobody uses it
    code = """
    seen = []
    thread = threading.Thread(target=lambda: seen.append((right(), pool())))
    thread.start()
    thread.join()
    print(seen, right())
    """
    assert _run(code, first=first, inherited=with_torch) == "[(True, 2)] True"
    code = """
    assert right() and pool() == 0
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if right(1) and pool() == 2 else 1)
    print(os.waitpid(child, 0)[1], right(2), pool())
    """
    assert _run(code, first=first, inherited=with_torch) == "0 True 0"
    forked = "import os, torch; assert os.fork() == 0 or os._exit(os.waitpid(-1, 0)[1] >> 8)"
    assert _run(own, first=forked, inherited=with_torch) == "True 2"


def test_pytorch_without_openmp(with_torch: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(_TORCH[_TORCH.index("def ") :])
    environment = with_torch | {"PYTHONPATH": str(tmp_path)}
    assert _run("print(right(), pool())", first="import torch", inherited=environment) == "True 2"


@pytest.mark.parametrize("text", ["", "none", "-1", "0", "1e3", "99999999999"])
def test_numbers_that_mean_nothing_are_passed_over(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 5})
    assert pool.thread_count() == 3
    monkeypatch.setenv("TVM_NUM_THREADS", "7")
    assert pool.thread_count() == 7


def test_tvm_without_the_pool_is_kept_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    load_tvm()
    import tvm

    def refuse(path: str) -> None:
        raise RuntimeError(f"{path}: Data layout mismatch")

    names = ("TVM_NUM_THREADS", "TVM_BIND_THREADS", "TVM_THREAD_POOL_SPIN_COUNT")
    for name in names:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 5})
    monkeypatch.setattr(tvm.runtime, "load_module", refuse)
    assert not pool.use_pool.__wrapped__()
    assert [os.environ[name] for name in names] == ["3", "0", "0"]
