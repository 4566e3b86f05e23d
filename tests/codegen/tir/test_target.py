"""LLVM is told what the CPU has, also where it takes it for an older one."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import replace

import pytest

import amos
from amos._toolchain import load_tvm
from amos.codegen.tir import target
from amos.codegen.tir.target import LLVM_FEATURES, host_target
from amos.intrinsics import implementations
from amos.machine.cpu import cpu

pytestmark = pytest.mark.features

#: Prints which implementation a kernel has, and how often its code names what AVX2 lacks.
_KERNEL = """
import re
import amos
from amos.runtime import build
from amos.plan import Candidate
from amos.schedule import ScheduleSpace

op = amos.Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=6, j=64, k=64))
(mapping, *_) = amos.enumerate_mappings(op, amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32"))
kernel = build(Candidate(mapping, ScheduleSpace(mapping).smallest()))
text = kernel.assembly
print(kernel.implementation, len(re.findall("zmm|%k[0-7]|vpdp", text)))
"""


def _features() -> set[str]:
    load_tvm()
    import tvm

    return {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(host_target())}


def _attributes() -> list[str]:
    return [str(name) for name in host_target().attrs.get("mattr", ())]


def test_every_requirement_of_an_instruction_has_a_name_for_llvm() -> None:
    for name in amos.intrinsics.names():
        if source := implementations(name).get("llvm"):
            needed = {*amos.intrinsics.get(name).requires, *source.requires}
            assert needed <= LLVM_FEATURES.keys(), name


def test_llvm_knows_every_instruction_that_is_emitted_here() -> None:
    has = {LLVM_FEATURES[name] for name in LLVM_FEATURES.keys() & cpu().features}
    assert has <= _features()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names a CPU of x86")
def test_where_a_guessed_model_differs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    load_tvm()
    import tvm

    features = frozenset(
        {"avx2", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "avx_vnni", "f16c", "fma"}
    )
    here = replace(cpu(), features=features)
    monkeypatch.setattr(target, "cpu", lambda: here)
    monkeypatch.setattr(tvm.target.codegen, "llvm_get_system_cpu", lambda: "skylake-avx512")
    assert _attributes() == ["+avx512bf16", "+avxvnni"]
    assert {"avx512bf16", "avxvnni"} <= _features()
    monkeypatch.setattr(tvm.target.codegen, "llvm_get_system_cpu", lambda: "sapphirerapids")
    assert _attributes() == ["-amx-bf16", "-amx-int8", "-amx-tile", "-avx512vnni"]
    assert not {"amx-tile", "avx512vnni"} & _features()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names a CPU of x86")
@pytest.mark.parametrize("model", ["znver3", "znver5"])
def test_instructions_that_wait_for_upper_halves_are_left_out(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_tvm()
    import tvm

    here = replace(cpu(), features=frozenset())
    monkeypatch.setattr(target, "cpu", lambda: here)
    monkeypatch.setattr(tvm.target.codegen, "llvm_get_system_cpu", lambda: model)
    assert _attributes() == ["-sse4a"]
    assert "sse4a" not in _features()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names features of x86")
def test_what_is_to_be_overlooked_is_nowhere_used() -> None:
    """Not by LLVM either, in this process or in one that it starts."""
    done = subprocess.run(
        [sys.executable, "-c", _KERNEL],
        env=os.environ | {"AMOS_CPU_LACKS": "avx512 avx_vnni amx"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "generic 0\n"
