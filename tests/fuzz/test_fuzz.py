"""A small attack with fixed seeds; ``make fuzz MINUTES=10`` is a long one with new seeds."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from amos.machine.cpu import cpu
from tests.fuzz.guarded import guarded
from tests.fuzz.runner import LACKS, Attack, Finding
from tests.support.oracle import expressions, statements

#: Cases of each kind; all together take some seconds.
EXAMPLES = {
    "simulation": 12,
    "kernel": 3,
    "epilogue": 2,
    "chain": 3,
    "chain-simulation": 10,
    "cuda": 2,
    "export": 2,
    "opencl": 4,
    "group-opencl": 4,
    "tail": 2,
    "tail-amx": 2,
    "tail-avx512": 2,
    "tail-avx2": 2,
    "group": 2,
    "group-simulation": 8,
    "group-export": 2,
    "group-cuda": 2,
    "stream": 6,
    "module": 2,
    "graph": 2,
    "branches": 2,
    "text": 25,
    "toml": 40,
    "loops": 6,
    "command": 2,
    "record": 3,
    "request": 12,
}
#: Groups that the slow tests draw.
MANY = {"group": 1000, "group-cuda": 120, "group-export": 50}
MANY |= {"graph": 100, "opencl": 650, "group-opencl": 850}
#: Rows that end in every lane, for results of every width.
MANY |= dict.fromkeys(("tail", "tail-amx", "tail-vnni", "tail-avx512", "tail-avx2"), 400)
#: Where nearly every case is an error, as it is meant to be.
BROKEN = ("record",)
#: What draws from the instructions that this CPU has.
NATIVE = ("kernel", "epilogue", "export", "group", "group-export", "tail", "tail-amx", *LACKS)


def _skip_what_is_missing(kind: str) -> None:
    if kind == "tail-amx" and "amx_int8" not in cpu().features:
        pytest.skip("this CPU has no tile registers")
    if kind == "module":
        pytest.importorskip("torch", reason="PyTorch is not installed")
    if kind.endswith("opencl"):
        pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    if kind.endswith("export") and shutil.which("gcc") is None:
        pytest.skip("exports are checked with gcc's sanitizers; there is no gcc")
    if kind.endswith("cuda") and shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("CUDA programs run on the host with g++ or clang++; there is none")


@pytest.fixture(scope="module")
def attack() -> Iterator[Attack]:
    with Attack() as started:
        yield started


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.features if kind in NATIVE else ()) for kind in EXAMPLES],
)
def test_nothing_breaks(kind: str, attack: Attack) -> None:
    _skip_what_is_missing(kind)
    search = attack.search(kind, EXAMPLES[kind])
    assert search.finding is None, str(search.finding)
    # An attack that is refused at the door attacks nothing.
    assert search.counts["right"] or kind in BROKEN


@pytest.mark.slow
@pytest.mark.parametrize("kind", MANY)
def test_many_kernels(kind: str, attack: Attack) -> None:
    """Groups with all that stands before and behind them, and rows that end anywhere."""
    _skip_what_is_missing(kind)
    search = attack.search(kind, MANY[kind], seed=1)
    assert search.finding is None, str(search.finding)
    # OpenCL has one type and one kind of instruction here, so that many draws do not fit.
    share = 0.5 if kind.endswith("opencl") else 0.9
    assert search.counts["right"] > share * search.counts.total()


class _Recorder(Attack):
    """Notes what cases draw instead of running them."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[tuple[int, ...]] = []

    def case(self, kind: str, draw: Callable[[int, int], int]) -> Finding:
        self.numbers.append(tuple(draw(0, 1000) for _ in range(4)))
        return Finding(kind, "right", "", "")


def test_rounds_of_a_single_case_differ() -> None:
    with _Recorder() as recorder:
        counts = [recorder.search("cuda", 1, seed).counts.total() for seed in range(4)]
    assert counts == [1] * 4
    assert len({*recorder.numbers}) == 4


def test_a_touched_page_is_a_crash() -> None:
    """What lies beyond either end of an array cannot be read."""
    reading = (
        "import ctypes, sys\nimport numpy as np\nfrom tests.fuzz.guarded import guarded\n"
        "array = guarded((5,), np.dtype('int32'), sys.argv[1] == 'end')\n"
        "assert array[0] == array[4] == 0x55555555\n"
        "ctypes.c_int.from_address(array.ctypes.data + int(sys.argv[2])).value\n"
    )
    for side, offset, status in (("end", 20, -signal.SIGSEGV), ("begin", -4, -signal.SIGSEGV),
                                 ("end", 16, 0), ("begin", 0, 0)):  # fmt: skip
        command = [sys.executable, "-c", reading, side, str(offset)]
        assert subprocess.run(command).returncode == status
    assert guarded((), np.dtype("int8"), True).shape == ()


def test_the_oracle_computes_what_is_written() -> None:
    text, extents = "out[2*i + 1] += pad(a[i + r - 1]) * b[r]", {"i": 3, "r": 3}
    shapes = statements.shapes_of(text, extents)
    assert shapes == {"a": (3,), "b": (3,), "out": (6,)}
    arrays = {"a": np.array([1, 2, 3], np.int16), "b": np.array([100, 10, 1], np.int16)}
    state = statements.evaluate(text, extents, arrays, (7,), "int32")
    assert state.output.tolist() == [0, 12, 0, 123, 0, 230, 0]
    arrays = {"scale": np.array([0.5, -1, 4], np.float32)}
    stored = expressions.finish("u8(acc * scale[i] - 1)", state, arrays, "int32")
    assert stored.output.tolist() == [0, 5, 0, 0, 0, 255, 0]
    assert (stored.kind, bool(stored.defined.all())) == ("uint8", True)
    wrapped = expressions.finish("acc * 65536 * 100", state, {}, "int32").output
    assert wrapped.tolist()[1] == (12 * 6553600 + 2**31) % 2**32 - 2**31
    largest = expressions.combined("acc * scale[i]", state, arrays, "int32", "top[1]", (3,), "max=")
    assert (largest.output.tolist(), largest.unreached.tolist()) == (
        [0, 920, 0],
        [True, False, True],
    )
    total = expressions.combined("u8(acc)", state, {}, "int32", "sum[]", (), "+=")
    assert (int(total.output), total.kind) == (12 + 123 + 230, "int32")


@pytest.mark.slow
def test_drawn_streams_of_layers_are_sound(attack: Attack) -> None:
    """``python -m tests.fuzz --kinds layer-stream --rounds 1000`` draws 10,000."""
    search = attack.search("layer-stream", 300)
    assert search.finding is None, str(search.finding)
    assert search.counts["right"] > 0.9 * search.counts.total()
