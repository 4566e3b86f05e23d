"""``amos.load_network``: a model, divided into groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, overload

from amos._display import Shown, several
from amos.codegen.scheduled import last_line
from amos.errors import NetworkError, shown
from amos.machine import Machine
from amos.network.denormals import without_denormals
from amos.network.frontend import (
    Reference,
    Shapes,
    closed_shapes,
    onnxruntime_reference,
    plain_session,
    title_of,
)
from amos.network.graph import Graph
from amos.network.groups import Grouping, Task, grouped
from amos.network.layouts import channels_last
from amos.network.onnx_nodes import InvalidModel, readable
from amos.network.operations import BYTES
from amos.network.quantized import integer_arithmetic
from amos.network.reading import read_model
from amos.network.simplify import fold_scales, merge_moves, without_idle_taps
from amos.network.torch_programs import is_torch, translate

if TYPE_CHECKING:
    from amos.network.buckets import BucketedNetwork, Buckets
    from amos.network.external.partition import PartitionedNetwork
    from amos.network.report import Report


@dataclass(frozen=True)
class Port:
    """An input or output of a network.

    Attributes:
        name: of an input, the model's.
        shape: extents.
        dtype: of its elements.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


@dataclass(frozen=True, eq=False)
class Network(Shown):
    """A model as operators, and which of them become kernels.

    Attributes:
        name: what it is called.
        graph: its operators, channels last, without batch norms.
        grouping: the graph divided.
        reference: another program that runs the model, if one is installed.
        output_names: what an ONNX model calls its results; empty for other models.
        source: the ONNX model, or the path of its file; ``None`` for other models.
        divide: of an ONNX model, loads it divided between AMOS and onnxruntime, for a reason
            that it raises where onnxruntime does not take the model either.
    """

    name: str
    graph: Graph
    grouping: Grouping
    reference: Reference | None = None
    output_names: tuple[str, ...] = ()
    source: Any = field(default=None, repr=False)
    divide: Callable[[NetworkError], PartitionedNetwork] | None = field(default=None, repr=False)

    #: Operators that stay with onnxruntime, as of a network that is divided.
    external: ClassVar[Mapping[tuple[str, str], int]] = {}

    @property
    def networks(self) -> dict[str, Network]:
        """What AMOS takes, by the name of its operator."""
        return {"main": self}

    @property
    def single(self) -> bool:
        """Whether it returns one result, and not a tuple."""
        return self.graph.single

    @cached_property
    def inputs(self) -> tuple[Port, ...]:
        """What it takes."""
        return tuple(Port(node.name, node.shape, node.dtype) for node in self.graph.inputs)

    @cached_property
    def outputs(self) -> tuple[Port, ...]:
        """What it returns."""
        return tuple(
            Port(f"output{n}" if n else "output", node.shape, node.dtype)
            for n, node in enumerate(self.graph.outputs)
        )

    @property
    def quantized(self) -> bool:
        """Whether some of it is rounded to integers of 8 bits."""
        return any(
            node.operation == "Cast" and node.dtype in BYTES and "float" in node.operands[0].dtype
            for node in self.graph.nodes
        )

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The distinct groups, each with how often it occurs."""
        return self.grouping.tasks

    def report(self, machine: str | Machine = "host") -> Report:
        """What would run where and how fast, before anything is tuned or measured.

        Args:
            machine: by name or itself.

        Raises:
            UnknownNameError: there is no such machine.
        """
        from amos.network.report import report

        return report(self, machine)

    def __str__(self) -> str:
        ports = ", ".join(map(str, self.inputs))
        groups = several(len(self.grouping.groups), "group")
        return f"{self.name}({ports}): {groups}, {several(len(self.tasks), 'task')}"

    __repr__ = __str__


def checked_network(network: object) -> None:
    """Refuse what is no network.

    Raises:
        NetworkError: it is something else.
    """
    from amos.network.buckets import BucketedNetwork
    from amos.network.external.partition import PartitionedNetwork

    if not isinstance(network, Network | BucketedNetwork | PartitionedNetwork):
        raise NetworkError(f"expected what amos.load_network returns, got {shown(network)}")


@overload
def load_network(
    model: Any,
    inputs: Sequence[Any] | None = None,
    *,
    shapes: Shapes | None = None,
    buckets: None = None,
    name: str | None = None,
) -> Network | PartitionedNetwork: ...


@overload
def load_network(
    model: Any,
    inputs: Sequence[Any] | None = None,
    *,
    shapes: Shapes | None = None,
    buckets: Buckets,
    name: str | None = None,
) -> BucketedNetwork: ...


def load_network(
    model: Any,
    inputs: Sequence[Any] | None = None,
    *,
    shapes: Shapes | None = None,
    buckets: Buckets | None = None,
    name: str | None = None,
) -> Network | BucketedNetwork | PartitionedNetwork:
    """Read a model and divide it into groups.

    Args:
        model: path of an ONNX file, an ``onnx.ModelProto``, a ``torch.nn.Module`` or a
            ``torch.export.ExportedProgram``.
        inputs: example inputs of a ``torch.nn.Module``.
        shapes: extents of inputs that the model leaves open, by name.
        buckets: sizes of dimensions that the model leaves open, by name: of ONNX a
            ``dim_param``, of PyTorch a ``torch.export.Dim``. There is a network for each
            combination of them.
        name: what to call it; by default as its file, its graph or the module's class.

    Raises:
        NetworkError: this is no model, or one with something that is not supported.
    """
    if is_torch(model):
        return _load_torch(model, inputs, shapes, buckets, name or title_of(model))
    if inputs is not None:
        raise NetworkError(
            f"model {title_of(model)!r}: inputs are for a torch.nn.Module; what another model "
            "leaves open is stated by shapes or buckets"
        )
    if buckets is not None:
        from amos.network.buckets import load_buckets

        return load_buckets(model, {} if shapes is None else shapes, name, buckets)
    divide = partial(load_divided, model, shapes, name)
    try:
        network = load_one(model, shapes, name)
    except InvalidModel:
        raise
    except NetworkError as refused:
        return divide(refused)
    return replace(network, source=model, divide=divide)


def _load_torch(
    source: Any, inputs: Any, shapes: Shapes | None, buckets: Buckets | None, title: str
) -> Network | BucketedNetwork | PartitionedNetwork:
    """Load a module or a program of PyTorch as an ONNX model that is compared with PyTorch."""
    if inputs is not None and not hasattr(source, "forward"):
        raise NetworkError(f"model {title!r}: inputs are for a torch.nn.Module")
    from amos.network.torch_check import check_translation

    translation = translate(source, inputs, title)
    check_translation(translation, title)
    reference = translation.reference
    if buckets is not None:
        loaded = load_network(translation.model, shapes=shapes, buckets=buckets, name=title)
        networks = {
            sizes: replace(network, reference=reference)
            for sizes, network in loaded.networks.items()
        }
        return replace(loaded, networks=networks)
    network = load_network(translation.model, shapes=shapes, name=title)
    if isinstance(network, Network):
        divide = partial(
            load_divided, translation.model, shapes, title, reference=translation.reference
        )
        return replace(network, reference=reference, divide=divide)
    return replace(network, reference=reference)


def load_divided(
    source: Any,
    shapes: Shapes | None,
    name: str | None,
    refused: NetworkError | None = None,
    reference: Reference | None = None,
) -> PartitionedNetwork:
    """Load an ONNX model divided between AMOS and onnxruntime.

    Args:
        source: as of :func:`load_network`.
        shapes: as of :func:`load_network`.
        name: as of :func:`load_network`.
        refused: why AMOS does not take it as a whole, if that was tried.
        reference: runs the model; by default onnxruntime does.

    Raises:
        NetworkError: as it was refused, where onnxruntime does not take it either.
    """
    from amos.network.external.partition import load_partition

    reference = reference or onnxruntime_reference(source)
    if reference is None:
        raise refused or NetworkError("dividing a model needs onnxruntime")
    model, closed = closed_shapes(source, shapes)
    try:
        plain_session(source)
    except Exception as error:  # onnxruntime raises types of its own
        why = f"onnxruntime does not take it: {last_line(error)}"
        raise refused or NetworkError(why) from None
    return load_partition(model, closed, name or title_of(source), reference)


def load_one(model: Any, shapes: Shapes | None, name: str | None) -> Network:
    """Load an ONNX model that AMOS takes as a whole.

    Raises:
        NetworkError: it does not.
    """
    title = name or title_of(model)
    opened, closed = closed_shapes(model, shapes)
    names = tuple(port.name for port in opened.graph.output)
    try:
        read = read_model(readable(opened, title), closed)
        graph = integer_arithmetic(without_idle_taps(merge_moves(read)))
        graph = channels_last(without_denormals(fold_scales(graph)))
    except InvalidModel:
        raise
    except NetworkError as error:
        raise NetworkError(f"model {title!r}: {error}") from error
    return Network(title, graph, grouped(graph), onnxruntime_reference(model), names)
