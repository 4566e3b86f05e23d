"""Displays of chains of statements, of their searches and of their kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amos.ir import Chain
from amos.ir.chain import loads_of
from amos.viz.blocks import Block, Code, Heading, Note, Table

if TYPE_CHECKING:
    from amos.chains import ChainExploration, ChainKernel

#: Trials that are listed.
_LISTED = 12


def chain(chain: Chain) -> list[Block]:
    """Show statements with their results, and tensors with their writers and readers."""
    steps = tuple(
        (str(number), statement.text if step is statement.steps[0] else "", _text(step))
        for number, statement in enumerate(chain.statements, 1)
        for step in statement.steps
    )
    readers: dict[str, list[str]] = {}
    for step in chain.steps:
        for load in loads_of(step):
            readers.setdefault(load.tensor.name, []).append(step.output.tensor.name)
    roles = dict.fromkeys((t.name for t in chain.inputs), "input")
    roles |= dict.fromkeys((t.name for t in chain.temporaries), "temporary")
    roles[chain.result.name] = "result"
    tensors = tuple(
        (tensor.name, roles[tensor.name], " × ".join(map(str, tensor.shape)) or "scalar")
        + (tensor.kind.declared if tensor.kind else "open",)
        + (", ".join(dict.fromkeys(readers.get(tensor.name, []))),)
        for tensor in (*chain.inputs, *chain.temporaries, chain.result)
    )
    return [
        Heading(f"Chain {chain.name}", f"{chain.operations:,} operations of products"),
        Table(("", "statement", "computed as"), steps),
        Table(("loop", "extent"), tuple(chain.extents.items())),
        Table(("tensor", "", "shape", "dtype", "read for"), tensors),
    ]


def exploration(run: ChainExploration) -> list[Block]:
    """Show the best kernel, its temporaries near a core, and the best trials."""
    best = run.best
    columns, *rows = best.candidate.table
    steps = tuple((x.tensor, x.runs, x.seconds * 1e3) for x in best.prediction.steps)
    trials = tuple(
        (each.number, str(each.candidate.tiling), each.predicted * 1e3, each.seconds * 1e3)
        for each in sorted(run.trials, key=lambda trial: trial.seconds)[:_LISTED]
    )
    prediction = best.prediction
    return [
        Heading(f"Exploration of {run.operator.name} on {run.machine.name}"),
        Code(str(best)),
        Note(
            (f"{prediction.temporary_bytes:,} bytes of temporaries a core, in {prediction.level}",)
        ),
        Table(columns, tuple(rows)),
        Table(("step", "runs", "predicted ms on one core"), steps),
        Table(("trial", "tiles", "predicted ms", "ms"), trials),
        *([Note((*run.refused, *run.notes))] if run.refused or run.notes else []),
    ]


def kernel(kernel: ChainKernel) -> list[Block]:
    """Show the compiled candidate, and its source."""
    note = f"{kernel.implementation}, inputs {', '.join(kernel.inputs)}"
    return [Heading(f"Kernel of {kernel.candidate}", note), Code(kernel.source)]


def _text(step: object) -> str:
    return str(step).split("  with ", 1)[0]
