"""Which convolutions of a network are computed as a cascade (:mod:`amos.operators.cascade`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from amos.errors import AmosError
from amos.ir import Operator
from amos.network.candidates import Chooser, moving
from amos.network.cuts import CascadeChoice, chosen, pointwise
from amos.network.graph import Graph, Node, Operand
from amos.network.groups import Group, Task
from amos.network.winograd import predicted
from amos.operators.cascade import SOURCE, Cascade, argument

#: What the layers of a cascade are called.
_DENSE, _DEPTHWISE = "conv2d", "depthwise_conv2d"


@dataclass(frozen=True, eq=False)
class CascadePlace:
    """Where a cascade occurs in a network.

    Attributes:
        cascade: what is computed.
        groups: those that it replaces.
    """

    cascade: Cascade
    groups: tuple[Group, ...]

    @property
    def arguments(self) -> dict[str, Operand]:
        """The network's value for each of the cascade's inputs."""
        values = {
            argument(number, name): value
            for number, group in enumerate(self.groups)
            for name, value in group.arguments.items()
        }
        return {tensor.name: values[tensor.name] for tensor in self.cascade.inputs}

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What it replaces, the result last."""
        return tuple(node for group in self.groups for node in group.nodes)

    @property
    def result(self) -> Node:
        """The node whose value the kernel computes."""
        return self.groups[-1].result


@dataclass(frozen=True, eq=False)
class CascadeTask:
    """A distinct cascade of a network.

    Attributes:
        operator: what it computes.
        groups: where it occurs.
    """

    operator: Cascade
    groups: tuple[CascadePlace, ...]

    @property
    def weight(self) -> int:
        """How often it occurs."""
        return len(self.groups)

    def __str__(self) -> str:
        return f"{self.weight} x {self.operator}"


def cascades_of(
    tasks: Sequence[Task], graph: Graph, chooser: Chooser
) -> dict[CascadeTask, CascadeChoice]:
    """The cascades of a network that are predicted to be faster than their convolutions.

    Args:
        tasks: of the network.
        graph: of the network.
        chooser: of the machine.
    """
    if not chooser.target(()).cached:
        return {}
    places: dict[Cascade, list[tuple[Group, ...]]] = {}
    for place in _places(tasks, graph):
        places.setdefault(Cascade(tuple(group.operator for group in place)), []).append(place)
    gains: dict[Cascade, float] = {}
    choices: dict[Cascade, CascadeChoice] = {}
    by_group = {group: task for task in tasks for group in task.groups}
    for cascade, (groups, *_) in places.items():
        apart = _apart([by_group[group] for group in groups], chooser)
        if (choice := chosen(cascade, apart, chooser)) is not None:
            gains[cascade], choices[cascade] = apart - choice.predicted, choice
    inside: set[Group] = set()
    cascades: dict[CascadeTask, CascadeChoice] = {}
    for cascade in sorted(gains, key=gains.__getitem__, reverse=True):
        free: list[CascadePlace] = []
        for place in places[cascade]:
            if not inside.intersection(place):  # two of the same cascade may overlap
                free.append(CascadePlace(cascade, place))
                inside.update(place)
        if free:
            cascades[CascadeTask(cascade, tuple(free))] = choices[cascade]
    return cascades


def outside(tasks: Sequence[Task], cascades: Iterable[CascadeTask]) -> tuple[Task, ...]:
    """The tasks with those of their groups that are in no cascade."""
    inside = {each for task in cascades for place in task.groups for each in place.groups}
    rest = ((task, tuple(g for g in task.groups if g not in inside)) for task in tasks)
    return tuple(replace(task, groups=groups) for task, groups in rest if groups)


def _apart(tasks: Sequence[Task], chooser: Chooser) -> float:
    """Predicted seconds of convolutions one by one; 0 if the engine computes one of them.

    Of a kernel alone the model says what it takes when its tensors are where they have room. What
    one makes for the next goes there, and comes back.
    """
    machine = chooser.target(())
    passed = (task.operator.result.nbytes for task in tasks[:-1])
    try:
        alone = sum(predicted(task, chooser).predicted for task in tasks)
    except AmosError:
        return 0.0
    return alone + sum(moving(machine, size, size) - machine.launch for size in passed)


def _places(tasks: Sequence[Task], graph: Graph) -> Iterator[tuple[Group, ...]]:
    """Groups that could be a cascade, two and three."""
    groups = [group for task in tasks for group in task.groups if _fits(group.operator)]
    dense = [group for group in groups if group.operator.name == _DENSE]
    making = {group.result.number: group for group in dense}
    sources = ((group.arguments[SOURCE], group) for group in dense)
    reading = {source.number: group for source, group in sources if isinstance(source, Node)}
    for group in groups:
        source = group.arguments[SOURCE]
        if group.operator.name != _DEPTHWISE or not isinstance(source, Node):
            continue
        before = making.get(source.number)
        if before is None or not _only(before, group, graph):
            continue
        yield before, group
        behind = reading.get(group.result.number)
        if behind is not None and pointwise(behind.operator) and _only(group, behind, graph):
            yield before, group, behind


def _fits(operator: Operator) -> bool:
    """Whether a convolution may be part of a cascade."""
    if operator.name not in (_DENSE, _DEPTHWISE) or operator.further or operator.prologues:
        return False
    if SOURCE in operator.constants:  # packed ahead, as no strips are
        return False
    same = operator.result.shape == operator.output.tensor.shape
    return same and operator.stored.indices == operator.output.indices


def _only(one: Group, other: Group, graph: Graph) -> bool:
    """Whether nothing but the source of another group is what a group makes."""
    result, inside = one.result, set(other.nodes)
    beside = (each for name, each in other.arguments.items() if name != SOURCE)
    kinds = {str(each.operator.output.tensor.dtype) for each in (one, other)}
    return (
        # Sums of integers are exact, those of floats are not; a check allows for one or the other.
        len(kinds) == 1
        and other.arguments[SOURCE] is result
        and inside.issuperset(graph.users[result.number])
        and result.number not in graph.returned
        and all(each is not result for each in beside)
    )
