"""A compiled network: called on arrays, as the model was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from amos._display import Shown, several
from amos.codegen.tir.arrays import from_tensor
from amos.errors import NetworkError
from amos.ir import Tensor, dtype
from amos.measure.reference import compared
from amos.network import engine
from amos.network.cascades import CascadeTask
from amos.network.graph import Node
from amos.network.groups import Task
from amos.network.kernels import TaskKernel
from amos.network.levels import BYTES
from amos.network.network import Network, Port
from amos.network.tolerances import allowed, rounds
from amos.runtime.borrow import ArgumentAdapter

if TYPE_CHECKING:
    from amos.network.comparison import Comparison
    from amos.network.profile import Profile
    from amos.network.report import Report


@dataclass(frozen=True)
class Check:
    """Something that was held against a reference.

    Attributes:
        name: of the network, or what a kernel computes.
        reference: what it was compared with.
        difference: the largest one.
        allowed: the largest one that would have passed.
        spread: elements that Winograd's tiles of floats spoil, as they spread NaN and
            infinities; they are not compared.
    """

    name: str
    reference: str
    difference: float
    allowed: float
    spread: int = 0

    @property
    def passed(self) -> bool:
        """Whether it is right."""
        return self.difference <= self.allowed

    @property
    def excess(self) -> float:
        """The difference over what is allowed."""
        if not self.difference:
            return 0.0
        return self.difference / self.allowed if self.allowed else np.inf

    def __str__(self) -> str:
        spread = f", without {self.spread} that tiles spoil" if self.spread else ""
        return (
            f"differs from {self.reference} by {self.difference:.3g}, {self.allowed:.3g} is "
            f"allowed{spread}: {self.name}"
        )


@dataclass(frozen=True, eq=False)
class CompiledNetwork(Shown):
    """A network, compiled for this CPU.

    Calling it with the network's inputs, in order or by name, returns its output, or a tuple
    of them. Inputs are NumPy arrays or tensors of any package that speaks DLPack.

    Attributes:
        network: what it was made of.
        executable: the engine's.
        kernels: what tasks run as; of those that a cascade computes everywhere, the cascade.
        left: why tasks stay with the engine.
        checks: what was compared with a reference.
        comparisons: kernels of tasks that were timed inside the network.
        unused: records of its tasks that do not count here, how many by the reason.
        failures: what was wrong with kernels that gave way to others or to the engine.
        function: of the executable, which holds one for each bucket.
    """

    network: Network
    executable: Any
    kernels: Mapping[Task | CascadeTask, TaskKernel]
    left: Mapping[Task, str] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    unused: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    function: str = "main"
    _lock: Any = field(default_factory=Lock, repr=False)

    @cached_property
    def _main(self) -> Any:
        return engine.machine_of(self.executable)[self.function]

    @cached_property
    def _readers(self) -> tuple[Callable[[Any], Any], ...]:
        """What makes the engine's array of each input.

        A network drives Python out of the caches near a core: each step of a call takes
        microseconds.
        """
        return tuple(map(_reader, self.network.inputs))

    def __call__(self, /, *arrays: Any, **named: Any) -> Any:
        """Run the network.

        Raises:
            NetworkError: an input is missing or unknown.
            BuildError: an input is of another shape, dtype or device.
        """
        outputs = self.outputs_of(bound(self.network.inputs, arrays, named))
        return outputs[0] if self.network.graph.single else outputs

    def outputs_of(self, arrays: Sequence[Any]) -> tuple[np.ndarray, ...]:
        """Every output, of inputs in order; errors as of a call."""
        values = self.tensors(arrays)
        with self._lock:  # the engine's machine has one stack
            results = self._main(*values)
        tensors = [results] if self.network.graph.single else list(results)
        ports = self.network.outputs
        return tuple(_values(t, port.dtype) for t, port in zip(tensors, ports, strict=True))

    def tensors(self, arrays: Sequence[Any]) -> list[Any]:
        """The engine's arrays of inputs in order."""
        return [read(value) for read, value in zip(self._readers, arrays, strict=True)]

    def check(self, /, *arrays: Any, **named: Any) -> tuple[Check, ...]:
        """Compare the results with those of others that run the model.

        They are the engine with the model as it was read, and PyTorch or onnxruntime, whichever
        the model is for, if it is installed and takes it.

        Args:
            arrays: inputs in order; random ones where none are given at all.
            named: inputs by name.

        Returns:
            the differences. Quantized results may be the next quantum of what floats are
            rounded to, and so may differ by more than is allowed from those of floats; where
            floats are summed before, from those of the engine too.

        Raises:
            NetworkError, BuildError: as of a call; NetworkError also where results differ by more.
        """
        network, given = self.network, arrays or named
        values = bound(network.inputs, arrays, named) if given else random_arrays(network)
        plain = engine.executable(network.original, name=network.name, fused=False)
        alone = CompiledNetwork(network, plain, {}, {}, ())
        expected = {"the engine alone": alone.outputs_of(values)}
        # Kernels sum floats in another order than the engine, integers as it does.
        exact = not any(task.operator.inputs[0].dtype == "float32" for task in self.kernels)
        if network.reference is not None:
            results = network.reference.evaluate([*map(values_of, network.inputs, values)])
            if results is not None:
                expected[network.reference.name] = tuple(results)
        got, checks = self.outputs_of(values), []
        for name, results in expected.items():
            checks.append(check := check_outputs(network, name, got, results, self.spreads))
            if not check.passed and (name == "the engine alone" and exact or not network.quantized):
                raise NetworkError(
                    f"{network.name}: differs from {name} by {check.difference:g}, "
                    f"{check.allowed:g} is allowed"
                )
        return tuple(checks)

    @property
    def spreads(self) -> bool:
        """Whether Winograd's tiles of floats may spread what is not finite."""
        forms = (kernel.choice.winograd for kernel in self.kernels.values())
        return any(form and not form.integer for form in forms)

    def profile(self, /, *arrays: Any, repeat: int = 20, **named: Any) -> Profile:
        """What each function takes inside the network, with what was predicted of it.

        Args:
            arrays: inputs in order; random ones where none are given at all.
            repeat: runs, of which the median counts.
            named: inputs by name.

        Raises:
            NetworkError, BuildError: as of a call.
            ExploreError: ``repeat`` is not a whole number from 1 on.
        """
        from amos.network.profile import profile

        given = arrays or named
        values = bound(self.network.inputs, arrays, named) if given else random_arrays(self.network)
        return profile(self, values, repeat)

    def report(self) -> Report:
        """What runs where: the report of the network, with the kernels that it has.

        Raises:
            MeasureError: this machine could not be measured.
        """
        from amos.network.report import compiled_report

        return compiled_report(self)

    def export(self, folder: str | Path) -> tuple[Path, ...]:
        """Write a library that runs without Python, and C++ that loads, runs and tests it.

        The network takes its weights, which are in a file of their own, as arguments behind
        the inputs. Files that are there are replaced one by one, when all of the new ones are
        complete.

        Args:
            folder: where to; it is made if it is not there.

        Returns:
            the files.

        Raises:
            NetworkError: there is no C++ compiler, or nothing can be written there.
        """
        from amos.network.export import export_network

        return export_network({"": self}, folder)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; seconds."""
        return {
            "network": self.network.name,
            "kernels": [
                {
                    "kind": task.operator.name,
                    "operator": str(task.operator),
                    "count": task.weight,
                    **kernel.choice.to_dict(),
                }
                for task, kernel in self.kernels.items()
            ],
            "engine": [
                {"operator": str(task.operator), "count": task.weight, "reason": reason}
                for task, reason in self.left.items()
            ],
            "unused_records": dict(self.unused),
            "failures": list(self.failures),
            "checks": [asdict(check) for check in self.checks],
            "comparisons": [asdict(each) | {"chosen": each.chosen} for each in self.comparisons],
        }

    def __str__(self) -> str:
        called = sum(task.weight for task in self.kernels)
        measured = sum(kernel.choice.seconds is not None for kernel in self.kernels.values())
        lines = [
            f"{self.network.name}: {several(called, 'call')} of "
            f"{several(len(self.kernels), 'kernel')}, {measured} from records"
        ]
        lines += [
            f"  {several(count, 'record')} not used: {why}" for why, count in self.unused.items()
        ]
        lines += [f"  not used: {why}" for why in self.failures]
        lines += [f"  engine: {task.operator}: {why}" for task, why in self.left.items()]
        return "\n".join([*lines, *(f"  {each}" for each in (*self.comparisons, *self.checks))])

    __repr__ = __str__


def bound(ports: Sequence[Port], arrays: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
    """The arrays of a call in the order of the ports.

    Raises:
        NetworkError: an input is missing or unknown.
    """
    if len(arrays) == len(ports) and not named:
        return [*arrays]
    names = [port.name for port in ports]
    if len(arrays) > len(names):
        raise NetworkError(f"expected {len(names)} arrays ({', '.join(names)}), got {len(arrays)}")
    values = dict(zip(names, arrays, strict=False))
    for name, array in named.items():
        if name not in names:
            raise NetworkError(f"unknown input {name!r}; inputs are {', '.join(names)}")
        if name in values:
            raise NetworkError(f"input {name!r} is given twice")
        values[name] = array
    if missing := [name for name in names if name not in values]:
        raise NetworkError(f"missing input {', '.join(missing)}")
    return [values[name] for name in names]


def check_outputs(
    network: Network,
    reference: str,
    got: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    spreads: bool = False,
) -> Check:
    """Results held against others, the worst; some may not be finite if it ``spreads``."""
    worst, rounded, spread = Check(network.name, reference, 0.0, 0.0), rounds(network), 0
    for one, other, port in zip(got, expected, network.outputs, strict=True):
        same = one.dtype == other.dtype
        if spreads and one.shape == other.shape and dtype(port.dtype).numpy.kind == "f":
            spoiled = ~np.isfinite(one) & ~np.isnan(other)
            spread += int(np.count_nonzero(spoiled & (one != other)))
            one = np.where(spoiled, other, one)
        apart, strange = compared(one, other) if one.size == other.size else (np.inf, 0)
        check = Check(
            network.name,
            reference,
            apart if same and not strange else np.inf,
            allowed(port.dtype, other, rounded),
        )
        if check.excess >= worst.excess:
            worst = check
    return replace(worst, spread=spread)


def random_arrays(
    network: Network, seed: int = 0, integers: tuple[int, int] | None = None
) -> list[np.ndarray]:
    """Draw inputs; by default integers of 0 and 1, which can be indices, or 1 where some divide."""
    return random_values(network.inputs, seed, integers or (int(divides_integers(network)), 1))


def random_values(
    ports: Sequence[Port], seed: int = 0, integers: tuple[int, int] = (0, 1)
) -> list[np.ndarray]:
    """Draw values of ports: floats of a normal distribution, bytes, and integers of a range."""
    rng = np.random.default_rng(seed)
    return [_random(port, rng, *integers) for port in ports]


def _random(port: Port, rng: np.random.Generator, low: int, high: int) -> np.ndarray:
    kind = dtype(port.dtype).numpy
    if kind.kind == "f":
        return rng.standard_normal(port.shape).astype(kind)
    if port.dtype in BYTES:
        low, high = dtype(port.dtype).limits
    if kind.kind != "i":
        low, high = max(low, 0), max(high, 0)
    return rng.integers(low, high, port.shape, endpoint=True).astype(kind)


def divides_integers(network: Network) -> bool:
    """Whether integers are divided by what is no constant: of 0, the process would die."""
    return any(
        node.operation in ("divide", "floor_divide", "mod", "floor_mod")
        and "int" in node.dtype
        and isinstance(node.operands[1], Node)
        for node in network.graph.nodes
    )


def values_of(port: Port, value: Any) -> np.ndarray:
    """What an input holds, as an array of NumPy: bfloat16 as float32, truth values as bytes.

    Raises:
        BuildError: it is of another shape, dtype or device.
    """
    return _adapter(port).values(_plain(value, port.dtype))


@lru_cache(maxsize=1024)  # making one takes longer than some networks do
def _adapter(port: Port) -> ArgumentAdapter:
    return ArgumentAdapter(Tensor(port.name, port.shape, port.dtype), port.shape)


def _plain(value: Any, kind: str) -> Any:
    """An input as adapters know it: truth values are bytes."""
    if kind == "bool" and np.asarray(value).dtype == np.bool_:
        return np.asarray(value).view(np.uint8)
    return value


def _reader(port: Port) -> Callable[[Any], Any]:
    """What makes a TVM array over the memory of an input."""
    adapter, kind = _adapter(port), port.dtype
    if kind not in ("bfloat16", "bool"):
        return adapter

    def read(value: Any) -> Any:
        tensor = adapter(_plain(value, kind))
        # Kernels take bfloat16 as bits, the engine as such.
        return tensor if str(tensor.dtype) == kind else tensor._create_view(tensor.shape, kind)

    return read


def _values(tensor: Any, kind: str) -> np.ndarray:
    """An array of an output's values, and of nothing else: the engine may return a constant."""
    # TVM's own copy takes ten times as long.
    return from_tensor(tensor, kind) if kind == "bfloat16" else np.from_dlpack(tensor).copy()
