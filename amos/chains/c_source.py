"""A kernel of a chain as one C function."""

from __future__ import annotations

from amos._toolchain import load_tvm
from amos.chains.candidate import ChainCandidate
from amos.chains.writer import schedule_products, write_chain
from amos.codegen.c.source import CKernel, emitted_kinds, list_parameters, print_module
from amos.codegen.c.types import OWN
from amos.codegen.naming import Names, spell
from amos.errors import ExportError
from amos.machine.limits import CpuLimits


def c_chain(
    candidate: ChainCandidate, limits: CpuLimits, implementation: str | None = None
) -> CKernel:
    """Generate C for a kernel of a chain.

    Args:
        limits: of the CPU that the code is for; its cores share the tiles.
        implementation: ``"native"`` or ``"generic"`` for all products; by default native where an
            instruction has one, whatever this CPU has.

    Raises:
        ExportError: something of it has no form in C.
        BuildError: TVM refuses the program.
    """
    load_tvm()
    units = {name: each.mapping.intrinsic for name, each in candidate.products.items()}
    choices = {name: emitted_kinds(unit, implementation) for name, unit in units.items()}
    try:
        return _generate(candidate, limits, {name: each[0] for name, each in choices.items()})
    except ExportError:
        # Few of LLVM's instructions have a form in C here; the C implementation is one.
        if all(len(each) == 1 for each in choices.values()):
            raise
        return _generate(candidate, limits, {name: each[-1] for name, each in choices.items()})


def _generate(candidate: ChainCandidate, limits: CpuLimits, choices: dict[str, str]) -> CKernel:
    """Generate C in which each product's instruction is emitted as chosen."""
    import tvm

    chain = candidate.chain
    products = schedule_products(candidate, choices, limits)
    arguments, function = write_chain(candidate, products, limits.cores)
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    tensors: dict[str, str] = {}
    for argument in arguments:
        tensors[argument.tensor] = spell(argument.tensor, OWN, tensors.values())
    spelling = Names(tensors, {})
    _, names = list_parameters(chain, arguments, spelling)
    kinds = {each.mapping.intrinsic: choices[name] for name, each in candidate.products.items()}
    printed = print_module(str(candidate), module, names, kinds, share=False, views=True)
    return printed.kernel(chain, arguments, spelling)
