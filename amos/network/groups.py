"""Groups: operators of a network that become one kernel; equal groups are one task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from amos.errors import AmosError
from amos.intrinsics import get, names
from amos.ir import Chain, DType, Operator
from amos.network.anchors import Anchor, anchor_of
from amos.network.followers import FollowedAnchor, follow_anchor
from amos.network.graph import Constant, Graph, Node, Operand
from amos.network.shapes import BYTES


@dataclass(frozen=True, eq=False)
class CallSite:
    """Nodes of a network that one call of a kernel computes.

    Attributes:
        arguments: the network's value for each input of the kernel.
        nodes: that the call replaces, the result last.
    """

    arguments: dict[str, Operand]
    nodes: tuple[Node, ...]

    @property
    def result(self) -> Node:
        """The node whose value the kernel computes."""
        return self.nodes[-1]


@dataclass(frozen=True, eq=False)
class Group(CallSite):
    """An anchor, the first of the nodes, with its epilogue; its kind is the operator's name."""

    operator: Operator


@dataclass(frozen=True, eq=False)
class Job:
    """A computation of one kernel, with all of its calls in a network."""

    operator: Operator | Chain
    groups: tuple[CallSite, ...]

    @property
    def weight(self) -> int:
        """How often it occurs."""
        return len(self.groups)

    def __str__(self) -> str:
        return f"{self.weight} x {self.operator}"


@dataclass(frozen=True, eq=False)
class Task(Job):
    """A distinct operator of a network, which is tuned and compiled once."""

    operator: Operator
    groups: tuple[Group, ...]


_J = TypeVar("_J", bound=Job)
_V = TypeVar("_V")


@dataclass(frozen=True, eq=False)
class Grouping:
    """A network divided.

    Attributes:
        groups: in the order of their results.
        ungrouped: nodes of no group, which plain loops compute.
        refused: why a product is no group, by the number of its node.
    """

    groups: tuple[Group, ...]
    ungrouped: tuple[Node, ...]
    refused: dict[int, str] = field(default_factory=dict)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The distinct operators, in order of first appearance."""
        return merge_tasks(Task(group.operator, (group,)) for group in self.groups)


def merge_tasks(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """Merge equal tasks, in order of first appearance."""
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


def drop_fused_groups(values: Mapping[_J, _V], cascades: Iterable[Job]) -> dict[_J, _V]:
    """Drop the groups of tasks that cascades compute, and tasks whose groups all are."""
    fused = {node.number for job in cascades for site in job.groups for node in site.nodes}
    separate = {
        task: tuple(each for each in task.groups if each.result.number not in fused)
        for task in values
    }
    return {replace(task, groups=g): values[task] for task, g in separate.items() if g}


def group_nodes(graph: Graph) -> Grouping:
    """Divide a network: each anchor with the longest chain of followers.

    Later anchors come first: a residual sum is fused into the later of its two producers, which
    reads the result of the earlier one.
    """
    claimed: set[int] = set()
    groups: list[Group] = []
    refused: dict[int, str] = {}
    users = {
        number: (*readers, _CALLER) if number in graph.returned else readers
        for number, readers in graph.users.items()
    }
    for place in reversed(range(len(graph.nodes))):
        node, following = graph.nodes[place], graph.nodes[place + 1 :]
        anchor = anchor_of(node)
        if anchor is None:
            continue
        why = anchor.refused or unfit(anchor, node)
        if why:
            refused[node.number] = why
            continue
        later = [each for each in following if each.number not in claimed]
        chain = follow_anchor(node, anchor, later, users)
        try:
            group = _group_longest(chain)
        except AmosError as error:
            refused[node.number] = str(error).splitlines()[0]
            continue
        claimed |= {each.number for each in group.nodes}
        groups.append(group)
    ungrouped = tuple(node for node in graph.computing() if node.number not in claimed)
    groups.sort(key=lambda group: group.result.number)
    return Grouping(tuple(groups), ungrouped, refused)


#: Lanes of the longest vectors.
_LANES = 16
#: Stands for the caller, which reads the network's results.
_CALLER = Node(-1, "output", (), (), "")


def unfit(anchor: Anchor, node: Node) -> str:
    """Return why no kernel takes the dtypes of an anchor; empty if one does."""
    kinds = {operand.dtype for operand in (anchor.sources or {}).values()}
    if kinds in ({"bfloat16"}, {"float16"}) and node.dtype == "float32":
        return ""
    if kinds != {"float32"} and not kinds <= {*BYTES}:
        return f"dtype {', '.join(sorted(kinds))} is not supported"
    return ""


def _declare_dtype(value: Operand) -> str:
    """Return the dtype; of constants with the narrowest range for which an instruction is exact."""
    if isinstance(value, Constant) and value.dtype in BYTES:
        for kind in _exact_ranges(value.dtype):
            if not kind.find_violation(value.array):
                return kind.declared
    return value.dtype


def _exact_ranges(dtype: str) -> list[DType]:
    """List the ranges of a dtype that instructions require, the narrowest first."""
    required = (kind for name in names() for kind in get(name).kinds)
    kinds = {kind for kind in required if kind.bounds and kind.name == dtype}
    return sorted(kinds, key=lambda kind: (kind.limits[1] - kind.limits[0], kind.declared))


def _group_longest(chain: FollowedAnchor) -> Group:
    """Return the group of a chain, or of its anchor alone if the followers are no epilogue."""
    try:
        return _form_group(chain)
    except AmosError:
        return _form_group(FollowedAnchor(chain.anchor, nodes=chain.nodes[:1]))


def _form_group(chain: FollowedAnchor) -> Group:
    """Return the group of an anchor and its followers; raise AmosError if they are no operator."""
    anchor = chain.anchor
    sources, shapes = anchor.sources or {}, anchor.shapes or {}
    operator = Operator.parse(
        anchor.text,
        anchor.extents,
        {name: _declare_dtype(value) for name, value in sources.items()}
        | {"out": chain.nodes[0].dtype},
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
