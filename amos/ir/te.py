"""TVM's tensor expressions into operators.

The tensor is translated to one line of the operator language, so that exactly the computations
of that language are accepted, with the same errors.
TVM is imported only when :func:`from_te` is called.
"""

from __future__ import annotations

import importlib
import re
from typing import Any, NoReturn

from amos._toolchain import load_tvm
from amos.errors import OperatorError
from amos.ir import Affine, Operator, dtype
from amos.ir.combining import COMBINERS, function, neutral
from amos.ir.floats import limits
from amos.ir.grammar import Reference


def from_te(tensor: Any) -> Operator:
    """Read a ``tvm.te.Tensor`` that one ``te.compute`` over placeholders defines.

    Supported is a product of tensor elements with affine indices, or their sum, difference,
    maximum or minimum, reduced by ``te.sum``, ``te.max``, ``te.min``, a ``te.comm_reducer``
    of products, or not at all. Casts that keep every value
    (``int8 -> int32``) are dropped: operators multiply without overflow, in the
    output's dtype. Iterations take TE's names, made unique where they repeat.

    Raises:
        OperatorError: the computation is none of these; the message names the
            part that is not supported.
        ToolchainError: TVM is missing, known not to work, or does not load.
    """
    tvm, te = load_tvm(), importlib.import_module("tvm.te")
    if not isinstance(tensor, te.Tensor):
        raise OperatorError(f"expected a tvm.te.Tensor, got {type(tensor).__name__}")
    return _Reader(tvm, tensor).operator()


class _Reader:
    """One pass over the body of a ``te.compute``."""

    def __init__(self, tvm: Any, tensor: Any) -> None:
        self.te, self.tirx, self.ir = tvm.te, tvm.tirx, tvm.ir
        names = {"Mul": "*", "Add": "+", "Sub": "-", "Max": "max", "Min": "min"}
        self.functions = {getattr(tvm.tirx, name): symbol for name, symbol in names.items()}
        self.tensor = tensor
        self.name = str(tensor.op.name)
        if not isinstance(tensor.op, self.te.ComputeOp):
            self.refuse(f"it is a {type(tensor.op).__name__}, not the result of te.compute")
        if len(tensor.op.body) != 1:
            self.refuse(f"it computes {len(tensor.op.body)} tensors at once")
        # TVM compares expressions by building expressions, so that variables and
        # tensors are looked up by identity in lists.
        self.axes: list[tuple[Any, str, int]] = []
        self.extents: dict[str, int] = {}
        self.tensors: list[tuple[Any, str]] = []

    def refuse(self, why: str) -> NoReturn:
        raise OperatorError(f"TE tensor {self.name!r}: {why}")

    def operator(self) -> Operator:
        op, body = self.tensor.op, self.tensor.op.body[0]
        for axis in (*op.axis, *op.reduce_axis):
            self.add_axis(axis)
        spatial = [name for _, name, _ in self.axes[: len(op.axis)]]
        output = Reference(self.add_tensor(self.tensor), tuple(Affine(((n, 1),)) for n in spatial))
        combiner = ""
        if isinstance(body, self.tirx.Reduce):
            combiner, body = self.combiner(body), body.source[0]
        join = self.functions.get(type(body), "*")
        sources = self.sources(body, type(body))
        text = f"{output} {combiner}= {function(join).text(list(map(str, sources)))}"
        return Operator.parse(
            text,
            self.extents,
            {name: str(tensor.dtype) for tensor, name in self.tensors},
            name=self.name,
            shapes={name: self.shape(tensor) for tensor, name in self.tensors},
        )

    def add_axis(self, axis: Any) -> None:
        start, extent = (self.integer(x, "extent") for x in (axis.dom.min, axis.dom.extent))
        name = _make_unique(str(axis.var.name), [used for _, used, _ in self.axes])
        self.axes.append((axis.var, name, start))
        self.extents[name] = extent

    def add_tensor(self, tensor: Any) -> str:
        for existing, name in self.tensors:
            if existing.same_as(tensor):
                return name
        name = _make_unique(str(tensor.op.name), [used for _, used in self.tensors])
        self.tensors.append((tensor, name))
        return name

    def shape(self, tensor: Any) -> tuple[int, ...]:
        return tuple(self.integer(size, f"shape of {tensor.op.name!r}") for size in tensor.shape)

    def integer(self, node: Any, what: str) -> int:
        if not isinstance(node, self.tirx.IntImm):
            self.refuse(f"{what} is {node}, not a constant integer")
        return int(node.value)

    def combiner(self, reduce: Any) -> str:
        """Read the combiner of the reduction, as statements spell it."""
        result = reduce.combiner.result
        symbol = self.functions.get(type(result[0]), "") if len(result) == 1 else ""
        ends = [*reduce.combiner.lhs, *reduce.combiner.rhs]
        plain = symbol in COMBINERS and all(
            end.same_as(each) for end, each in zip(ends, (result[0].a, result[0].b), strict=True)
        )
        if not plain or not self.starts_neutral(symbol, reduce.combiner.identity_element[0]):
            kind = " and ".join(type(value).__name__ for value in result)
            self.refuse(
                f"it is reduced by {kind}; te.sum, te.max, te.min and products that start at 1 "
                "are supported"
            )
        if len(reduce.init):
            self.refuse("a reduction with an initial value is not supported")
        condition = reduce.condition
        if not isinstance(condition, self.tirx.IntImm) or not condition.value:
            self.refuse("a reduction with where= is not supported")
        return symbol

    def starts_neutral(self, symbol: str, start: Any) -> bool:
        """Return whether a reduction starts at a value that changes no finite result."""
        kind, value = str(start.ty), getattr(start, "value", None)
        return value in (neutral(symbol, kind), *(limits(kind) if symbol in ("max", "min") else ()))

    def sources(self, node: Any, function: Any) -> list[Reference]:
        """Collect the tensor accesses that a function joins, in written order."""
        if isinstance(node, function) and function in self.functions:
            right = type(None) if function is self.tirx.Sub else function
            return self.sources(node.a, function) + self.sources(node.b, right)
        if isinstance(node, self.tirx.Cast):
            return [self.load(self.uncast(node))]
        return [self.load(node)]

    def uncast(self, cast: Any) -> Any:
        value = cast.value
        if isinstance(value, self.tirx.Cast):
            value = self.uncast(value)
        if type(value) in self.functions:
            what = "product" if isinstance(value, self.tirx.Mul) else type(value).__name__
            self.refuse(
                f"a {what} is cast to {cast.ty} after it was rounded; cast each factor instead"
            )
        source, target = str(value.ty), str(cast.ty)
        if not _keeps_values(source, target):
            self.refuse(f"the cast from {source} to {target} changes values")
        return value

    def load(self, node: Any) -> Reference:
        if not isinstance(node, self.ir.Call):
            hint = ": a constant factor" if "Imm" in type(node).__name__ else ""
            self.refuse(f"{type(node).__name__} among the sources{hint} is not supported")
        if node.op.name.endswith("if_then_else"):
            self.refuse(
                "if_then_else is not supported; write the padding as pad(...) "
                "in the operator language"
            )
        if node.op.name != "te.tensor_load":
            self.refuse(f"call of {node.op.name} is not supported")
        tensor, *indices = node.args
        if not isinstance(tensor.op, self.te.PlaceholderOp):
            self.refuse(
                f"source {tensor.op.name!r} is computed by a stage of its own; only placeholders "
                "are read (padding: pad(...) in the operator language)"
            )
        name = self.add_tensor(tensor)
        return Reference(name, tuple(self.index(i, str(tensor.op.name)) for i in indices))

    def index(self, node: Any, tensor: str) -> Affine:
        tirx = self.tirx
        if isinstance(node, tirx.IntImm):
            return Affine(constant=int(node.value))
        if isinstance(node, tirx.Var):
            return self.axis(node, tensor)
        if isinstance(node, tirx.Cast):
            return self.index(node.value, tensor)
        if isinstance(node, tirx.Add | tirx.Sub):
            sign = 1 if isinstance(node, tirx.Add) else -1
            return self.index(node.a, tensor) + self.index(node.b, tensor) * sign
        if isinstance(node, tirx.Mul):
            a, b = self.index(node.a, tensor), self.index(node.b, tensor)
            if a.terms and b.terms:
                self.refuse(f"index of {tensor!r} is not affine: product of {a} and {b}")
            return a * b.constant if a.terms else b * a.constant
        if isinstance(node, self.ir.Call) and node.op.name == "te.tensor_load":
            self.refuse(f"index of {tensor!r} depends on the data of {node.args[0].op.name!r}")
        self.refuse(f"index of {tensor!r} is not affine: {type(node).__name__}")

    def axis(self, var: Any, tensor: str) -> Affine:
        for variable, name, start in self.axes:
            if variable.same_as(var):
                return Affine(((name, 1),), start)
        self.refuse(f"index of {tensor!r}: {var.name!r} is no iteration of the tensor")


def _make_unique(name: str, used: list[str]) -> str:
    """Make a name of the operator language that is not used yet."""
    clean = re.sub(r"[^A-Za-z0-9_]", "_", name) or "x"
    clean = clean if not clean[0].isdigit() else f"x{clean}"
    candidate, number = clean, 1
    while candidate in used:
        candidate, number = f"{clean}_{number}", number + 1
    return candidate


def _keeps_values(source: str, target: str) -> bool:
    """Return whether every value of one dtype is a value of the other."""
    a, b = dtype(source), dtype(target)
    return b.represents(a) or (a.is_integer and a.bits <= _MANTISSA.get(b.name, 0))


#: Bits of the significand, with the hidden one.
_MANTISSA = {"float16": 11, "bfloat16": 8, "tfloat32": 11, "float32": 24, "float64": 53}
