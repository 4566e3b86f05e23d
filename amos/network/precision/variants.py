"""Variants of a network in other precisions: what each rounds, its error and its time."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from amos.errors import NetworkError
from amos.explore.choosing import Chooser
from amos.ir import Operator, dtype
from amos.machine.cpu import cpu
from amos.network.checks import flatten_results, relative_norm
from amos.network.external.partition import PartitionedNetwork
from amos.network.external.passes import with_functions, write_region_functions
from amos.network.graph import Graph, Node
from amos.network.groups import Group, Task, select_heaviest
from amos.network.lowerings.choosing import list_lowerings, predict_seconds
from amos.network.network import Network, network_of
from amos.network.passes.sequence import apply_before_layouts
from amos.network.precision.attention import predict_attention
from amos.network.precision.frontier import Errors, Exclusion, Variant
from amos.network.precision.measured_models import rewrite_for_measuring
from amos.network.precision.quantizing import Quantizer
from amos.network.precision.rounding import ROUNDED, can_round, is_product, round_products
from amos.network.sessions import SessionRunner, plain_session

#: Features, one of which a CPU needs to multiply factors of a dtype.
FEATURES = {
    "bfloat16": frozenset({"avx512_bf16", "amx_bf16"}),
    "float16": frozenset({"avx512f", "f16c"}),
}
#: Share of a network's multiplications in the products whose time is predicted.
_SHARE = 0.95
#: Uses of a weight up to which a product takes as long as its weights take to come.
_FEW_USES = 16
#: Returns how good results are: more is better.
Accuracy = Callable[[Sequence[np.ndarray]], float]
#: Region and place of products, counted in the order of its graph.
Places = Sequence[tuple[str, int]]
#: Inputs of calls in order.
Samples = Sequence[Sequence[np.ndarray]]
#: Why products stay as they are that could be changed.
_OVER_BUDGET = Exclusion("over the budget")
_T = TypeVar("_T")
_R = TypeVar("_R")


class AccuracyError(NetworkError):
    """The user's measure of accuracy failed."""


class Variants:
    """Makes variants of a network, and measures by how much their results differ.

    Args:
        samples: inputs of calls in order; each second one is held back to confirm a choice.
        accuracy: of results; the error is then the largest loss of it. By default the error is
            the 2-norm of the difference over that of the results, the largest of all outputs
            and samples.
    """

    def __init__(
        self,
        network: PartitionedNetwork,
        samples: Samples = (),
        accuracy: Accuracy | None = None,
        rounded: str = ROUNDED,
    ) -> None:
        self.network, self._accuracy, self.rounded = network, accuracy, rounded
        self.choosing, self.confirming = samples[::2], samples[1::2]
        self._chooser, self._predicted = Chooser("host"), dict[Operator, float]()
        self._graphs = {name: apply_before_layouts(x.read()) for name, x in network.regions.items()}

    @property
    def waits_for_weights(self) -> bool:
        """Whether a product that matters reads its weights for a few results only."""
        operators = [task.operator for task in _that_matter(self.network.tasks)]
        weights = ((x, each) for x in operators for each in x.inputs if each.name in x.constants)
        return any(x.points <= _FEW_USES * math.prod(each.shape) for x, each in weights)

    @cached_property
    def plain(self) -> Variant:
        """The network as it was read."""
        return Variant("f32", self.network, Errors(0.0), self._seconds(self.network))

    def with_factors(self, rounded: str) -> Variants:
        """Return the same for another dtype of factors; facts of the network are shared."""
        variants = copy(self)
        variants.rounded = rounded
        for name in ("saved", "slower", "_times"):
            variants.__dict__.pop(name, None)
        return variants

    def round_faster(self, places: Places | None = None, errors: Errors | None = None) -> Variant:
        """Round factors wherever that is predicted to be faster, or of some of these products."""
        chosen = [at for at in self.saved if places is None or at in places]
        excluded = [at for at in self.saved if at not in chosen]
        network = self.with_rounding(chosen)
        if errors is None:
            errors = self.measure_model(self.model_of(chosen))
        return Variant(
            "mixed" if excluded else dtype(self.rounded).short,
            network,
            errors,
            self.plain.predicted_seconds - sum(map(self.saved.__getitem__, chosen)),
            _select_operators(
                network, lambda group: group.nodes[0].operands[0].dtype == self.rounded
            ),
            {
                f"{name} {place}": why
                for (name, place), why in (
                    self.slower | dict.fromkeys(excluded, _OVER_BUDGET)
                ).items()
            },
        )

    def round_operations(self, operations: Container[str] | None = None) -> PartitionedNetwork:
        """Round factors of operators of some names, or of all, where that is faster."""
        if not multiplies(self.rounded) or not self.saved:
            return self.network
        return self.with_rounding(
            [
                at
                for at in self.saved
                if operations is None or self.roundable[at].operation in operations
            ]
        )

    def quantize(self) -> Variant:
        """Quantize to integers of 8 bits, by the ranges of the choosing samples.

        Raises:
            NetworkError: onnxruntime cannot quantize it, or it has integers already.
        """
        network = self.quantizer.quantize()
        return self._describe_quantized("int8", network, self.measure_model(network.source))

    def quantize_products(self, names: Sequence[str], errors: Errors) -> Variant:
        """Quantize some products alone, with errors that were measured."""
        variant = self._describe_quantized("mixed int8", self.quantizer.quantize(names), errors)
        excluded = dict.fromkeys(self.quantizer.products.keys() - {*names}, _OVER_BUDGET)
        return replace(variant, excluded=excluded)

    def _describe_quantized(
        self, name: str, network: PartitionedNetwork, errors: Errors
    ) -> Variant:
        changed = _select_operators(network, lambda group: group.nodes[0].dtype == "int32")
        return Variant(name, network, errors, self._seconds(network), changed)

    @cached_property
    def quantizer(self) -> Quantizer:
        """The network's quantizer, with ranges of the choosing samples.

        Raises:
            NetworkError: as of :meth:`quantize`.
        """
        if any(each.quantized for each in self.network.networks.values()):
            raise NetworkError("the model is quantized already")
        return Quantizer(self.network, self.choosing)

    def sensitivities(self, parts: Sequence[Places]) -> list[float]:
        """Measure errors of the first sample where only the products of one part are rounded."""
        return self.measure_parts(self.model_of, parts)

    def measure_parts(
        self, model_of: Callable[[Places], Any], parts: Sequence[Places]
    ) -> list[float]:
        """Measure errors of the first sample with the model of each part.

        A model is made when a thread is free to run it, as all at once may not fit the memory.
        """
        samples, _ = self.choosing[:1], self._expected  # which several threads would compute

        def run(places: Places) -> list[tuple[np.ndarray, ...]]:
            return [*self._results(model_of(places), samples, len(parts))]

        results = _map_in_threads(run, parts)
        return [error for each in results for error in self._compare(each)]

    def measure_errors(self, places: Places) -> Errors:
        """Measure the errors of all samples where only some products are rounded."""
        return self.measure_model(self.model_of(places))

    def model_of(self, places: Places) -> Any:
        """Return the model of ONNX with rounded factors of some products."""
        rewrites = self._roundings(places)
        graphs = {name: rewrites[name](graph) for name, graph in self._graphs.items()}
        return self._with_graphs(graphs)

    def _with_graphs(self, graphs: Mapping[str, Graph]) -> Any:
        """Return the model of ONNX with a function for the graph of each region."""
        model = type(self._shell)()
        model.CopyFrom(self._shell)
        model.functions.extend(write_region_functions(self.network, graphs))
        return model

    @cached_property
    def _shell(self) -> Any:
        """The model of ONNX without the functions of its regions."""
        return with_functions(self.network, ())

    def with_rounding(self, places: Places) -> PartitionedNetwork:
        """Round the factors of some products."""
        rewrites = self._roundings(places)
        regions = {
            name: replace(x, network=network_of(x.read(), x.network.name, rewrites[name]))
            for name, x in self.network.regions.items()
        }
        return replace(self.network, regions=regions, roundings=rewrites)

    def _roundings(self, places: Places) -> dict[str, Callable[[Graph], Graph]]:
        return {
            name: partial(
                round_products,
                places=frozenset(at for region, at in places if region == name),
                dtype=self.rounded,
            )
            for name in self.network.regions
        }

    @cached_property
    def roundable(self) -> dict[tuple[str, int], Node]:
        """The products that can be rounded, by region and place."""
        return {
            (name, place): node
            for name, network in self.network.networks.items()
            for place, node in enumerate(filter(is_product, network.graph.nodes))
            if can_round(node)
        }

    @cached_property
    def saved(self) -> dict[tuple[str, int], float]:
        """Seconds that rounding saves, by region and place."""
        return {
            at: before - after
            for at, (before, after) in self._times.items()
            if after < before < math.inf
        }

    @cached_property
    def slower(self) -> dict[tuple[str, int], Exclusion]:
        """Why products gain nothing by being rounded, by region and place."""
        return {
            at: self._reason(*self._times.get(at, (0.0, 0.0)))
            for at in self.roundable
            if at not in self.saved
        }

    @cached_property
    def _times(self) -> dict[tuple[str, int], tuple[float, float]]:
        """Predicted seconds of the products that matter, as they are and rounded."""
        everything = self.with_rounding([*self.roundable]).networks
        heavy = {id(x) for task in _that_matter(self.network.tasks) for x in task.groups}
        pairs: dict[tuple[str, int], tuple[Group, Group | None]] = {}
        for name, network in self.network.networks.items():
            rounded = _groups_by_place(everything[name])
            for place, group in _groups_by_place(network).items():
                if id(group) in heavy and (name, place) in self.roundable:
                    pairs[name, place] = group, rounded.get(place)
        groups = [group for pair in pairs.values() for group in pair if group is not None]
        seconds = self._predict([Task(group.operator, (group,)) for group in groups])
        times = {
            at: (seconds[plain.operator], math.inf if each is None else seconds[each.operator])
            for at, (plain, each) in pairs.items()
        }
        for name, network in self.network.networks.items():
            attention = predict_attention(network, everything[name], self._chooser)
            times |= {(name, place): each for place, each in attention.items()}
        return times

    def _reason(self, before: float, after: float) -> Exclusion:
        name = dtype(self.rounded).short
        if not before:
            return Exclusion("few of the multiplications")
        if not math.isfinite(after):
            return Exclusion(f"no instruction for {name}")
        detail = f"{after * 1e3:.4g} ms in {name}, {before * 1e3:.4g} ms in f32"
        return Exclusion("not predicted to be faster", detail)

    def _predict(self, tasks: Sequence[Task]) -> Mapping[Operator, float]:
        """Predict the seconds of one call of each task, on all cores, by operator."""
        fresh = {x.operator: x for x in tasks if x.operator not in self._predicted}
        lowerings = [list_lowerings(task, self._chooser, {}) for task in fresh.values()]
        seconds = self._chooser.map_in_processes(
            predict_seconds,
            lowerings,
            keys=[self._chooser.result_key("prediction", each) for each in lowerings],
            lost=lambda _: math.inf,
        )
        self._predicted.update(zip(fresh, seconds, strict=True))
        return self._predicted

    def _seconds(self, network: PartitionedNetwork) -> float:
        """Predict seconds of the products that matter."""
        tasks = _that_matter(network.tasks)
        predicted = self._predict(tasks)
        seconds = (task.weight * predicted[task.operator] for task in tasks)
        return sum(each for each in seconds if math.isfinite(each))

    @cached_property
    def _expected(self) -> list[tuple[np.ndarray, ...]]:
        model = self._with_graphs(self._graphs)
        return [*self._results(model, [*self.choosing, *self.confirming])]

    def _results(
        self, model: Any, samples: Samples, models: int = 1
    ) -> Iterator[tuple[np.ndarray, ...]]:
        """Compute results of some models for some samples, node by node.

        Each thread runs a sample: one sample takes half of the time on two threads at best.
        """
        threads = max(1, cpu().cores // (models * len(samples)))
        try:
            session = plain_session(rewrite_for_measuring(model), threads=threads)
        except Exception:  # of types of its own: onnxruntime has no Softplus of float64
            session = plain_session(model, threads=threads)
        run = SessionRunner(session, self.network.inputs)
        return _map_in_threads(lambda x: tuple(flatten_results(run(x))), samples)

    def measure_model(self, model: Any) -> Errors:
        """Measure by how much the results of a model differ from those of the network."""
        errors = self._compare(self._results(model, [*self.choosing, *self.confirming]))
        chosen = len(self.choosing)
        return Errors(max(errors[:chosen]), max(errors[chosen:], default=None))

    def _compare(self, results: Iterable[tuple[np.ndarray, ...]]) -> list[float]:
        """Compare results for the first samples with those of the network."""
        pairs = zip(results, self._expected, strict=False)
        if self._accuracy is not None:
            return [self._rate(right) - self._rate(results) for results, right in pairs]
        return [max(map(relative_norm, results, expected)) for results, expected in pairs]

    def _rate(self, results: Sequence[np.ndarray]) -> float:
        assert self._accuracy is not None
        try:
            value = float(self._accuracy(results))
        except Exception as error:
            raise AccuracyError(f"accuracy: {type(error).__name__}: {error}") from error
        if not math.isfinite(value):
            raise AccuracyError(f"accuracy: expected a finite number, got {value}")
        return value


def _map_in_threads(function: Callable[[_T], _R], values: Iterable[_T]) -> Iterator[_R]:
    """Yield results in order; onnxruntime lets other threads run."""
    with ThreadPoolExecutor(cpu().cores) as pool:
        yield from pool.map(function, values)


def _that_matter(tasks: Sequence[Task]) -> list[Task]:
    """List the tasks with most of the multiplications, the largest first."""
    return select_heaviest({task: task.weight * task.operator.points for task in tasks}, _SHARE)


def _groups_by_place(network: Network) -> dict[int, Group]:
    """Map the places of anchors among all products to their groups."""
    products = [node for node in network.graph.nodes if is_product(node)]
    places = {node.number: place for place, node in enumerate(products)}
    return {
        places[group.nodes[0].number]: group
        for group in network.grouping.groups
        if group.nodes[0].number in places
    }


def multiplies(factors: str) -> bool:
    """Return whether this CPU multiplies a 16-bit dtype, or widens it in registers."""
    return bool(FEATURES[factors] & {*cpu().features})


def has_bfloat16() -> bool:
    """Return whether this CPU multiplies ``bfloat16``."""
    return multiplies(ROUNDED)


def _select_operators(
    network: PartitionedNetwork, is_changed: Callable[[Group], bool]
) -> tuple[Operator, ...]:
    """Select the operators of the groups that were changed."""
    groups = (x for each in network.networks.values() for x in each.grouping.groups)
    return tuple(group.operator for group in groups if is_changed(group))
