"""A compiled kernel of a chain."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

from amos._display import Shown
from amos._toolchain import load_tvm
from amos.chains.candidate import ChainCandidate
from amos.chains.writer import schedule_products, write_chain
from amos.codegen.tir.arrays import container_dtype, from_tensor, to_tensor
from amos.errors import BuildError
from amos.ir import aligned, dtype
from amos.machine.cpu import cpu
from amos.runtime.borrow import ArgumentAdapter
from amos.runtime.compiling import compile_function, timed
from amos.runtime.kernel import implementation_of
from amos.validate import random_inputs


class ChainKernel(Shown):
    """A candidate of a chain compiled for this CPU; one call computes all statements.

    Calling it with the chain's inputs, by name or in order, returns the result. Inputs are NumPy
    arrays or tensors of any package that speaks DLPack; they are read where they are.

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
        function = write_chain(candidate, products, cpu().cores)
        module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
        self.source = str(module.script())
        self._library = compile_function(
            str(candidate), self.implementation, module, larger=True, shared=False, views=True
        )
        self._run = self._library["main"]
        self._inputs = {
            tensor.name: ArgumentAdapter(tensor, tensor.shape or (1,))
            for tensor in candidate.chain.inputs
        }
        result = candidate.chain.result
        self._result = result
        self._out = ArgumentAdapter(result, result.shape or (1,), role="output", write=True)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in order."""
        return tuple(self._inputs)

    def __call__(self, /, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """Run the kernel.

        Args:
            arrays: inputs in order.
            out: array to write to; a new one if omitted.
            named: inputs by name.

        Raises:
            BuildError: an input is missing, unknown, or of another shape, dtype or layout.
        """
        bound = self._bound(arrays, named)
        kind = str(self._result.dtype)
        if out is None and container_dtype(kind) == dtype(kind).numpy.name:
            out = aligned(self._result.shape, dtype(kind).numpy)
        arguments = self.prepare(bound, out)
        self._run(*arguments)
        return self.result(arguments) if out is None else out

    def _bound(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        if len(arrays) > len(self._inputs):
            raise BuildError(f"expected {len(self._inputs)} arrays ({', '.join(self._inputs)})")
        bound = dict(zip(self._inputs, arrays, strict=False))
        for name, array in named.items():
            if name in bound:
                raise BuildError(f"input {name!r} is given twice")
            bound[name] = array
        if bound.keys() != self._inputs.keys():
            odd = sorted(bound.keys() ^ self._inputs.keys())[0]
            state = "missing" if odd in self._inputs else "unknown"
            raise BuildError(f"{state} input {odd!r}; inputs are {', '.join(self._inputs)}")
        return bound

    def prepare(self, inputs: Mapping[str, Any], out: Any = None) -> list[Any]:
        """TVM arrays for one call: inputs in order, then the output."""
        arguments = [adapter(inputs[name]) for name, adapter in self._inputs.items()]
        if out is not None:
            return [*arguments, self._out(out)]
        kind = str(self._result.dtype)
        return [
            *arguments,
            to_tensor(np.zeros(self._result.shape or (1,), dtype(kind).numpy), kind),
        ]

    def run(self, arguments: list[Any]) -> None:
        """Run on arrays made by :meth:`prepare`."""
        self._run(*arguments)

    def result(self, arguments: list[Any]) -> np.ndarray:
        """The output of a run on arrays made by :meth:`prepare`."""
        return from_tensor(arguments[-1], str(self._result.dtype)).reshape(self._result.shape)

    def times(
        self, inputs: Mapping[str, Any] | None = None, repeat: int = 10, flush: int = 0
    ) -> tuple[float, ...]:
        """Seconds of one run, measured ``repeat`` times after a warm-up."""
        import tvm

        if inputs is None:
            inputs = random_inputs(self.candidate.chain, np.random.default_rng(0))
        return timed(self._library.mod, tvm.cpu(), self.prepare(inputs), repeat, flush)

    def time(self, inputs: Mapping[str, Any] | None = None, repeat: int = 10) -> float:
        """Median seconds of one run; see :meth:`times`."""
        return statistics.median(self.times(inputs, repeat))

    def export(self, path: str) -> None:
        """Write the compiled kernel as a shared library, which needs a C compiler."""
        self._library.export_library(path)
