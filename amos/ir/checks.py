"""Checks of every operator, however it was built; each refusal is one line."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from amos.errors import OperatorError, quote
from amos.ir.epilogue import Epilogue
from amos.ir.nodes import Compute, Tensor
from amos.ir.prologue import Prologue
from amos.ir.store import check_distinct


def check_statement(compute: Compute) -> None:
    """Refuse a statement that is not one of an operator; see :class:`amos.ir.Operator`."""
    _check_iterations(compute)
    _check_destination(compute)
    _check_recurrence(compute)
    _check_bounds(compute)
    _check_tensors(compute)


def _check_iterations(compute: Compute) -> None:
    names = [it.name for it in compute.iterations]
    if len(set(names)) != len(names):
        raise OperatorError(f"an iteration is listed twice: {', '.join(names)}")
    listed = set(names)
    for load in compute.operands:
        if missing := load.names - listed:
            raise OperatorError(f"{load}: no extent given for {', '.join(sorted(missing))}")
    used = frozenset[str]().union(*(load.names for load in compute.operands))
    if idle := [n for n in names if n not in used]:
        raise OperatorError(f"iteration {', '.join(idle)} indexes nothing in {compute}")
    for it in compute.iterations:
        kind = "spatial" if it.name in compute.dst.names else "reduce"
        if it.kind != kind:
            raise OperatorError(f"iteration {it.name!r} is {kind} in {compute}, not {it.kind}")
    if not compute.accumulates and compute.reduce:
        names_ = ", ".join(it.name for it in compute.reduce)
        raise OperatorError(
            f"{compute}: {names_} is summed over, so write += instead of = (or max=, min=, *=)"
        )


def _check_destination(compute: Compute) -> None:
    """Refuse destinations where two points of the spatial iterations share an element."""
    if compute.dst.padded:
        raise OperatorError(f"{compute.dst}: only a source can be padded, not the output")
    names = [name for index in compute.dst.indices for name in index.names]
    if repeated := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise OperatorError(
            f"{compute.dst}: {', '.join(repeated)} indexes two dimensions of the output; let it "
            "index one, and store results there by with_output (--output)"
        )
    check_distinct(compute.dst, compute.extents)


def _check_bounds(compute: Compute) -> None:
    for load in compute.operands:
        if not load.padded and (overrun := load.overrun(compute.extents)):
            raise OperatorError(
                f"{overrun}; write pad({load.tensor.name}[…]) if reads outside are zero"
            )


def _check_tensors(compute: Compute) -> None:
    seen: dict[str, Tensor] = {}
    for load in compute.sources:
        if seen.setdefault(load.tensor.name, load.tensor) != load.tensor:
            raise OperatorError(f"tensor {load.tensor.name!r} is used with two shapes or dtypes")


def _check_recurrence(compute: Compute) -> None:
    name = compute.dst.tensor.name
    if any(load.tensor.name == name for load in compute.sources):
        raise OperatorError(
            f"{compute}: a recurrence: {name!r} is both read and written, so elements wait for "
            "one another; read former values from a tensor of another name"
        )


def check_prologues(compute: Compute, prologues: Sequence[Prologue]) -> None:
    """Refuse two prologues of one source, and prologues that read the statement's tensors."""
    sources = {load.tensor.name: load.tensor for load in compute.sources}
    seen: set[str] = set()
    for prologue in prologues:
        name = prologue.tensor
        if name not in sources:
            raise OperatorError(
                f"prologue of {name!r}: it is not a source; sources are {', '.join(sources)}"
            )
        if name in seen:
            raise OperatorError(f"source {name!r} has two prologues")
        seen.add(name)
        prologue.check(sources[name])
        if sources[name].bounds is not None:
            raise OperatorError(
                f"prologue of {name!r}: it is computed, so that no range of it can be declared"
            )
        for tensor in prologue.tensors:
            if tensor.name != name and tensor.name in {*sources, compute.dst.tensor.name}:
                raise OperatorError(
                    f"prologue of {name!r}: {tensor.name!r} is a tensor of the statement already"
                )


def constant_sources(compute: Compute, constants: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of constant sources; by default those that begin with ``weight``."""
    if constants is None:
        sources = dict.fromkeys(load.tensor.name for load in compute.sources)
        return tuple(name for name in sources if name.startswith("weight"))
    if isinstance(constants, str) or not isinstance(constants, Collection):
        raise OperatorError(f"constants: expected a list of names, got {quote(constants)}")
    return tuple(constants)


def check_constants(compute: Compute, constants: Sequence[str]) -> None:
    """Refuse constants that are no sources."""
    inputs = [load.tensor.name for load in compute.sources]
    if unknown := [name for name in constants if name not in inputs]:
        raise OperatorError(
            f"constant {unknown[0]!r} is not an input; inputs are {', '.join(inputs)}"
        )


def check_read_once(expressions: Sequence[Prologue | Epilogue]) -> None:
    """Refuse prologues and epilogues that read two tensors under one name."""
    seen: dict[str, Tensor] = {}
    for load in (load for each in expressions for load in each.loads):
        if seen.setdefault(load.tensor.name, load.tensor) != load.tensor:
            raise OperatorError(f"tensor {load.tensor.name!r} is read with two shapes or dtypes")


def check_epilogue(compute: Compute, epilogue: Epilogue) -> None:
    """Refuse tensors of the statement, and indices that are no iterations of the output."""
    used = {load.tensor.name for load in compute.operands}
    spatial = {it.name for it in compute.spatial}
    for load in epilogue.loads:
        if load.tensor.name in used:
            raise OperatorError(
                f"epilogue {epilogue}: {load.tensor.name!r} is a tensor of the statement already"
            )
        if foreign := sorted(load.names - spatial):
            raise OperatorError(
                f"epilogue {epilogue}: {foreign[0]!r} is no iteration of the output; "
                f"these are {', '.join(it.name for it in compute.spatial)}"
            )
    if compute.dst.tensor.dtype is not None:
        epilogue.result(compute.dst.tensor.dtype)
