"""Kernels with an epilogue as C: every bit is that of NumPy and of the kernel that TVM builds."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import amos
from amos.codegen.c.operations import definitions
from amos.codegen.c.types import c_type, helpers
from amos.export import export
from amos.export.c import OPTIONS
from amos.export.reference import Example
from amos.ir import Operator, dtype
from amos.ir.floats import pack
from amos.machine.cpu import cpu
from amos.plan import Candidate
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs
from tests.support.epilogues import EPILOGUES
from tests.support.oracle.functions import FUNCTIONS

pytestmark = pytest.mark.features

Array = np.ndarray
VNNI = "vnni_dpbusd_m16k4_u8_s8_s32"
FMA = "avx512_fmadd_m16_f32_f32"
TEXTS = EPILOGUES[:13]
SHAPES = [dict(n=1, c=5, k=32, p=5, q=3, r=2, s=2), dict(n=2, c=7, k=19, p=3, q=11, r=1, s=3)]


def built(candidate: Candidate, folder: Path, compiler: str, *options: str) -> ctypes.CDLL:
    """The exported source as a library; with ``options`` in place of those it asks for."""
    files = export(candidate, "c", folder, name="kernel")
    # What clang warns of, also where there is none.
    assert not re.search(r"if \(\([^()]* == [^()]*\)\)", files[1].read_text())
    compiler_path = shutil.which(compiler)
    if compiler_path is None:
        pytest.skip(f"no {compiler} here")
    line = next(x for x in files[1].read_text().splitlines() if "Build: " in x)
    flags = line.partition("Build: cc ")[2].split()[:-2]
    if compiler == "clang" and not _has_openmp(compiler_path, folder):
        flags.remove("-fopenmp")
    command = [
        compiler_path,
        *(options or flags),
        "-Wall",
        "-Wno-unknown-pragmas",
        "-fPIC",
        "-shared",
    ]
    command += ["-Wno-unused-function", "-Wno-psabi", "-o", "kernel.so", "kernel.c"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if "_Float16 is not supported" in done.stderr:
        pytest.skip(f"this {compiler} has no _Float16")
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    return ctypes.CDLL(str(folder / "kernel.so"))


def _has_openmp(compiler: str, folder: Path) -> bool:
    (folder / "omp.c").write_text("int main(void) { return 0; }\n")
    command = [compiler, "-fopenmp", "omp.c", "-o", "omp"]
    return subprocess.run(command, cwd=folder, capture_output=True).returncode == 0


def called(
    library: ctypes.CDLL, candidate: Candidate, inputs: dict[str, np.ndarray], folder: Path
) -> np.ndarray:
    """What the C function makes of the inputs, as the bits that it stores."""
    op = candidate.mapping.operator
    if not library.kernel_supported():
        pytest.skip("this CPU lacks an instruction of the kernel")
    header = (folder / "kernel.h").read_text()
    size = int(header.partition("KERNEL_WORKSPACE ")[2].split()[0])
    arguments = []
    for tensor in op.inputs:
        array = _bits(inputs[tensor.name], str(tensor.dtype))
        if f"packed_{tensor.name}" in header:
            packed = np.zeros(1 << 20, array.dtype)
            getattr(library, f"kernel_pack_{tensor.name}")(_at(array), _at(packed))
            array = packed
        arguments.append(array)
    workspace = np.zeros(size + 64, np.uint8)
    kind = str(op.result_dtype)
    out = _bits(np.zeros(op.result.shape, dtype(kind).numpy), kind)
    aligned = workspace[-workspace.ctypes.data % 64 :]
    library.kernel(*map(_at, (*arguments, out, aligned)))
    return out


def _bits(array: np.ndarray, kind: str) -> np.ndarray:
    """A new array as kernels take it: bfloat16 as bit patterns."""
    if kind != "bfloat16":
        return np.array(array)
    return np.array(pack(array, kind).view(np.uint16).reshape(array.shape))


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def sampled(text: str, dtypes: dict[str, str], seed: int) -> Candidate:
    rng = np.random.default_rng(seed)
    layout = ("NHWC", "NCHW")[seed % 2]
    op = amos.operators.get("conv2d", layout=layout, dtype="u8s8", **SHAPES[seed // 2 % 2])
    op = op.with_epilogue(text, dtypes)
    space = amos.enumerate_mappings(op, amos.intrinsics.get(VNNI), rule="gather")
    mapping = space[int(rng.integers(len(space)))]
    return Candidate(mapping, ScheduleSpace(mapping).sample(rng))


@pytest.mark.parametrize("later", [0, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("compiler", ["cc", "clang"])
@pytest.mark.parametrize("number", range(len(TEXTS)))
def test_kernels_are_exact(number: int, compiler: str, later: int, tmp_path: Path) -> None:
    seed = number + later
    candidate = sampled(*TEXTS[number], seed)
    library = built(candidate, tmp_path, compiler)
    inputs = random_inputs(candidate.mapping.operator, np.random.default_rng(seed))
    expected = evaluate(candidate.mapping.operator, inputs)
    assert len(np.unique(expected)) > 1
    got = called(library, candidate, inputs, tmp_path)
    kind = str(candidate.mapping.operator.result_dtype)
    np.testing.assert_array_equal(got.view(np.uint8), _bits(expected, kind).view(np.uint8))


@pytest.mark.parametrize("seed", [0, 6])
def test_the_test_program_agrees(seed: int, tmp_path: Path) -> None:
    candidate = sampled(*TEXTS[seed], seed)
    export(candidate, "c", tmp_path, name="kernel", implementation="generic")
    done = made_and_run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{candidate.mapping.operator.output.tensor.elements} elements are right" in done.stdout


def made_and_run(folder: Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("make") is None or shutil.which("cc") is None:
        pytest.skip("no make and C compiler here")
    command = ["make", "-f", "kernel.mk", "test"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [("nearest_f32(", "(int32_t)("), ("* scale[", "* -scale["), ("255.0f", "254.0f")],
)
def test_the_test_program_finds_a_wrong_epilogue(old: str, new: str, tmp_path: Path) -> None:
    op = amos.operators.get("gemm", m=7, n=37, k=9, dtype="u8s8")
    op = op.with_epilogue("u8(relu((acc + bias[n]) * scale[n]))", {"bias": "int32"})
    mapping = amos.enumerate_mappings(op, amos.intrinsics.get(VNNI))[0]
    candidate = Candidate(mapping, ScheduleSpace(mapping).smallest())
    export(candidate, "c", tmp_path, name="kernel", implementation="generic")
    source = tmp_path / "kernel.c"
    before, start, body = source.read_text().partition("\nvoid kernel(")
    assert old in body
    source.write_text(before + start + body.replace(old, new))
    done = made_and_run(tmp_path)
    assert done.returncode != 0
    assert "out differs from NumPy's" in done.stdout


def test_inputs_do_not_all_saturate() -> None:
    op = amos.operators.get("gemm", m=16, n=16, k=512, dtype="u8s8")
    for text in ("u8(relu(acc * scale[n]))", "s8(acc * scale[])"):
        new = op.with_epilogue(text)
        assert len(np.unique(evaluate(new, Example.of(new).inputs))) > 16


def test_products_are_rounded_whatever_the_options(tmp_path: Path) -> None:
    """The source itself forbids fused products where results depend on it."""
    op = amos.operators.get("gemm", m=5, n=64, k=8, dtype="u8s8")
    op = op.with_epilogue("acc * scale[n] + bias[n]")
    mapping = amos.enumerate_mappings(op, amos.intrinsics.get(VNNI))[0]
    candidate = Candidate(mapping, ScheduleSpace(mapping).smallest())
    options = ("-O3", "-fwrapv", "-fopenmp", "-mavx512f", "-mavx512vnni", "-mfma")
    library = built(candidate, tmp_path, "cc", *options)
    inputs = random_inputs(op, np.random.default_rng(0))
    expected = evaluate(mapping.operator, inputs)
    np.testing.assert_array_equal(called(library, candidate, inputs, tmp_path), expected)
    fast = ["cc", *options, "-Ofast", "-fPIC", "-shared", "kernel.c", "-o", "fast.so"]
    done = subprocess.run(fast, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and "build without -ffast-math" in done.stderr


def _check(op: Operator, unit: str, inputs: dict[str, Array], want: Array, folder: Path) -> None:
    """NumPy's reference, the kernel and the C function store the same bits."""
    mapping = amos.enumerate_mappings(op, unit, rule="gather")[0]
    candidate = Candidate(mapping, ScheduleSpace(mapping).sample(np.random.default_rng(0)))
    expected = _bits(want, str(op.result_dtype)).view(np.uint8)
    for got in (evaluate(op, inputs), amos.build(candidate)(**inputs)):
        np.testing.assert_array_equal(np.ascontiguousarray(got).view(np.uint8), expected)
    got = called(built(candidate, folder, "cc"), candidate, inputs, folder)
    np.testing.assert_array_equal(got.view(np.uint8), expected)


def _whole(acc: Array) -> Array:
    return np.asarray((acc + 2**31) % 2**32 - 2**31).astype(np.int32)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("relu(acc * 65536)", lambda acc: np.maximum(_whole(acc * 65536), 0)),
        ("u8(acc * acc)", lambda acc: np.clip(_whole(acc * acc), 0, 255).astype(np.uint8)),
        (
            "s8(acc * 65536 * 9 - 5 >> 18)",
            lambda acc: np.clip(_whole(acc * 589824 - 5) >> 18, -128, 127).astype(np.int8),
        ),
        ("-2147483648 + acc", lambda acc: _whole(acc - 2**31)),
        ("acc * 0 + (acc - acc)", lambda acc: _whole(acc * 0)),
        ("s32(acc * 1e9)", lambda acc: np.clip(acc * 10**9, -(2**31), 2**31 - 1).astype(np.int32)),
        ("acc * 0.0", lambda acc: acc.astype(np.float32) * np.float32(0)),
        ("(0.5 + acc) * f32(acc - acc)", lambda acc: acc.astype(np.float32) * np.float32(0)),
        (
            "(acc + 1e8) - 1e8",
            lambda acc: acc.astype(np.float32) + np.float32(1e8) - np.float32(1e8),
        ),
        (
            "acc * (0.1 + 0.7)",
            lambda acc: acc.astype(np.float32) * (np.float32(0.1) + np.float32(0.7)),
        ),
    ],
)
def test_what_a_simplifier_gets_wrong(
    text: str, expected: Callable[[Array], Array], tmp_path: Path
) -> None:
    """Overflow, clamping at ends that are no floats, signs of zeros, and products by zero."""
    rng = np.random.default_rng(0)
    a, b = np.full((2, 8), 255, np.uint8), rng.integers(-128, 128, (8, 16), np.int8)
    acc = (a.astype(np.int64) @ b.astype(np.int64)).astype(object)
    assert (acc < 0).any() and (acc > 0).any()
    op = amos.operators.get("gemm", m=2, n=16, k=8, dtype="u8s8").with_epilogue(text)
    _check(op, VNNI, {"a": a, "b": b}, expected(acc), tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("relu(acc + 1)", [np.nan, 0]),
        ("clip(max(acc, 3.0), -500, 500)", [np.nan, 3]),
        ("s8(acc + acc)", [-128, -3]),
    ],
)
def test_nan_is_kept(text: str, expected: list[float], tmp_path: Path) -> None:
    """A cast to an integer stores its least."""
    inputs = {"a": np.array([[np.nan], [-1.5]], np.float32), "b": np.ones((1, 16), np.float32)}
    op = amos.operators.get("gemm", m=2, n=16, k=1, dtype="f32").with_epilogue(text)
    want = np.broadcast_to(np.reshape(expected, (-1, 1)), (2, 16)).astype(op.result.dtype)
    _check(op, FMA, inputs, want, tmp_path)


def test_floats_are_what_the_built_kernel_makes(tmp_path: Path) -> None:
    op = amos.operators.get("gemm", m=5, n=37, k=9, dtype="f32")
    op = op.with_epilogue("bf16(relu(acc + bias[n]))")
    mapping = amos.enumerate_mappings(op, amos.intrinsics.get(FMA))[0]
    candidate = Candidate(mapping, ScheduleSpace(mapping).smallest())
    library = built(candidate, tmp_path, "cc")
    inputs = random_inputs(mapping.operator, np.random.default_rng(2))
    got = called(library, candidate, inputs, tmp_path)
    kernel = amos.build(candidate, implementation="native" if "avx512f" in cpu().features else None)
    np.testing.assert_array_equal(got, _bits(kernel(**inputs), "bfloat16"))
    done = made_and_run(tmp_path)
    assert "185 elements are right" in done.stdout, done.stdout


def test_a_library_holds_it(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    candidate = sampled(*TEXTS[0], 0)
    export(candidate, "so", tmp_path, name="kernel")
    header = (tmp_path / "kernel.h").read_text()
    assert "bias: bias, int32, 32" in header and "zero: zero, float32, scalar" in header
    assert "out: out, uint8, 1x5x3x32" in header
    library = ctypes.CDLL(str(tmp_path / "libkernel.so"))
    inputs = random_inputs(candidate.mapping.operator, np.random.default_rng(0))
    expected = evaluate(candidate.mapping.operator, inputs)
    np.testing.assert_array_equal(called(library, candidate, inputs, tmp_path), expected)


def _rounding_loop(lanes: int, kind: str) -> str:
    """A function of C that applies every rounding to two arrays, so many lanes at once."""
    tail = kind.replace("float", "f")
    v, w = (f"load_{tail}({x} + i)" if lanes > 1 else f"{x}[i]" for x in "xy")
    calls = dict(up=f"max_{tail}(v, w)", down=f"min_{tail}(v, w)", whole=f"round_{tail}(v)")
    calls |= dict(root=f"sqrt_{tail}(v)", fused=f"fma_{tail}(v, w, -w)")
    body = "".join(f"    made = {c}; memcpy({n} + i, &made, sizeof v);\n" for n, c in calls.items())
    return (
        f"void it{lanes}(const float *x, const float *y, float *up, float *down, float *whole,"
        " float *root, float *fused, int32_t *near, int n) {\n"
        f"  for (int i = 0; i < n; i += {lanes}) {{\n"
        f"    {c_type(kind)} v = {v}, w = {w}, made;\n"
        f"{body}    __typeof__(nearest_{tail}(v)) whole = nearest_{tail}(v);\n"
        "    memcpy(near + i, &whole, sizeof whole);\n  }\n}\n"
    )


@pytest.mark.parametrize("flags", [(), ("-msse4.1",), ("-mavx2",), ("-mavx512f",)])
def test_roundings_agree_on_every_cpu(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Ties, zeros of both signs, the edges of what is an integer anyway, and random bits."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    feature = {"-msse4.1": "sse4_1", "-mavx2": "avx2", "-mavx512f": "avx512f"}
    if flags and feature[flags[0]] not in cpu().features:
        pytest.skip(f"this CPU lacks {feature[flags[0]]}")
    kinds = {lanes: "float32" if lanes == 1 else f"float32x{lanes}" for lanes in (1, 4, 8, 16)}
    names = ("max", "min", "round", "nearest", "sqrt", "fma")
    text, types = definitions({(name, kind) for name in names for kind in kinds.values()})
    source = "#include <stdint.h>\n#include <string.h>\n#include <immintrin.h>\n"
    source += f"{helpers(types | set(kinds.values()))}{text}\n"
    source += "".join(_rounding_loop(lanes, kind) for lanes, kind in kinds.items())
    (tmp_path / "it.c").write_text(source)
    command = ["cc", *OPTIONS, *flags, "-fPIC", "-shared", "it.c", "-o", "it.so"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    symbols = subprocess.run(["nm", "-D", "it.so"], cwd=tmp_path, capture_output=True, text=True)
    assert not re.search("rint|nearbyint|sqrt|fma", symbols.stdout)
    edges = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 8388607.5, -8388607.5]
    edges += [8388608, 8388609, -8388609, 2147483520, -2147483648, 1e-40, 4194303.5]
    library = ctypes.CDLL(str(tmp_path / "it.so"))
    for lanes in kinds:
        rng = np.random.default_rng(lanes)
        wide = rng.uniform(-1, 1, 4079) * 2.0 ** rng.integers(-5, 31, 4079)
        x = np.concatenate([np.array(edges, np.float32), wide.astype(np.float32)])
        y = rng.permutation(x)
        outputs = [np.empty_like(x) for _ in range(5)]
        near = np.empty(x.size, np.int32)
        library[f"it{lanes}"](*map(_at, (x, y, *outputs, near)), x.size)
        np.testing.assert_array_equal(outputs[0], np.where(x > y, x, y))
        np.testing.assert_array_equal(outputs[1], np.where(x < y, x, y))
        np.testing.assert_array_equal(outputs[2].view(np.uint32), np.rint(x).view(np.uint32))
        np.testing.assert_array_equal(near, np.rint(x).astype(np.int32))
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(outputs[3], np.sqrt(x))
        np.testing.assert_array_equal(outputs[4], FUNCTIONS["fma"](x, y, -y))
