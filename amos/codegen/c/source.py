"""A candidate as C functions: the kernel, and one that packs each constant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

from amos._toolchain import load_tvm, te, tvm
from amos.codegen.c.calls import ALIASED, function_name, function_text
from amos.codegen.c.operations import definitions
from amos.codegen.c.printer import CPrinter, SeenOtherwise
from amos.codegen.c.types import EXTERNS, OWN, c_type, helpers
from amos.codegen.naming import Names
from amos.codegen.scheduling import schedule_candidate
from amos.codegen.tir.arrays import container_dtype
from amos.codegen.tir.lowering import lower
from amos.codegen.tir.program import Argument, stage
from amos.errors import BuildError, ExportError
from amos.intrinsics import Intrinsic, implementations
from amos.ir import Chain, Operator
from amos.machine.limits import CpuLimits
from amos.plan import Candidate
from amos.plan.staging import StagedOperand


@dataclass(frozen=True)
class PackingInput:
    """A parameter, of a C type without qualifiers, of the C function that packs another."""

    name: str
    tensor: str
    kind: str


@dataclass(frozen=True)
class Parameter:
    """A parameter of the C function.

    Attributes:
        kind: its C type, without qualifiers.
        packed: tensors that it is packed from; empty if it is the tensor itself.
    """

    name: str
    tensor: str
    kind: str
    elements: int
    packed: tuple[PackingInput, ...] = ()


@dataclass(frozen=True)
class CKernel:
    """The generated text and its interface.

    Attributes:
        parameters: inputs, then the results, as many as the operator has.
        names: spelling of the operator's names in C.
        helpers: definitions before the functions.
        packing: body of the function that packs a parameter, by the parameter's name.
        workspace: bytes of scratch memory for one call.
        implementation: ``"native"`` or ``"generic"``.
        features: what the CPU must have, as the system spells it.
        flags: options of the C compiler.
        rounds: whether the compiler must not fuse a product and a sum.
    """

    parameters: tuple[Parameter, ...]
    names: Names
    helpers: str
    body: str
    packing: dict[str, str]
    workspace: int
    implementation: str
    features: tuple[str, ...]
    flags: tuple[str, ...]
    count: int
    rounds: bool = False

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        """The parameters that are read."""
        return self.parameters[: -self.count]

    @property
    def results(self) -> tuple[Parameter, ...]:
        """Those that are written."""
        return self.parameters[-self.count :]


def c_kernel(candidate: Candidate, limits: CpuLimits, implementation: str | None = None) -> CKernel:
    """Generate C for a candidate.

    Args:
        implementation: ``"native"`` or ``"generic"``; by default native where the
            intrinsic has one, whatever this CPU has.

    Raises:
        ExportError: something of it has no form in C.
        BuildError: TVM refuses the program.
    """
    load_tvm()
    kinds = emitted_kinds(candidate.mapping.intrinsic, implementation)
    try:
        return _generate(candidate, limits, kinds[0])
    except ExportError:
        # Few of LLVM's instructions have a form in C here; the C implementation is one.
        if len(kinds) == 1:
            raise
        return _generate(candidate, limits, kinds[1])


def emitted_kinds(unit: Intrinsic, implementation: str | None) -> tuple[str, ...]:
    """Return how an instruction may be emitted: ``"native"``, ``"c"`` or ``"generic"``, best first.

    Raises:
        ExportError: a native implementation is requested, and none is known.
    """
    sources = implementations(unit.name)
    kinds = [kind for kind, source in (("native", "llvm"), ("c", "c")) if source in sources]
    if implementation == "generic" or not (implementation or kinds):
        return ("generic",)
    if not kinds:
        raise ExportError(f"{unit.name}: no native implementation is known")
    return (*kinds,)


def _generate(candidate: Candidate, limits: CpuLimits, kind: str) -> CKernel:
    """Generate C for a candidate, through LLVM's implementation, the C one, or the meaning."""
    operator = candidate.mapping.operator
    program, module = schedule_candidate(candidate, kind, limits)
    spelling = Names.of(operator, OWN)
    _, names = list_parameters(operator, program.arguments, spelling)
    kinds = {candidate.mapping.intrinsic: kind}
    try:
        printed = print_module(str(candidate), module, names, kinds)
    except SeenOtherwise:
        printed = print_module(str(candidate), module, names, kinds, share=False)
    return printed.kernel(operator, program.arguments, spelling)


@dataclass(frozen=True)
class PrintedModule:
    """A scheduled module as C, before its interface is known.

    Attributes:
        printer: its printer, with the helpers that it needs.
        kinds: how each instruction is emitted: ``"native"``, ``"c"`` or ``"generic"``.
    """

    printer: CPrinter
    body: str
    kinds: Mapping[Intrinsic, str]

    def kernel(
        self, operator: Operator | Chain, arguments: Sequence[Argument], spelling: Names
    ) -> CKernel:
        """Return the text, its interface, and functions that pack constants."""
        printer, flags = self.printer, list[str]()
        parameters, names = list_parameters(operator, arguments, spelling)
        packed = {parameter.name: parameter.packed for parameter in parameters}
        packing = {
            name: _packing(printer, operator, argument, packed[name])
            for name, argument in zip(names, arguments, strict=True)
            if argument.packed is not None
        }
        for unit, kind in self.kinds.items():
            own = implementations(unit.name)
            flags += own["c"].flags if kind != "generic" and "c" in own else ()
            if kind == "c" and {*unit.staged_dtypes} & {*ALIASED}:
                flags.append("-fno-strict-aliasing")
        if printer.rounds:
            flags.append("-ffp-contract=off")
        operations, needed = definitions(printer.operations)
        features = chain(*(_required_features(unit, kind) for unit, kind in self.kinds.items()))
        called = "".join(printer.functions[name] for name in sorted(printer.externs))
        return CKernel(
            parameters=parameters,
            names=spelling,
            helpers=helpers(printer.types | needed) + operations + called,
            body=self.body,
            packing=packing,
            workspace=printer.workspace,
            implementation="generic" if "generic" in self.kinds.values() else "native",
            features=tuple(dict.fromkeys(features)),
            flags=tuple(dict.fromkeys(flags)),
            count=len(operator.results),
            rounds=printer.rounds,
        )


def _required_features(unit: Intrinsic, kind: str) -> tuple[str, ...]:
    own = implementations(unit.name)
    used = [own[name] for name in ("llvm", "c") if kind != "generic" and name in own]
    requires = (unit.requires, *(source.requires for source in used)) if used else ()
    return tuple(chain(*requires))


def print_module(
    what: str,
    module: Any,
    names: list[str],
    kinds: Mapping[Intrinsic, str],
    *,
    share: bool = True,
    views: bool = False,
) -> PrintedModule:
    """Print a scheduled module of one function.

    Args:
        what: it is, for messages.
        names: of its parameters in C.
        kinds: how each instruction is emitted: ``"native"``, ``"c"`` or ``"generic"``.
        share: whether buffers may have the same memory, one after the other.
        views: whether buffers begin within others.

    Raises:
        ExportError: something of it has no form in C.
        BuildError: TVM refuses it.
    """
    functions = {**EXTERNS}
    for unit, kind in kinds.items():
        if kind == "c":
            text = function_text(unit, implementations(unit.name)["c"])
            functions[function_name(unit)] = text
    try:
        function = lower(module, share, views)
    except Exception as error:
        raise BuildError(f"{what}: TVM cannot lower it: {error}") from error
    printer = CPrinter(functions=functions)
    return PrintedModule(printer, printer.function(function, names), kinds)


def list_parameters(
    operator: Operator | Chain, arguments: Sequence[Argument], spelling: Names
) -> tuple[tuple[Parameter, ...], list[str]]:
    """List the parameters of the C function, and the name in it of each argument of the kernel."""
    parameters: dict[str, Parameter] = {}
    names = []
    for number, argument in enumerate(arguments):
        name = spelling.tensors[argument.tensor]
        packed: tuple[PackingInput, ...] = ()
        if argument.packed is not None:
            name = f"packed_{name}"
            if name in parameters:
                name = f"{name}_{number}"
            packed = tuple(_packing_inputs(operator, argument, argument.packed, spelling))
        names.append(name)
        kind = c_type(container_dtype(argument.dtype))
        parameters[name] = Parameter(name, argument.tensor, kind, prod(argument.shape), packed)
    return tuple(parameters.values()), names


def _packing_inputs(
    operator: Operator | Chain, argument: Argument, packed: StagedOperand, spelling: Names
) -> Iterator[PackingInput]:
    """Yield the tensors that a constant is packed from: itself, or those that compute it."""
    for tensor in operator.inputs_of(argument.tensor):
        alone = packed.prologue is None
        kind = packed.tensor_kind if alone else str(tensor.dtype)
        name = "given" if alone else spelling.tensors[tensor.name]
        yield PackingInput(name, tensor.name, c_type(container_dtype(kind)))


def _packing(
    printer: CPrinter,
    operator: Operator | Chain,
    argument: Argument,
    inputs: Sequence[PackingInput],
) -> str:
    """Write the body of a packing function with parameters ``inputs`` and ``packed``."""
    packed = argument.packed
    assert packed is not None
    tensors = {
        tensor.name: te.placeholder(
            packed.source_shape if packed.prologue is None else tensor.shape,
            container_dtype(packed.tensor_kind if packed.prologue is None else str(tensor.dtype)),
            name=f"given_{number}" if number else "given",
        )
        for number, tensor in enumerate(operator.inputs_of(argument.tensor))
    }
    function: Any = te.create_prim_func([*tensors.values(), stage(packed, tensors)])
    names = [*(each.name for each in inputs), "packed"]
    return printer.function(lower(tvm.IRModule({"main": function})), names)
