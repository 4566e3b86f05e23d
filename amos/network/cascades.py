"""Which convolutions of a network are computed as a cascade (:mod:`amos.operators.cascade`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

from amos.codegen.tir.program import MOST_ELEMENTS
from amos.errors import AmosError
from amos.ir import Operator
from amos.machine import Machine
from amos.network.candidates import WORTH, Choice, Chooser, moving
from amos.network.graph import Graph, Node, Operand
from amos.network.groups import Group, Task
from amos.operators.cascade import (
    IMAGES,
    ROWS,
    SOURCE,
    Cascade,
    Window,
    argument,
    rows_of,
    source_of,
)

#: What the layers of a cascade are called.
_POINTWISE, _DEPTHWISE = "conv2d", "depthwise_conv2d"
#: Share of the cache near a core that rows between convolutions may take.
_SHARE = 0.5


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


@dataclass(frozen=True)
class CascadeChoice:
    """The kernel of a cascade, before it is built.

    Attributes:
        cascade: what it computes.
        rows: of the result that a strip has.
        cores: how many there are.
        layers: a choice for each convolution, on one core: of a row of results for the first one,
            and of a strip of them for the others.
        around: predicted seconds of starting, and of what comes and goes beyond a core's caches.
    """

    cascade: Cascade
    rows: int
    cores: int
    layers: tuple[Choice, ...]
    around: float
    #: What a choice of one operator may also have.
    seconds: ClassVar[None] = None
    winograd: ClassVar[None] = None

    @property
    def predicted(self) -> float:
        """Seconds by the model."""
        cascade, (first, *others) = self.cascade, self.layers
        strips = -(-cascade.images * cascade.rows // self.rows // self.cores)
        rows = self.rows * strips
        begun = -(-rows // cascade.rows)
        rows = rows * cascade.window.stride + begun * cascade.window.kept
        of_strips = strips * sum(layer.predicted for layer in others)
        return self.around + rows * first.predicted + of_strips

    @property
    def measured(self) -> None:
        """Nothing is."""
        return None

    @property
    def instruction(self) -> str:
        """Names of those of its layers, in order."""
        return " + ".join(layer.instruction for layer in self.layers)

    @property
    def mappings(self) -> int:
        """How many mappings of its layers go together."""
        return prod(layer.mappings for layer in self.layers)

    @property
    def bound(self) -> str:
        """What limits the first layer, which multiplies most."""
        return self.layers[0].bound

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; seconds."""
        return {
            "instruction": self.instruction,
            "mapping": " + ".join(layer.candidate.mapping.name for layer in self.layers),
            "schedule": {},
            "winograd": False,
            "rows": self.rows,
            "predicted_seconds": self.predicted,
            "measured_seconds": None,
            "layers": [layer.to_dict() for layer in self.layers],
        }


def cascades_of(
    tasks: Sequence[Task], graph: Graph, chooser: Chooser
) -> dict[CascadeTask, CascadeChoice]:
    """The cascades of a network that are predicted to be faster than their convolutions.

    Args:
        tasks: of the network.
        graph: of the network.
        chooser: of the machine.
    """
    places: dict[Cascade, list[tuple[Group, ...]]] = {}
    for place in _places(tasks, graph):
        places.setdefault(Cascade(tuple(group.operator for group in place)), []).append(place)
    gains: dict[Cascade, float] = {}
    choices: dict[Cascade, CascadeChoice] = {}
    for cascade in places:
        choice = chosen(cascade, chooser)
        if choice is not None and (gain := _gain(choice, chooser)) > 0:
            gains[cascade], choices[cascade] = gain, choice
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


def _places(tasks: Sequence[Task], graph: Graph) -> Iterator[tuple[Group, ...]]:
    """Groups that could be a cascade, two and three."""
    groups = [group for task in tasks for group in task.groups if _fits(group)]
    pointwise = {group.result.number: group for group in groups if _pointwise(group.operator)}
    sources = ((group.arguments[SOURCE], group) for group in pointwise.values())
    reading = {source.number: group for source, group in sources if isinstance(source, Node)}
    for group in groups:
        source = group.arguments[SOURCE]
        if not _depthwise(group.operator) or not isinstance(source, Node):
            continue
        before = pointwise.get(source.number)
        if before is None or not _only(before, group, graph):
            continue
        yield before, group
        behind = reading.get(group.result.number)
        if behind is not None and _only(group, behind, graph):
            yield before, group, behind


def _fits(group: Group) -> bool:
    """Whether a group is a convolution of images by rows."""
    operator = group.operator
    if operator.name not in (_POINTWISE, _DEPTHWISE) or operator.further or operator.prologues:
        return False
    loads = operator.epilogue.loads if operator.epilogue is not None else ()
    whole = [(ROWS,)] if operator.extents[IMAGES] == 1 else [(IMAGES,), (ROWS,)]
    return all(_by_rows([index.names for index in load.indices], whole) for load in loads)


def _by_rows(indices: Sequence[tuple[str, ...]], whole: Sequence[tuple[str, ...]]) -> bool:
    """Whether a tensor is read by rows of all images, one after the other, or the same for all."""
    rest = indices[len(whole) :] if [*indices[: len(whole)]] == [*whole] else indices
    return not any({IMAGES, ROWS}.intersection(names) for names in rest)


def _pointwise(operator: Operator) -> bool:
    """Whether a convolution reads one element of each channel, of all rows one after the other."""
    taps = all(operator.extents.get(tap, 1) == 1 for tap in "rs")
    if operator.name != _POINTWISE or not taps or Window.of(operator) != Window(1, 1, 0):
        return False
    return source_of(operator).tensor.shape[1] == operator.extents[ROWS]  # none of padding below


def _depthwise(operator: Operator) -> bool:
    """Whether a convolution is a depthwise one whose strips can follow one another."""
    window = Window.of(operator) if operator.name == _DEPTHWISE else None
    # What is kept is copied at once, and rows that nothing reads are not made.
    return window is not None and 0 <= window.kept <= window.stride * operator.extents[ROWS]


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
        and result.number not in graph.kept
        and all(each is not result for each in beside)
    )


def chosen(cascade: Cascade, chooser: Chooser) -> CascadeChoice | None:
    """What the model thinks best of a cascade; ``None`` if it cannot be computed by strips.

    Args:
        cascade: what is computed.
        chooser: of the machine.
    """
    machine = chooser.target(())
    if max(each.elements for each in (*cascade.inputs, cascade.result)) > MOST_ELEMENTS:
        return None
    if not machine.cached or _stays(cascade, machine):
        return None
    heights = [n for n in range(1, cascade.rows + 1) if cascade.rows % n == 0]
    window = cascade.window
    choices = [
        choice
        for rows in heights
        if window.stride * rows >= window.kept
        if sum(cascade.between(rows)) <= _SHARE * _near(machine)
        if (choice := of_rows(cascade, rows, chooser)) is not None
    ]
    return min(choices, key=lambda choice: choice.predicted, default=None)


def _stays(cascade: Cascade, machine: Machine) -> bool:
    """Whether all that a cascade does not send away has room in the caches near cores anyway."""
    return cascade.layers[0].result.nbytes <= _near(machine) * machine.cores


def _near(machine: Machine) -> int:
    """Bytes of the largest cache that a core has for itself."""
    own = (level.capacity for level in machine.levels if level.units >= machine.cores)
    return max(own, default=0)


def of_rows(
    cascade: Cascade, rows: int, chooser: Chooser, *, thorough: bool = False
) -> CascadeChoice | None:
    """What the model thinks best for strips of some rows; ``None`` if it cannot be computed so.

    Args:
        cascade: what is computed.
        rows: of the result that a strip has; they divide those of the result.
        chooser: of the machine.
        thorough: search as long as before a measurement.
    """
    machine = chooser.target(())
    counts = (1, *(rows for _ in cascade.layers[1:]))
    try:
        layers = tuple(
            chooser.core.predicted(rows_of(layer, count), thorough=thorough)
            for layer, count in zip(cascade.layers, counts, strict=True)
        )
    except AmosError:
        return None  # one of them stays with the engine
    read = sum(each.nbytes for each in cascade.inputs)
    around = moving(machine, read, cascade.result.nbytes)
    return CascadeChoice(cascade, rows, machine.cores, layers, around)


def _gain(choice: CascadeChoice, chooser: Chooser) -> float:
    """Seconds that a cascade is predicted to save; nothing where it is too little to be sure.

    Of a kernel alone the model says what it takes when its tensors are where they have room. What
    one makes for the next goes there, and comes back.
    """
    layers, machine = choice.cascade.layers, chooser.target(())
    passed = (layer.result.nbytes for layer in layers[:-1])
    try:
        apart = sum(chooser.predicted(layer).predicted for layer in layers)
    except AmosError:
        return 0.0
    apart += sum(moving(machine, size, size) - machine.launch for size in passed)
    return apart - choice.predicted if choice.predicted < WORTH * apart else 0.0
