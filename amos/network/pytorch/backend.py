"""``torch.compile(module, backend="amos")``.

PyTorch passes a graph whose parameters are inputs like any others. Those that belong to the module
become constants, so that weights are packed ahead; when one of them was changed, the graph is
compiled again. PyTorch does not count changes through ``.data``. Each combination of shapes is
exported to ONNX when it first occurs, divided between AMOS and onnxruntime, compared with PyTorch
on the data of that call and on random inputs (:mod:`amos.network.pytorch.check`), and timed in
turns with PyTorch's own graph. The slower of the two is dropped. Products are computed in the
precision that PyTorch is set to (:func:`reducible_operations`). A graph that cannot be
compiled runs eagerly, with a warning that says why.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import numpy as np

from amos.errors import AmosError, NetworkError, quote
from amos.network.compilation import compile_network
from amos.network.external.compiled import CompiledNetwork
from amos.network.external.partition import PartitionedNetwork, load_partition
from amos.network.frontend import PRODUCT_OPERATORS
from amos.network.packages import torch
from amos.network.precision.choosing import keep_precision
from amos.network.precision.variants import Variants
from amos.network.pytorch.check import array_of_tensor, check_dtypes, check_tensor, draw_inputs
from amos.network.pytorch.layers import exportable
from amos.network.pytorch.memory import (
    Order,
    View,
    find_views,
    invert,
    order_of_axes,
    permute,
    separate,
)
from amos.network.pytorch.programs import translate
from amos.network.races import Race, race
from amos.network.reading.branches import operators_of
from amos.network.sessions import QUIET
from amos.network.tuning import tune

_LOG = logging.getLogger(__name__)
#: Combinations of shapes that stay compiled; more run eagerly.
_SHAPES = 8

if "torch" in sys.modules:  # as where torch.compile loads this file
    # Otherwise PyTorch leaves recurrent layers out of the graphs that it passes.
    torch._dynamo.config.allow_rnn = True


@dataclass(frozen=True)
class Options:
    """The ``options`` of ``torch.compile``.

    Attributes:
        records: file of measurements that kernels are taken from.
        trials: how many candidates to measure into it first; none unless asked.
    """

    records: str | None = None
    trials: int = 0

    def __post_init__(self) -> None:
        if self.trials and self.records is None:
            raise NetworkError('backend "amos": trials need a file that keeps them: records=…')

    @staticmethod
    def read(options: Mapping[str, Any] | None) -> Options:
        """Read options by name; refuse unknown ones, and trials without records."""
        names = [field.name for field in fields(Options)]
        if unknown := [name for name in options or {} if name not in names]:
            raise NetworkError(
                f'backend "amos": unknown option {quote(unknown[0])}; '
                f"options are {', '.join(names)}"
            )
        return Options(**(options or {}))


def amos_backend(
    graph: Any, examples: Sequence[Any], *, options: Mapping[str, Any] | None = None, **_: Any
) -> Callable[..., Any]:
    """Compile a graph for ``torch.compile``; the entry point ``torch_dynamo_backends`` names it.

    Args:
        graph: a ``torch.fx.GraphModule``.
        examples: its inputs, with the module's own parameters and buffers.
    """
    # PyTorch marks so what lives as long as the module does.
    own = [getattr(example, "_dynamo_static_input_type", None) is not None for example in examples]
    return CompiledGraph(graph, tuple(own), Options.read(options))


@dataclass(frozen=True, eq=False)
class _Model:
    """A compiled graph, and how PyTorch has its results; bfloat16 goes in and out as float32.

    Attributes:
        inputs: name and order of axes in memory of each input, by its position in a call.
        results: dtype and order of axes in memory of each of PyTorch's results.
        views: results that share memory with other tensors.
    """

    partition: CompiledNetwork
    inputs: Mapping[int, tuple[str, Order | None]]
    results: tuple[tuple[Any, Order | None], ...]
    views: tuple[View | None, ...]

    def __call__(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the results for the values of a call."""
        # Checks of shapes and dtypes, which PyTorch's guards make too, would take longer than
        # small graphs do.
        inputs = {
            name: array_of_tensor(values[n] if order is None else values[n].permute(order))
            for n, (name, order) in self.inputs.items()
        }
        tensors = list(values)
        arrays = self.partition.session.run(None, inputs)
        for array, (dtype, order), view in zip(arrays, self.results, self.views, strict=True):
            if view is None:
                result = torch.from_numpy(np.asarray(array)).to(dtype)
                tensors.append(result if order is None else result.permute(invert(order)))
            else:
                tensors.append(view.of(tensors))
        return tuple(tensors[len(values) :])


class CompiledGraph:
    """A graph that is compiled for each combination of shapes that it is called with.

    Attributes:
        races: the times of each combination that was compiled, beside PyTorch's own.
    """

    def __init__(self, graph: Any, own: tuple[bool, ...], options: Options) -> None:
        self.races: list[Race] = []
        self._graph, self._own, self._options = graph, own, options
        self._eager = graph.forward  # hooks of modules take longer than small graphs do
        # PyTorch's guards hold shapes that the graph states as numbers.
        nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._fixed = all(_has_fixed_shape(node.meta.get("example_value")) for node in nodes)
        self._positions = [n for n, mine in enumerate(own) if not mine]
        self._models: dict[tuple[object, ...], _Model | None] = {}
        self._versions: tuple[tuple[int, int], ...] = ()

    def __call__(self, *values: Any) -> Any:
        """Run the graph, compiled where that is faster."""
        tensor_type = torch.Tensor  # read once, as a call may have hundreds of values
        gradients = torch.is_grad_enabled() and any(getattr(v, "requires_grad", 0) for v in values)
        key: tuple[object, ...] = (gradients,)
        if not self._fixed:
            own = (values[n] for n in self._positions)
            shapes = (
                (v.shape, v.stride(), v.dtype) if isinstance(v, tensor_type) else v for v in own
            )
            key = (*shapes, gradients)
        if self._models.get(key, self) is None:
            return self._eager(*values)
        versions = tuple(
            (value.data_ptr(), _version(value))
            for value, mine in zip(values, self._own, strict=True)
            if mine and isinstance(value, tensor_type)
        )
        if versions != self._versions:
            self._models = {key: None for key, model in self._models.items() if model is None}
            self._versions = versions
        if key not in self._models:
            self._models[key] = self._compile(values, gradients)
            if self._models[key] is not None:
                self._race(key, values)
        model = self._models[key]
        return self._eager(*values) if model is None else model(values)

    def _compile(self, values: Sequence[Any], gradients: bool) -> _Model | None:
        """Compile the graph; ``None`` where it runs eagerly."""
        try:
            if gradients:
                raise NetworkError("gradients are asked for: use torch.no_grad()")
            if len(self._models) >= _SHAPES:
                raise NetworkError(f"it was called with more than {_SHAPES} shapes")
            return self._compile_checked(values)
        except AmosError as error:
            warnings.warn(f'backend "amos": runs eagerly: {error}', stacklevel=2)
            return None

    def _race(self, key: tuple[object, ...], values: Sequence[Any]) -> None:
        """Drop a compiled graph that is no faster than PyTorch's own."""
        with torch.no_grad():
            times = race(lambda: self(*values), lambda: self._eager(*values))
        self.races.append(times)
        amos, eager = (seconds * 1e3 for seconds in times.medians)
        runs = "compiled" if times.wins else "eagerly"
        _LOG.debug("%.4g ms, PyTorch %.4g ms: runs %s", amos, eager, runs)
        if not times.wins:
            self._models[key] = None

    def _compile_checked(self, values: Sequence[Any]) -> _Model | None:
        """Compile the graph and compare it; ``None`` where that cannot pay."""
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        if devices := {str(each.device) for each in tensors if each.device.type != "cpu"}:
            raise NetworkError(f"tensors are on {', '.join(sorted(devices))}, not on the CPU")
        check_dtypes(tensors)
        inputs = [values[n] for n in self._positions if isinstance(values[n], torch.Tensor)]
        # Tensors made under inference_mode are no parameters that PyTorch could export.
        with torch.inference_mode(False), torch.no_grad():
            # Which refuses what changes something in place.
            examples = [x.float() if x.dtype == torch.bfloat16 else x for x in inputs]
            examples = [permute(x, order_of_axes(x)) for x in examples]
            translation = translate(self._freeze(values), examples, "torch")
            operators = frozenset(operators_of(translation.model.graph))
            if not operators & PRODUCT_OPERATORS:  # nothing that takes long
                _LOG.debug("a graph without a product runs eagerly")
                return None
            expected = self._eager(*values)
            check_dtypes(expected)
            network = load_partition(translation.model, None, "torch", translation.reference)
            rounded = self._round_network(network)
            if rounded is not network:
                with suppress(NetworkError):  # PyTorch rounds in other places, or nowhere
                    compiled = self._build(rounded, values, expected)
                    self._compare(compiled, values, expected, operators)
                    return compiled
            compiled = self._build(network, values, expected)
            self._compare(compiled, values, expected, operators)
        return compiled

    def _round_network(self, network: PartitionedNetwork) -> PartitionedNetwork:
        """Round the network to the precision of its weights, or to the one PyTorch is set to."""
        operations = frozenset[str]() if network.factors else reducible_operations()
        if operations:
            return Variants(network).round_operations(operations)
        rounded = keep_precision(network)
        assert isinstance(rounded, PartitionedNetwork)
        return rounded

    def _build(
        self, network: PartitionedNetwork, values: Sequence[Any], expected: Sequence[Any]
    ) -> _Model:
        """Compile the graph's network; with trials it is tuned first."""
        unshared = separate(values)  # which input a result is a view of depends on no call
        is_shared = any(a is not b for a, b in zip(unshared, values, strict=True))
        views = find_views(unshared, self._eager(*unshared) if is_shared else expected)
        if self._options.trials and network.tasks:
            assert self._options.records is not None
            tune(network, trials=self._options.trials, records=self._options.records)
        partition = compile_network(network, records=self._options.records, progress=False)
        assert isinstance(partition, CompiledNetwork)
        inputs = [n for n in self._positions if isinstance(values[n], torch.Tensor)]
        names = (port.name for port in network.inputs)
        results = self._graph.graph.output_node().args[0]
        return _Model(
            partition.with_session(QUIET),
            {n: (name, order_of_axes(values[n])) for n, name in zip(inputs, names, strict=True)},
            tuple(
                (result.dtype, _order_of_node(node))
                for node, result in zip(results, expected, strict=True)
            ),
            views,
        )

    def _compare(
        self, model: _Model, values: Sequence[Any], expected: Any, operators: frozenset[str]
    ) -> None:
        """Hold results of a call and of random inputs against PyTorch's, or raise NetworkError."""
        inputs = [values[n] for n in self._positions if isinstance(values[n], torch.Tensor)]
        rounded = model.partition.has_rounded_products

        def replace_inputs(tensors: Sequence[Any]) -> list[Any]:
            tensor_of = dict(zip(map(id, inputs), tensors, strict=True))
            return [tensor_of.get(id(value), value) for value in values]

        def evaluate(tensors: Sequence[Any]) -> Any:
            return self._eager(*replace_inputs(tensors))

        with torch.random.fork_rng(devices=()):
            for tensors, results in chain([(inputs, expected)], draw_inputs(inputs, evaluate)):
                if not all(map(_equal, results, evaluate(tensors))):
                    raise NetworkError("its results are random")
                for result, right in zip(model(replace_inputs(tensors)), results, strict=True):
                    check_tensor(result, right, operators, rounded)

    def _freeze(self, values: Sequence[Any]) -> Any:
        """Freeze the graph's tensors and numbers as constants; float32 for bfloat16."""
        graph, attributes, environment = torch.fx.Graph(), dict[str, Any](), dict[Any, Any]()
        remaining = iter(zip(values, self._own, strict=True))
        for node in self._graph.graph.nodes:
            if node.op == "placeholder":
                value, mine = next(remaining)
                if not isinstance(value, torch.Tensor):
                    environment[node] = value
                elif mine:
                    attributes[node.name] = (
                        value.clone() if value.is_inference() else value.detach()
                    )
                    environment[node] = graph.get_attr(node.name)
                else:
                    port = graph.placeholder(node.name)
                    if value.dtype == torch.bfloat16:
                        port = graph.call_method("bfloat16", (port,))
                    order = order_of_axes(value)
                    environment[node] = permute(port, order and invert(order))
                continue
            if node.op in ("get_attr", "call_module"):
                owner, _, name = str(node.target).rpartition(".")
                attributes[str(node.target)] = getattr(self._graph.get_submodule(owner), name)
            if node.op == "output":
                results = ((each, environment[each]) for each in node.args[0])
                graph.output(
                    [permute(_exact(*result), _order_of_node(result[0])) for result in results]
                )
                continue
            environment[node] = copy = graph.node_copy(node, environment.__getitem__)
            copy.target = exportable(node) or node.target
        return torch.fx.GraphModule(attributes, graph)


def _has_fixed_shape(example: Any) -> bool:
    """Return whether an input is a tensor without an open dimension."""
    return hasattr(example, "shape") and all(isinstance(size, int) for size in example.shape)


def _exact(node: Any, result: Any) -> Any:
    """Widen a result of a graph: float32 for bfloat16, which NumPy does not have."""
    dtype = getattr(node.meta.get("example_value"), "dtype", None)
    return result.graph.call_method("float", (result,)) if dtype == torch.bfloat16 else result


def _order_of_node(node: Any) -> Order | None:
    """Return the order of axes in memory that PyTorch expects of a result."""
    example = node.meta.get("example_value")
    return order_of_axes(example) if hasattr(example, "stride") else None


def _version(tensor: Any) -> int:
    """Return how often a tensor was changed; changes of inference tensors are not counted."""
    return 0 if tensor.is_inference() else int(tensor._version)


def _equal(first: Any, second: Any) -> bool:
    """Return whether two results of PyTorch are the same; NaN equals NaN."""
    return bool(torch.allclose(first, second, equal_nan=True))


def reducible_operations() -> frozenset[str]:
    """Return the products of ``float32`` whose factors PyTorch allows to be rounded.

    ``torch.set_float32_matmul_precision("medium")`` is such a permission for matrix products, and
    ``torch.backends.mkldnn.conv.fp32_precision = "bf16"`` for convolutions. ``"high"`` asks for
    10 bits of mantissa, of which ``bfloat16`` has 7.
    """
    mkldnn = torch.backends.mkldnn
    settings = {"MatMul": mkldnn.matmul, "Conv": mkldnn.conv, "ConvTranspose": mkldnn.conv}
    return frozenset(name for name, each in settings.items() if each.fp32_precision == "bf16")
