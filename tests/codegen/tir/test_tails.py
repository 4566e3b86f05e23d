"""Results at the end of a row: no store is wider than what is left of it."""

from __future__ import annotations

import platform
import re
from dataclasses import replace

import numpy as np
import pytest

import amos
from amos._toolchain import load_tvm
from amos.codegen.scheduling import schedule_candidate
from amos.codegen.tir import target
from amos.codegen.tir.tensor_intrin import implementation
from amos.ir import Operator
from amos.machine.cpu import cpu
from amos.machine.limits import CpuLimits
from amos.mapping import Mapping
from amos.plan import Candidate, CpuSchedule
from amos.runtime.compiling import compile_function
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs

pytestmark = pytest.mark.features
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="names CPUs of x86")

AVX2 = frozenset({"avx2", "fma", "f16c"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512vl"}
VNNI = AVX512 | {"avx512_vnni"}
AMX = VNNI | {"amx_tile", "amx_int8", "amx_bf16", "avx512_bf16"}
#: What LLVM calls a CPU, what it has, and an instruction of it.
CPUS = [
    ("sapphirerapids", AMX, "amx_tdpbusd_m16n16k64_u8_s8_s32"),
    ("cascadelake", VNNI, "vnni_dpbusd_m16k4_u8_s8_s32"),
    ("skylake-avx512", AVX512, "avx512_pmaddwd_m16k2_u8_s8_s32"),
    ("haswell", AVX2, "avx2_pmaddwd_m8k2_u8_s8_s32"),
]
#: Rows that end in one lane, and in some.
COLUMNS = [17, 25, 49]
EPILOGUES = ["s8(acc * 0.5)", "u8(relu(acc + bias[j]))", "s16(acc * 0.5)"]


def _mapping(unit: str, columns: int, epilogue: str) -> Mapping:
    op = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", dict(i=19, j=columns, k=26))
    tensors = {"bias": "int32"} if "bias" in epilogue else None
    op = op.with_epilogue(epilogue, tensors) if epilogue else op
    space = amos.enumerate_mappings(op, unit, rule="gather")
    return next(m for m in space if "j" in m.groups["i2" if "n16" in unit else "i1"])


def _assembled(mapping: Mapping, schedule: CpuSchedule, kind: str = "native") -> str:
    """What LLVM has made of a kernel, in its own language."""
    candidate = Candidate(mapping, schedule)
    program, module = schedule_candidate(candidate, kind, CpuLimits.here())
    library = compile_function("kernel", kind, module, larger=program.plan.tiled)
    return str(library.mod.inspect_source("ll"))


def _masked(text: str) -> list[str]:
    """Stores of masked vectors of narrow elements."""
    return re.findall(r"call void @llvm\.masked\.(?:store|scatter)\.v\d+i(?:8|16)\.\S*", text)


@needs_x86
@pytest.mark.parametrize(("model", "features", "unit"), CPUS, ids=[name for name, *_ in CPUS])
def test_no_narrow_vector_is_masked(
    model: str, features: frozenset[str], unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLVM stores the only lane of such a vector as wide as it was computed."""
    load_tvm()
    import tvm

    monkeypatch.setattr(target, "cpu", lambda: replace(cpu(), features=features))
    monkeypatch.setattr(tvm.target.codegen, "llvm_get_system_cpu", lambda: model)
    rng = np.random.default_rng(3)
    for number, columns in enumerate(COLUMNS):
        mapping = _mapping(unit, columns, EPILOGUES[number % len(EPILOGUES)])
        schedule = ScheduleSpace(mapping).sample(rng)
        assert isinstance(schedule, CpuSchedule)
        assert not _masked(_assembled(mapping, schedule)), Candidate(mapping, schedule)


def _here() -> list[str]:
    """Instructions that run here, one of each kind, and one as plain loops."""
    units = [unit for *_, unit in CPUS]
    native = [
        u for u in units if implementation(amos.intrinsics.get(u), cpu().features) == "native"
    ]
    return native or units[-1:]


@pytest.mark.parametrize("kind", [None, "generic"])
@pytest.mark.parametrize("columns", [17, 25])
def test_nothing_is_written_behind_a_row(columns: int, kind: str | None) -> None:
    rng = np.random.default_rng(columns)
    epilogues = [*EPILOGUES, "max(acc * 0.5, bias[j])"]
    for unit, epilogue in zip(_here() * 4, epilogues, strict=False):
        mapping = _mapping(unit, columns, epilogue)
        inputs = random_inputs(mapping.operator, rng)
        expected = evaluate(mapping.operator, inputs)
        schedule = ScheduleSpace(mapping).sample(rng)
        assert isinstance(schedule, CpuSchedule)
        built = amos.build(mapping, schedule, implementation=kind)
        memory = np.full(expected.nbytes + 64, 0x55, np.uint8)
        out = memory[: expected.nbytes].view(expected.dtype).reshape(expected.shape)
        built(**inputs, out=out)
        np.testing.assert_array_equal(out, expected, str(built.candidate))
        assert (memory[expected.nbytes :] == 0x55).all(), built.candidate


def test_each_piece_of_a_row_has_names_of_its_own() -> None:
    """An epilogue that names an integer, in a vector of 8 and in one of 2."""
    sizes, kinds = dict(i=2, j=5, k=17), dict(a="u8", b="s8", t="s32")
    op = Operator.parse("t[i,j] += a[i,j,k] * b[k]", sizes, kinds).with_epilogue("abs(acc)")
    op = op.with_output("t[i,j]", shapes=dict(t=(2, 20)))
    unit = "avx2_pmaddwd_lhs_m8k2_u8_s8_s32"
    inputs = random_inputs(op, np.random.default_rng(0))
    for mapping in amos.enumerate_mappings(op, unit):
        kernel = amos.build(mapping)
        np.testing.assert_array_equal(kernel(**inputs), evaluate(op, inputs))


def test_a_row_ends_in_ever_shorter_vectors() -> None:
    """No lane asks whether the row has ended."""

    def stores(epilogue: str) -> str:
        candidate = Candidate(mapping := _mapping(CPUS[0][2], 27, epilogue), _schedule(mapping))
        text = schedule_candidate(candidate, "native", CpuLimits.here())[1].script()
        return str(text[text.index("tilestored64") :])

    for epilogue in (EPILOGUES[0], "acc + 1"):
        text = stores(epilogue)
        assert re.findall(r"in T\.vectorized\((\d+)\)", text) == ["16", "8", "2", "1"]
        assert "< 27" not in text


def _schedule(mapping: Mapping) -> CpuSchedule:
    return CpuSchedule.of(ScheduleSpace(mapping).smallest().as_dict())


def _loop(steps: int, guarded: bool, narrowed: bool = True) -> str:
    """What LLVM makes of a plain loop that stores bytes."""
    load_tvm()
    import tvm
    from tvm import tirx

    from amos.codegen.tir.memory import register_cpu_pipeline

    kind = "int32" if narrowed else "int8"
    a, out = tirx.decl_buffer((4096,), kind, "a"), tirx.decl_buffer((4096,), "int8", "out")
    row, lane = tirx.Var("row", "int32"), tirx.Var("lane", "int32")
    value = tirx.BufferLoad(a, [row * steps + lane])
    if narrowed:
        value = tirx.Cast("int8", tirx.max(tirx.min(value, 100), -100))
    body = tirx.BufferStore(out, value, [row * steps + lane])
    body = tirx.IfThenElse(row * steps + lane < 1000, body, None) if guarded else body
    for variable, extent in ((lane, steps), (row, 4096 // steps)):
        body = tirx.For(variable, 0, extent, tirx.ForKind.SERIAL, body)
    function = tirx.PrimFunc([a, out], body).with_attr("global_symbol", "main")
    library = tvm.compile(
        tvm.IRModule({"main": function}),
        target=target.host_target(),
        tir_pipeline=register_cpu_pipeline(),
    )
    return str(library.mod.inspect_source("ll"))


def test_only_what_may_be_masked_is_stored_alone() -> None:
    assert "store volatile i8" in _loop(64, guarded=True)
    assert "store volatile i8" in _loop(9, guarded=False)
    for text in (_loop(64, False), _loop(8, False), _loop(64, True, narrowed=False)):
        assert "volatile" not in text
