"""What tests of exported CUDA kernels share: an export, and a driver and a compiler that are fakes.

The fake driver has the entry points of NVIDIA's, and runs the exported kernel on the
host. So every call that the loader makes is made, with the arguments a driver gets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import amos
from amos import machines, operators
from amos.cuda.codegen import compilers
from amos.cuda.codegen.emulate import compiler
from amos.export import export
from amos.plan import Candidate
from amos.schedule import ScheduleSpace
from tests.support.fake_cuda import fake_driver, fake_nvcc

CONV = dict(n=2, c=3, k=9, p=5, q=6, stride=2, padding=1)


@pytest.fixture(scope="session")
def exported() -> Callable[..., Candidate]:
    """Writes the export of a convolution, with some mapping and schedule, to a folder."""
    return _exported


def _exported(
    folder: Path,
    dtype: str = "f16",
    seed: int = 0,
    name: str = "",
    epilogue: tuple[str, dict[str, str]] | None = None,
    results: Sequence[str] = (),
) -> Candidate:
    unit = {
        "f16": "wmma_m16n16k16_f16_f32",
        "s8": "wmma_m16n16k16_s8_s32",
        "bf16": "mma_sync_m16n8k16_bf16_f32",
        "e4m3": "mma_sync_m16n8k32_e4m3_f32",
        "e5m2": "mma_sync_m16n8k32_e5m2_f32",
    }[dtype]
    machine = "h200" if dtype.startswith("e") else "a100"
    op = operators.get("conv2d", dtype=dtype, **CONV)
    op = op.with_epilogue(*epilogue) if epilogue else op
    for result in results:
        op = op.with_result(result)
    mapping = amos.enumerate_mappings(op, amos.intrinsics.get(unit))[seed]
    space = ScheduleSpace(mapping, machines.get(machine))
    candidate = Candidate(mapping, space.sample(np.random.default_rng(seed)))
    architecture = f"sm_{machines.get(machine).architecture}"
    export(candidate, "cuda", folder, name=name or None, architecture=architecture, force=True)
    return candidate


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A driver that runs on the host what the fake compiler makes."""
    if compiler() is None:
        pytest.skip("the fake driver needs g++ or clang++")
    return fake_driver(tmp_path_factory.mktemp("driver"), 90)


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """That compiler in the place of nvcc."""
    (tmp_path / "tools").mkdir()
    nvcc = fake_nvcc(tmp_path / "tools")
    monkeypatch.setenv("PATH", f"{nvcc}{os.pathsep}{os.environ['PATH']}")
    compilers.cache_clear()
    yield
    compilers.cache_clear()
