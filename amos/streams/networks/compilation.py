"""Compilation for a unit that a simulator runs: a stream for each group that the unit takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from amos import machines
from amos._progress import ProgressLine
from amos.errors import AmosError, BuildError, MappingError, NetworkError
from amos.explore.choosing import Chooser, Product
from amos.intrinsics import Intrinsic
from amos.ir import BufferLoad, Operator
from amos.machine import Machine
from amos.network.buckets import BucketedNetwork, Loaded
from amos.network.external.partition import PartitionedNetwork
from amos.network.frontend import PRODUCT_OPERATORS
from amos.network.graph import Constant, Operand
from amos.network.groups import CallSite, Group, Task
from amos.network.offload import ZERO_POINT, Offload, predict_offload
from amos.network.precision.choosing import check_choice, choose_precision
from amos.network.precision.samples import Samples
from amos.plan import Candidate
from amos.plan.target import target_of
from amos.runtime.simulated import SimulatedKernel
from amos.streams.networks.compiled import UnitNetwork
from amos.streams.networks.stages import Layer, list_stages
from amos.validate import evaluate

#: Streams of a task that are simulated, the ones with the least predicted time.
_SIMULATED = 4


def compile_for_unit(
    network: Loaded,
    machine: str | Machine,
    intrinsics: Sequence[Intrinsic] = (),
    *,
    samples: Samples | None = None,
    budget: float | None = None,
    verify: bool = True,
    progress: bool = True,
) -> UnitNetwork:
    """Write a stream for each group of a network that a unit takes.

    Of each task the streams that the model ranks first are simulated, and the fastest is used.
    onnxruntime runs all that the unit does not compute.

    Args:
        network: what :func:`amos.load_network` returned.
        machine: with a unit that a simulator runs, by name or itself.
        intrinsics: the only instructions to use; by default all that the machine has.
        samples: inputs of calls, by whose ranges products of floats are quantized; without them
            these stay with the host.
        budget: relative 2-norm by which quantization may change results; any by default.
        verify: run the network once, on the first sample or on random inputs, and compare each
            layer with NumPy and the whole with onnxruntime.
        progress: show how far it is, on a terminal and in a notebook.

    Raises:
        MachineError: the machine has no rate of an instruction.
        NetworkError: it has no simulator, a layer or the whole is wrong, quantization exceeds
            the budget, onnxruntime fails, or there are buckets.
    """
    check_simulator(machine, intrinsics)
    if budget is not None:
        check_choice("int8", budget)
    if isinstance(network, BucketedNetwork):
        raise NetworkError("networks with buckets are compiled for this CPU only")
    chooser = Chooser(machine, intrinsics=intrinsics)
    error: float | None = None
    with ProgressLine(progress) as line:
        regions = network.networks.values()
        if samples is not None and not any(each.quantized for each in regions):
            line.show("quantizing")
            variant = choose_precision(network, "int8", samples=samples).chosen
            network, error = variant.network, variant.error
            if budget is not None and not error <= budget:
                raise NetworkError(
                    f"{network.name}: int8 changes results by {error:.2g} (relative 2-norm), "
                    f"more than the budget of {budget:g}"
                )
        builder = _Builder(chooser, line)
        layers = {
            name: [*builder.layers(name, region.network.tasks)]
            for name, region in network.regions.items()
        }
        compiled = UnitNetwork(
            network=network,
            machine=chooser.target(intrinsics),
            layers={name: tuple(each) for name, each in layers.items()},
            stages=list_stages(network, layers),
            reasons=builder.reasons | _explain_refused(network),
            quantization_error=error,
        )
        if not verify:
            return compiled
        line.show("simulating the network")
        return compiled.verify(samples, line)


def check_simulator(machine: str | Machine, intrinsics: Sequence[Intrinsic] = ()) -> None:
    """Raise NetworkError for a machine without a unit that a simulator runs."""
    described = machine if isinstance(machine, Machine) else machines.get(machine, intrinsics)
    if not target_of(described).has_simulator:
        raise NetworkError(
            f"machine {described.name!r}: expected a unit with a simulator, which a [stream] "
            "table describes"
        )


def _explain_refused(network: PartitionedNetwork) -> dict[str, str]:
    """Return why products that are no tasks stay with the host, by the name of their operator."""
    reasons = [*network.external]
    for region in network.networks.values():
        refused = region.grouping.refused
        nodes = (node for node in region.grouping.ungrouped if node.number in refused)
        reasons += [(node.operation, refused[node.number]) for node in nodes]
    explained: dict[str, str] = {}
    for name, why in dict.fromkeys(reasons):
        if name in PRODUCT_OPERATORS:
            explained[name] = f"{explained[name]}; {why}" if name in explained else why
    return explained


@dataclass
class _Builder:
    """Builds layers, with one stream for all groups of a task; reasons are of those on the host."""

    chooser: Chooser
    line: ProgressLine
    reasons: dict[str, str] = field(default_factory=dict)
    _streams: dict[Operator, tuple[Candidate, SimulatedKernel]] = field(default_factory=dict)

    def layers(self, region: str, tasks: Sequence[Task]) -> list[Layer]:
        """Build the layers of a region, in the order of their results."""
        built = []
        for number, task in enumerate(tasks):
            self.line.show(f"stream {number + 1} of {len(tasks)}: {task.operator.name}")
            try:
                offload, product = predict_offload(task.operator, self.chooser)
                candidate, kernel = self._stream_of(product)
            except (BuildError, MappingError) as error:
                self.reasons[str(task.operator)] = " ".join(str(error).split())
                continue
            operator = candidate.mapping.operator
            draft = Layer(region, operator, candidate, kernel, task.groups[0], offload.host_steps)
            built += [_layer_of(draft, offload, task.operator, group) for group in task.groups]
        built.sort(key=lambda layer: layer.site.result.number)
        return [replace(layer, name=f"{region}_{n}") for n, layer in enumerate(built)]

    def _stream_of(self, product: Product) -> tuple[Candidate, SimulatedKernel]:
        """Return the stream of a product; tasks that differ in the host's steps share one."""
        operator = product.mapping.operator
        if operator not in self._streams:
            self._streams[operator] = self._fastest(product)
        return self._streams[operator]

    def _fastest(self, product: Product) -> tuple[Candidate, SimulatedKernel]:
        """Return the stream of least simulated cycles among the first, or raise BuildError."""
        unit = product.mapping.intrinsic
        machine = self.chooser.target([unit])
        target = target_of(machine)
        ranked = self.chooser.rank(product.mapping.operator, _SIMULATED)
        streams = list[tuple[int, int, Candidate, SimulatedKernel]]()
        failure: AmosError | None = None
        for number, ranked_product in enumerate(islice(ranked, _SIMULATED)):
            try:
                kernel = target.load_simulated(ranked_product.candidate, machine)
            except BuildError as error:
                failure = failure or error
                continue
            assert kernel is not None
            cycles = kernel.simulate(None).cycles
            streams.append((cycles, number, ranked_product.candidate, kernel))
        if not streams:
            raise BuildError(str(failure))
        _, _, candidate, kernel = min(streams, key=lambda stream: stream[:2])
        return candidate, kernel


def _layer_of(draft: Layer, offload: Offload, operator: Operator, group: Group) -> Layer:
    """Return a group as a layer: all of it, or its anchor if the host computes a part."""
    nodes = group.nodes[:1] if offload.host_steps else group.nodes
    signed = {x.tensor.name for x in offload.operator.sources if x.tensor.dtype == "int8"}
    unsigned = {x.tensor.name for x in operator.sources if x.tensor.dtype == "uint8"}
    shifted = frozenset(signed & unsigned)
    correction = sum(_correction(operator, name, group.arguments) for name in sorted(shifted))
    return replace(
        draft,
        site=CallSite(group.arguments, nodes),
        shifted=shifted,
        correction=_shrunk(np.asarray(correction)) if shifted else None,
    )


def _shrunk(array: np.ndarray) -> np.ndarray:
    """Return an array with one element along each axis on which it does not change."""
    for axis in range(array.ndim):
        first = array.take([0], axis)
        array = first if (array == first).all() else array
    return array


def _correction(operator: Operator, name: str, arguments: Mapping[str, Operand]) -> np.ndarray:
    """Return what shifting a source takes from the sums: 128 times those of the other factor."""

    def fill(load: BufferLoad) -> BufferLoad:
        return replace(load, padding=1) if load.padded else load

    inputs = {}
    for load in operator.sources:
        tensor, operand = load.tensor, arguments[load.tensor.name]
        if tensor.name == name:
            inputs[name] = np.ones(tensor.shape, np.uint8)
        else:
            assert isinstance(operand, Constant)
            inputs[tensor.name] = operand.array.reshape(tensor.shape)
    sums = Operator(operator.compute.with_loads(fill), operator.name, operator.constants)
    return np.asarray(evaluate(sums, inputs)).astype(np.int32) * ZERO_POINT
