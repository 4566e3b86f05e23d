"""A network whose layers run on a simulated unit, and everything else in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from amos._display import several
from amos._progress import ProgressLine
from amos.errors import NetworkError
from amos.machine import Machine
from amos.measure.reference import compare_arrays
from amos.network.anchors import count_products
from amos.network.checks import Check, check_results
from amos.network.external.partition import PartitionedNetwork
from amos.network.frontend import PRODUCT_OPERATORS
from amos.network.inputs import CallableNetwork, random_arrays, values_of
from amos.network.precision.samples import Samples, read_samples
from amos.runtime.simulated import SimulatedKernel, SimulatedRun
from amos.streams.networks.reference import evaluate_reference, quantum_of
from amos.streams.networks.stages import Layer, Stage, UnitStage
from amos.validate import evaluate

#: Share of a quantum that counts as a whole one: floats that integers become are rounded.
_QUANTUM = 1.001
#: Allowed difference from onnxruntime, in differences of its two modes from each other.
_MODES = 2.0


@dataclass(frozen=True)
class LayerRun:
    """A layer on the unit, with the costs of one run of it.

    Attributes:
        name: of its function in the model.
        stream: name of the first layer that runs the same stream.
        cycles: from its first instruction to the end of its last one.
        busy_cycles: in which each queue works.
        moved_bytes: from and to DRAM.
        utilization: share of the unit's peak.
        transfer_share: share of the port's rate to DRAM.
        host_steps: that the host does of the group, in words.
        equal: whether every element is that of NumPy; ``None`` if it was not compared.
    """

    name: str
    stream: str
    kind: str
    operator: str
    instruction: str
    mapping: str
    cycles: int
    seconds: float
    busy_cycles: Mapping[str, int]
    moved_bytes: int
    products: int
    utilization: float
    transfer_share: float
    host_steps: tuple[str, ...] = ()
    equal: bool | None = None


@dataclass(frozen=True, eq=False)
class UnitNetwork(CallableNetwork):
    """A network for a unit that a simulator runs.

    Calling it with the network's inputs, in order or by name, returns its output, or a tuple of
    them.

    Attributes:
        layers: that the unit computes, by region.
        stages: that compute the network, in order.
        reasons: why products stay with the host, by operator.
        quantization_error: relative 2-norm by which quantizing it changed results; ``None`` of a
            model that was quantized before.
        compared: names of the layers of which every element was that of NumPy.
        check: comparison of the whole with onnxruntime.
        uncompared: why there is none, if the whole was to be compared.
    """

    network: PartitionedNetwork
    machine: Machine
    layers: Mapping[str, tuple[Layer, ...]]
    stages: tuple[Stage, ...] = field(repr=False)
    reasons: Mapping[str, str] = field(default_factory=dict)
    quantization_error: float | None = None
    compared: frozenset[str] = frozenset()
    check: Check | None = None
    uncompared: str = ""

    def outputs_of(self, arrays: Sequence[Any]) -> tuple[np.ndarray, ...]:
        """Run it on inputs in order; returns all outputs. Errors are those of a call."""
        return self._run(arrays, compare=False, line=ProgressLine(False))

    def verify(self, samples: Samples | None, line: ProgressLine) -> UnitNetwork:
        """Compare layers with NumPy and the whole, or raise NetworkError; return it with them."""
        network = self.network
        arrays: Sequence[Any] = random_arrays(network)
        if samples is not None:
            arrays = read_samples(network, samples)[0]
        results = self._run(arrays, compare=True, line=line)
        names = frozenset(layer.name for each in self.layers.values() for layer in each)
        compiled = replace(self, compared=names, check=None)
        if network.reference is None:
            return compiled
        if network.is_random:
            return replace(compiled, uncompared=f"{network.name} draws random numbers")
        try:
            expected = evaluate_reference(network, arrays)
        except NetworkError as error:
            return replace(compiled, uncompared=str(error))
        return replace(compiled, check=compiled._compare_whole(arrays, results, expected))

    def _compare_whole(
        self, arrays: Sequence[Any], results: Sequence[np.ndarray], expected: Sequence[np.ndarray]
    ) -> Check:
        """Compare the whole with the results of the model's framework, or raise NetworkError."""
        network, regions = self.network, self.network.networks.values()
        assert network.reference is not None
        compare = partial(
            check_results,
            network.name,
            network.reference.name,
            expected=expected,
            rounded=any(each.rounds for each in regions),
        )
        check = compare(results)
        if (quantum := quantum_of(network)) is not None:
            check = replace(check, allowed=max(check.allowed, _QUANTUM * quantum))
        if not check.passed and any(each.quantized for each in regions):
            # Levels that are rounded differently differ in the framework's own two modes too.
            gap = compare(evaluate_reference(network, arrays, optimized=False)).difference
            if np.isfinite(gap):
                check = replace(check, allowed=max(check.allowed, _MODES * gap))
        if not check.passed:
            raise NetworkError(f"{network.name} on {self.machine.name} {check}")
        return check

    def _run(
        self, arrays: Sequence[Any], *, compare: bool, line: ProgressLine
    ) -> tuple[np.ndarray, ...]:
        ports, total = self.network.inputs, sum(map(len, self.layers.values()))
        values = {p.name: values_of(p, x) for p, x in zip(ports, arrays, strict=True)}
        count = 0
        for stage in self.stages:
            if not isinstance(stage, UnitStage):
                stage.run(values)
                continue
            count += 1
            line.show(f"layer {count} of {total}: {stage.layer.operator.name}")
            inputs = stage.arrange(values)
            run = stage.layer.kernel.simulate(inputs)
            if compare:
                self._compare(stage.layer, inputs, run)
            stage.store(run, values)
        return tuple(values[name] for name in self.network.output_names)

    def _compare(self, layer: Layer, inputs: Mapping[str, np.ndarray], run: SimulatedRun) -> None:
        assert run.result is not None
        expected = np.asarray(evaluate(layer.operator, inputs))
        if compare_arrays(run.result.reshape(expected.shape), expected) != (0, 0):
            raise NetworkError(
                f"{layer.name} on {self.machine.name}: the stream of {layer.operator} does not "
                "compute what NumPy does"
            )

    @cached_property
    def runs(self) -> tuple[LayerRun, ...]:
        """All layers in the order in which they run."""
        stages = [stage for stage in self.stages if isinstance(stage, UnitStage)]
        timed: dict[SimulatedKernel, SimulatedRun] = {}
        names: dict[SimulatedKernel, str] = {}
        for stage in stages:
            kernel = stage.layer.kernel
            if kernel not in timed:
                timed[kernel], names[kernel] = kernel.simulate(None), stage.layer.name
        kernels = [stage.layer.kernel for stage in stages]
        return tuple(
            self._row(stage.layer, timed[kernel], names[kernel])
            for stage, kernel in zip(stages, kernels, strict=True)
        )

    def _row(self, layer: Layer, run: SimulatedRun, stream: str) -> LayerRun:
        mapping, machine = layer.candidate.mapping, self.machine
        unit, seconds = mapping.intrinsic, run.cycles / machine.clock
        products = prod(layer.operator.extents.values())
        peak = prod(unit.shape) / machine.peak(unit.name).interval
        return LayerRun(
            name=layer.name,
            stream=stream,
            kind=layer.operator.name,
            operator=str(layer.operator),
            instruction=unit.name,
            mapping=mapping.name,
            cycles=run.cycles,
            seconds=seconds,
            busy_cycles=dict(run.busy_cycles),
            moved_bytes=run.moved_bytes,
            products=products,
            utilization=products / (seconds * peak),
            transfer_share=run.moved_bytes / (seconds * machine.levels[-1].read_bandwidth),
            host_steps=layer.host_steps,
            equal=True if layer.name in self.compared else None,
        )

    @property
    def cycles(self) -> int:
        """Cycles of all layers in sequence."""
        return sum(run.cycles for run in self.runs)

    @property
    def seconds(self) -> float:
        """Seconds of all layers by the machine's clock."""
        return self.cycles / self.machine.clock

    @property
    def moved_bytes(self) -> int:
        """From and to DRAM, of all layers."""
        return sum(run.moved_bytes for run in self.runs)

    @property
    def utilization(self) -> float | None:
        """Share of the unit's peak while layers run; ``None`` without a layer."""
        if not self.runs:
            return None
        return sum(run.utilization * run.seconds for run in self.runs) / self.seconds

    @property
    def unit_share(self) -> float | None:
        """Share of the products that the unit adds up.

        ``None`` without any, or where onnxruntime adds up products whose number is not known.
        """
        network = self.network
        if any(operation in PRODUCT_OPERATORS for operation, _ in network.external):
            return None
        total = sum(prod(x.operator.extents.values()) * x.weight for x in network.tasks)
        for region in network.networks.values():
            total += sum(map(count_products, region.grouping.ungrouped))
        return sum(run.products for run in self.runs) / total if total else None

    def export(self, folder: str | Path) -> tuple[Path, ...]:
        """Write model, streams and constants; see :func:`.write_files`."""
        from amos.streams.networks.export import write_files

        return write_files(self, folder)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; times in seconds."""
        return {
            "network": self.network.name,
            "machine": self.machine.name,
            "simulated": True,
            "unit_share": self.unit_share,
            "cycles": self.cycles,
            "seconds": self.seconds,
            "moved_bytes": self.moved_bytes,
            "utilization": self.utilization,
            "layers": [asdict(run) for run in self.runs],
            "quantization_error": self.quantization_error,
            "host": [{"operator": name, "reason": why} for name, why in self.reasons.items()],
            "check": None if self.check is None else asdict(self.check),
        }

    @property
    def _share(self) -> str:
        if self.unit_share is not None:
            return f"{self.unit_share:.1%} of the products"
        is_unknown = any(operation in PRODUCT_OPERATORS for operation, _ in self.network.external)
        return "an unknown share of the products" if is_unknown else "the model has no products"

    def __str__(self) -> str:
        streams = len({run.stream for run in self.runs})
        lines = [
            f"{self.network.name} on {self.machine.name}: {several(len(self.runs), 'layer')} by "
            f"{several(streams, 'stream')}, {self._share}"
        ]
        if self.runs:
            lines.append(
                f"  {self.cycles:,} cycles, {self.seconds * 1e3:.4g} ms, {self.utilization:.1%} of "
                f"the peak, {self.moved_bytes / 1024:,.0f} KiB from and to DRAM (simulated)"
            )
        lines += [f"  host: {name}: {why}" for name, why in self.reasons.items()]
        sources = (x.tensor.kind for task in self.network.tasks for x in task.operator.sources)
        if not self.runs and any(kind and not kind.is_integer for kind in sources):
            hint = "products of floats are quantized by samples (--samples FILE.npz)"
            lines.append(f"  for units of int8, {hint}")
        if self.quantization_error is not None:
            error = f"{self.quantization_error:.2g}"
            lines.append(f"  quantized to int8, which changes results by {error} (2-norm)")
        if self.compared:
            compared = several(len(self.compared), "layer")
            lines.append(f"  every element of {compared} equals NumPy's")
        if self.uncompared:
            lines.append(f"  not compared as a whole: {self.uncompared}")
        return "\n".join([*lines, *([f"  {self.check}"] if self.check else [])])

    __repr__ = __str__
