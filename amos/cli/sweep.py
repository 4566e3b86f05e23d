"""``amos sweep``: one instruction and its machine in many sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import amos
from amos.cli.models import InputShapes, read_input_shapes
from amos.cli.options import AsJson, Dtypes, Extents, Seed
from amos.cli.output import milliseconds, percent, print_json, print_line, print_table

if TYPE_CHECKING:
    from amos.explore.sweep import Point
    from amos.intrinsics import Intrinsic
    from amos.machine import Machine
    from amos.network.external.partition import PartitionedNetwork
    from amos.network.groups import Task
    from amos.network.report import Report

MachineName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="A described machine, or a TOML file; by default the one that has the unit.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUES",
        help="extents.i2=8,16, memory.inp.capacity=16k,32k, timing.interval=1,i1*2, "
        "machine.sram=64k,128k or machine.stream.latency=20,50; repeat for more.",
    ),
]
PointsFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Keep every point here; go on from what it has.")
]
Workers = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Search on the workers of a Dask scheduler, tcp://HOST:PORT, which see the same "
        "files; by default on all cores here.",
    ),
]
Picture = Annotated[
    Path | None,
    typer.Option(metavar="FILE.html", help="Draw what each size is worth, with sliders."),
]


def sweep_command(
    intrinsic: Annotated[
        str, typer.Argument(metavar="INTRINSIC", help="A name, or a TOML file that describes one.")
    ],
    operators: Annotated[
        list[str],
        typer.Argument(
            metavar="OPERATORS", help="Names, layers, texts, or ONNX files of whole networks."
        ),
    ],
    machine: MachineName = None,
    settings: Settings = None,
    trials: Annotated[int, typer.Option(min=1, help="Candidates of each search.")] = 16,
    seed: Seed = 0,
    extent: Extents = None,
    dtype: Dtypes = None,
    shape: InputShapes = None,
    points: PointsFile = None,
    executor: Workers = None,
    plot: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Compare sizes of an instruction, its buffers and its machine on some operators."""
    from amos.cli.options import read_operator
    from amos.errors import ExploreError
    from amos.explore.sweep import machine_of, sweep
    from amos.machine import catalogue

    file = Path(intrinsic) if intrinsic.endswith(".toml") else None
    unit = amos.intrinsics.load(file) if file else amos.intrinsics.get(intrinsic)
    shapes = read_input_shapes(shape)
    ops = [
        _model_of(x, shapes) if x.endswith(".onnx") else read_operator(x, extent, dtype)
        for x in operators
    ]
    axes = _axes(settings or ())
    described = catalogue.get(machine, [unit]) if machine else machine_of(unit)
    search = partial(sweep, trials=trials, seed=seed, points=points, executor=executor)
    rows = list(search(unit, described, axes, ops))
    if all(point.reason for point in rows):
        raise ExploreError(f"none of {len(rows)} points can be had; {rows[0].reason}")
    if plot is not None:
        amos.viz.write(amos.viz.sizes(rows), plot, amos.viz.sliders(rows))
    if as_json:
        print_json([asdict(point) for point in rows])
    else:
        print_line(f"{unit.name} on {described.name}")
        _print(rows)


@dataclass(frozen=True)
class _Model:
    """A network that each process reads for itself, and shapes of inputs that it leaves open."""

    path: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def name(self) -> str:
        return _read(self).name

    @property
    def tasks(self) -> Sequence[Task]:
        return _read(self).tasks

    def report(self, machine: Machine, intrinsics: Sequence[Intrinsic]) -> Report:
        """Return its report by these instructions alone."""
        return _read(self).report(machine, intrinsics)


def _model_of(path: str, shapes: dict[str, tuple[int, ...]]) -> _Model:
    """Name a model, and report its errors before the search."""
    model = _Model(str(Path(path).absolute()), tuple(shapes.items()))
    _read(model)
    return model


@cache
def _read(model: _Model) -> PartitionedNetwork:
    return amos.load_network(model.path, shapes=dict(model.shapes))


def _print(points: Sequence[Point]) -> None:
    print_table(
        [
            *points[0].settings,
            "operator",
            "mappings",
            "infeasible",
            "unit used",
            "predicted ms",
            "simulated ms",
            "of peak",
        ]
        + ["energy uJ", "why not"],
        [
            [*(str(value) for value in point.settings.values()), point.operator, point.mappings]
            + [point.infeasible]
            + [percent(point.utilization), milliseconds(point.predicted)]
            + [milliseconds(point.simulated), percent(point.share)]
            + [None if point.energy is None else point.energy * 1e6, point.reason]
            for point in points
        ],
    )


def _axes(texts: Sequence[str]) -> dict[str, list[Any]]:
    axes: dict[str, list[Any]] = {}
    for path, values in map(_axis, texts):
        if path in axes:
            raise typer.BadParameter(f"{path}: expected all values in one", param_hint="--set")
        axes[path] = values
    return axes


def _axis(text: str) -> tuple[str, list[Any]]:
    """Split ``PATH=V1,V2`` into path and values."""
    from amos.explore.sweep import value_of

    path, sign, values = text.partition("=")
    if not (path and sign and values):
        raise typer.BadParameter(f"{text!r}: expected PATH=VALUES", param_hint="--set")
    return path, [value_of(each) for each in values.split(",")]
