"""A compiled kernel of a chain."""

from __future__ import annotations

from amos._toolchain import load_tvm
from amos.chains.candidate import ChainCandidate
from amos.chains.writer import schedule_products, write_chain
from amos.machine.cpu import cpu
from amos.runtime.compiled import CompiledKernel
from amos.runtime.compiling import compile_function
from amos.runtime.kernel import implementation_of


class ChainKernel(CompiledKernel):
    """A candidate of a chain compiled for this CPU; one call computes all statements.

    It is called as :class:`~amos.runtime.compiled.CompiledKernel` says.

    Attributes:
        candidate: the tiles, and the mapping and schedule of each product.
        implementation: ``"native"`` if the instructions themselves are emitted, else ``"generic"``.
        source: the scheduled TensorIR, as TVMScript.
    """

    def __init__(self, candidate: ChainCandidate, implementation: str | None = None) -> None:
        load_tvm()
        import tvm

        self.candidate = candidate
        kinds = {
            name: implementation_of(each, implementation)
            for name, each in candidate.products.items()
        }
        generic = "generic" in kinds.values()
        self.implementation = "generic" if generic else "native"
        products = schedule_products(candidate, kinds)
        arguments, function = write_chain(candidate, products, cpu().cores)
        module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
        self.source = str(module.script())
        library = compile_function(
            str(candidate), self.implementation, module, larger=True, shared=False, views=True
        )
        super().__init__(candidate.chain, arguments, library)
