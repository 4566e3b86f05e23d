"""Exported kernels: compiled by this machine's compiler, run without Python, and right."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import amos
from amos.errors import ExportError, UnknownNameError
from amos.export import export
from amos.export.cpuid import feature_query
from amos.export.reference import Example, output_digest
from amos.intrinsics import implementations
from amos.intrinsics.virtual import unit
from amos.ir import Operator
from amos.machine.cpu import cpu
from amos.plan import Candidate
from amos.schedule import ScheduleSpace
from amos.validate import evaluate

GEMM = ("out[i,j] += a[i,k] * weight[j,k]", dict(i=7, j=33, k=19))
CONV = (
    "out[n,p,q,k] += pad(image[n,p*2+r-1,q*2+s-1,c]) * weight[k,c,r,s]",
    dict(n=2, k=20, p=5, q=6, c=5, r=3, s=3),
)
BMM = ("out[b,i,j] += x[b,i,k] * y[b,k,j]", dict(b=3, i=5, j=18, k=9))
POOL = "out[n,p,q,c] max= pad(image[n,p*2+r-1,q*2+s-1,c], {})"
WINDOWS = dict(n=2, c=20, p=5, q=6, r=3, s=3)
GEMV = ("out[i] += a[i,k] * x[k]", dict(i=37, k=50))
CASES = [
    ("vnni_dpbusd_m16k4_u8_s8_s32", CONV, None),
    ("vnni_dpbusd_m16k4_u8_s8_s32", CONV, "generic"),
    ("avxvnni_dpbusd_m8k4_u8_s8_s32", GEMM, None),
    ("vnni_dpwssd_m16k2_s16_s32", GEMV, None),
    ("vnni_dpbusd_dot_m1k64_u8_s8_s32", GEMV, None),
    ("avx2_pmaddwd_m8k2_u8_s8_s32", CONV, None),
    ("avx2_pmaddubsw_m8k4_u8_s7_s32", CONV, None),
    ("avx2_fmadd_m8_f16_f32", GEMM, None),
    ("avx2_fmadd_m8_bf16_f32", CONV, None),
    ("avx512_fmadd_m16_f32_f32", BMM, None),
    ("avx512bf16_dpbf16ps_m16k2_bf16_f32", CONV, None),
    ("avx512bf16_dpbf16ps_m16k2_bf16_f32", GEMM, "generic"),
    ("avx512_vaddps_m16_f32_f32", ("out[i] = a[i] + b[i]", dict(i=100)), None),
    ("avx512_vaddpd_m8_f64_f64", ("out[i] = a[i] + b[i]", dict(i=60)), None),
    ("avx2_vmaxps_acc_m8_f32_f32", (POOL.format("-inf"), WINDOWS), None),
    ("avx2_vpmaxub_acc_m32_u8_u8", (POOL.format("7"), WINDOWS), None),
    ("avx512_vpmaxsb_row_m1k64_s8_s8", ("out[i] max= a[i,k]", dict(i=5, k=150)), "generic"),
    ("avx512_vpmaxsb_row_m1k64_s8_s8", ("out[i] max= a[i,k]", dict(i=5, k=150)), None),
    ("avx2_vpaddd_acc_m8_u8_s32", ("out[i] += a[k,i]", dict(i=29, k=9)), None),
]


def candidate(intrinsic: str, case: tuple[str, dict[str, int]], seed: int = 0) -> Candidate:
    rng = np.random.default_rng(seed)
    op = Operator.parse(case[0], extents=case[1], name="sample")
    space = amos.enumerate_mappings(op, amos.intrinsics.get(intrinsic), rule="gather")
    mapping = space[int(rng.integers(len(space)))]
    return Candidate(mapping, ScheduleSpace(mapping).sample(rng))


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Compile and run the test program; nothing of Python or TVM is in its environment."""
    if shutil.which("make") is None or shutil.which("cc") is None:
        pytest.skip("no make and C compiler here")
    environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "2"}
    (rules,) = folder.glob("*.mk")
    built = subprocess.run(
        ["make", "-f", rules.name, f"{rules.stem}_test"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    assert "warning" not in built.stderr
    return subprocess.run(
        [f"./{rules.stem}_test", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86-64")
@pytest.mark.parametrize(("intrinsic", "case", "kind"), CASES)
def test_the_test_program_agrees(
    intrinsic: str, case: tuple[str, dict[str, int]], kind: str | None, tmp_path: Path
) -> None:
    sample = candidate(intrinsic, case)
    export(sample, "c", tmp_path, implementation=kind)
    done = run(tmp_path, "3")
    if done.returncode == 77:
        pytest.skip(f"this CPU lacks {', '.join(amos.intrinsics.get(intrinsic).requires)}")
    assert done.returncode == 0, done.stdout
    elements = sample.mapping.operator.output.tensor.elements
    assert f"{elements} elements are right" in done.stdout
    assert "median of 3 runs" in done.stdout


def test_a_split_reduction_is_exported(tmp_path: Path) -> None:
    op = Operator.parse(GEMV[0], extents=dict(i=13, k=2053), name="sample")
    space = amos.enumerate_mappings(
        op, amos.intrinsics.get("vnni_dpbusd_lhs_m16k4_u8_s8_s32"), rule="gather"
    )
    rng = np.random.default_rng(0)
    (mapping,) = [m for m in space if m.name == "i-k"]
    schedule = ScheduleSpace(mapping).repair({"split": 2, "unroll": 4, "copy": "elements"}, rng)
    assert schedule.split == 2
    export(Candidate(mapping, schedule), "c", tmp_path, implementation="generic")
    done = run(tmp_path, "3")
    assert done.returncode == 0, done.stdout
    assert "13 elements are right" in done.stdout


@pytest.mark.parametrize(("lanes", "kind"), [(5, "int32"), (2, "float16")])
def test_any_lanes_are_exported(lanes: int, kind: str, tmp_path: Path) -> None:
    """GNU C has vectors of 2, 4, 8 … lanes only, and of halves not every operation."""
    some = unit("Dst[i1] += Src1[r1] * Src2[i1, r1]", {"i1": lanes, "r1": 1}, kind)
    mapping = amos.enumerate_mappings(Operator.parse(GEMM[0], GEMM[1], name="sample"), some)[0]
    space = ScheduleSpace(mapping)
    schedule = space.repair({"copy": "vectors"}, np.random.default_rng(0))
    export(Candidate(mapping, schedule), "c", tmp_path)
    assert "i32x5" not in (tmp_path / "sample.c").read_text()
    assert "231 elements are right" in run(tmp_path).stdout


def test_the_test_program_finds_a_wrong_element(tmp_path: Path) -> None:
    export(candidate("vnni_dpbusd_m16k4_u8_s8_s32", GEMM), "c", tmp_path, implementation="generic")
    source = tmp_path / "sample.c"
    text = source.read_text()
    place = text.index("sample_pack_weight(")
    wrong = text.index("\n}\n", place) + 1
    source.write_text(text[:wrong] + "  packed[0] += 1;\n" + text[wrong:])
    done = run(tmp_path)
    assert done.returncode == 1
    assert "differs from NumPy's" in done.stdout


def test_a_library_is_called_through_plain_pointers(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    sample = candidate("vnni_dpbusd_m16k4_u8_s8_s32", CONV)
    if "avx512_vnni" not in cpu().features:
        pytest.skip("this CPU lacks avx512_vnni")
    files = export(sample, "so", tmp_path / "new", name="conv")
    names = ["libconv.so", "conv.h", "conv.c", "conv_test.c", "conv.mk"]
    assert [path.name for path in files] == names
    library = ctypes.CDLL(str(files[0]))
    needed = subprocess.run(["ldd", str(files[0])], capture_output=True, text=True).stdout
    assert "tvm" not in needed
    inputs = Example.of(sample.mapping.operator).inputs
    text = (tmp_path / "new" / "conv.h").read_text()
    workspace = np.zeros(int(text.partition("CONV_WORKSPACE ")[2].split()[0]) + 64, np.uint8)
    out = np.full(sample.mapping.operator.output.tensor.shape, -1, np.int32)
    packed = np.zeros(1 << 16, np.int8)
    library.conv_pack_weight(*map(pointer, (inputs["weight"], packed)))
    aligned = workspace[-workspace.ctypes.data % 64 :]
    library.conv(*map(pointer, (inputs["image"], packed, out, aligned)))
    np.testing.assert_array_equal(out, evaluate(sample.mapping.operator, inputs))
    assert library.conv_supported() == 1


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def test_names(tmp_path: Path) -> None:
    sample = candidate("vnni_dpbusd_m16k4_u8_s8_s32", GEMM)
    for name in ("out", "weight", "int", "9lives", "a b", "é"):
        with pytest.raises(ExportError, match="name "):
            export(sample, "c", tmp_path, name=name)
    assert not list(tmp_path.iterdir())


def test_files_are_not_replaced_unasked(tmp_path: Path) -> None:
    sample = candidate("vnni_dpbusd_m16k4_u8_s8_s32", GEMM)
    (tmp_path / "sample.c").write_text("mine")
    with pytest.raises(ExportError, match=r"sample\.c exists; choose another folder or replace it"):
        export(sample, "c", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["sample.c"]
    export(sample, "c", tmp_path, force=True)
    assert (tmp_path / "sample.c").read_text() != "mine"
    with pytest.raises(ExportError, match="Not a directory"):
        export(sample, "c", tmp_path / "sample.c" / "folder")


def test_formats_have_names(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="unknown export format 'exe'"):
        export(candidate("vnni_dpbusd_m16k4_u8_s8_s32", GEMM), "exe", tmp_path)


def test_a_library_needs_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("amos.codegen.c.compiler.find_spec", lambda name: None)
    with pytest.raises(ExportError, match="format so: no C compiler: apt install gcc, or pip ins"):
        export(candidate("vnni_dpbusd_m16k4_u8_s8_s32", GEMM), "so", tmp_path)


def _loaded(folder: Path) -> ctypes.CDLL:
    """A library made without OpenMP."""
    with pytest.warns(UserWarning, match="has no OpenMP: the library runs on one core") as caught:
        path, *_ = export(candidate("avx2_fmadd_m8_f32_f32", GEMM), "so", folder, name="kernel")
    assert caught[0].filename == __file__
    return ctypes.CDLL(str(path))


@pytest.mark.features
def test_a_library_may_lack_openmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if (path := shutil.which("cc")) is None:
        pytest.skip("no C compiler here")
    script = tmp_path / "compiler"
    script.write_text(
        f'#!/bin/sh\ncase " $* " in *" -fopenmp "*) exit 1;; esac\nexec {path} "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr("amos.export.c.compiler_command", lambda: [str(script)])
    assert _loaded(tmp_path / "new").kernel_supported() == ("avx2" in cpu().features)


@pytest.mark.features
def test_the_compiler_of_a_library_may_be_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It links a library without OpenMP's functions, and knows no features of the CPU."""
    pytest.importorskip("ziglang")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _loaded(tmp_path / "new").kernel_supported() == ("avx2" in cpu().features)


def test_features_are_asked_of_the_cpu(tmp_path: Path) -> None:
    """Those that kernels in C need, as the system lists them."""
    if shutil.which("cc") is None or platform.machine() != "x86_64":
        pytest.skip("no C compiler for x86-64 here")
    codes = [code for unit in amos.intrinsics.names() if (code := implementations(unit).get("c"))]
    names = sorted({name for code in codes if code.machine == "x86_64" for name in code.requires})
    query = feature_query(names)
    assert not [test for test in query.tests if "__builtin" in test]
    digits = ", ".join(query.tests)
    text = f"#include <stdio.h>\n{query.helper}\nint main(void) {{ int all[] = {{{digits}}};\n"
    text += f'for (int i = 0; i < {len(names)}; ++i) printf("%d", all[i]); }}\n'
    (tmp_path / "ask.c").write_text(text)
    subprocess.run(["cc", "-o", "ask", "ask.c"], cwd=tmp_path, check=True)
    done = subprocess.run([str(tmp_path / "ask")], capture_output=True, text=True, check=True)
    listed = set(Path("/proc/cpuinfo").read_text().split("flags", 1)[1].splitlines()[0].split())
    assert done.stdout == "".join(str(int(name in listed)) for name in names)


def test_what_has_no_native_form(tmp_path: Path) -> None:
    op = Operator.parse("out[i,j] += a[i,k] * b[k,j]", extents=dict(i=16, j=16, k=16))
    unit = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
    mapping = amos.enumerate_mappings(op, unit)[0]
    candidate = Candidate(mapping, ScheduleSpace(mapping).smallest())
    with pytest.raises(ExportError, match="wmma_m16n16k16_f16_f32: no native implementation"):
        export(candidate, "c", tmp_path, implementation="native")


def test_the_digest_tells_places_apart() -> None:
    values = np.arange(12, dtype=np.int32)
    assert output_digest(values) != output_digest(values[::-1])
    assert output_digest(values) == output_digest(values.reshape(3, 4))
