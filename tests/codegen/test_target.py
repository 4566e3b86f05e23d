"""LLVM is told what the CPU has, also where it takes it for an older one."""

from __future__ import annotations

import platform
from dataclasses import replace

import pytest

import amos
from amos._toolchain import load_tvm
from amos.codegen import target
from amos.codegen.target import LLVM_FEATURES, host_target
from amos.intrinsics import implementations
from amos.perfmodel.host import cpu


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
def test_what_a_guessed_model_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    load_tvm()
    import tvm

    features = frozenset({"avx512f", "avx512_bf16", "avx_vnni", "sse2"})
    here = replace(cpu(), features=features)
    monkeypatch.setattr(target, "cpu", lambda: here)
    monkeypatch.setattr(tvm.target.codegen, "llvm_get_system_cpu", lambda: "skylake-avx512")
    assert _attributes() == ["+avx512bf16", "+avxvnni"]
    assert {"avx512bf16", "avxvnni"} <= _features()
    monkeypatch.setattr(tvm.target.codegen, "llvm_get_system_cpu", lambda: "sapphirerapids")
    assert _attributes() == []
