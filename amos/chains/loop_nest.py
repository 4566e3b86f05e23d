"""The loops of a chain as a tree, with the place of each allocation (Lift, Figure 3).

Shared loops run over tiles; inside of them stand the copies of inputs and the loops of each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from amos.chains.tiling import TiledStep, Tiling
from amos.errors import ScheduleError, UnknownNameError
from amos.ir.chain import loads_of
from amos.ir.transforms import unrolled_loops

#: Memories of a tile: ``"local"`` to a work-group, ``"private"`` to a work-item.
MEMORIES = ("local", "private")


@dataclass(frozen=True)
class Allocation:
    """Memory of a tile, allocated where it stands.

    Attributes:
        buffer: its name.
        memory: one of :data:`MEMORIES`.
        nbytes: of it.
    """

    buffer: str
    memory: str
    nbytes: int = 0

    def __post_init__(self) -> None:
        if self.memory not in MEMORIES:
            raise ScheduleError(
                f"memory of {self.buffer!r}: expected {' or '.join(MEMORIES)}, got {self.memory!r}"
            )


@dataclass(frozen=True)
class Access:
    """An innermost statement.

    Attributes:
        name: the step or copy.
        buffers: what it reads and writes.
    """

    name: str
    buffers: tuple[str, ...]


@dataclass(frozen=True)
class Loop:
    """A loop and what it surrounds.

    Attributes:
        name: unique within the nest, such as ``scores.q``.
        extent: its trip count.
        body: loops, allocations and accesses in order.
        is_reduce: whether its trips combine into one value, so that it stays sequential.
    """

    name: str
    extent: int
    body: tuple[Node, ...]
    is_reduce: bool = False

    @property
    def perfectly_nested(self) -> Loop | None:
        """The loop that is all of the body; accumulators are set before reductions."""
        match self.body:
            case (Loop() as inner,) if inner.is_reduce == self.is_reduce:
                return inner
        return None

    def __str__(self) -> str:
        return f"for {self.name} in {self.extent}"


Node = Loop | Allocation | Access


@dataclass(frozen=True)
class LoopPath:
    """An access and the loops around it.

    Attributes:
        access: the innermost statement.
        loops: around it, the outermost first.
        depths: how many of these surround the allocation of each buffer of the access.
    """

    access: Access
    loops: tuple[Loop, ...]
    depths: Mapping[str, int]

    def __str__(self) -> str:
        return " > ".join((*(loop.name for loop in self.loops), self.access.name))


@dataclass(frozen=True)
class LoopNest:
    """Loops, allocations and accesses of a kernel.

    Attributes:
        body: the outermost ones in order.

    Raises:
        ScheduleError: two loops or two buffers have one name.
    """

    body: tuple[Node, ...]

    def __post_init__(self) -> None:
        for names in ([x.name for x in self.loops], [x.buffer for x in self.allocations]):
            if len({*names}) < len(names):
                raise ScheduleError(f"loop nest: names must differ, got {', '.join(names)}")

    @staticmethod
    def of(
        tiling: Tiling,
        memory: Mapping[str, str] | None = None,
        copies: Mapping[str, str] | None = None,
        spans: Mapping[str, int] | None = None,
    ) -> LoopNest:
        """Return the loops of a chain in tiles.

        Args:
            tiling: the chain and its shared loops.
            memory: of temporaries, ``"local"`` where omitted.
            copies: inputs of which each tile copies its box, and the memory of the copy.
            spans: values of loops of steps, such as ``t.j``, that one trip computes; others 1.

        Raises:
            UnknownNameError: a name is no temporary, or no input.
            ScheduleError: there is no such memory, or rows roll: tiles then follow one another.
        """
        if unrolled_loops(tiling.chain):
            raise ScheduleError(
                f"loop nest: expected a chain without literals, got {tiling.chain.name}"
            )
        if tiling.rolls:
            raise ScheduleError(
                "loop nest: expected tiles in any order, got rows rolling along "
                f"{tiling.rolling_loop}"
            )
        return LoopNest(_Builder(tiling, memory or {}, copies or {}, spans or {}).nest())

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """All loops, outer ones before inner ones."""
        return tuple(node for node in _walk(self.body) if isinstance(node, Loop))

    @cached_property
    def allocations(self) -> tuple[Allocation, ...]:
        """All allocations."""
        return tuple(node for node in _walk(self.body) if isinstance(node, Allocation))

    @cached_property
    def paths(self) -> tuple[LoopPath, ...]:
        """Each access with the loops around it (Lift: nesting chains)."""
        return tuple(_paths(self.body, (), {}))

    def __str__(self) -> str:
        return "\n".join(_lines(self.body, 0))


def _walk(body: Iterable[Node]) -> Iterator[Node]:
    for node in body:
        yield node
        if isinstance(node, Loop):
            yield from _walk(node.body)


def _paths(
    body: Iterable[Node], loops: tuple[Loop, ...], depths: Mapping[str, int]
) -> Iterator[LoopPath]:
    allocated = dict(depths)
    for node in body:
        if isinstance(node, Allocation):
            allocated[node.buffer] = len(loops)
        elif isinstance(node, Loop):
            yield from _paths(node.body, (*loops, node), allocated)
        else:
            used = {name: allocated[name] for name in node.buffers if name in allocated}
            yield LoopPath(node, loops, used)


def _lines(body: Iterable[Node], depth: int) -> Iterator[str]:
    for node in body:
        match node:
            case Loop():
                yield f"{'  ' * depth}{node}"
                yield from _lines(node.body, depth + 1)
            case Allocation():
                yield f"{'  ' * depth}{node.memory} {node.buffer}"
            case Access():
                yield f"{'  ' * depth}{node.name}: {', '.join(node.buffers)}"


class _Builder:
    """Builds the nest of a tiling."""

    def __init__(
        self,
        tiling: Tiling,
        memory: Mapping[str, str],
        copies: Mapping[str, str],
        spans: Mapping[str, int],
    ) -> None:
        chain = tiling.chain
        temporaries = {tensor.name for tensor in chain.temporaries}
        for name in memory:
            if name not in temporaries:
                raise UnknownNameError("temporary", name, temporaries)
        inputs = {tensor.name for tensor in chain.inputs}
        for name in copies:
            if name not in inputs:
                raise UnknownNameError("input", name, inputs)
        self.tiling, self.copies, self.spans = tiling, copies, spans
        written = dict.fromkeys(tiled.step.output.tensor.name for tiled in tiling.steps)
        self.memory = {
            name: memory.get(name, "local") for name in written if name != chain.result.name
        }

    def nest(self) -> tuple[Node, ...]:
        """Return the shared loops and all loops inside."""
        cut, body = self.tiling.cut, tuple[Node, ...]()
        if cut is not None:
            # Moved by the cut loop: copied for each part, else once for a tile.
            moving = [name for name in self.copies if self._moves(name, cut.name)]
            fixed = [name for name in self.copies if name not in moving]
            parts = (*self._copy_inputs(moving), *self._phase("body"))
            body = (Loop(f"{cut.name}.part", cut.count, parts, is_reduce=True),)
            body = (*self._copy_inputs(fixed), *self._phase("before"), *body, *self._phase("after"))
        else:
            body = (*self._copy_inputs(self.copies), *map(self._step, self.tiling.steps))
        temporaries = {tensor.name: tensor for tensor in self.tiling.temporaries}
        body = (
            *(
                Allocation(name, memory, self.tiling.nbytes(temporaries[name]))
                for name, memory in self.memory.items()
            ),
            *body,
        )
        for loop in reversed(self.tiling.loops):
            if loop.count > 1:
                body = (Loop(loop.name, loop.count, body),)
        return body

    def _moves(self, tensor: str, loop: str) -> bool:
        return any(loop in place.start.names for place in self.tiling.boxes[tensor])

    def _copy_inputs(self, names: Iterable[str]) -> tuple[Node, ...]:
        nodes: list[Node] = []
        inputs = {tensor.name: tensor for tensor in self.tiling.chain.inputs}
        for name in names:
            copy = f"{name}.copy"
            sizes = {f"{copy}.{n}": size for n, size in enumerate(self.tiling.size(name))}
            nbytes = self.tiling.nbytes(inputs[name])
            nodes.append(Allocation(copy, self.copies[name], nbytes))
            nodes.append(_surround(Access(copy, (name, copy)), sizes, frozenset()))
        return tuple(nodes)

    def _phase(self, phase: str) -> tuple[Node, ...]:
        return tuple(self._step(tiled) for tiled in self.tiling.steps if tiled.phase == phase)

    def _step(self, tiled: TiledStep) -> Node:
        step, result = tiled.step, tiled.step.output.tensor.name
        read = [load.tensor.name for load in loads_of(step)]
        buffers = [f"{name}.copy" if name in self.copies else name for name in (*read, result)]
        # Sums over parts of a row are set before these.
        is_start = self.tiling.cut is not None and tiled.phase == "before"
        name = f"{result}.start" if is_start else result
        access = Access(name, tuple(dict.fromkeys(buffers)))
        ordered = (*step.spatial, *step.reduce)
        loops = {f"{name}.{it.name}": tiled.ranges[it.name].size for it in ordered}
        sizes = {loop: -(-size // self.spans.get(loop, 1)) for loop, size in loops.items()}
        return _surround(access, sizes, frozenset(f"{name}.{it.name}" for it in step.reduce))


def _surround(access: Access, sizes: Mapping[str, int], reductions: frozenset[str]) -> Node:
    """Wrap an access in loops, outermost first, without loops of one trip."""
    node: Node = access
    for name, size in reversed([*sizes.items()]):
        if size > 1:
            node = Loop(name, size, (node,), is_reduce=name in reductions)
    return node
