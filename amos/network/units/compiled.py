"""A network whose layers run on a simulated unit, and everything else in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
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
from amos.network.external.partition import PartitionedNetwork
from amos.network.external.report import PRODUCTS
from amos.network.external.sessions import array_of
from amos.network.model import Check, bind_inputs, check_results, random_arrays
from amos.network.precision.samples import Samples, read_samples
from amos.network.units.reference import evaluate_reference, quantum_of
from amos.network.units.stages import Layer, Stage, UnitStage
from amos.runtime.simulated import SimulatedKernel, SimulatedRun
from amos.validate import evaluate

#: Share of a quantum that still is one: floats are rounded when integers become such.
_QUANTUM = 1.001
#: Relative 2-norm of a difference that levels of 8 bits cause which are rounded differently.
_ROUNDED_APART = 0.25


@dataclass(frozen=True)
class LayerRun:
    """A layer on the unit, with all that one run of it takes.

    Attributes:
        name: of its function in the model.
        stream: name of the first layer that runs the same stream.
        kind: name of the operator.
        operator: that the unit computes.
        instruction: that computes its products.
        mapping: name of the mapping.
        cycles: from its first instruction to the end of its last one.
        seconds: the same by the machine's clock.
        busy_cycles: in which each queue works.
        moved_bytes: from and to DRAM.
        products: that it adds up.
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
class UnitNetwork:
    """A network for a unit that a simulator runs.

    Calling it with the network's inputs, in order or by name, returns its output, or a tuple of
    them.

    Attributes:
        network: that was compiled.
        machine: with the unit.
        layers: that the unit computes, by region.
        stages: that compute the network, one after the other.
        reasons: why products stay with the host, by operator.
        compared: names of the layers of which every element was that of NumPy.
        check: comparison of the whole with onnxruntime.
    """

    network: PartitionedNetwork
    machine: Machine
    layers: Mapping[str, tuple[Layer, ...]]
    stages: tuple[Stage, ...] = field(repr=False)
    reasons: Mapping[str, str] = field(default_factory=dict)
    compared: frozenset[str] = frozenset()
    check: Check | None = None

    def __call__(self, /, *arrays: Any, **named: Any) -> Any:
        """Run the network, its layers on the simulated unit.

        Raises:
            NetworkError: an input is missing or unknown, or onnxruntime fails.
            BuildError: an input is of another shape, dtype or device.
        """
        results = self.outputs_of(bind_inputs(self.network.inputs, arrays, named))
        return results[0] if self.network.single else results

    def outputs_of(self, arrays: Sequence[Any]) -> tuple[np.ndarray, ...]:
        """Run it on inputs in order; returns all outputs. Errors are those of a call."""
        return self._run(arrays, compare=False, line=ProgressLine(False))

    def verified(self, samples: Samples | None, line: ProgressLine) -> UnitNetwork:
        """Return it with comparisons of one run: of layers with NumPy, of the whole.

        Raises:
            NetworkError: a layer or the whole is wrong.
        """
        network = self.network
        arrays: Sequence[Any] = random_arrays(network)
        if samples is not None:
            arrays = read_samples(network, samples)[0]
        results = self._run(arrays, compare=True, line=line)
        names = frozenset(layer.name for each in self.layers.values() for layer in each)
        return replace(self, compared=names, check=self._compared(arrays, results))

    def _compared(self, arrays: Sequence[Any], results: Sequence[np.ndarray]) -> Check | None:
        """Compare the whole with onnxruntime, if that runs the model.

        Raises:
            NetworkError: it differs by more than rounding.
        """
        network = self.network
        expected = evaluate_reference(network, arrays)
        if network.reference is None or expected is None:
            return None
        regions = network.networks.values()
        rounded = any(each.rounds for each in regions)
        name = network.reference.name
        check = check_results(network.name, name, results, expected, rounded=rounded)
        quantum = quantum_of(network)
        if quantum is not None:
            check = replace(check, allowed=max(check.allowed, _QUANTUM * quantum))
        if not check.passed:
            quantized = any(each.quantized for each in regions)
            if not quantized or not check.share <= _ROUNDED_APART:
                raise NetworkError(f"{network.name} on {self.machine.name} {check}")
            check = replace(check, rounded_apart=True)
        return check

    def _run(
        self, arrays: Sequence[Any], *, compare: bool, line: ProgressLine
    ) -> tuple[np.ndarray, ...]:
        """Run all stages; compare each layer with NumPy where that is asked for."""
        ports, total = self.network.inputs, sum(map(len, self.layers.values()))
        values = {p.name: array_of(p, x) for p, x in zip(ports, arrays, strict=True)}
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
        """Of all layers, one after the other."""
        return sum(run.cycles for run in self.runs)

    @property
    def seconds(self) -> float:
        """The same by the machine's clock."""
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
        if any(operation in PRODUCTS for operation, _ in network.external):
            return None
        total = sum(prod(x.operator.extents.values()) * x.weight for x in network.tasks)
        for region in network.networks.values():
            total += sum(map(count_products, region.grouping.ungrouped))
        return sum(run.products for run in self.runs) / total if total else None

    def export(self, folder: str | Path) -> tuple[Path, ...]:
        """Write model, streams and constants; see :func:`amos.network.units.export.write_files`.

        Raises:
            NetworkError: nothing can be written there.
        """
        from amos.network.units.export import write_files

        return write_files(self, folder)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; seconds."""
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
            "host": [{"operator": name, "reason": why} for name, why in self.reasons.items()],
            "check": None if self.check is None else asdict(self.check),
        }

    def __str__(self) -> str:
        share = "an unknown share" if self.unit_share is None else f"{self.unit_share:.1%}"
        streams = len({run.stream for run in self.runs})
        lines = [
            f"{self.network.name} on {self.machine.name}: {several(len(self.runs), 'layer')} by "
            f"{several(streams, 'stream')}, {share} of the products"
        ]
        if self.runs:
            lines.append(
                f"  {self.cycles:,} cycles, {self.seconds * 1e3:.4g} ms, {self.utilization:.1%} of "
                f"the peak, {self.moved_bytes / 1024:,.0f} KiB from and to DRAM (simulated)"
            )
        lines += [f"  host: {name}: {why}" for name, why in self.reasons.items()]
        if self.compared:
            compared = several(len(self.compared), "layer")
            lines.append(f"  every element of {compared} equals NumPy's")
        return "\n".join([*lines, *([f"  {self.check}"] if self.check else [])])

    __repr__ = __str__
