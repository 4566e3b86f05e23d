"""Groups: what of a network becomes one kernel, and which of them are the same task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from amos.errors import AmosError
from amos.intrinsics import get, names
from amos.ir import DType, Operator, Tensor
from amos.network.anchors import Anchor, anchor_of
from amos.network.followers import Chain, chain_behind
from amos.network.graph import Constant, Graph, Node, Operand
from amos.network.shapes import BYTES


class Computation(Protocol):
    """What a kernel computes: an operator, or several of which each reads the one before."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What it reads."""

    @property
    def result(self) -> Tensor:
        """What it makes."""


@dataclass(frozen=True, eq=False)
class CallSite:
    """What of a network one call of a kernel computes.

    Attributes:
        arguments: the network's value for each input of what is computed.
        nodes: what it replaces, the result last.
    """

    arguments: dict[str, Operand]
    nodes: tuple[Node, ...]

    @property
    def result(self) -> Node:
        """The node whose value the kernel computes."""
        return self.nodes[-1]


@dataclass(frozen=True, eq=False)
class Group(CallSite):
    """An anchor, the first of the nodes, with its epilogue, at one place of a network.

    Attributes:
        operator: what is computed; its name is the anchor's kind.
    """

    operator: Operator


@dataclass(frozen=True, eq=False)
class Job:
    """What one kernel computes, wherever it occurs in a network.

    Attributes:
        operator: what it computes.
        groups: where it occurs.
    """

    operator: Computation
    groups: tuple[CallSite, ...]

    @property
    def weight(self) -> int:
        """How often it occurs."""
        return len(self.groups)

    def __str__(self) -> str:
        return f"{self.weight} x {self.operator}"


@dataclass(frozen=True, eq=False)
class Task(Job):
    """A distinct operator of a network: what is tuned and compiled once."""

    operator: Operator
    groups: tuple[Group, ...]


_J = TypeVar("_J", bound=Job)
_V = TypeVar("_V")


@dataclass(frozen=True, eq=False)
class Grouping:
    """A network divided.

    Attributes:
        groups: in the order of their results.
        left: nodes that stay with the engine.
        refused: why a node that multiplies and adds is no group, by its number.
    """

    groups: tuple[Group, ...]
    left: tuple[Node, ...]
    refused: dict[int, str] = field(default_factory=dict)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The distinct operators, in order of first appearance."""
        return merged(Task(group.operator, (group,)) for group in self.groups)


def merged(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """Tasks of which equal ones are one, in order of first appearance."""
    same: dict[Operator, list[Group]] = {}
    for task in tasks:
        same.setdefault(task.operator, []).extend(task.groups)
    return tuple(Task(operator, tuple(groups)) for operator, groups in same.items())


def select_heaviest(amounts: Mapping[_J, float], share: float) -> list[_J]:
    """Select the jobs with a share of the sum of all amounts, the largest first."""
    missing, selected = share * sum(amounts.values()), list[_J]()
    for job in sorted(amounts, key=amounts.__getitem__, reverse=True):
        if missing <= 0:
            break
        selected.append(job)
        missing -= amounts[job]
    return selected


def outside(values: Mapping[_J, _V], jobs: Iterable[Job]) -> dict[_J, _V]:
    """What there is of tasks, with those of their groups that no other job computes."""
    taken = {node.number for job in jobs for place in job.groups for node in place.nodes}
    rest = {
        task: tuple(each for each in task.groups if each.result.number not in taken)
        for task in values
    }
    return {replace(task, groups=groups): values[task] for task, groups in rest.items() if groups}


def grouped(graph: Graph) -> Grouping:
    """Divide a network: each anchor with the longest chain behind it.

    Later anchors come first: of two whose results are added the later one takes the sum, and
    the result of the other is there by then.
    """
    claimed: set[int] = set()
    groups: list[Group] = []
    refused: dict[int, str] = {}
    users = {
        number: (*readers, _OUTSIDE) if number in graph.returned else readers
        for number, readers in graph.users.items()
    }
    for place in reversed(range(len(graph.nodes))):
        node, behind = graph.nodes[place], graph.nodes[place + 1 :]
        anchor = anchor_of(node)
        if anchor is None:
            continue
        why = anchor.refused or unfit(anchor, node)
        if why:
            refused[node.number] = why
            continue
        later = [each for each in behind if each.number not in claimed]
        chain = chain_behind(node, anchor, later, users)
        try:
            group = _longest(chain)
        except AmosError as error:
            refused[node.number] = str(error).splitlines()[0]
            continue
        claimed |= {each.number for each in group.nodes}
        groups.append(group)
    left = tuple(node for node in graph.computing() if node.number not in claimed)
    groups.sort(key=lambda group: group.result.number)
    return Grouping(tuple(groups), left, refused)


#: Lanes of the longest vectors.
_LANES = 16
#: Stands for the caller, who reads what the network returns.
_OUTSIDE = Node(-1, "output", (), (), "")


def unfit(anchor: Anchor, node: Node) -> str:
    """Why no kernel takes the dtypes of an anchor; empty if one does."""
    kinds = {operand.dtype for operand in (anchor.sources or {}).values()}
    if kinds == {"bfloat16"} and node.dtype == "float32":
        return ""
    if kinds != {"float32"} and not kinds <= {*BYTES}:
        return f"dtype {', '.join(sorted(kinds))} is not supported"
    return ""


def _declared(value: Operand) -> str:
    """The dtype; of constants with the narrowest range for which an instruction is exact."""
    if isinstance(value, Constant):
        for kind in _exact_ranges():
            if kind.name == value.dtype and not kind.outside(value.array):
                return kind.declared
    return value.dtype


def _exact_ranges() -> list[DType]:
    """The ranges that instructions ask for, the narrowest first."""
    kinds = {kind for name in names() for kind in get(name).kinds if kind.bounds}
    return sorted(kinds, key=lambda kind: (kind.limits[1] - kind.limits[0], kind.declared))


def _longest(chain: Chain) -> Group:
    """The group of a chain, or of its anchor alone where what follows is no epilogue.

    Raises:
        AmosError: the anchor is no operator.
    """
    try:
        return _group(chain)
    except AmosError:
        return _group(Chain(chain.anchor, nodes=chain.nodes[:1]))


def _group(chain: Chain) -> Group:
    """The group of an anchor and what follows it.

    Raises:
        AmosError: that is no operator.
    """
    anchor = chain.anchor
    sources, shapes = anchor.sources or {}, anchor.shapes or {}
    operator = Operator.parse(
        anchor.text,
        anchor.extents,
        {name: _declared(value) for name, value in sources.items()} | {"out": chain.nodes[0].dtype},
        name=anchor.kind,
        shapes=shapes,
        constants=[name for name, value in sources.items() if isinstance(value, Constant)],
    )
    if chain.text != "acc":
        shapes = {name: shape for name, (_, shape) in chain.reads.items()}
        dtypes = {name: operand.dtype for name, (operand, _) in chain.reads.items()}
        operator = operator.with_epilogue(chain.text, dtypes, shapes)
    if operator.output.tensor.shape[-1] % _LANES:
        # Whole vectors would be stored to a buffer of their own, and copied from there.
        operator = replace(operator, store=operator.stored)
    reads = {name: operand for name, (operand, _) in chain.reads.items()}
    return Group(sources | reads, chain.nodes, operator)
