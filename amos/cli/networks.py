"""``amos report``, ``amos tune``, ``amos compile``: whole networks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import amos
from amos.cli import options
from amos.cli.energy import microjoules
from amos.cli.models import InputShapes, read_input_shapes, read_sizes
from amos.cli.output import milliseconds as ms
from amos.cli.output import (
    notes_of_an_interrupt,
    percent,
    print_json,
    print_line,
    print_table,
    write_data,
)
from amos.cli.units import print_unit
from amos.errors import NetworkError

if TYPE_CHECKING:
    from amos.network import Report, Tuning
    from amos.network.buckets import Loaded
    from amos.network.precision.frontier import Frontier
    from amos.network.report import TaskRow

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")]
BucketSizes = Annotated[
    list[str] | None,
    typer.Option(
        "--bucket", metavar="DIM=SIZES", help="Sizes of a named dynamic dimension: batch=1,4,16."
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Of products of floats: f32 as the model says, bf16, f16, int8 (with --samples), or "
        "auto, the fastest within the budget.",
    ),
]
Budget = Annotated[
    float,
    typer.Option(
        metavar="ERROR", help="By how much results may differ with auto: relative 2-norm."
    ),
]
UnitBudget = Annotated[
    float | None,
    typer.Option(
        "--budget",
        metavar="ERROR",
        help="By how much results may differ with auto (0.01), or if a unit's network is "
        "quantized: relative 2-norm.",
    ),
]
SampleFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE.npz", help="Inputs by name, with an axis of samples in front."),
]
RecordFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Written by amos tune; else the model decides.")
]
OutputFolder = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FOLDER", help="Write library and C++, or streams, here."
    ),
]
Measured = Annotated[
    bool,
    typer.Option(
        "--measure",
        help="Time some kernels of each task, cascades, the engine's code, and all inside.",
    ),
]


def report_command(
    model: Model,
    machine: options.MachineName = "host",
    files: options.IntrinsicFiles = None,
    bounds: Annotated[
        bool, typer.Option("--bounds", help="Also find what no schedule on a unit falls below.")
    ] = False,
    shape: InputShapes = None,
    bucket: BucketSizes = None,
    passes: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the ONNX model here as it is after each pass."),
    ] = None,
    precision: Precision = "f32",
    budget: Budget = 0.01,
    samples: SampleFile = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Draw error against time, with --precision."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Predict which part of a network runs where, and how fast.

    Nothing is tuned or timed; with --precision, errors are measured. With --intrinsic, only the
    instructions of these files are used.
    """
    from amos.network.precision.choosing import keep_precision
    from amos.network.report import BucketReports

    units = options.load_intrinsics(files)
    network = _load(model, shape, bucket)
    if precision != "f32" and machine != "host":
        raise NetworkError(f"--precision {precision}: only for this CPU, not for {machine!r}")
    frontier = _frontier_of(network, precision, budget, samples)
    if frontier is not None:
        network = frontier.chosen.network
    elif machine == "host":
        network = keep_precision(network)
    if plot is not None:
        if frontier is None:
            raise NetworkError(f"--plot {str(plot)!r}: there is no other precision to draw")
        _write_picture(frontier, plot)
    if passes is not None:
        _write_passes(network, passes, quiet=as_json)
    report = network.report(machine, units, bounds=bounds)
    if as_json:
        print_json(report.to_dict() | (frontier.to_dict() if frontier else {}))
        return
    if frontier is not None:
        print_line(amos.viz.text(frontier))
    for bucket_report in report.reports if isinstance(report, BucketReports) else [report]:
        _print_report(bucket_report)


def _write_passes(network: Loaded, folder: Path, *, quiet: bool) -> None:
    from amos.network.external.passes import write_passes

    written = write_passes(network, folder)
    if not quiet:
        print_line("\n".join(f"wrote {path}" for path in written))


def tune_command(
    model: Model,
    records: Annotated[
        Path, typer.Option(metavar="FILE", help="Keep every trial here; go on from what it has.")
    ],
    trials: Annotated[
        int, typer.Option(min=1, metavar="N", help="Of all kernels, each at least one.")
    ] = 600,
    scheduler: Annotated[
        str, typer.Option(metavar="NAME", help="equal, round_robin, gradient, dual or bound.")
    ] = "bound",
    retain: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Of a task's mappings to search on; dual: 0.2."),
    ] = None,
    seed: options.Seed = 0,
    precision: Precision = "auto",
    budget: Budget = 0.01,
    samples: SampleFile = None,
    shape: InputShapes = None,
    bucket: BucketSizes = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure candidates for every kernel that amos compile would build, and record them."""
    from amos.network.precision.choosing import has_choice, keep_precision

    with notes_of_an_interrupt():
        network = _load(model, shape, bucket)
        frontier = None
        if precision != "auto" or has_choice(network, samples):
            frontier = _frontier_of(network, precision, budget, samples)
        network = keep_precision(network) if frontier is None else frontier.chosen.network
        tuning = amos.tune(
            network,
            trials=trials,
            records=records,
            scheduler=scheduler,
            retain=retain,
            seed=seed,
            progress=not as_json,
        )
    if as_json:
        print_json(tuning.to_dict())
        return
    _print_tuning(tuning)


def compile_command(
    model: Model,
    machine: options.MachineName = "host",
    files: options.IntrinsicFiles = None,
    records: RecordFile = None,
    output: OutputFolder = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Compare kernels and the whole.")
    ] = True,
    measure: Measured = False,
    precision: Precision = "auto",
    budget: UnitBudget = None,
    samples: SampleFile = None,
    shape: InputShapes = None,
    bucket: BucketSizes = None,
    as_json: options.AsJson = False,
) -> None:
    """Compile a network: AMOS's kernels, and the engine for the rest.

    With --machine, streams for a unit that a simulator runs, and onnxruntime for the rest.
    """
    from amos.measure.result_cache import has_result, key_of_file, store_result
    from amos.network.precision.choosing import BUDGET
    from amos.streams.networks.compilation import check_simulator

    if output is not None and output.exists() and not output.is_dir():
        raise NetworkError(f"--output {str(output)!r}: expected a folder, this is a file")
    units = options.load_intrinsics(files)
    if units and machine == "host":
        raise NetworkError("--intrinsic: expected --machine with a unit that a simulator runs")
    if machine != "host":
        _refuse_host_options(machine, records, measure, precision)
        check_simulator(machine, units)
    key = key_of_file(model, shape, bucket, precision, measure)
    network = _load(model, shape, bucket, builds=machine == "host" and not has_result(key))
    shared: dict[str, Any] = {"samples": samples, "verify": verify, "progress": not as_json}
    if machine != "host":
        on_unit = amos.compile_for_unit(network, machine, units, budget=budget, **shared)
        return print_unit(on_unit, output, as_json=as_json)
    compiled = amos.compile(
        network,
        records=records,
        measure=measure,
        precision=precision,
        budget=BUDGET if budget is None else budget,
        **shared,
    )
    store_result(key, True)
    written = compiled.export(output) if output is not None else ()
    if as_json:
        return print_json(compiled.to_dict() | {"files": [str(path) for path in written]})
    _explain_precision(network, is_open=precision == "auto" and samples is None)
    print_line("\n".join([str(compiled), *(f"exported   {path}" for path in written)]))


def _explain_precision(network: Loaded, *, is_open: bool) -> None:
    """Say why precision stays where it is open, but the CPU lacks bf16 and there are no samples."""
    from amos.network.external.partition import PartitionedNetwork
    from amos.network.precision.variants import has_bfloat16

    if not is_open or has_bfloat16() or not isinstance(network, PartitionedNetwork):
        return
    if not any(each.quantized for each in network.networks.values()):
        print_line("precision  as in the model: this CPU lacks bf16, and int8 needs --samples")


def _refuse_host_options(machine: str, records: Path | None, measure: bool, precision: str) -> None:
    """Refuse options that mean nothing on a unit; raise NetworkError if one is used."""
    used = {"--records": records is not None, "--measure": measure}
    used[f"--precision {precision}"] = precision not in ("auto", "int8")
    if any(used.values()):
        names = ", ".join(name for name, is_used in used.items() if is_used)
        raise NetworkError(f"{names}: only for this CPU, not for {machine!r}")


def fig7_command(
    results: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="Written by make bench-networks; by default its last run, or that of the README.",
        ),
    ] = None,
    csv: options.Csv = None,
    as_json: options.AsJson = False,
) -> None:
    """Networks of the benchmark beside PyTorch and others, and what the paper says."""
    from amos.reproduce.fig7 import PAPER, PEERS, default_results, fig7, means

    results = default_results() if results is None else results
    rows = fig7(results)
    rows += means(rows)
    if write_data(rows, csv, as_json):
        return
    peers = [name for name in PEERS if any(name in row.times for row in rows)]
    print_table(
        ["network", "dtype", "batch", "AMOS, ms", *peers],
        [
            [row.network, row.dtype, row.batch, ms(row.seconds)]
            + [f"{row.times[name]:.2f}" if name in row.times else "" for name in peers]
            for row in rows
        ],
        title=f"AMOS, Figure 7, by {results.name}: how many times as long others take; "
        "geometric means below",
    )
    print_line(
        f"The paper has {PAPER[0]} (BERT, batch 16) to {PAPER[1]} times PyTorch's speed, on the "
        "Tensor Cores of V100 and A100, where ShuffleNet gains by grouped convolutions."
    )


def _print_tuning(tuning: Tuning) -> None:
    from amos.viz.results import show_allocation

    print_table(
        ["", "task", "count", "trials", "predicted ms", "best ms", "instruction"],
        [
            [number, task.operator, task.count, task.trials]
            + [ms(task.predicted), ms(task.seconds), task.instruction or task.reason]
            for number, task in enumerate(tuning.rows, 1)
        ],
        title=f"{tuning.network}: {tuning.seconds * 1e3:.4g} ms in kernels",
    )
    print_line(str(show_allocation(tuning)))


def _frontier_of(
    network: Loaded, precision: str, budget: float, samples: Path | None
) -> Frontier | None:
    """Measure the trade-off of a precision; ``None`` in the model's own, and for buckets."""
    from amos.network.buckets import BucketedNetwork
    from amos.network.precision.choosing import check_choice, choose_precision

    check_choice(precision, budget)
    if precision == "f32" or (precision == "auto" and isinstance(network, BucketedNetwork)):
        return None
    return choose_precision(network, precision, budget=budget, samples=samples)


def _write_picture(frontier: Frontier, path: Path) -> None:
    from amos.viz.plotting import write_page

    body = f'<meta charset="utf-8"><title>Precision</title><body>{amos.viz.html(frontier)}</body>'
    write_page(f"<!doctype html>\n<html>{body}</html>\n", path)


def _load(model: Path, shapes: InputShapes, buckets: BucketSizes, builds: bool = False) -> Loaded:
    if builds and model.is_file():
        from amos.network.kernels import start_builders

        start_builders()  # they import while the model is read
    return amos.load_network(
        str(model),
        shapes=read_input_shapes(shapes),
        buckets=read_sizes("--bucket", "DIM=SIZES, as batch=1,4,16", buckets) or None,
    )


def _print_report(report: Report) -> None:
    print_line(f"{report.network} on {report.machine}: {report.coverage}")
    for row in report.unmapped:
        print_line(f"  not modelled: {row.count} x {row.operator}: {row.reason}")
    on_unit = not report.has_engine
    print_table(
        ["task", "count", "mappings", "instruction", "ms each", "share"]
        + ["of peak", "KiB each", "uJ each"] * on_unit
        + ["bound by"],
        [
            [row.operator, row.count, row.mappings, row.method or report.elsewhere, ms(row.seconds)]
            + [f"{row.share:.1%}" if row.share else ""]
            + _unit_figures(row) * on_unit
            + [row.bound or row.reason]
            for row in report.tasks
        ],
    )
    print_table(
        [f"stays with the {report.elsewhere}", "count", "ms in all", "because"],
        [[row.operation, row.count, ms(row.seconds), row.reason] for row in report.engine],
    )
    print_line(f"predicted  {report.summary}")
    if report.bound_seconds is not None:
        ratio = report.kernel_seconds / report.bound_seconds
        least = f"{report.bound_seconds * 1e3:.4g} ms"
        print_line(f"least      {least} in kernels: these are predicted {ratio:.3f} of the bound")
    if report.energy_joules is not None:
        print_line(f"energy     {report.energy_joules * 1e3:.4g} mJ of all kernels")


def _unit_figures(row: TaskRow) -> list[object]:
    """List utilization, KiB from and to DRAM, and microjoules of a task on a unit."""
    kibibytes = None if row.traffic_bytes is None else row.traffic_bytes / 1024
    return [percent(row.utilization), kibibytes, microjoules(row.energy_joules)]
