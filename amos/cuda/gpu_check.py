"""Checking and timing exported kernels on a GPU, and writing what is to be checked.

A suite is a folder of many exports; it is written piece by piece, and can be interrupted.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from amos import intrinsics, operators
from amos.cuda import baseline, check
from amos.cuda.check import GpuRow, check_kernels
from amos.cuda.export import LOADER
from amos.cuda.runtime.driver import KernelError
from amos.errors import AmosError, ExportError, MeasureError
from amos.export.formats import export
from amos.export.standalone import standalone_text
from amos.ir import Operator
from amos.machine import Machine, catalogue
from amos.machine.gpu_costs import capability
from amos.mapping import enumerate_mappings
from amos.plan import Candidate
from amos.schedule import ScheduleSpace

#: Dtype and instruction of each type of an operator.
TYPES: dict[str, tuple[str | tuple[str, ...], str]] = {
    "f16_f32": ("f16", "wmma_m16n16k16_f16_f32"),
    "f16_f16": (("f16", "f16", "f16"), "wmma_m16n16k16_f16_f16"),
    "bf16_f32": ("bf16", "wmma_m16n16k16_bf16_f32"),
    "tf32_f32": ("tf32", "wmma_m16n16k8_tf32_f32"),
    "s8_s32": ("s8", "wmma_m16n16k16_s8_s32"),
    "f64_f64": ("f64", "wmma_m8n8k4_f64_f64"),
    "f16_f32_mma": ("f16", "mma_sync_m16n8k16_f16_f32"),
    "bf16_f32_mma": ("bf16", "mma_sync_m16n8k16_bf16_f32"),
    "tf32_f32_mma": ("tf32", "mma_sync_m16n8k8_tf32_f32"),
    "s8_s32_mma": ("s8", "mma_sync_m16n8k32_s8_s32"),
    "e4m3_f32_mma": ("e4m3", "mma_sync_m16n8k32_e4m3_f32"),
    "e5m2_f32_mma": ("e5m2", "mma_sync_m16n8k32_e5m2_f32"),
}
#: Types whose operators are also written with an epilogue behind them.
_FINISHED = ("f16_f32", "s8_s32", "bf16_f32_mma", "s8_s32_mma")
#: Extents are drawn up to this; windows, steps and padding stay as they are.
_LARGEST = 40
#: Scalar statements of an operator that is written.
_POINTS = 50_000_000
#: Request that a folder was written for; only the same request resumes it.
_REQUEST = "suite.json"
#: Told the pieces that are done, all of them, and the one that comes next.
Tell = Callable[[int, int, str], None]
#: The parts of a suite, each there as a whole or not at all: by the name of its folder, from
#: the top, what writes it to a folder that does not exist yet.
Pieces = dict[str, Callable[[Path], object]]


def check_folder(
    folder: Path,
    *,
    seed: int = 0,
    timed: bool = True,
    pytorch: bool = True,
    library: str = "libcuda.so.1",
) -> list[GpuRow]:
    """Check every kernel in a folder or below it, in a process of their own.

    Raises:
        MeasureError: there is no kernel, or no GPU, or it is older than a kernel.
    """
    options = {"seed": seed, "timed": timed, "pytorch": pytorch, "library": library}
    try:
        return list(check_kernels(Path(folder), options))
    except KernelError as error:
        raise MeasureError(f"gpu-check: {error}") from error


def write_check(folder: Path) -> Path:
    """Copy what checks a folder of kernels without AMOS to its top.

    Raises:
        ExportError: it cannot be written.
    """
    copied = {"check.py": check, "baseline.py": baseline} | LOADER
    try:
        for name, module in copied.items():
            Path(folder, name).write_text(standalone_text(module), encoding="utf-8")
    except OSError as error:
        raise ExportError(f"{str(folder)!r}: {error.strerror or error}") from error
    return Path(folder, "check.py")


def machine_for(architecture: str) -> Machine:
    """Return the newest described machine whose kernels an architecture runs, or a MeasureError."""
    here = capability(architecture)
    fitting = [m for m in map(catalogue.get, catalogue.names()) if 0 < m.architecture <= here]
    if not fitting:
        raise MeasureError(f"gpu-check: no machine is described that {architecture} covers")
    return max(fitting, key=lambda m: m.architecture)


def suite_pieces(architecture: str, *, shapes: int, seed: int) -> Pieces:
    """Yield kernels of every operator of Table 6 in every type, on random shapes.

    Mapping and schedule are drawn by chance, so that many kinds of kernels are there, from
    a generator of its own for each kernel. Types that the architecture lacks are left out.
    Four types also come with an epilogue: bias and scale along the last loop, a residual
    sum, and eight bits.

    Raises:
        MeasureError: no machine of that architecture is described.
    """
    machine = machine_for(architecture)

    def write(title: str, name: str, kind: str, epilogue: bool, folder: Path) -> None:
        dtype, unit = TYPES[kind]
        rng = np.random.default_rng([seed, *title.encode()])
        op = _random_shape(name, dtype, rng)
        space = enumerate_mappings(_finish(op) if epilogue else op, unit, "access")
        mapping = space[int(rng.integers(len(space)))]
        candidate = Candidate(mapping, ScheduleSpace(mapping, machine).sample(rng))
        export(candidate, "cuda", folder, architecture=architecture)

    return {
        f"random/{title}": partial(write, title, name, kind, which == "epilogue")
        for name in operators.TABLE_6
        for kind, (_, unit) in TYPES.items()
        if intrinsics.get(unit).architecture <= capability(architecture)
        for which in (*range(shapes), *(["epilogue"] if kind in _FINISHED else []))
        for title in [f"{name}_{kind}_{which}"]
    }


def write_pieces(
    folder: Path, pieces: Pieces, request: Mapping[str, object], tell: Tell | None = None
) -> list[Path]:
    """Write what is not there yet, each piece beside its place and then moved to it.

    Raises:
        ExportError: the folder holds something else, or cannot be written.
    """
    try:
        _claim(folder, json.dumps(dict(request), indent=2, sort_keys=True) + "\n")
        kernels = []
        for number, (name, write) in enumerate(pieces.items()):
            if tell is not None:
                tell(number, len(pieces), name)
            path = folder / name
            if not path.exists():
                partial = path.with_name(f".{path.name}.partial")
                shutil.rmtree(partial, ignore_errors=True)
                partial.parent.mkdir(parents=True, exist_ok=True)
                write(partial)
                partial.rename(path)
            kernels += sorted(file.parent for file in path.rglob("launch.json"))
    except OSError as error:
        raise ExportError(f"{str(folder)!r}: {error.strerror or error}") from error
    if tell is not None:
        tell(len(pieces), len(pieces), "")
    return kernels


def _claim(folder: Path, request: str) -> None:
    """Say in a folder what it is for, or make sure that it is for the same."""
    request_file = folder / _REQUEST
    if request_file.is_file():
        if request_file.read_text(encoding="utf-8") != request:
            raise ExportError(
                f"{str(folder)!r} was written with other options ({request_file.name}); "
                "repeat those, or choose another folder"
            )
        return
    if folder.exists() and any(folder.iterdir()):
        raise ExportError(
            f"{str(folder)!r}: expected a new folder, or one that the same command has begun"
        )
    folder.mkdir(parents=True, exist_ok=True)
    request_file.write_text(request, encoding="utf-8")


def _finish(op: Operator) -> Operator:
    names = [it.name for it in op.spatial]
    text = f"s8(relu((acc + bias[{names[-1]}]) * scale[{names[-1]}]) + skip[{','.join(names)}])"
    bias = "int32" if op.output.tensor.dtype == "int32" else "float32"
    return op.with_epilogue(text, {"bias": bias, "skip": "uint8"})


def _random_shape(name: str, dtype: str | tuple[str, ...], rng: np.random.Generator) -> Operator:
    builder = operators.builder(name)
    while True:
        sizes = {key: int(rng.integers(1, _LARGEST)) for key in builder.sizes}
        try:
            op = builder(dtype=dtype, **sizes)
        except AmosError:  # an image that such an output does not come from
            continue
        if op.points <= _POINTS:
            return op
