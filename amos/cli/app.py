"""The ``amos`` command: its subcommands, and its exit statuses.

Status 0 is success, 2 an error that the user can mend (one or two lines on standard
error), 130 an interrupt, 1 a reader of the output that went away.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from amos import __version__
from amos.cli import (
    compare,
    cuda,
    explore,
    export,
    fig5,
    fuse,
    heron,
    intrinsics,
    machines,
    map_,
    modelled,
    networks,
    operators,
    parallel,
    predict,
    records,
    reproduce,
    serve,
    space,
    sweep,
)
from amos.cli.output import print_warning
from amos.errors import AmosError, quote

app = typer.Typer(
    name="amos",
    help="Map tensor computations onto hardware intrinsics.",
    epilog="Start with: amos map conv2d wmma_m16n16k16_f16_f32",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("map")(map_.map_command)
app.command("explore")(explore.explore_command)
app.command("fuse-check")(fuse.fuse_check_command)
app.command("export")(export.export_command)
app.command("space")(space.space_command)
app.command("predict")(predict.predict_command)
app.command("sweep")(sweep.sweep_command)
app.command("compare")(compare.compare_command)
app.command("report")(networks.report_command)
app.command("tune")(networks.tune_command)
app.command("compile")(networks.compile_command)
app.command("serve")(serve.serve_command)
app.command("operators")(operators.operators_command)
app.add_typer(intrinsics.app, name="intrinsics")
app.add_typer(machines.app, name="machines")
reproduce.app.command("fig5")(fig5.fig5_command)
reproduce.app.command("cuda")(cuda.cuda_command)
reproduce.app.command("table2")(cuda.table2_command)
reproduce.app.command("fig7")(networks.fig7_command)
reproduce.app.command("lift")(parallel.lift_command)
reproduce.app.command("fig8b")(modelled.fig8b_command)
reproduce.app.command("fig9")(modelled.fig9_command)
reproduce.app.command("hidet-fig19")(modelled.hidet_fig19_command)
reproduce.app.command("heron-table10")(heron.heron_table10_command)
reproduce.app.command("heron-fig14")(heron.heron_fig14_command)
app.command("gpu-check")(cuda.gpu_check_command)
app.add_typer(reproduce.app, name="reproduce")
app.add_typer(records.app, name="records")


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"amos {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """Options of ``amos`` itself."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, by default on the process's arguments, and return its exit status."""
    # NumPy's threads would keep cores busy after each product, beside processes that build.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    _never_fail_to_print()
    try:
        status = _run(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _run(argv: Sequence[str] | None) -> int:
    command = typer.main.get_command(app)
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        _check_numbers(arguments)
        result = command.main(arguments, prog_name="amos", standalone_mode=False)
    except AmosError as error:
        _complain(
            str(error)
            .replace("commute=True", "--commute")
            .replace("rule='gather'", "--rule gather")
        )
        return 2
    except typer.Abort:
        return 130
    except typer.TyperException as error:
        _explain_usage(error)
        return error.exit_code
    return result if isinstance(result, int) else 0


def _check_numbers(arguments: Sequence[str]) -> None:
    """Refuse option values beyond 64 bits, which would overflow."""
    for word in arguments:
        value = word.partition("=")[2] if word.startswith("--") else word
        try:
            number = float(value)
        except ValueError:
            continue
        if abs(number) > sys.maxsize and any(map(str.isdigit, value)):
            raise AmosError(f"expected a number below 2**63, got {quote(word)}")


def _complain(message: str) -> None:
    sys.stdout.flush()
    if message.strip():
        print_warning(message)


def _explain_usage(error: typer.TyperException) -> None:
    message = error.format_message().replace("Value error, ", "")
    if message.startswith("Usage:"):
        # A group without a command: its help is the message.
        typer.echo(message, err=True)
        return
    context = getattr(error, "ctx", None)
    hint = f"\nsee: {context.command_path} --help" if context is not None else ""
    _complain(message + hint)


def _never_fail_to_print() -> None:
    """Print a ``?`` for characters that a terminal without Unicode cannot show."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _drop_output() -> None:
    """Keep the interpreter from complaining at exit that its output has no reader."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return
