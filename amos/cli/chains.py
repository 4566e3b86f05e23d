"""``amos map`` and ``amos explore`` on a chain of statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import amos
from amos.cli.options import read_fixes
from amos.cli.output import milliseconds, print_json, print_line, print_replay, print_table
from amos.errors import ScheduleError, UnknownNameError

if TYPE_CHECKING:
    from amos.intrinsics import Intrinsic
    from amos.ir import Chain, Operator
    from amos.records import Record

#: Choices of ``--fix``; all but tiles on OpenCL devices only.
_FIXED = ["tile.LOOP=SIZE", "map.LOOP=LEVEL", "memory.TENSOR=local", "copy.INPUT=local"]
_FIXED += ["items=N", "intrinsic.TENSOR=NAME"]
#: Trials that are listed.
_LISTED = 8


def is_chain(op: Operator) -> bool:
    """Return whether it is a chain, perhaps of one statement, which type checkers do not see."""
    from amos.ir import Chain

    return isinstance(op, Chain)


def read_tiles(fix: Sequence[str] | None) -> tuple[dict[str, int], list[str]]:
    """Split the tiles of ``--fix tile.LOOP=SIZE`` from other fixes, for OpenCL devices.

    Raises:
        UnknownNameError: something else is fixed.
        ScheduleError: a tile has two sizes.
    """
    tiles, further = dict[str, int](), list[str]()
    for text, (name, value) in zip(fix or (), read_fixes(fix), strict=True):
        kind, _, loop = name.partition(".")
        if kind == "tile" and isinstance(value, int):
            if tiles.setdefault(loop, value) != value:
                raise ScheduleError(f"{name}: fixed as {tiles[loop]} and as {value}")
        elif kind in ("map", "memory", "copy", "items", "intrinsic"):
            further.append(text)
        else:
            raise UnknownNameError("variable of a chain", f"{name}={value}", _FIXED)
    return tiles, further


def explore_chain(chain: Operator, units: Any, as_json: bool, **options: Any) -> None:
    """Search, measure and report."""

    def report(trial: Any, count: int) -> None:
        print_line(f"{trial.number + 1}/{count}  {trial}")

    result: Any = amos.explore(chain, units, progress=not as_json and report, **options)
    if as_json:
        print_json(result.to_dict())
        return
    best = result.best
    print_line(f"\nchain      {result.operator}")
    replayed = f", {result.replayed} of them from the record" if result.replayed else ""
    tried = f"{len(result.trials)} kernels tried{replayed}"
    print_line(f"tilings    {result.space_size} fit, {tried}")
    _print_kernel(best.candidate)
    prediction = best.prediction
    print_line(
        f"kept       {prediction.temporary_bytes:,} bytes of temporaries a core, "
        f"in {prediction.level}"
    )
    print_line(f"predicted  {best.predicted * 1e3:.4f} ms")
    if best.measurement is not None:
        print_line(f"measured   {best.seconds * 1e3:.4f} ms, {result.tops:.3f} Top/s")
    fastest = sorted(result.trials, key=lambda trial: trial.seconds)[:_LISTED]
    is_packed = hasattr(best.candidate, "packs")
    print_table(
        ["tiles", "packed" if is_packed else "loops", "predicted ms", "best ms"],
        [
            [str(each.candidate.tiling)]
            + [bool(each.candidate.packs) if is_packed else each.candidate.parallel]
            + [milliseconds(each.predicted), milliseconds(each.seconds)]
            for each in fastest
        ],
    )
    for line in result.refused:
        print_line(f"refused    {line}")
    for line in result.notes:
        print_line(f"note       {line}")


def _print_kernel(candidate: Any) -> None:
    """Print the tiles of a kernel, and what computes its products or what its loops are."""
    print_line(f"winner     tiles {candidate.tiling}")
    if shape := getattr(candidate, "shape", ""):
        print_line(f"groups     {shape}")
    columns, *rows = candidate.table
    print_table(columns, rows)


def replay_chain(record: Record, repeat: int, as_json: bool) -> None:
    """Build the kernel of a record again, check and time it, and report."""
    from amos.chains import replay_chain as replay

    again = replay(record, repeat=repeat)
    if as_json:
        print_json(again.to_dict())
        return
    print_line(f"chain      {again.candidate.chain}")
    _print_kernel(again.candidate)
    print_replay(again)


def map_chain(
    chain: Operator | Chain,
    units: str | Intrinsic | Sequence[str] | None,
    machine: str,
    rule: str,
    commute: bool,
    as_json: bool,
) -> None:
    """Print what computes each statement: the instructions of products, or vectors."""
    from amos.explore.contenders import contenders, reasons, select_intrinsics
    from amos.ir import Operator

    chosen, rows = select_intrinsics(units, machine), list[dict[str, Any]]()
    for statement in chain.statements:
        (step, *_) = statement.steps  # type: ignore[union-attr]
        row: dict[str, Any] = {"statement": str(statement), "instructions": [], "reasons": []}
        if isinstance(step, Operator):
            search = amos.SearchOptions(commute=commute)
            ranked = contenders(step, chosen, rule, search)
            row["instructions"] = [
                {
                    "intrinsic": x.intrinsic.name,
                    "mappings": x.mappings,
                    "utilization": x.utilization,
                }
                for x in ranked
                if not x.reason
            ]
            row["reasons"] = reasons([x for x in ranked if x.reason])
        rows.append(row)
    if as_json:
        print_json({"operator": str(chain), "machine": machine, "rule": rule, "rows": rows})
        return
    print_line(str(chain))
    for row in rows:
        print_line(f"\n{row['statement']}")
        if row["instructions"]:
            print_table(
                ["instruction", "mappings", "utilization"],
                [
                    [x["intrinsic"], x["mappings"], f"{x['utilization']:.1%}"]
                    for x in row["instructions"]
                ],
            )
            for line in row["reasons"][:3]:
                print_line(line)
        else:
            print_line("  vectors, no instruction" + "".join(f"; {x}" for x in row["reasons"][:1]))
