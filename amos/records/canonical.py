"""Operators, intrinsics and machines as plain values: written, hashed, read back.

Reading goes through :meth:`amos.Operator.parse` and the constructors
of the descriptions, which check it; nothing is unpickled or evaluated.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any

from amos._tables import TableReader
from amos.errors import AmosError, IntrinsicError, RecordError
from amos.intrinsics import Intrinsic, implementations, read_values, values_of
from amos.ir import Chain, Operator, Result
from amos.ir.epilogue import Elementwise
from amos.ir.transforms import transforms_of
from amos.machine import Costs, Level, Machine, Peak
from amos.machine.identity import Identity
from amos.machine.stream_unit import StreamUnit

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def digest(value: object) -> str:
    """Hash a JSON value, independent of the order of its keys, to 32 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def fingerprint(intrinsic: Intrinsic) -> str:
    """Hash the meaning of an intrinsic: statement, sizes, dtypes, arithmetic, memory.

    The registers count too, since they bound the schedules.

    Its name, description and source do not count.
    """
    operands = [
        [load.tensor.name, list(load.tensor.shape), kind.declared]
        for load, kind in zip(intrinsic.operands, intrinsic.kinds, strict=True)
    ]
    memory = [str(statement) for statement in intrinsic.memory]
    extents = [[it.name, it.extent, it.kind] for it in intrinsic.iterations]
    meaning = [str(intrinsic.compute), extents, operands, asdict(intrinsic.arithmetic)]
    return digest([*meaning, memory, intrinsic.registers])[:16]


def definition_of(unit: Intrinsic) -> dict[str, Any] | None:
    """Describe an intrinsic with its implementations as plain values for records.

    They are checked like a file when they are read. Implementations are code:
    replaying or exporting a record runs its code.

    Returns:
        None for one whose values do not describe it, as of a program that builds its
        memory statements by hand.
    """
    values = values_of(unit, implementations(unit.name).values())
    try:
        again = read_values(values, unit.name)[0]
    except IntrinsicError:
        return None
    return values if again == unit else None


def operator_values(operator: Operator | Chain) -> dict[str, Any]:
    """Describe an operator or a chain as JSON values for :func:`operator_from`.

    ``text`` is in the language of :meth:`amos.Operator.parse`. Names that the language cannot spell
    have aliases in it, which ``names`` resolves.
    """
    if isinstance(operator, Chain):
        return _chain_values(operator)
    own = {load.tensor.name: load.tensor for load in operator.operands}
    tensors = own | {tensor.name: tensor for tensor in operator.inputs}
    stores = [operator.stored, *(result.store for result in operator.further)]
    tensors |= {store.tensor.name: store.tensor for store in stores}
    alias = _aliases([*tensors], "t")
    loops = _aliases([it.name for it in operator.iterations], "x")
    plain = operator.rename(alias.__getitem__, loops.__getitem__)
    values: dict[str, Any] = {
        "name": operator.name,
        "text": str(plain.compute),
        "iterations": [[it.name, it.extent] for it in plain.iterations],
        "shapes": {alias[n]: list(tensor.shape) for n, tensor in own.items()},
        "dtypes": {alias[n]: x.kind.declared for n, x in own.items() if x.kind is not None},
        "constants": list(plain.constants),
    }
    if plain.prologues:
        values["prologues"] = [
            {"source": each.head, **_expression(each.text, [each])} for each in plain.prologues
        ]
    if plain.epilogue is not None:
        values["epilogue"] = _expression(str(plain.epilogue), [plain.epilogue])
    if plain.store is not None:
        values["store"] = {"text": str(plain.store), "shape": list(plain.store.tensor.shape)}
    if plain.further:
        values["results"] = [_result(result) for result in plain.further]
    named = {
        "tensors": {a: n for n, a in alias.items() if a != n},
        "iterations": {a: n for n, a in loops.items() if a != n},
    }
    return values | ({"names": named} if any(named.values()) else {})


def _expression(text: str, of: Iterable[Elementwise]) -> dict[str, Any]:
    """Describe the text of a prologue or of epilogues with their tensors."""
    read = {load.tensor.name: load.tensor for each in of for load in each.loads}
    return {
        "text": text,
        "shapes": {name: list(tensor.shape) for name, tensor in read.items()},
        "dtypes": {n: x.kind.declared for n, x in read.items() if x.kind is not None},
    }


def _result(result: Result) -> dict[str, Any]:
    values = _expression(str(result), result.epilogues)
    stored = result.store.tensor
    return values | {"shapes": {**values["shapes"], stored.name: list(stored.shape)}}


def _chain_values(chain: Chain) -> dict[str, Any]:
    """Describe a chain as JSON values; tensors within a row function have no types of their own."""
    tensors = (*chain.inputs, *chain.temporaries, chain.result)
    texts = [statement.text for statement in chain.statements]
    if any(step.epilogue is not None for step in chain.products):
        own = [operator_values(step) for step in chain.products]
        return {"name": chain.name, "text": "; ".join(texts), "operators": own}
    # Sums beyond the tensor of a transform are not stored, so that its shape is no consequence.
    shaped = (*chain.inputs, *(step.output.tensor for step in transforms_of(chain)))
    return {
        "name": chain.name,
        "text": "; ".join(texts) + ";" * (len(texts) == 1),  # as of no operator
        "iterations": [[name, extent] for name, extent in chain.extents.items()],
        "shapes": {x.name: list(x.shape) for x in shaped if x.shape},
        "dtypes": {x.name: x.kind.declared for x in tensors if x.kind and "." not in x.name},
    } | ({"constants": list(chain.constants)} if chain.constants else {})


def chain_from(values: Mapping[str, Any]) -> Chain:
    """Rebuild the chain that :func:`operator_values` described; others are a RecordError."""
    try:
        if stored := values.get("operators"):
            return Chain.of([operator_from(each) for each in stored], values["name"])
        extents = {str(name): extent for name, extent in values["iterations"]}
        own = {key: values[key] for key in ("dtypes", "name", "shapes")}
        constants = values.get("constants", ())
        return Chain.parse(values["text"], extents, **own, constants=constants)
    except (KeyError, TypeError, ValueError, AttributeError, AmosError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RecordError(f"the record describes no chain: {first}") from error


def operator_from(values: Mapping[str, Any]) -> Operator:
    """Rebuild the operator that :func:`operator_values` described; others are a RecordError."""
    try:
        order = [str(name) for name, _ in values["iterations"]]
        operator = Operator.parse(
            values["text"],
            extents={str(name): extent for name, extent in values["iterations"]},
            dtypes=values["dtypes"],
            shapes=values.get("shapes"),
            name=values["name"],
            constants=values.get("constants"),
        )
        for prologue in values.get("prologues", ()):
            operator = operator.with_prologue(
                prologue["source"], prologue["text"], prologue["dtypes"], prologue["shapes"]
            )
        if stored := values.get("epilogue"):
            operator = operator.with_epilogue(stored["text"], stored["dtypes"], stored["shapes"])
        if stored := values.get("store"):
            name = stored["text"].partition("[")[0]
            operator = operator.with_output(stored["text"], {name: stored["shape"]})
        for result in values.get("results", ()):
            operator = operator.with_result(result["text"], result["dtypes"], result["shapes"])
        by_name = {it.name: it for it in operator.iterations}
        if [it.name for it in operator.iterations] != order:
            ordered = tuple(by_name[name] for name in order)
            operator = replace(operator, compute=replace(operator.compute, iterations=ordered))
        names = values.get("names", {})
        tensors, iterations = names.get("tensors", {}), names.get("iterations", {})
        return operator.rename(lambda n: tensors.get(n, n), lambda n: iterations.get(n, n))
    except (KeyError, TypeError, ValueError, AttributeError, AmosError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RecordError(f"the record describes no operator: {first}") from error


#: Fields of machines that earlier versions lacked, left out where they are empty.
_LATER = ("stream", "opencl", "host", "operation_pj", "energy_source")
_LATER_LEVEL = ("read_pj_per_byte", "write_pj_per_byte")
#: Figures that earlier versions had besides.
_EARLIER: dict[type, tuple[str, ...]] = {
    Peak: ("fed",),
    Level: (),
    StreamUnit: ("mac_energy", "buffer_energy", "dram_energy"),
    Costs: ("read", "late", "scattered", "unrolled", "copied"),
}


def machine_values(machine: Machine, *, whole: bool = False) -> dict[str, Any]:
    """Describe a machine as JSON values; ``whole`` also has empty fields of no earlier version."""
    values = asdict(replace(machine, peaks={}))
    # Descriptions of machines before these fields existed.
    for described, names in ((values, _LATER), *((x, _LATER_LEVEL) for x in values["levels"])):
        for name in names:
            if described[name] in (None, "") and (not whole or name in ("stream", "opencl")):
                del described[name]
    return values | {"peaks": {name: asdict(peak) for name, peak in machine.peaks.items()}}


def identity_of(machine: Machine) -> Identity:
    """Return the identity of a described machine in records; it changes with its figures."""
    figures = digest(machine_values(machine))[:8]
    return Identity(machine.name, f"figures {figures}", machine.cores)


def machine_from(values: Mapping[str, Any]) -> Machine:
    """Rebuild a machine of :func:`machine_values`; those of other versions are a RecordError."""
    reader = TableReader("the record describes no machine of this version", "", RecordError)

    def read(kind: type, value: Any, key: str) -> Any:
        reader.table(value, key)
        figures = {n: x for n, x in value.items() if x is not None and n not in _EARLIER[kind]}
        return reader.call(kind, figures, key)

    reader.special |= {kind: partial(read, kind) for kind in _EARLIER}
    needed = [field.name for field in fields(Machine) if field.name not in _LATER]
    figures = {name: value for name, value in values.items() if value is not None}
    return reader.call(Machine, {"gpu": {}, **figures}, "", needed=needed)


def _aliases(names: list[str], prefix: str) -> dict[str, str]:
    """Spell each name so that the parser can read it; spellings are distinct."""
    used, result = set(names), {}
    for number, name in enumerate(names):
        spelled = name
        if not _NAME.fullmatch(name):
            spelled = f"{prefix}{number}"
            while spelled in used:
                spelled += "_"
            used.add(spelled)
        result[name] = spelled
    return result
