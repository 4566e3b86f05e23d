"""``torch.compile(module, backend="amos")``.

PyTorch hands over a graph whose parameters are inputs like any others. Those that belong to the
module become constants, so that weights are packed ahead; when one of them was changed, the graph
is compiled again. PyTorch does not count what is changed through ``.data``. Each combination of
shapes is compiled when it first occurs, and its results are compared with PyTorch's, of that call
and of random inputs (:mod:`amos.network.torch_samples`). What is not taken runs eagerly, with a
warning that says why.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import numpy as np

from amos.errors import AmosError, NetworkError, shown
from amos.measure.reference import compared
from amos.network.compilation import compile_whole
from amos.network.model import CompiledNetwork
from amos.network.network import load_network
from amos.network.tolerances import allowed, rounds
from amos.network.torch_samples import drawn
from amos.network.tuning import tune

#: Combinations of shapes that are kept compiled; more run eagerly.
_SHAPES = 8


@dataclass(frozen=True)
class Options:
    """What ``options`` of ``torch.compile`` may say.

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
    def read(given: Mapping[str, Any] | None) -> Options:
        """Options by name.

        Raises:
            NetworkError: there is no such option, or trials without records.
        """
        names = [field.name for field in fields(Options)]
        if unknown := [name for name in given or {} if name not in names]:
            raise NetworkError(
                f'backend "amos": unknown option {shown(unknown[0])}; '
                f"options are {', '.join(names)}"
            )
        return Options(**(given or {}))


def amos_backend(
    graph: Any, examples: Sequence[Any], *, options: Mapping[str, Any] | None = None, **_: Any
) -> Callable[..., Any]:
    """What ``torch.compile`` calls for a graph, by the entry point ``torch_dynamo_backends``.

    Args:
        graph: a ``torch.fx.GraphModule``.
        examples: its inputs, with the module's own parameters and buffers.
        options: see :class:`Options`.

    Raises:
        NetworkError: an option is wrong.
    """
    # PyTorch marks so what lives as long as the module does.
    own = [getattr(example, "_dynamo_static_input_type", None) is not None for example in examples]
    return _Compiled(graph, tuple(own), Options.read(options))


class _Unseen:
    """Recurrent layers, which PyTorch leaves out of the graphs that it hands over: said once."""

    #: What PyTorch counts them as.
    reason = "Attempted to wrap RNN, GRU, or LSTM"
    warned = False

    @classmethod
    def warn(cls, *_: object) -> None:
        """Warn of them, at the end of one of PyTorch's compilations."""
        from torch._dynamo.utils import counters

        if cls.warned or not any(cls.reason in each for each in counters["graph_break"]):
            return
        cls.warned = True
        warnings.warn(
            'backend "amos": recurrent layers run eagerly: PyTorch does not trace nn.LSTM, '
            "nn.GRU and nn.RNN unless torch._dynamo.config.allow_rnn is True",
            stacklevel=2,
        )

    @classmethod
    def watch(cls) -> None:
        """Look at every compilation of PyTorch from now on."""
        from torch._dynamo.callback import callback_handler

        callback_handler.register_end_callback(cls.warn)


if "torch" in sys.modules:  # as where torch.compile loads this file
    _Unseen.watch()


@dataclass(frozen=True, eq=False)
class _Model:
    """A compiled graph, and the dtypes of PyTorch's results.

    They are not always the engine's; and arrays hold bfloat16 as float32.
    """

    network: CompiledNetwork
    kinds: tuple[Any, ...]


class _Compiled:
    """A graph that is compiled for each combination of shapes that it is called with."""

    def __init__(self, graph: Any, own: tuple[bool, ...], options: Options) -> None:
        self.graph, self.own, self.options = graph, own, options
        self.models: dict[tuple[object, ...], _Model | None] = {}
        self.versions: tuple[tuple[int, int], ...] = ()

    def __call__(self, *values: Any) -> Any:
        import torch

        own = [value for value, mine in zip(values, self.own, strict=True) if mine]
        versions = tuple((value.data_ptr(), _version(value)) for value in own)
        if versions != self.versions:
            self.models, self.versions = {}, versions
        given = [value for value, mine in zip(values, self.own, strict=True) if not mine]
        key = tuple((v.shape, v.dtype) if isinstance(v, torch.Tensor) else v for v in given)
        gradients = torch.is_grad_enabled() and any(getattr(v, "requires_grad", 0) for v in values)
        key = (*key, gradients)
        if key not in self.models:
            self.models[key] = self.compiled(values, gradients)
        model = self.models[key]
        if model is None:
            return self.graph(*values)
        arrays = _arrays_of(v for v in given if isinstance(v, torch.Tensor))
        pairs = zip(model.network.outputs_of(arrays), model.kinds, strict=True)
        return tuple(torch.from_numpy(array).to(kind) for array, kind in pairs)

    def compiled(self, values: Sequence[Any], gradients: bool) -> _Model | None:
        """The graph compiled; ``None`` where it has to run eagerly, after a warning."""
        try:
            if gradients:
                raise NetworkError("gradients are asked for: use torch.no_grad()")
            if len(self.models) >= _SHAPES:
                raise NetworkError(f"it was called with more than {_SHAPES} shapes")
            return self.built(values)
        except AmosError as error:
            warnings.warn(f'backend "amos": runs eagerly: {error}', stacklevel=2)
            return None

    def built(self, values: Sequence[Any]) -> _Model:
        import torch

        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        if devices := {str(each.device) for each in tensors if each.device.type != "cpu"}:
            raise NetworkError(f"tensors are on {', '.join(sorted(devices))}, not on the CPU")
        inputs = [
            value
            for value, mine in zip(values, self.own, strict=True)
            if isinstance(value, torch.Tensor) and not mine
        ]
        # Tensors made under inference_mode are no parameters that PyTorch could export.
        with torch.inference_mode(False), torch.no_grad():
            # Which refuses what changes something in place.
            network = load_network(self.frozen(values), inputs=inputs, name="torch")
            expected = self.graph(*values)
        if self.options.trials:
            assert self.options.records is not None
            tune(network, trials=self.options.trials, records=self.options.records)
        model = compile_whole(network, records=self.options.records, verify=False)
        kinds = tuple(theirs.dtype for theirs in expected)
        for port, kind in zip(model.network.outputs, kinds, strict=True):
            if port.dtype != (name := str(kind).removeprefix("torch.")):
                raise NetworkError(f"its result would be of {port.dtype}, PyTorch's is of {name}")
        self.compare(model, values, inputs, expected)
        return _Model(model, kinds)

    def compare(
        self, model: CompiledNetwork, values: Sequence[Any], inputs: list[Any], expected: Any
    ) -> None:
        """Hold results against PyTorch's: those of a call, and of random inputs.

        Raises:
            NetworkError: one is another, or PyTorch's own are random.
        """
        import torch

        def evaluate(tensors: Sequence[Any]) -> Any:
            changed = dict(zip(map(id, inputs), tensors, strict=True))
            return self.graph(*(changed.get(id(value), value) for value in values))

        rounded = rounds(model.network)
        with torch.no_grad(), torch.random.fork_rng(devices=()):
            for tensors, results in chain([(inputs, expected)], drawn(inputs, evaluate)):
                if not all(map(_equal, results, evaluate(tensors))):
                    raise NetworkError("its results are random")
                for ours, theirs in zip(
                    model.outputs_of(_arrays_of(tensors)), results, strict=True
                ):
                    _compare(ours, theirs, rounded)

    def frozen(self, values: Sequence[Any]) -> Any:
        """The graph with its own tensors, and all numbers, as constants."""
        import torch

        graph, attributes, environment = torch.fx.Graph(), dict[str, Any](), dict[Any, Any]()
        remaining = iter(zip(values, self.own, strict=True))
        for node in self.graph.graph.nodes:
            if node.op == "placeholder":
                value, mine = next(remaining)
                if isinstance(value, torch.Tensor) and mine:
                    attributes[node.name] = value.detach()
                    if value.is_inference():
                        attributes[node.name] = value.clone()
                    environment[node] = graph.get_attr(node.name)
                elif isinstance(value, torch.Tensor):
                    environment[node] = graph.placeholder(node.name)
                else:
                    environment[node] = value
                continue
            if node.op in ("get_attr", "call_module"):
                owner, _, name = str(node.target).rpartition(".")
                attributes[str(node.target)] = getattr(self.graph.get_submodule(owner), name)
            environment[node] = graph.node_copy(node, environment.__getitem__)
        return torch.fx.GraphModule(attributes, graph)


def _arrays_of(tensors: Iterable[Any]) -> list[Any]:
    """Tensors as the network takes them."""
    return [tensor.detach().contiguous() for tensor in tensors]


def _version(tensor: Any) -> int:
    """How often a tensor was changed; nothing counts that of inference tensors."""
    return 0 if tensor.is_inference() else int(tensor._version)


def _equal(first: Any, second: Any) -> bool:
    """Whether two results of PyTorch are the same, no numbers too."""
    import torch

    return bool(torch.allclose(first, second, equal_nan=True))


def _compare(ours: np.ndarray, theirs: Any, rounded: bool) -> None:
    """Hold a result against PyTorch's.

    Raises:
        NetworkError: it is another one.
    """
    import torch

    values = (theirs.float() if theirs.dtype == torch.bfloat16 else theirs).numpy()
    if ours.shape != values.shape:
        raise NetworkError(f"its result has shape {ours.shape}, PyTorch's {values.shape}")
    difference, strange = compared(ours, values)
    most = allowed(str(theirs.dtype).removeprefix("torch."), values, rounded)
    if strange or not difference <= most:
        raise NetworkError(
            f"its result differs from PyTorch's by {difference:g}, {most:g} is allowed"
        )
