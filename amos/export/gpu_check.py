"""Checking and timing exported kernels on a GPU, and writing what is to be checked."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from amos import operators
from amos.codegen.cuda.loader import Device, Kernel, KernelError
from amos.codegen.cuda.program import capability
from amos.errors import AmosError, ExportError, MeasureError
from amos.export.baseline import baseline
from amos.export.formats import export
from amos.intrinsics import Intrinsic
from amos.intrinsics import get as intrinsic
from amos.ir import Operator
from amos.mapping import enumerate_mappings
from amos.perfmodel import Machine, catalogue
from amos.schedule import Candidate, ScheduleSpace

__all__ = ["TYPES", "GpuRow", "check_folder", "write_suite"]

#: What each type of an operator is computed by.
TYPES: dict[str, tuple[str | tuple[str, ...], str]] = {
    "f16_f32": ("f16", "wmma_m16n16k16_f16_f32"),
    "f16_f16": (("f16", "f16", "f16"), "wmma_m16n16k16_f16_f16"),
    "bf16_f32": ("bf16", "wmma_m16n16k16_bf16_f32"),
    "tf32_f32": ("tf32", "wmma_m16n16k8_tf32_f32"),
    "s8_s32": ("s8", "wmma_m16n16k16_s8_s32"),
    "f64_f64": ("f64", "wmma_m8n8k4_f64_f64"),
    "f16_f32_mma": ("f16", "mma_sync_m16n8k16_f16_f32"),
    "s8_s32_mma": ("s8", "mma_sync_m16n8k32_s8_s32"),
}
#: Extents are drawn up to this; windows, steps and padding stay as they are.
_LARGEST = 40
_KEPT = ("r", "s", "t", "stride", "dilation", "padding", "h", "w", "depth")
#: Scalar statements of an operator that is written.
_POINTS = 50_000_000


@dataclass(frozen=True)
class GpuRow:
    """One kernel on a GPU.

    Attributes:
        kernel: its folder, from the one that was asked for.
        gpu: name of the GPU.
        intrinsic: name of the intrinsic.
        correct: whether the elements that were compared are right.
        largest_difference: among them.
        elements: how many were compared.
        times: seconds of one launch, measured several times; empty if it was not timed.
        seconds: their median.
        tops: operations a second, in 10¹².
        baseline_seconds: PyTorch's, the better of eager and ``channels_last``;
            ``None`` without PyTorch or an operator of its own.
    """

    kernel: str
    gpu: str
    intrinsic: str
    correct: bool
    largest_difference: float
    elements: int
    times: tuple[float, ...] = ()
    seconds: float | None = None
    tops: float | None = None
    baseline_seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return asdict(self)


def check_folder(folder: Path, *, seed: int = 0, timed: bool = True) -> list[GpuRow]:
    """Check every kernel in a folder or below it.

    Raises:
        ExportError: there is no kernel.
        MeasureError: there is no GPU, it is older than a kernel, or a kernel fails.
    """
    found = sorted(path.parent for path in Path(folder).rglob("launch.json"))
    if not found:
        raise ExportError(f"{str(folder)!r}: no exported CUDA kernel (launch.json) in it")
    try:
        device = Device()
        kernels = [Kernel(path, device) for path in found]
        return [
            _row(str(path.relative_to(folder)), kernel, seed, timed)
            for path, kernel in zip(found, kernels, strict=True)
        ]
    except KernelError as error:
        raise MeasureError(f"gpu-check: {error}") from error


def _row(name: str, kernel: Kernel, seed: int, timed: bool) -> GpuRow:
    found = kernel.check(seed)
    row = GpuRow(
        name,
        kernel.device.name,
        kernel.launch["intrinsic"],
        found["correct"],
        found["largest_difference"],
        found["elements"],
    )
    if not timed:
        return row
    times = tuple(kernel.times())
    seconds = statistics.median(times)
    more = {
        "times": times,
        "seconds": seconds,
        "tops": kernel.launch["operations"] / seconds / 1e12,
    }
    return GpuRow(**{**asdict(row), **more, "baseline_seconds": baseline(kernel.launch)})


def write_suite(folder: Path, architecture: str, *, shapes: int, seed: int) -> list[Path]:
    """Export kernels of every operator of Table 6 in every type, on random shapes.

    Mapping and schedule are drawn by chance, so that many kinds of kernels are there.
    Types that the architecture lacks are left out.

    Raises:
        MeasureError: no machine of that architecture is described.
        ExportError: a folder has files already.
    """
    here = capability(architecture)
    fitting = [m for m in map(catalogue.get, catalogue.names()) if 0 < m.architecture <= here]
    if not fitting:
        raise MeasureError(f"gpu-check: no machine is described that {architecture} covers")
    machine = max(fitting, key=lambda m: m.architecture)
    rng = np.random.default_rng(seed)
    made = []
    for name in operators.TABLE_6:
        for kind, (dtype, unit_name) in TYPES.items():
            unit = intrinsic(unit_name)
            if max(capability(x) for x in unit.requires) > here:
                continue
            for number in range(shapes):
                op = _random_shape(name, dtype, rng)
                candidate = _random_candidate(op, unit, machine, rng)
                path = Path(folder, f"{name}_{kind}_{number}")
                export(candidate, "cuda", path, architecture=architecture)
                made.append(path)
    return made


def _random_shape(name: str, dtype: str | tuple[str, ...], rng: np.random.Generator) -> Operator:
    builder = operators.builder(name)
    while True:
        sizes = {
            key: int(rng.integers(1, _LARGEST))
            for key, size in builder.defaults.items()
            if isinstance(size, int) and key not in _KEPT
        }
        try:
            op = builder(dtype=dtype, **sizes)
        except AmosError:  # an image that such an output does not come from
            continue
        if op.points <= _POINTS:
            return op


def _random_candidate(
    op: Operator, unit: Intrinsic, machine: Machine, rng: np.random.Generator
) -> Candidate:
    space = enumerate_mappings(op, unit, "access")
    mapping = space[int(rng.integers(len(space)))]
    return Candidate(mapping, ScheduleSpace(mapping, machine).sample(rng))
