"""Which convolutions of a network are computed as a cascade (:mod:`amos.operators.cascade`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

from amos.errors import AmosError
from amos.ir import Operator
from amos.machine import Machine
from amos.network.candidates import Choice, Chooser, moving
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
    size_of,
    source_of,
)

#: What is not measured before has to be faster by a tenth.
_WORTH = 0.9
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
        stages: a choice for each convolution, on one core: of a row of results for the first one,
            and of a strip of them for the others.
        around: predicted seconds of starting, and of what comes and goes beyond a core's caches.
    """

    cascade: Cascade
    rows: int
    cores: int
    stages: tuple[Choice, ...]
    around: float
    #: What a choice of one operator may also have.
    seconds: ClassVar[None] = None
    winograd: ClassVar[None] = None

    @property
    def predicted(self) -> float:
        """Seconds by the model."""
        cascade, (first, *others) = self.cascade, self.stages
        strips = -(-cascade.images * cascade.rows // self.rows // self.cores)
        rows = self.rows * strips
        begun = -(-rows // cascade.rows)
        rows = rows * cascade.window.stride + begun * max(cascade.window.kept, 0)
        of_strips = strips * sum(stage.predicted for stage in others)
        return self.around + rows * first.predicted + of_strips

    @property
    def measured(self) -> None:
        """Nothing is."""
        return None

    @property
    def instruction(self) -> str:
        """Names of those of its stages."""
        return " + ".join(dict.fromkeys(stage.instruction for stage in self.stages))

    @property
    def mappings(self) -> int:
        """How many mappings of its stages go together."""
        return prod(stage.mappings for stage in self.stages)

    @property
    def bound(self) -> str:
        """What limits the first stage, which multiplies most."""
        return self.stages[0].bound

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; seconds."""
        return {
            "instruction": self.instruction,
            "mapping": " + ".join(stage.candidate.mapping.name for stage in self.stages),
            "schedule": {"rows": self.rows},
            "winograd": False,
            "predicted_seconds": self.predicted,
            "measured_seconds": None,
            "stages": [stage.to_dict() for stage in self.stages],
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
    found: dict[Cascade, list[tuple[Group, ...]]] = {}
    for place in _places(tasks, graph):
        found.setdefault(Cascade(tuple(group.operator for group in place)), []).append(place)
    gains: dict[Cascade, float] = {}
    choices: dict[Cascade, CascadeChoice] = {}
    for cascade in found:
        choice = chosen(cascade, chooser)
        if choice is not None and (gain := _gain(choice, chooser)) > 0:
            gains[cascade], choices[cascade] = gain, choice
    taken: set[Group] = set()
    cascades: dict[CascadeTask, CascadeChoice] = {}
    for cascade in sorted(gains, key=gains.__getitem__, reverse=True):
        places = [place for place in found[cascade] if not taken.intersection(place)]
        if places:
            taken.update(*places)
            task = CascadeTask(cascade, tuple(CascadePlace(cascade, each) for each in places))
            cascades[task] = choices[cascade]
    return cascades


def apart(tasks: Sequence[Task], cascades: Iterable[CascadeTask]) -> tuple[Task, ...]:
    """The tasks with those of their groups that are in no cascade."""
    taken = {each for task in cascades for place in task.groups for each in place.groups}
    left = ((task, tuple(g for g in task.groups if g not in taken)) for task in tasks)
    return tuple(replace(task, groups=groups) for task, groups in left if groups)


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
    if not operator.name.endswith("conv2d") or operator.name.startswith("transposed"):
        return False
    if operator.further or operator.prologues:
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
    if operator.name != "conv2d" or not taps or Window.of(operator) != Window(1, 1, 0):
        return False
    return source_of(operator).tensor.shape[1] == operator.extents[ROWS]  # none of padding below


def _depthwise(operator: Operator) -> bool:
    window = Window.of(operator) if operator.name == "depthwise_conv2d" else None
    # What is kept is copied at once, and rows that nothing reads are not made.
    return window is not None and 0 <= window.kept <= window.stride * operator.extents[ROWS]


def _only(one: Group, other: Group, graph: Graph) -> bool:
    """Whether nothing but the source of another group is what a group makes."""
    result, inside = one.result, set(other.nodes)
    beside = (each for name, each in other.arguments.items() if name != SOURCE)
    return (
        other.arguments[SOURCE] is result
        and inside.issuperset(graph.users[result.number])
        and result.number not in graph.kept
        and all(each is not result for each in beside)
    )


def chosen(cascade: Cascade, chooser: Chooser, *, thorough: bool = False) -> CascadeChoice | None:
    """What the model thinks best of a cascade; ``None`` if it cannot be computed by strips.

    Args:
        cascade: what is computed.
        chooser: of the machine.
        thorough: search as long as before a measurement, once it is known how many rows to take.
    """
    machine = chooser.target(())
    if not machine.cached or _stays(cascade, machine):
        return None
    heights = [n for n in range(1, cascade.rows + 1) if cascade.rows % n == 0]
    window = cascade.window
    made = [
        choice
        for rows in heights
        if window.stride * rows >= window.kept
        if sum(cascade.between(rows)) <= _SHARE * _near(machine)
        if (choice := of_rows(cascade, rows, chooser)) is not None
    ]
    best = min(made, key=lambda choice: choice.predicted, default=None)
    if best is None or not thorough:
        return best
    return of_rows(cascade, best.rows, chooser, thorough=True)


def _stays(cascade: Cascade, machine: Machine) -> bool:
    """Whether all that a cascade does not send away has room in the caches near cores anyway."""
    return size_of(cascade.stages[0].result) <= _near(machine) * machine.cores


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
    counts = (1, *(rows for _ in cascade.stages[1:]))
    try:
        stages = tuple(
            chooser.core.predicted(rows_of(stage, count), thorough=thorough)
            for stage, count in zip(cascade.stages, counts, strict=True)
        )
    except AmosError:
        return None  # one of them stays with the engine
    read = sum(map(size_of, cascade.inputs))
    around = moving(machine, read, size_of(cascade.result))
    return CascadeChoice(cascade, rows, machine.cores, stages, around)


def _gain(choice: CascadeChoice, chooser: Chooser) -> float:
    """Seconds that a cascade is predicted to save; nothing where it is too little to be sure.

    Of a kernel alone the model says what it takes when its tensors are where they have room. What
    one makes for the next goes there, and comes back.
    """
    stages, machine = choice.cascade.stages, chooser.target(())
    passed = (size_of(stage.result) for stage in stages[:-1])
    apart = sum(chooser.predicted(stage).predicted for stage in stages)
    apart += sum(moving(machine, size, size) - machine.launch for size in passed)
    return apart - choice.predicted if choice.predicted < _WORTH * apart else 0.0
