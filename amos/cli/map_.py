"""``amos map``: every mapping of an operator onto an intrinsic, or why a matching is no mapping."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

import amos
from amos.cli import options
from amos.cli.chains import is_chain, map_chain
from amos.cli.output import print_json, print_line, print_table
from amos.cli.targets import map_target
from amos.errors import MappingError

if TYPE_CHECKING:
    import numpy as np

    from amos.intrinsics import Intrinsic
    from amos.ir import DType, Operator
    from amos.mapping import Mapping, MappingSpace

_ROWS_OF_A_TABLE = 40
_ROWS_OF_JSON = 100_000

Explain = Annotated[
    str | None,
    typer.Option(
        metavar="MATRIX",
        help="Judge one matching instead of listing: a row of 0 and 1 for each intrinsic "
        "iteration, rows separated by ';' or '/', as in '1011000;0100000;0000111', or the "
        "name, as in npq-k-crs.",
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        metavar="TARGET",
        help="Try every intrinsic of a target instead of one: cuda:sm_80, x86:host, all.",
    ),
]


@options.takes_operator
def map_command(
    op: Operator,
    intrinsic: options.IntrinsicNames = None,
    machine: options.MachineName = "host",
    rule: options.Rule = "access",
    commute: options.Commute = False,
    explain: Explain = None,
    target: Target = None,
    files: options.IntrinsicFiles = None,
    limit: options.Limit = None,
    as_json: options.AsJson = False,
) -> None:
    """List mappings, or explain one matching.

    Without INTRINSIC every instruction of the machine is listed, with the best time that the
    model predicts.
    """
    from amos.explore.contenders import select_intrinsics

    if is_chain(op):
        if target is not None or explain is not None:
            raise typer.BadParameter("of one statement only", param_hint="--target, --explain")
        map_chain(op, options.read_intrinsics(intrinsic, files), machine, rule, commute, as_json)
        return
    if target is not None:
        if intrinsic is not None or explain is not None:
            raise typer.BadParameter("names all its intrinsics itself", param_hint="--target")
        map_target(op, target, commute, as_json, options.load_intrinsics(files))
        return
    named = options.read_intrinsics(intrinsic, files)
    chosen = select_intrinsics(named, machine)
    if explain is None and (named is None or len(chosen) > 1):
        _list_instructions(op, chosen, machine, rule, commute, as_json)
        return
    if len(chosen) > 1:
        raise typer.BadParameter("one is needed for --explain", param_hint="INTRINSIC")
    (unit,) = chosen
    if explain is not None:
        _explain(op, unit, explain, rule, as_json)
        return
    space = amos.enumerate_mappings(op, unit, rule=rule, commute=commute)
    if as_json:
        _print_space(space, commute, limit)
    else:
        _list(space, _ROWS_OF_A_TABLE if limit is None else limit)


def _print_space(space: MappingSpace, commute: bool, limit: int | None) -> None:
    op, unit = space.operator, space.intrinsic
    if limit is None and space.count > _ROWS_OF_JSON:
        raise MappingError(
            f"{op.name} has {space.count} mappings on {unit.name}: --limit says how many to print"
        )
    shown = itertools.islice(space, limit)
    print_json(
        _about(op, unit, space.rule)
        | {"commute": commute, "count": space.count, "reason": _why_none(space)}
        | {"mappings": [_row(mapping) for mapping in shown]}
    )


def _list_instructions(
    op: Operator, units: list[Intrinsic], machine: str, rule: str, commute: bool, as_json: bool
) -> None:
    """Print the mappings that each instruction has for an operator."""
    from amos.explore.contenders import contenders, predict_contender, reasons

    search = amos.SearchOptions(commute=commute)
    # With open dtypes, those that compute in the same ones are compared with each other.
    groups: dict[tuple[DType, ...], list[Intrinsic]] = {}
    for unit in units:
        kinds = unit.kinds if any(t.dtype is None for t in op.inputs) else ()
        groups.setdefault(kinds, []).append(unit)
    all_contenders = [
        each for group in groups.values() for each in contenders(op, group, rule, search)
    ]
    target = amos.machines.get(
        machine, [each.intrinsic for each in all_contenders if not each.reason]
    )
    listed = [
        each if each.reason else predict_contender(op, each, target, rule, search)
        for each in all_contenders
    ]
    listed.sort(key=lambda contender: contender.predicted)
    if as_json:
        keys = ("intrinsic", "mappings", "utilization", "predicted_seconds", "reason")
        rows = [{key: each.to_dict()[key] for key in keys} for each in listed]
        about = {"operator": op.name, "statement": str(op), "machine": machine, "rule": rule}
        print_json(about | {"commute": commute, "rows": rows})
        return
    print_line(str(op))
    if fitting := [each for each in listed if each.compared]:
        print_table(
            ["instruction", "mappings", "utilization", "predicted ms"],
            [
                [x.intrinsic.name, x.mappings, f"{x.utilization:.1%}", x.predicted * 1e3]
                for x in fitting
            ],
        )
    for line in reasons([each for each in listed if not each.compared]):
        print_line(line)


def _about(op: Operator, unit: Intrinsic, rule: str) -> dict[str, Any]:
    return {"operator": op.name, "statement": str(op), "intrinsic": unit.name, "rule": rule}


def _row(mapping: Mapping) -> dict[str, Any]:
    physical = mapping.physical()
    return {
        "name": mapping.name,
        "groups": mapping.groups,
        "calls": physical.calls,
        "utilization": physical.utilization,
        "expression": str(mapping),
    }


def _list(space: MappingSpace, limit: int) -> None:
    names = [it.name for it in space.intrinsic.iterations]
    plural = "" if space.count == 1 else "s"
    print_line(f"{space.operator}\n{space.intrinsic}\n")
    print_line(f"{space.count} mapping{plural} under rule {space.rule!r}")
    if not space:
        print_line(f"  - {_why_none(space)}")
    elif limit:
        print_table(
            ["mapping", *names, "calls", "utilization"],
            [
                [mapping.name, *(mapping.groups.get(name, ()) for name in names)]
                + [physical.calls, f"{physical.utilization:.1%}"]
                for mapping in itertools.islice(space, limit)
                for physical in [mapping.physical()]
            ],
        )
        if (hidden := space.count - limit) > 0:
            print_line(f"{hidden} more; --limit {space.count} lists all of them.")


def _why_none(space: MappingSpace) -> str:
    """Explain why a rule refuses the first mapping of a wider one; empty if it has mappings."""
    if space:
        return ""
    op, unit = space.operator, space.intrinsic
    for wider in _wider(space.rule):
        if wider_space := amos.enumerate_mappings(op, unit, wider):
            first = wider_space[0]
            verdict = amos.check_matching(op, unit, first.matching, space.rule, order=first.order)
            plural = "" if wider_space.count == 1 else "s"
            return (
                f"rule {wider!r} has {wider_space.count} mapping{plural} (--rule {wider}); rule "
                f"{space.rule!r} refuses the first, {first.name}: {'; '.join(verdict.reasons)}"
            )
    return "no other rule has any"


def _wider(rule: str) -> tuple[str, ...]:
    """Return the rules that accept more."""
    from amos.validate import RULES

    return RULES[RULES.index(rule) + 1 :]


def _explain(op: Operator, unit: Intrinsic, text: str, rule: str, as_json: bool) -> None:
    matrix = _read_matching(text, op, unit)
    verdict = amos.check_matching(op, unit, matrix, rule=rule)
    accepting = ""
    if verdict.wrong:
        accepting = next((r for r in _wider(rule) if amos.check_matching(op, unit, matrix, r)), "")
    cells = matrix.astype(int).tolist()
    if as_json:
        print_json(
            _about(op, unit, rule)
            | {
                "matrix": cells,
                "valid": bool(verdict),
                "reasons": verdict.reasons,
                "wrong": verdict.wrong,
                "idle": verdict.idle,
                "accepted_by": accepting,
                "nearest": verdict.nearest,
            }
        )
        return
    print_line(str(op))
    print_line(f"{unit.name}: {unit.compute}")
    fed = zip(op.operands, unit.operands, strict=True)
    print_line(", ".join(f"{a.tensor.name} is {b.tensor.name}" for a, b in fed))
    note = ""
    if verdict.idle and not verdict.wrong:
        note = ": not wrong, but part of the unit is idle without need"
    elif accepting:
        note = f", but under {accepting!r}: right if fragments may be gathered"
    print_line(f"\n{'valid' if verdict else 'not valid'} under rule {rule!r}{note}")
    columns = ["", *(it.name for it in op.iterations)]
    print_table(columns, ([it.name, *row] for it, row in zip(unit.iterations, cells, strict=True)))
    for reason in verdict.reasons:
        print_line(f"  - {reason}")
    if verdict.hint:
        print_line(f"{verdict.hint}.")


def _read_matching(text: str, op: Operator, unit: Intrinsic) -> np.ndarray:
    """Read a matching matrix from rows of 0 and 1 or from a mapping's name."""
    import numpy as np

    from amos.validate.naming import read_name

    if re.search(r"[A-Za-z_]", text) and "-" in text:
        assignment, order = read_name(text.strip(), op, unit)
        if order != tuple(range(len(order))):
            raise MappingError(f"{text!r}: only the given order of the sources can be explained")
        return np.equal.outer(np.arange(len(unit.iterations)), assignment)
    # Brackets of Python and NumPy are read as well: [[1, 0], [0, 1]].
    plain = re.sub(r"\]\s*,?\s*\[", ";", text).strip("[] \n\t")
    rows = [re.sub(r"[\s,]", "", row) for row in re.split(r"[;/]", plain.strip(";/"))]
    shape = (len(unit.iterations), len(op.iterations))
    hardware = ", ".join(it.name for it in unit.iterations)
    software = ", ".join(it.name for it in op.iterations)
    if any(set(row) - set("01") for row in rows):
        raise MappingError(
            f"matching {text!r}: expected {shape[0]} rows ({hardware}) of {shape[1]} zeros and "
            f"ones ({software}) separated by ';', or a name of {shape[0]} groups joined by '-'"
        )
    if (len(rows), *{len(row) for row in rows}) != shape:
        raise MappingError(
            f"matching matrix {text!r}: expected {shape[0]} rows ({hardware}) of {shape[1]} "
            f"columns ({software}), "
            f"got {len(rows)} of {' and '.join(sorted({str(len(row)) for row in rows}))}"
        )
    return np.array([[cell == "1" for cell in row] for row in rows], dtype=bool)
