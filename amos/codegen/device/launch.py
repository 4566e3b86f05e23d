"""The arguments of a kernel and its operator, as plain data beside an exported kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from amos.ir import BufferLoad, Operator, Result, Store, dtype
from amos.ir.epilogue import ACC, Epilogue
from amos.ir.expression import ACCUMULATORS, Node
from amos.plan.device_plan import DevicePlan


def describe_launch(plan: DevicePlan, **own: Any) -> dict[str, Any]:
    """Return the contents of ``launch.json``: a device's own, then those of every kernel."""
    return own | {
        "arguments": list(_arguments(plan)),
        "operations": plan.mapping.operator.operations,
        "intrinsic": plan.mapping.intrinsic.name,
        "mapping": plan.mapping.name,
        "schedule": plan.schedule.as_dict(),
        "operator": _describe_operator(plan),
    }


def _describe_operator(plan: DevicePlan) -> dict[str, Any]:
    """Describe the operator of a kernel, by which its results can be checked."""
    op = plan.mapping.operator
    return {
        "name": op.name,
        "text": str(op.compute)
        + "".join(f" where {prologue}" for prologue in op.prologues)
        + (f" then {op.epilogue}" if op.epilogue else "")
        + (f" to {op.store}" if op.store else "")
        + "".join(f" and {result}" for result in op.further),
        "iterations": {it.name: it.extent for it in op.iterations},
        "operands": [describe_load(load) | _describe_prologue(op, load) for load in op.operands],
        **({"store": describe_load(op.store)} if op.store else {}),
        **_epilogue(op.epilogue, plan.accumulator),
        **({"further": [_further(plan, each) for each in op.further]} if op.further else {}),
    }


def _further(plan: DevicePlan, result: Result) -> dict[str, Any]:
    last = _epilogue(result.last, result.combination_dtype(plan.accumulator)) if result.last else {}
    return {
        "combination": result.combination,
        "store": describe_load(result.store),
        **_epilogue(result.epilogue, plan.accumulator),
        **({"last": last} if last else {}),
    }


def _arguments(plan: DevicePlan) -> Iterator[dict[str, Any]]:
    """Describe the function's arguments, in order: inputs, then results."""
    op = plan.mapping.operator
    tensors = {tensor.name: tensor for tensor in (*op.inputs, *plan.results)}
    is_preserved = {each.store.tensor.name: not op.fills(each.store) for each in op.further}
    is_preserved[op.result.name] = plan.keeps_elements
    sources = {load.tensor.name for load in op.sources}
    before = {tensor.name: each for each in op.prologues for tensor in each.tensors}
    for key, kind in plan.arguments.items():
        role = "output" if key in is_preserved else "epilogue"
        argument = {
            "name": key,
            "dtype": kind,
            "shape": list(tensors[key].shape),
            "role": "input" if key in sources else role,
            "zeroed": key == op.result.name and plan.zeroed,
            **({"kept": True} if is_preserved.get(key) else {}),
        }
        if key in before:
            whole = dtype(before[key].dtype).is_integer
            argument |= {"role": "prologue", "largest": 16 if whole else 1}
        yield argument


def _epilogue(epilogue: Epilogue | None, accumulator: str) -> dict[str, Any]:
    """Describe the expression that is stored instead of a sum; empty if it is the sum."""
    if epilogue is None:
        return {}
    return {
        "accumulator": accumulator,
        "epilogue": _describe_node(epilogue.expression, {ACC: ACCUMULATORS[accumulator]}),
        "result": epilogue.result(accumulator),
    }


def _describe_prologue(op: Operator, load: BufferLoad) -> dict[str, Any]:
    """Describe a source's prologue at the indices of an access; empty if it is an input."""
    prologue = op.prologue(load.tensor.name)
    if prologue is None:
        return {}
    return {"prologue": _describe_node(prologue.at(load), {}), "dtype": prologue.dtype}


def _describe_node(node: Node, kinds: Mapping[str, str]) -> dict[str, Any]:
    description: dict[str, Any] = {"name": node.name, "kind": node.joint_kind(kinds)}
    if node.load is not None:
        return description | {"name": "read", "load": describe_load(node.load)}
    if node.name == "number":
        return description | {"value": node.value}
    if node.is_variable:
        return description
    description["arguments"] = [_describe_node(each, kinds) for each in node.arguments]
    if (function := node.function) is not None:
        body = _describe_node(
            function.body, dict.fromkeys(function.parameters, description["kind"])
        )
        description |= {"parameters": [*function.parameters], "body": body}
    return description


def describe_load(load: BufferLoad) -> dict[str, Any]:
    """Describe an access of an operator as plain values."""
    digits = {str(each): asdict(each) for each in load.digits} if isinstance(load, Store) else {}
    return {
        "tensor": load.tensor.name,
        "shape": list(load.tensor.shape),
        "indices": [
            {"terms": dict(index.terms), "constant": index.constant} for index in load.indices
        ],
        **({"padding": load.padding} if load.padding else {}),
        **({"digits": digits} if digits else {}),
    }
