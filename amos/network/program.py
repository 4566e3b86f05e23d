"""Between Relax and :class:`~amos.network.graph.Graph`: read one, write one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from amos._toolchain import load_tvm
from amos.errors import NetworkError
from amos.network.graph import Constant, Graph, Node, Operand

#: Makes the new expression of a node, with a writer that knows the new values of those before.
Rewrite = Callable[["Writer"], Any]


def read(module: Any) -> Graph:
    """The graph of the function ``main`` of a module.

    Raises:
        NetworkError: it has control flow, or a shape that is not known.
    """
    others = {n: f for n, f in module.functions.items() if n.name_hint != "main"}
    return _Reader(module["main"], others).graph()


#: What moves the elements of a constant, which then are read in another order.
_FOLDED: dict[str, Callable[[np.ndarray, Any, tuple[int, ...]], np.ndarray]] = {
    "permute_dims": lambda array, attributes, shape: array.transpose(
        [int(axis) for axis in attributes.axes] if attributes.axes else None
    ),
    "reshape": lambda array, attributes, shape: array.reshape(shape),
    "expand_dims": lambda array, attributes, shape: array.reshape(shape),
    "squeeze": lambda array, attributes, shape: array.reshape(shape),
}


class _Reader:
    """One pass over a function."""

    def __init__(self, function: Any, others: Mapping[Any, Any]) -> None:
        load_tvm()
        from tvm import ir, relax

        self.ir, self.relax, self.function, self.others = ir, relax, function, others
        self.nodes: list[Node] = []
        self.values: dict[Any, Operand] = {}
        self.constants: dict[Any, Constant] = {}

    def graph(self) -> Graph:
        for parameter in self.function.params:
            self.add(parameter, "input", (), None, parameter.name)
        body = self.function.body
        for block in body.blocks:
            for binding in block.bindings:
                self.bind(binding.var, binding.value)
        single = not isinstance(body.body.ty, self.ir.TupleType)
        results = self.operands(body.body)
        if not single and isinstance(results[0], Node) and results[0].operation == "tuple":
            results = results[0].operands
        if not all(result.dtype for result in results):
            raise NetworkError("network: a result is a tuple of results")
        outputs = tuple(map(self.node, results))
        return Graph(tuple(self.nodes), outputs, single, self.others)

    def node(self, result: Operand) -> Node:
        """A result as a node, also where it is a constant."""
        if isinstance(result, Node):
            return result
        expression, number = const(result.array), len(self.nodes)
        node = Node(number, "constant", (), result.shape, result.dtype, expression=expression)
        self.nodes.append(node)
        return node

    def bind(self, variable: Any, value: Any) -> None:
        relax = self.relax
        if isinstance(value, self.ir.Call):
            operands = tuple(each for x in value.args for each in self.operands(x))
            name = str(getattr(value.op, "name", "call")).removeprefix("relax.")
            if name in _FOLDED and operands and isinstance(operands[0], Constant):
                shape, kind = _tensor(variable.ty, name)
                moved = _FOLDED[name](operands[0].array, value.attrs, shape)
                self.values[variable] = Constant(moved, shape, kind)
            else:
                self.add(variable, name, operands, value)
            return
        if isinstance(value, relax.TupleGetItem):
            self.add(variable, "item", self.operands(value.tuple_value), value)
        elif isinstance(value, relax.Tuple):
            self.add(variable, "tuple", self.operands(value), value)
        elif value in self.values:
            self.values[variable] = self.values[value]
        elif isinstance(value, self.ir.GenericConst):
            self.values[variable] = self.constant(value)
        else:
            raise NetworkError(f"network: {type(value).__name__} is not supported: control flow")

    def operands(self, value: Any) -> tuple[Operand, ...]:
        if isinstance(value, self.relax.Tuple):
            return tuple(each for field in value.fields for each in self.operands(field))
        if isinstance(value, self.ir.GenericConst):
            return (self.constant(value),)
        return (self.values[value],) if value in self.values else ()

    def constant(self, value: Any) -> Constant:
        if value not in self.constants:
            shape = tuple(int(extent) for extent in value.value.shape)
            self.constants[value] = Constant(value.value, shape, str(value.value.dtype))
        return self.constants[value]

    def add(
        self,
        variable: Any,
        operation: str,
        operands: tuple[Operand, ...],
        value: Any,
        name: str = "",
    ) -> Node:
        shape, kind = _tensor(variable.ty, name or operation)
        attributes = getattr(value, "attrs", None)
        node = Node(len(self.nodes), operation, operands, shape, kind, attributes, value, name)
        self.nodes.append(node)
        self.values[variable] = node
        return node


def _tensor(kind: Any, what: str) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a tensor; nothing of what is none.

    Raises:
        NetworkError: an extent is not known, or no kernel and no array has the dtype.
    """
    if not hasattr(kind, "dtype") or not hasattr(kind, "shape"):
        return (), ""
    extents = getattr(kind.shape, "values", None)
    if extents is None or any(not hasattr(extent, "value") for extent in extents):
        names = "?" if extents is None else ", ".join(str(getattr(e, "value", e)) for e in extents)
        raise NetworkError(
            f"{what}: shape ({names}) depends on values that the network computes, "
            "which is not supported"
        )
    if str(kind.dtype) == "uint64":  # the engine takes large values for negative ones
        raise NetworkError(f"{what}: dtype uint64 is not supported")
    return tuple(int(extent) for extent in extents), str(kind.dtype)


class Writer:
    """Writes a function while a graph is walked.

    Attributes:
        builder: Relax's.
        values: what stands for each node, by its number.
    """

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self.values: dict[int, Any] = {}

    def emit(self, expression: Any) -> Any:
        """A variable for an expression."""
        return self.builder.emit(expression)

    def value(self, operand: Operand) -> Any:
        """What stands for an operand."""
        from tvm import relax

        if isinstance(operand, Constant):
            tensor = operand.tensor
            return const(tensor) if isinstance(tensor, np.ndarray) else relax.const(tensor)
        return self.values[operand.number]


def const(array: np.ndarray) -> Any:
    """The engine's constant of an array, which would have 32 bits if its dtype were not stated."""
    from tvm import relax

    return relax.const(np.ascontiguousarray(array) if array.ndim else array, str(array.dtype))


def rebuilt(
    graph: Graph, rewrite: Mapping[int, Rewrite], skip: frozenset[int] = frozenset()
) -> Any:
    """A module whose ``main`` computes what the graph does.

    Args:
        graph: what is computed.
        rewrite: for some nodes, by number, what makes the expression that stands for them.
        skip: nodes that nobody reads any more.
    """
    load_tvm()
    from tvm import relax

    builder = relax.BlockBuilder()
    writer = Writer(builder)
    parameters = []
    for node in graph.inputs:
        parameters.append(relax.Var(node.name, relax.TensorType(node.shape, node.dtype)))
        writer.values[node.number] = parameters[-1]
    with builder.function("main", parameters):
        with builder.dataflow():
            for node in graph.computing():
                if node.number in skip:
                    continue
                if node.number in rewrite:
                    value = rewrite[node.number](writer)
                else:
                    value = renewed(node, [writer.value(each) for each in node.operands])
                writer.values[node.number] = writer.emit(value)
            results = [writer.values[node.number] for node in graph.outputs]
            out = builder.emit_output(results[0] if graph.single else relax.Tuple(results))
        builder.emit_func_output(out)
    module = builder.finalize()
    module.update(dict(graph.functions))
    return relax.transform.DeadCodeElimination()(module)


def joined(modules: Mapping[str, Any]) -> Any:
    """One module of the functions ``main`` of several, by their new names."""
    load_tvm()
    from tvm import relax

    @relax.expr_functor.mutator
    class Renamed(relax.PyExprMutator):  # type: ignore[misc]
        def visit_global_var_(self, var: Any) -> Any:
            return variables[var]

    builder = relax.BlockBuilder()
    for name, module in modules.items():
        suffix = f"_{name}" if len(modules) > 1 else ""  # no function of a bucket ends so
        variables = {
            var: builder.add_func(function, f"{var.name_hint}{suffix}")
            for var, function in module.functions.items()
            if var.name_hint != "main"
        }
        main = Renamed().visit_expr(module["main"])
        builder.add_func(main.with_attr("global_symbol", name), name)
    return builder.get()


class Shared:
    """Modules with the constants of earlier ones, where they are equal."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, tuple[int, ...], bytes], Any] = {}

    def __call__(self, module: Any) -> Any:
        """The module with the first of all equal constants."""
        load_tvm()
        import tvm
        from tvm import relax

        first = self._one

        @relax.expr_functor.mutator
        class Replaced(relax.PyExprMutator):  # type: ignore[misc]
            def visit_generic_const_(self, constant: Any) -> Any:
                return first(constant)

        functions = {
            name: Replaced().visit_expr(function)
            if isinstance(function, relax.Function)
            else function
            for name, function in module.functions.items()
        }
        return tvm.IRModule(functions, attrs=module.attrs)

    def _one(self, constant: Any) -> Any:
        tensor = constant.value
        shape, kind = tuple(map(int, tensor.shape)), str(tensor.dtype)
        values = Constant(tensor, shape, kind).array.tobytes()
        key = kind, shape, sha256(values).digest()
        return self._first.setdefault(key, constant)


def renewed(node: Node, values: Sequence[Any]) -> Any:
    """The expression of a node over other values of what it reads."""
    from tvm import ir, relax

    left = iter(values)

    def changed(value: Any) -> Any:
        if isinstance(value, relax.Tuple):
            return relax.Tuple([changed(field) for field in value.fields])
        if isinstance(value, ir.GenericConst) or _is_variable(value):
            return next(left)
        return value

    value = node.expression
    if isinstance(value, relax.Tuple):
        return changed(value)
    if isinstance(value, relax.TupleGetItem):
        return relax.TupleGetItem(changed(value.tuple_value), value.index)
    if not isinstance(value, ir.Call):
        return value
    arguments = [changed(argument) for argument in value.args]
    return ir.Call(value.op, arguments, value.attrs, value.ty_args)


def _is_variable(value: Any) -> bool:
    from tvm import ir

    return isinstance(value, ir.Var)
