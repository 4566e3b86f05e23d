"""A compiled function that takes the arrays of an operator or of a chain."""

from __future__ import annotations

import statistics
from collections.abc import Mapping as MappingType
from collections.abc import Sequence
from math import prod
from typing import Any, Self

import numpy as np

from amos._display import Shown
from amos._toolchain import tvm
from amos.codegen.tir.arrays import container_dtype, from_tensor, to_tensor
from amos.codegen.tir.program import Argument
from amos.errors import BuildError
from amos.ir import Chain, Operator, Tensor, allocate_aligned, dtype
from amos.plan.staging import stage_array
from amos.runtime.borrow import ArgumentAdapter
from amos.runtime.compiling import time_runs
from amos.validate import random_inputs
from amos.validate.epilogue import source_value


class CompiledKernel(Shown):
    """Compiled code for this CPU.

    Calling it with the inputs, by name or in order, returns the output. Inputs are NumPy arrays or
    tensors of any package that speaks DLPack, PyTorch among them; they are read where they are.
    Constant inputs are packed at every call unless they were packed before with :meth:`pack`.
    """

    def __init__(
        self, operator: Operator | Chain, arguments: Sequence[Argument], library: Any
    ) -> None:
        self._operator, self._arguments, self._library = operator, arguments, library
        self._run = library["main"]
        self._tensors = {t.name: t for t in operator.inputs}
        self._results = operator.results
        #: The arguments that are read.
        self._sources = arguments[: -len(self._results)]
        #: Bytes of each argument.
        self._sizes = tuple(
            prod(a.shape) * np.dtype(container_dtype(a.dtype)).itemsize for a in arguments
        )
        #: For each argument the inputs that it is computed from: one, or those of a prologue.
        self._take = tuple(
            {
                x.name: ArgumentAdapter(x, x.shape if a.packed else a.shape)
                for x in self._inputs_of(a)
            }
            for a in self._sources
        )
        self._take_out = tuple(
            ArgumentAdapter(tensor, a.shape, role="output", write=True)
            for tensor, a in zip(self._results, arguments[len(self._sources) :], strict=True)
        )
        #: Packed constants by the position of their argument.
        self._packed: dict[int, Any] = {}
        #: Inputs of a call, in order: all but the packed ones.
        self._open = dict.fromkeys(self._tensors)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the input tensors, in the operator's order."""
        return tuple(self._tensors)

    def pack(self, /, **constants: Any) -> Self:
        """Pack constant inputs once and keep them; returns the kernel itself.

        All tensors that one constant is computed from must be passed together.
        """
        operator = self._operator
        packable = {x.name for name in operator.constants for x in operator.inputs_of(name)}
        if unknown := [name for name in constants if name not in packable]:
            raise BuildError(
                f"{unknown[0]!r} is not a constant input; constants are "
                f"{', '.join(name for name in self.inputs if name in packable) or 'none'}"
            )
        for number, argument in enumerate(self._sources):
            needed = self._take[number]
            if argument.tensor not in operator.constants or not needed.keys() & constants.keys():
                continue
            if missing := [name for name in needed if name not in constants]:
                raise BuildError(
                    f"{argument.tensor!r} is computed of {', '.join(needed)}: pack "
                    f"{', '.join(missing)} with it"
                )
            self._packed[number] = self._tensor(number, constants)
        used = {
            name
            for number, needed in enumerate(self._take)
            if number not in self._packed
            for name in needed
        }
        self._open = dict.fromkeys(name for name in self.inputs if name in used)
        return self

    def __call__(self, /, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """Run the kernel.

        Args:
            arrays: inputs in the operator's order; packed constants are left out.
            out: array to write to, or a tuple of them for several results; it overlaps no
                input. Where an input of that name is not among ``arrays``, this is that
                input. Elements that an output given by
                :meth:`amos.Operator.with_output` does not reach keep their values.
            named: inputs by name; a packed constant given here is used once.

        Returns:
            The output in the operator's shape: ``out``, or a new NumPy array, or a tuple of
            arrays for several results.

        Raises:
            BuildError: an input is missing, unknown, or of another shape, dtype,
                layout or device; ``out`` is that, read-only, or overlaps an input.
        """
        if out is not None and "out" in list(self._open)[len(arrays) :]:
            named, out = {**named, "out": out}, None
        bound = self._bind(arrays, named)
        if out is None:
            kinds = [str(tensor.dtype) for tensor in self._results]
            if any(container_dtype(kind) != dtype(kind).numpy.name for kind in kinds):
                arguments = self._prepare(bound)
                self._run(*arguments)
                return self.result(arguments)
            fresh = [allocate_aligned(x.shape, dtype(str(x.dtype)).numpy) for x in self._results]
            if not self._operator.whole:
                for array in fresh:
                    array[...] = 0
            out = fresh[0] if len(fresh) == 1 else tuple(fresh)
        self._run(*self._prepare(bound, out))
        return out

    def result(self, arguments: list[Any]) -> Any:
        """Return the output of a run on arrays made by :meth:`prepare`, as a call does."""
        written = arguments[-len(self._results) :]
        arrays = [
            from_tensor(array, str(tensor.dtype)).reshape(tensor.shape)
            for array, tensor in zip(written, self._results, strict=True)
        ]
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    def prepare(self, inputs: MappingType[str, Any], out: Any = None) -> list[Any]:
        """Make TVM arrays for one call: sources as the function takes them, then the output.

        They share the memory of the arguments, which must not be freed or resized
        while they are used.

        Args:
            inputs: an array for each input that is not packed.
            out: array to write to; a new one if omitted.
        """
        return self._prepare(self._bind((), dict(inputs)), out)

    def _prepare(self, bound: MappingType[str, Any], out: Any = None) -> list[Any]:
        """Make the arrays as :meth:`prepare` does, for inputs that are already bound by name."""
        inputs = [
            self._packed[number]
            if number in self._packed and not needed.keys() <= bound.keys()
            else self._tensor(number, bound)
            for number, needed in enumerate(self._take)
        ]
        if out is None:
            results = self._arguments[len(self._sources) :]
            fresh = [to_tensor(np.zeros(a.shape, dtype(a.dtype).numpy), a.dtype) for a in results]
            return [*inputs, *fresh]
        for take, array in zip(self._take_out, self._outputs(out), strict=True):
            target, place = take(array), len(inputs)
            start = target.data_ptr()
            end = start + self._sizes[place]
            for number, tensor in enumerate(inputs):
                first = tensor.data_ptr()
                if first < end and start < first + self._sizes[number]:
                    role = "input" if number < len(self._take) else "output"
                    raise BuildError(
                        f"output {self._arguments[place].tensor!r}: shares memory with {role} "
                        f"{self._arguments[number].tensor!r}"
                    )
            inputs.append(target)
        return inputs

    def _outputs(self, out: Any) -> tuple[Any, ...]:
        if len(self._results) == 1:
            return (out,)
        names = ", ".join(tensor.name for tensor in self._results)
        if not isinstance(out, tuple | list) or len(out) != len(self._results):
            raise BuildError(
                f"out: expected a tuple of {len(self._results)} arrays ({names}), got "
                f"{type(out).__name__}" + (f" of {len(out)}" if isinstance(out, tuple) else "")
            )
        return tuple(out)

    def export(self, path: str) -> None:
        """Write the compiled kernel as a shared library, which needs a C compiler."""
        self._library.export_library(path)

    def run(self, arguments: list[Any]) -> None:
        """Run on arrays made by :meth:`prepare`."""
        self._run(*arguments)

    def times(
        self, inputs: MappingType[str, Any] | None = None, repeat: int = 10, flush: int = 0
    ) -> tuple[float, ...]:
        """Measure the seconds of one run ``repeat`` times after a warm-up.

        Packing of constants and allocation are not part of the time; staging of
        the other inputs is. With ``flush`` as many bytes of cache are overwritten
        before each run, and each repeat times a single run.
        """
        if inputs is None:
            rng = np.random.default_rng(0)
            inputs = random_inputs(self._operator, rng)
        return time_runs(self._library.mod, tvm.cpu(), self.prepare(inputs), repeat, flush)

    def time(self, inputs: MappingType[str, Any] | None = None, repeat: int = 10) -> float:
        """Return the median seconds of one run; see :meth:`times`."""
        return statistics.median(self.times(inputs, repeat))

    def _bind(self, arrays: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        if not arrays and named.keys() == self._open.keys():
            return named
        if len(arrays) > len(self._open):
            raise BuildError(
                f"expected {len(self._open)} arrays ({', '.join(self._open)}), got {len(arrays)}"
            )
        bound = dict(zip(self._open, arrays, strict=False))
        for name, array in named.items():
            if name not in self._tensors:
                raise BuildError(f"unknown input {name!r}; inputs are {', '.join(self.inputs)}")
            if name in bound:
                raise BuildError(f"input {name!r} is given twice")
            bound[name] = array
        if missing := [name for name in self._open if name not in bound]:
            raise BuildError(f"missing input {', '.join(missing)}")
        return bound

    def _inputs_of(self, argument: Argument) -> tuple[Tensor, ...]:
        """Return the inputs that an argument is computed from."""
        if argument.packed is None:
            return (self._tensors[argument.tensor],)
        return self._operator.inputs_of(argument.tensor)

    def _tensor(self, number: int, arrays: MappingType[str, Any]) -> Any:
        """Make the argument of a number from the user's arrays, by name."""
        argument, take = self._arguments[number], self._take[number]
        packed = argument.packed
        if packed is None:
            ((name, adapter),) = take.items()
            return adapter(arrays[name])
        inputs = {name: adapter.values(arrays[name]) for name, adapter in take.items()}
        if packed.prologue is None:
            value = inputs[argument.tensor]
        else:
            value = source_value(packed.nest.mapping.operator, packed.load.tensor, inputs)
        return to_tensor(stage_array(packed, value), argument.dtype)
