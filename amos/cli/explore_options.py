"""Options of ``amos explore``: how to search, within which limits, and where to measure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "DivisorsOnly",
    "Epsilon",
    "ExportFolder",
    "ExecutorAddress",
    "FlushCache",
    "Implementation",
    "MemoryLimit",
    "MethodName",
    "RecordFile",
    "Seed",
    "Stagnation",
    "TimeLimit",
    "Timeout",
    "Top",
    "Trials",
]

_METHODS = "Search method: ga, cga, cga1, sa, random, ga_plain, ga_sr, ga_sat, ga_mo, exhaustive."

Trials = Annotated[int, typer.Option(help="How many candidates to measure.")]
Seed = Annotated[int, typer.Option(help="Seed of the random generator.")]
MethodName = Annotated[str, typer.Option(metavar="NAME", help=_METHODS)]
RecordFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Keep every trial in this SQLite file, and go on from what is there."
    ),
]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds that one candidate may take.")]
MemoryLimit = Annotated[
    int | None,
    typer.Option("--memory-limit", metavar="MIB", min=16, help="Memory of one candidate."),
]
TimeLimit = Annotated[
    float | None,
    typer.Option("--time-limit", metavar="SECONDS", help="Begin no trial after that long."),
]
FlushCache = Annotated[bool, typer.Option("--flush-cache", help="Time each run with cold caches.")]
ExecutorAddress = Annotated[
    str | None,
    typer.Option(
        "--executor",
        metavar="ADDRESS",
        help="Measure on a Dask cluster, tcp://HOST:PORT, on a board, rpc://HOST:PORT/KEY, or "
        "for a described GPU on the one here, gpu; model measures nothing.",
    ),
]
Implementation = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="native or generic; native where the CPU can."),
]
DivisorsOnly = Annotated[
    bool, typer.Option("--divisors", help="Only register tiles that divide their loops.")
]
Stagnation = Annotated[
    int | None,
    typer.Option("--stagnation", metavar="N", help="End after N idle trials."),
]
ExportFolder = Annotated[
    Path | None,
    typer.Option(
        "--export", metavar="DIR", help="Write the best candidates as CUDA kernels, for a GPU."
    ),
]
Top = Annotated[int, typer.Option(min=1, help="How many, with --export.")]
Epsilon = Annotated[
    float, typer.Option("--epsilon", metavar="SHARE", help="Share of candidates drawn by chance.")
]
