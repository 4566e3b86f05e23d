"""Variants of a network in other precisions: what each rounds, its error and its time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from amos.errors import MappingError, NetworkError
from amos.machine.cpu import cpu
from amos.network.candidates import Chooser
from amos.network.external.partition import PartitionedNetwork
from amos.network.external.passes import model_before_layouts
from amos.network.external.regions import Region, graph_between
from amos.network.external.sessions import run_session
from amos.network.frontend import plain_session
from amos.network.groups import Task
from amos.network.lowerings.choosing import predict_lowering
from amos.network.network import Network, network_of
from amos.network.precision.quantizing import quantize_network
from amos.network.precision.rounding import can_round, is_product, round_products

#: Features of CPUs that multiply ``bfloat16``.
_FEATURES = frozenset({"avx512_bf16", "amx_bf16"})
#: Returns how good results are: more is better.
Accuracy = Callable[[Sequence[np.ndarray]], float]
#: For each region the products that stay as they are, counted in the order of its graph.
Excluded = Mapping[str, frozenset[int]]


@dataclass(frozen=True, eq=False)
class Variant:
    """A network in some precision.

    Attributes:
        name: ``"f32"``, ``"bf16"``, ``"mixed"`` or ``"int8"``.
        network: what is compiled.
        error: by how much its results differ from those of the network as it was read.
        predicted_seconds: of its kernels.
        groups: the products that were changed.
        excluded: the others, which could be rounded, with the reason.
    """

    name: str
    network: PartitionedNetwork = field(repr=False)
    error: float
    predicted_seconds: float
    groups: tuple[str, ...] = ()
    excluded: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "precision": self.name,
            "error": self.error,
            "predicted_seconds": self.predicted_seconds,
            "groups": list(self.groups),
            "excluded": dict(self.excluded),
        }


class Variants:
    """Makes variants of a network, and measures by how much their results differ.

    Args:
        network: of floats.
        samples: inputs of calls in order.
        accuracy: of results; the error is then the largest loss of it. By default the error is
            the 2-norm of the difference over that of the results, the largest of all outputs
            and samples.
    """

    def __init__(
        self,
        network: PartitionedNetwork,
        samples: Sequence[Sequence[np.ndarray]],
        accuracy: Accuracy | None = None,
    ) -> None:
        self.network, self.samples, self._accuracy = network, samples, accuracy
        self._chooser = Chooser("host")
        self._graphs = {
            name: graph_between(each.graph, each.inputs, each.outputs)
            for name, each in network.regions.items()
        }
        self._expected = self._results(network.source)
        #: Why products gain nothing by being rounded, by region and place.
        self.slower: dict[tuple[str, int], str] = {}
        #: Seconds that rounding saves, by region and place.
        self.saved: dict[tuple[str, int], float] = {}

    def rounded(self, excluded: Sequence[tuple[str, int]] = ()) -> Variant:
        """The network with factors in ``bfloat16`` wherever that is predicted to be faster.

        Args:
            excluded: region and place of further products that stay as they are.
        """
        if not self.saved and not self.slower:
            self._compare_products()
        places = {
            name: frozenset(at for region, at in [*self.slower, *excluded] if region == name)
            for name in self.network.regions
        }
        network = self.with_rounding(places)
        graphs = {name: region.network for name, region in network.regions.items()}
        error = self._error(self.model_of(places))
        reasons = dict(self.slower) | dict.fromkeys(excluded, "it would break the budget")
        return Variant(
            "mixed" if excluded else "bf16",
            network,
            error,
            self._seconds(network),
            tuple(_rounded_groups(graphs.values())),
            {f"{name} {place}": why for (name, place), why in reasons.items()},
        )

    def quantized(self) -> Variant:
        """The network in integers of 8 bits, whose ranges are those of the samples.

        Raises:
            NetworkError: onnxruntime cannot quantize it.
        """
        network = quantize_network(self.network, self.samples)
        groups = [
            str(group.operator)
            for each in network.networks.values()
            for group in each.grouping.groups
            if group.nodes[0].dtype == "int32"
        ]
        error, seconds = self._error(network.source), self._seconds(network)
        return Variant("int8", network, error, seconds, tuple(groups))

    def sensitivity(self, place: tuple[str, int]) -> float:
        """The error where a single product is rounded."""
        region, at = place
        others = {
            name: frozenset(self._places(name)) - ({at} if name == region else set())
            for name in self.network.regions
        }
        return self._error(self.model_of(others))

    def model_of(self, excluded: Excluded) -> Any:
        """The model of ONNX with rounded factors of all products but some."""
        return model_before_layouts(self.network, self._roundings(excluded))

    def with_rounding(self, excluded: Excluded) -> PartitionedNetwork:
        """The network with rounded factors of all products but some."""
        rewrites = self._roundings(excluded)
        regions = {
            name: replace(region, network=self._loaded(name, region, rewrites[name]))
            for name, region in self.network.regions.items()
        }
        return replace(self.network, regions=regions)

    def _loaded(self, name: str, region: Region, rounding: Any) -> Network:
        return network_of(
            self._graphs[name], region.network.name, region.outputs, round_graph=rounding
        )

    def _roundings(self, excluded: Excluded) -> dict[str, Any]:
        return {name: partial(round_products, excluded=each) for name, each in excluded.items()}

    def _places(self, name: str) -> list[int]:
        """Places of the products of a region that can be rounded."""
        nodes = [n for n in self.network.regions[name].network.graph.nodes if is_product(n)]
        return [place for place, node in enumerate(nodes) if can_round(node)]

    def _compare_products(self) -> None:
        """Find the products that rounding is predicted to save time in, and the others."""
        everything = self.with_rounding(dict.fromkeys(self.network.regions, frozenset()))
        for name, region in self.network.regions.items():
            plain = self._seconds_of_products(region.network)
            rounded = self._seconds_of_products(everything.regions[name].network)
            for place in self._places(name):
                before, after = plain.get(place, math.inf), rounded.get(place, math.inf)
                if after < before:
                    self.saved[name, place] = before - after
                else:
                    self.slower[name, place] = _reason(before, after)

    def _seconds_of_products(self, network: Network) -> dict[int, float]:
        """Predicted seconds of the groups, by the place of their anchors among the products."""
        products = [node for node in network.graph.nodes if is_product(node)]
        places = {node.number: place for place, node in enumerate(products)}
        return {
            places[group.nodes[0].number]: _predict_task(
                Task(group.operator, (group,)), self._chooser
            )
            for group in network.grouping.groups
            if group.nodes[0].number in places
        }

    def _seconds(self, network: PartitionedNetwork) -> float:
        return _predict_kernels(network, self._chooser)

    def _results(self, model: Any) -> list[tuple[np.ndarray, ...]]:
        """Results of a model for each sample, computed node by node."""
        session = plain_session(model)
        return [run_session(session, self.network.inputs, values) for values in self.samples]

    def _error(self, model: Any) -> float:
        """By how much the results of a model differ from those of the network."""
        pairs = zip(self._results(model), self._expected, strict=True)
        if self._accuracy is not None:
            return max(self._rate(right) - self._rate(results) for results, right in pairs)
        return max(
            relative_norm(result, right)
            for results, expected in pairs
            for result, right in zip(results, expected, strict=True)
        )

    def _rate(self, results: Sequence[np.ndarray]) -> float:
        assert self._accuracy is not None
        try:
            return float(self._accuracy(results))
        except Exception as error:
            raise NetworkError(f"accuracy: {type(error).__name__}: {error}") from error


def plain_variant(network: PartitionedNetwork) -> Variant:
    """Return the network as it was read."""
    return Variant("f32", network, 0.0, _predict_kernels(network, Chooser("host")))


def _predict_kernels(network: PartitionedNetwork, chooser: Chooser) -> float:
    """Predict the seconds of all tasks for which there is an instruction."""
    seconds = (task.weight * _predict_task(task, chooser) for task in network.tasks)
    return sum(each for each in seconds if math.isfinite(each))


def _predict_task(task: Task, chooser: Chooser) -> float:
    """Predict the seconds of one call; infinite where no instruction can be used."""
    try:
        return predict_lowering(task, chooser).expected
    except MappingError:
        return math.inf


def has_bfloat16() -> bool:
    """Whether this CPU multiplies ``bfloat16``."""
    return bool(_FEATURES & set(cpu().features))


def relative_norm(result: np.ndarray, expected: np.ndarray) -> float:
    """The 2-norm of a difference over that of what is expected; integers count as numbers."""
    exact = expected.astype(np.float64)
    size = float(np.linalg.norm(exact))
    difference = float(np.linalg.norm(result.astype(np.float64) - exact))
    if not math.isfinite(difference):
        return 0.0 if np.array_equal(result, expected, equal_nan=True) else math.inf
    return difference / size if size else difference


def _reason(before: float, after: float) -> str:
    if not math.isfinite(after):
        return "no instruction of this CPU takes it in bf16"
    return f"predicted {after * 1e3:.4g} ms in bf16, {before * 1e3:.4g} ms in f32"


def _rounded_groups(networks: Any) -> list[str]:
    return [
        str(group.operator)
        for network in networks
        for group in network.grouping.groups
        if group.nodes[0].operands[0].dtype == "bfloat16"
    ]
