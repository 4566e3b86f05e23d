"""A network with open dimensions, loaded for some sizes of each: its buckets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from amos._display import Shown
from amos.errors import NetworkError, quote
from amos.intrinsics import Intrinsic
from amos.machine import Machine
from amos.network.external.partition import PartitionedNetwork, load_partition
from amos.network.frontend import Shapes, check_shapes, is_extent, open_model, open_shapes, title_of
from amos.network.groups import Task, merge_tasks
from amos.network.report import BucketReports
from amos.network.sessions import Reference

#: Sizes of dimensions by name.
Buckets = Mapping[str, Sequence[int]]


@dataclass(frozen=True, eq=False)
class BucketedNetwork(Shown):
    """A model with open dimensions, once for each combination of their sizes.

    Attributes:
        sizes: of each open dimension, by its name, rising.
        shapes: of the inputs, with the names of open dimensions.
        networks: the model for each combination of sizes, in the order of :attr:`sizes`.
    """

    name: str
    sizes: Mapping[str, tuple[int, ...]]
    shapes: Mapping[str, tuple[int | str, ...]]
    networks: Mapping[tuple[int, ...], PartitionedNetwork]

    @cached_property
    def files(self) -> dict[str, PartitionedNetwork]:
        """The model of each bucket by the name of its file."""
        return {
            f"{_title_of(dict(zip(self.sizes, sizes, strict=True)))}.onnx": network
            for sizes, network in self.networks.items()
        }

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The distinct groups of all buckets, each with how often it occurs."""
        return merge_tasks(task for network in self.networks.values() for task in network.tasks)

    def report(
        self,
        machine: str | Machine = "host",
        intrinsics: Sequence[Intrinsic] = (),
        *,
        bounds: bool = False,
    ) -> BucketReports:
        """Report each bucket; see :meth:`Network.report`."""
        reports = tuple(
            each.report(machine, intrinsics, bounds=bounds) for each in self.networks.values()
        )
        return BucketReports(self.name, reports)

    def __str__(self) -> str:
        return "\n".join(map(str, self.networks.values()))

    __repr__ = __str__


#: Results of :func:`amos.network.loading.load_network`.
Loaded = BucketedNetwork | PartitionedNetwork


def load_buckets(
    model: Any,
    shapes: Shapes,
    title: str | None,
    buckets: Buckets,
    reference: Reference | None = None,
) -> BucketedNetwork:
    """Read a model for each combination of sizes; see :func:`amos.load_network`."""
    check_shapes(shapes)
    source = open_model(model)
    title = title or title_of(model)
    own = {n: shape for n, shape in open_shapes(source).items() if shape and n not in shapes}
    sizes = _check_buckets(buckets, own, title)
    used = {name: shape for name, shape in own.items() if set(shape) & set(sizes)}
    networks = {}
    for combination in product(*sizes.values()):
        chosen = dict(zip(sizes, combination, strict=True))
        stated = {
            name: [chosen.get(str(extent), extent) for extent in shape]
            for name, shape in used.items()
        }
        listed = ", ".join(f"{name}={size}" for name, size in chosen.items())
        closed = {**shapes, **_close_shapes(stated, title)}
        networks[combination] = load_partition(
            source, closed, f"{title}[{listed}]", reference, f"{_title_of(chosen)}_"
        )
    first = next(iter(networks.values()))
    full_shapes = {port.name: used.get(port.name, port.shape) for port in first.inputs}
    return BucketedNetwork(title, sizes, full_shapes, networks)


def _title_of(sizes: Mapping[str, int]) -> str:
    """Return the prefix of files and operators of a bucket."""
    return "_".join(re.sub(r"\W", "_", name) + str(size) for name, size in sizes.items())


def _check_buckets(
    buckets: Buckets, own: Mapping[str, tuple[int | str, ...]], title: str
) -> dict[str, tuple[int, ...]]:
    """Check the sizes of each dimension; return them in rising order."""
    if not isinstance(buckets, Mapping) or not buckets:
        raise NetworkError(f"buckets: expected sizes by name, got {quote(buckets)}")
    dimensions = {extent for shape in own.values() for extent in shape if isinstance(extent, str)}
    sizes = {}
    for name, some in buckets.items():
        if name not in dimensions - {""}:
            named = ", ".join(map(repr, sorted(dimensions - {""}))) or "none"
            raise NetworkError(
                f"model {title!r} has no open dimension {name!r} for buckets; those with a name: "
                f"{named}"
            )
        fits = isinstance(some, Sequence) and all(map(is_extent, some))
        if not fits or not some or 0 in some:
            raise NetworkError(
                f"buckets of {name!r}: expected a list of sizes above 0, got {quote(some)}"
            )
        sizes[name] = tuple(sorted(set(map(int, some))))
    return sizes


def _close_shapes(shapes: Mapping[str, Sequence[int | str]], title: str) -> dict[str, list[int]]:
    """Replace open dimensions in shapes by their sizes; refuse those that stay open."""
    closed: dict[str, list[int]] = {}
    for name, shape in shapes.items():
        for position, extent in enumerate(shape):
            if isinstance(extent, str) or not extent:
                raise NetworkError(
                    f"model {title!r}: dimension {extent or position!r} of input {name!r} is "
                    "dynamic too; it needs buckets as well, one at the least"
                )
        closed[name] = [int(extent) for extent in shape]
    return closed
