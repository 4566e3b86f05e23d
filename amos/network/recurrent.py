"""ONNX's LSTM, GRU and RNN, step by step: matrix products, and what each element goes through.

The products of a whole sequence with the input weights are one, ahead of the steps; a step
multiplies by the recurrent weights alone. PyTorch decomposes its own layers in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from amos.errors import NetworkError
from amos.network.program import const

#: For each direction that a layer goes through a sequence, whether that is backwards.
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}

#: States of a cell, each ``[batch, hidden]``; the first is its result.
States = tuple[Any, ...]
#: Activations, in ONNX's order.
Functions = tuple[Callable[[Any], Any], ...]


@dataclass(frozen=True)
class _Cell:
    """One direction of a layer.

    Attributes:
        builder: Relax's.
        inputs: weights of the input, ``[gates * hidden, width]``.
        recurrent: weights of the state, ``[gates * hidden, hidden]``.
        biases: of the products with either, ``[gates * hidden]``.
        functions: activations, in ONNX's order.
        reset_last: of a GRU, whether the reset gate multiplies products, rather than the state.
    """

    builder: Any
    inputs: np.ndarray
    recurrent: np.ndarray
    biases: tuple[np.ndarray, np.ndarray]
    functions: Functions
    reset_last: bool

    def product(self, state: Any, gates: slice = slice(None)) -> Any:
        """Of a state with the weights of some gates, and the bias."""
        hidden = self.recurrent.shape[1]
        rows = slice(*(None if n is None else n * hidden for n in (gates.start, gates.stop)))
        return self.affine(state, self.recurrent[rows], self.biases[1][rows])

    def affine(self, value: Any, weights: np.ndarray, bias: np.ndarray) -> Any:
        """A value times weights, plus a bias."""
        from tvm import relax

        product = self.builder.emit(relax.op.matmul(value, const(weights.T)))
        return self.sum(product, const(bias)) if bias.any() else product

    def sum(self, value: Any, other: Any) -> Any:
        """Of two values."""
        from tvm import relax

        return self.builder.emit(relax.op.add(value, other))

    def activated(self, function: int, values: Sequence[Any]) -> list[Any]:
        """Values behind one of the activations."""
        return [self.builder.emit(self.functions[function](value)) for value in values]

    def parts(self, value: Any, count: int, axis: int = 1) -> list[Any]:
        """A value divided."""
        from tvm import relax

        if count == 1:
            return [value]
        parts = self.builder.emit(relax.op.split(value, count, axis))
        return [self.builder.emit(parts[number]) for number in range(count)]


def _lstm_step(cell: _Cell, x: Any, states: States) -> States:
    from tvm import relax

    (state, memory), emit = states, cell.builder.emit
    *gates, candidate = cell.parts(cell.sum(cell.product(state), x), 4)
    enter, leave, forget = cell.activated(0, gates)  # ONNX's input, output and forget gate
    (new,) = cell.activated(1, [candidate])
    memory = cell.sum(emit(relax.op.multiply(forget, memory)), emit(relax.op.multiply(enter, new)))
    return emit(relax.op.multiply(leave, *cell.activated(2, [memory]))), memory


def _gru_step(cell: _Cell, x: Any, states: States) -> States:
    from tvm import relax

    (state,), emit = states, cell.builder.emit
    *own, fresh = cell.parts(x, 3)
    count = 3 if cell.reset_last else 2
    products = cell.parts(cell.product(state, slice(0, count)), count)
    sums = [cell.sum(*each) for each in zip(own, products[:2], strict=True)]
    update, reset = cell.activated(0, sums)
    if cell.reset_last:
        product = emit(relax.op.multiply(reset, products[2]))
    else:
        product = cell.product(emit(relax.op.multiply(reset, state)), slice(2, 3))
    (fresh,) = cell.activated(1, [cell.sum(product, fresh)])
    change = relax.op.multiply(update, emit(relax.op.subtract(state, fresh)))
    return (cell.sum(fresh, emit(change)),)


def _rnn_step(cell: _Cell, x: Any, states: States) -> States:
    return tuple(cell.activated(0, [cell.sum(cell.product(states[0]), x)]))


@dataclass(frozen=True)
class _Layer:
    """A kind of recurrent layer, which writes nodes of it as Relax's operations.

    Attributes:
        kind: ONNX's name.
        step: makes the next states of a cell, of the products with an input and its states.
        functions: activations where a model states none.
        gates: whose sums a step computes.
        states: that a cell has.
    """

    kind: str
    step: Callable[[_Cell, Any, States], States]
    functions: tuple[str, ...]
    gates: int
    states: int = 1

    def __call__(self, builder: Any, inputs: list[Any], attributes: Mapping[str, Any]) -> Any:
        """Results of a node: of all steps, and the last states.

        Raises:
            NetworkError: it has something that is not supported.
        """
        try:
            return self._written(builder, [*inputs, *[None] * 8][:8], attributes)
        except NetworkError as error:
            name = attributes["tvm_custom"]["name"]
            raise NetworkError(f"{self.kind} {name!r}: {error}") from None

    def _written(self, builder: Any, inputs: list[Any], attributes: Mapping[str, Any]) -> Any:
        from tvm import relax

        emit, batch_first = builder.emit, attributes.get("layout", 0)
        directions = _DIRECTIONS[attributes.get("direction", b"forward").decode()]

        def swapped(value: Any, *axes: int) -> Any:
            return emit(relax.op.permute_dims(value, axes)) if batch_first else value

        x = swapped(inputs[0], 1, 0, 2)
        steps, batch, width = _sizes(x)
        _check_unused(inputs, attributes, steps)
        cells = self._cells(builder, inputs, attributes, len(directions), width)
        shape = len(cells), batch, cells[0].recurrent.shape[1]
        begin = [
            relax.op.zeros(shape, x.ty.dtype) if each is None else swapped(each, 1, 0, 2)
            for each in inputs[5 : 5 + self.states]
        ]
        own = [cells[0].parts(emit(each), len(cells), 0) for each in begin]
        flat = emit(relax.op.reshape(x, (steps * batch, width)))
        sequences, ends = [], []
        for cell, backwards, *states in zip(cells, directions, *own, strict=True):
            first = tuple(emit(relax.op.reshape(each, shape[1:])) for each in states)
            sequence, end = self._run(cell, flat, steps, first, backwards)
            sequences.append(emit(relax.op.reshape(sequence, (steps, 1, *shape[1:]))))
            ends.append(end)
        whole = swapped(_joined(builder, sequences, 1), 2, 0, 1, 3)
        joined = [_joined(builder, each) for each in zip(*ends, strict=True)]
        last = [emit(relax.op.reshape(each, shape)) for each in joined]
        return relax.Tuple([whole, *(swapped(each, 1, 0, 2) for each in last)])

    def _run(
        self, cell: _Cell, flat: Any, steps: int, states: States, backwards: bool
    ) -> tuple[Any, States]:
        """The results of all steps, one behind the other, and the last states."""
        order, results = -1 if backwards else 1, []
        products = cell.affine(flat, cell.inputs, cell.biases[0])
        for x in cell.parts(products, steps, 0)[::order]:
            states = self.step(cell, x, states)
            results.append(states[0])
        return _joined(cell.builder, results[::order]), states

    def _cells(
        self,
        builder: Any,
        inputs: Sequence[Any],
        attributes: Mapping[str, Any],
        count: int,
        width: int,
    ) -> list[_Cell]:
        """A cell for each direction."""
        weights, recurrent = (_array(inputs[n], name) for n, name in ((1, "W"), (2, "R")))
        rows, hidden = recurrent.shape[1], recurrent.shape[-1]
        bias = np.zeros((count, 2 * rows), recurrent.dtype)
        bias = bias if inputs[3] is None else _array(inputs[3], "B")
        expected = (count, self.gates * hidden, width), (count, self.gates * hidden, hidden)
        for name, array, shape in zip(
            "WRB", (weights, recurrent, bias), (*expected, (count, 2 * rows)), strict=True
        ):
            if array.shape != shape:
                raise NetworkError(f"expected {name} of shape {shape}, got {array.shape}")
        reset_last = bool(attributes.get("linear_before_reset", 0))
        functions = self._activations(attributes, count)
        cells = []
        for w, r, b, own in zip(weights, recurrent, bias, functions, strict=True):
            ahead, late = b[:rows] + b[rows:], np.zeros_like(b[rows:])
            if reset_last:  # the last gate's bias is multiplied with its product
                ahead[-hidden:], late[-hidden:] = b[rows - hidden : rows], b[-hidden:]
            cells.append(_Cell(builder, w, r, (ahead, late), own, reset_last))
        return cells

    def _activations(self, attributes: Mapping[str, Any], count: int) -> list[Functions]:
        """Activations of each direction."""
        from tvm import relax

        known = {"sigmoid": relax.op.sigmoid, "tanh": relax.op.tanh, "relu": relax.op.nn.relu}
        stated = [each.decode() for each in attributes.get("activations", ())]
        names = stated or [*self.functions] * count
        each = len(self.functions)
        if len(names) != each * count:
            raise NetworkError(f"expected {each * count} activations, got {len(names)}")
        if unknown := [name for name in names if name.lower() not in known]:
            raise NetworkError(f"activation {unknown[0]} is not supported")
        every = [known[name.lower()] for name in names]
        return [tuple(every[n : n + each]) for n in range(0, len(every), each)]


def _check_unused(inputs: Sequence[Any], attributes: Mapping[str, Any], steps: int) -> None:
    """Refuse what would change results and is not computed."""
    from tvm import ir

    lengths = inputs[4]
    whole = isinstance(lengths, ir.GenericConst) and (lengths.value.numpy() == steps).all()
    if lengths is not None and not whole:
        raise NetworkError("sequence_lens are not supported, unless constant and of all steps")
    if inputs[7] is not None:
        raise NetworkError("peepholes (P) are not supported")
    if refused := [name for name in ("clip", "input_forget") if attributes.get(name)]:
        raise NetworkError(f"{refused[0]} is not supported")


def _joined(builder: Any, values: Sequence[Any], axis: int = 0) -> Any:
    """Values as one, along an axis."""
    from tvm import relax

    return values[0] if len(values) == 1 else builder.emit(relax.op.concat([*values], axis))


def _sizes(value: Any) -> tuple[int, ...]:
    """Extents of a sequence."""
    try:
        steps, batch, width = map(int, value.ty.shape.values)
    except (AttributeError, TypeError, ValueError):
        raise NetworkError("expected X of three known extents") from None
    return steps, batch, width


def _array(value: Any, name: str) -> np.ndarray:
    """Values of a weight."""
    from tvm import ir

    if not isinstance(value, ir.GenericConst):
        raise NetworkError(f"expected constant weights; {name} is computed")
    values: np.ndarray = value.value.numpy()
    return values


LAYERS = {
    layer.kind: layer
    for layer in (
        _Layer("LSTM", _lstm_step, ("Sigmoid", "Tanh", "Tanh"), gates=4, states=2),
        _Layer("GRU", _gru_step, ("Sigmoid", "Tanh"), gates=3),
        _Layer("RNN", _rnn_step, ("Tanh",), gates=1),
    )
}
