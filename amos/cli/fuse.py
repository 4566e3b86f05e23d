"""``amos fuse-check``: whether two operators can be one kernel, and why not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

import amos
from amos.cli import options
from amos.cli.output import print_json, print_line
from amos.errors import suggestion

if TYPE_CHECKING:
    from amos.ir import Operator


def fuse_check_command(
    producer: options.OperatorText,
    consumer: Annotated[
        str,
        typer.Argument(
            metavar="CONSUMER",
            help="Text that reads the producer's output by name: 'z[j,i] = y[i,j] * s[j]'. "
            "'… then relu(acc)' gives it, or the producer, an epilogue.",
        ),
    ],
    extent: options.Extents = None,
    dtype: options.TensorDtypes = None,
    as_json: options.AsJson = False,
) -> None:
    """Say whether two operators can be one kernel, and as what, or why not.

    The status is 0 if they can, else 1. Extents of the consumer are those of the producer for
    iterations of the same names.
    """
    sizes, kinds = options.read_extents(extent), options.read_dtypes(dtype)
    verdict = amos.fusable(_producer(producer, consumer, sizes, kinds), consumer, sizes, kinds)
    if as_json:
        print_json(
            {
                "fusable": bool(verdict),
                "place": verdict.rule if verdict else "",
                "how": verdict.how,
                "reasons": verdict.reasons,
                "fused": str(verdict.fused) if verdict else "",
            }
        )
    else:
        print_line(str(verdict.fused) if verdict else "not fusable")
        for reason in [f"{verdict.rule}: {verdict.how}"] if verdict else verdict.reasons:
            print_line(f"  - {reason}")
    if not verdict:
        raise typer.Exit(1)


def _producer(
    text: str, consumer: str, sizes: Mapping[str, int], kinds: Mapping[str, str]
) -> str | Operator:
    """Return the text, or the named operator with what the consumer alone does not have."""
    iterations, tensors = _names(consumer)
    if "[" in text:
        text_names = _names(text)
        _check("--extent", sizes, [*text_names[0], *iterations])
        _check("--dtype", kinds, [*text_names[1], *tensors])
        return text
    usual = amos.operators.resolve(text)
    own = {*usual.extents, *(load.tensor.name for load in usual.operands)}

    def of(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
        return {key: value for key, value in values.items() if key in own or key not in names}

    return amos.operators.resolve(text, extents=of(sizes, iterations), dtypes=of(kinds, tensors))


def _names(text: str) -> tuple[list[str], list[str]]:
    """List the iterations and tensors of a statement and of its expression after ``then``."""
    from amos.ir.expression_parser import tensors_in
    from amos.ir.grammar import read_statement

    head, _, epilogue = text.partition(" then ")
    statement = read_statement(head)
    tensors = [reference.name for reference in statement.references]
    return [*statement.mentioned], [*tensors, *tensors_in(epilogue)]


def _check(option: str, values: Mapping[str, object], names: Collection[str]) -> None:
    for name in values:
        if name not in names:
            both = ", ".join(dict.fromkeys(names))
            raise typer.BadParameter(
                f"{name!r} is in neither operator; they have {both}{suggestion(name, names)}",
                param_hint=option,
            )
