"""``amos reproduce cuda``, ``amos reproduce table2`` and ``amos gpu-check``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from amos.cli.gpu_records import benchmark_pieces, write_lines
from amos.cli.options import AsJson, Csv
from amos.cli.output import counting, print_json, print_line, print_table, write_data

if TYPE_CHECKING:
    from amos.cuda.check import GpuRow
    from amos.reproduce.cuda import CudaRow

_WRITE = (
    "Write kernels of all operators, types and random shapes, the model's best for benchmarks, "
    "and check.py, which needs no AMOS; the same command goes on where it stopped."
)


def cuda_command(
    operator: Annotated[
        list[str] | None, typer.Option("--operator", metavar="NAME", help="Only this; repeat.")
    ] = None,
    arch: Annotated[
        list[str] | None, typer.Option("--arch", metavar="NAME", help="Only this; repeat.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    csv: Csv = None,
    as_json: AsJson = False,
) -> None:
    """Compile, inspect and run on the host each operator of Table 6 as a CUDA kernel."""
    from amos.reproduce.cuda import cuda, cuda_jobs

    jobs = cuda_jobs(operator or (), (), arch or ())
    rows = cuda(jobs, workers=workers, progress=None if as_json else _tell)
    if write_data(rows, csv, as_json):
        return
    print_table(
        ["operator", "dtype", "arch", "mapping", "registers", "in the plan", "spills"]
        + ["shared", "agree", "Tensor Core", "simulated"],
        [
            [row.operator, row.dtype, row.arch, row.mapping, row.registers, row.space_registers]
            + [row.spills, row.shared_bytes]
            + ["yes" if row.agree else "no", row.tensor_core_instructions, _word(row)]
            for row in rows
        ],
    )
    for row in rows:
        if row.problem:
            print_line(f"{row.operator}, {row.dtype}, {row.arch}: {row.problem}")
    spilling = sum(row.spills > 0 for row in rows)
    print_line(
        f"{sum(row.compiled for row in rows)} of {len(rows)} compiled, {spilling} with spills; "
        f"{sum(row.agree is True for row in rows)} keep to the registers and the resident blocks "
        "that the plan counts on; "
        f"{sum(row.simulated_equal is True for row in rows)} equal the operator on the host. "
        "Nothing here ran on a GPU."
    )


def _word(row: CudaRow) -> str:
    words = {True: "equal", False: "differs", None: "not run"}
    return words[row.simulated_equal]


def _tell(row: CudaRow) -> None:
    print_line(f"{row.operator} {row.dtype} {row.arch}: {row.problem or _word(row)}")


def table2_command(csv: Csv = None, as_json: AsJson = False) -> None:
    """Count the operators of five networks that map to Tensor Cores, beside the paper's counts."""
    from amos.reproduce.table2 import table2

    rows = table2()
    if write_data(rows, csv, as_json):
        return
    print_table(
        ["network", "total", "mapped", "paper: total", "XLA", "AMOS", "not mapped"],
        [
            [row.network, row.total, row.mapped, row.paper_total, row.paper_xla, row.paper_amos]
            + [", ".join(f"{count} {kind}" for kind, count in row.unmapped.items())]
            for row in rows
        ],
        title="AMOS, Table 2: operators of networks that map to Tensor Cores, batch 1",
    )
    for row in rows:
        print_line(f"{row.network}: {', '.join(f'{n} {k}' for k, n in row.kinds.items())}")


def gpu_check_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Exported kernels, or where to write them.")
    ],
    write: Annotated[bool, typer.Option("--write", help=_WRITE)] = False,
    arch: Annotated[str, typer.Option(metavar="NAME", help="GPU that --write is for.")] = "sm_80",
    shapes: Annotated[
        int, typer.Option(min=1, help="Random shapes of each operator and type, with --write.")
    ] = 2,
    trials: Annotated[
        int, typer.Option(min=0, help="Of the model for each kernel to benchmark; 0 for none.")
    ] = 64,
    top: Annotated[int, typer.Option(min=1, help="Of the model's choices to benchmark.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Of shapes and data.")] = 0,
    driver: Annotated[
        str, typer.Option(metavar="LIBRARY", help="NVIDIA's driver.")
    ] = "libcuda.so.1",
    timed: Annotated[bool, typer.Option("--time/--no-time", help="Also measure.")] = True,
    pytorch: Annotated[
        bool, typer.Option("--pytorch/--no-pytorch", help="Also measure PyTorch.")
    ] = True,
    records: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="Write what was measured for records import."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check exported CUDA kernels on the GPU of this machine, and time them."""
    from amos.cuda.check import record_lines
    from amos.cuda.gpu_check import check_folder

    if write:
        _write(folder, as_json, arch=arch, shapes=shapes, seed=seed, trials=trials, top=top)
        return
    rows = check_folder(folder, seed=seed, timed=timed, pytorch=pytorch, library=driver)
    if records is not None:
        write_lines(record_lines(rows, folder), records)
    if as_json:
        print_json([row.to_dict() for row in rows])
    else:
        _report(rows)
    if not all(row.correct for row in rows):
        raise typer.Exit(1)


def _write(
    folder: Path, as_json: bool, *, arch: str, shapes: int, seed: int, trials: int, top: int
) -> None:
    from amos.cuda.gpu_check import suite_pieces, write_check, write_pieces

    pieces = suite_pieces(arch, shapes=shapes, seed=seed)
    pieces |= benchmark_pieces(arch, trials, top) if trials else {}
    request = {"arch": arch, "shapes": shapes, "seed": seed, "trials": trials, "top": top}
    with counting("kernels and benchmarks written", quiet=as_json) as tell:
        paths = write_pieces(folder, pieces, request, tell)
    script = write_check(folder)
    if as_json:
        print_json(paths)
    else:
        print_line(f"{len(paths)} kernels for {arch}; on the GPU's machine: python {script}")


def _report(rows: Sequence[GpuRow]) -> None:
    from amos.cuda.check import sentences, summary

    print_table(
        ["kernel", "right", "error", "us", "Top/s", "PyTorch us", "intrinsic"],
        [
            [row.kernel, "yes" if row.correct else "no", row.largest_difference]
            + [_scale(row.seconds, 1e6), row.tops, _scale(row.baseline_seconds, 1e6)]
            + [row.intrinsic]
            for row in rows
        ],
        title=rows[0].gpu if rows else "",
    )
    for row in rows:
        if row.problem:
            print_line(f"{row.kernel}: {row.problem}")
    for line in sentences(summary(rows)):
        print_line(line)


def _scale(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
