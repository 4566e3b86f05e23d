"""Cascades: convolutions one behind the other, computed in bands of rows.

A pointwise convolution makes rows that a depthwise one reads a window of, and another pointwise one
may read those. Computed one after the other, each sends its results to memory, or to a cache that
all cores share, and the next one fetches them from there. In bands they stay in the caches near a
core: it makes the rows that a band of results needs, keeps those that the next band needs too, and
goes on (Alwani et al., *Fused-layer CNN accelerators*, MICRO 2016).

The convolutions of a cascade are operators of their own on a band, which are mapped and scheduled
as any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from amos.ir import Affine, BufferLoad, Operator, Tensor

#: Iterations of images and rows, and the source that rows are read of.
IMAGES, ROWS, SOURCE = "n", "p", "image"


@dataclass(frozen=True)
class Window:
    """Which rows of its source a convolution reads.

    Attributes:
        stride: rows of the source from one row of results to the next.
        rows: of the source for one row of results, those that dilation leaves out included.
        above: rows above the first of the source that are read of the padding.
    """

    stride: int
    rows: int
    above: int

    @staticmethod
    def of(operator: Operator) -> Window:
        """The window of a convolution."""
        index = source_of(operator).indices[1]
        extents = operator.extents | {ROWS: 1}
        _, last = replace(index, constant=0).bounds(extents)
        return Window(index.coefficient(ROWS), last + 1, -index.constant)

    @property
    def halo(self) -> int:
        """Rows that the next band reads too."""
        return self.rows - self.stride

    def needed(self, rows: int) -> int:
        """Rows of the source that a band of some rows of results reads."""
        return (rows - 1) * self.stride + self.rows


@dataclass(frozen=True)
class Cascade:
    """Convolutions of which each reads the result of the one before.

    Attributes:
        layers: the convolutions as operators of their own, a depthwise one the second.
    """

    layers: tuple[Operator, ...]

    @property
    def name(self) -> str:
        """Names of the convolutions."""
        return " + ".join(layer.name for layer in self.layers)

    @property
    def result(self) -> Tensor:
        """The tensor of the results, the last one's."""
        return self.layers[-1].result

    @property
    def images(self) -> int:
        """Number of images."""
        return self.layers[0].extents[IMAGES]

    @property
    def rows(self) -> int:
        """Rows of the result of an image."""
        return self.layers[1].extents[ROWS]

    @cached_property
    def window(self) -> Window:
        """Of the depthwise convolution."""
        return Window.of(self.layers[1])

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        """Names of the tensors that either convolution reads, without the one between them."""
        return tuple(
            replace(tensor, name=argument(number, tensor.name))
            for number, layer in enumerate(self.layers)
            for tensor in layer.inputs
            if number == 0 or tensor.name != SOURCE
        )

    def between(self, rows: int) -> list[int]:
        """Bytes of the intermediate tensors, for a band of some rows."""
        results = [layer.result for layer in self.layers[:-1]]
        counts = (self.window.needed(rows), rows)
        return [
            tensor.stored_bytes // (tensor.shape[0] * tensor.shape[1]) * count
            for tensor, count in zip(results, counts, strict=False)
        ]

    def __str__(self) -> str:
        return "; ".join(map(str, self.layers))


def argument(layer: int, tensor: str) -> str:
    """Argument name of a layer's tensor."""
    return f"{layer}.{tensor}"


def source_of(operator: Operator) -> BufferLoad:
    """The access to the image."""
    return next(load for load in operator.sources if load.tensor.name == SOURCE)


def rows_of(operator: Operator, rows: int) -> Operator:
    """A convolution for some rows of results of one image, of a source that has all it reads."""
    extents = operator.extents | {IMAGES: 1, ROWS: rows}

    def load(access: BufferLoad) -> BufferLoad:
        indices, shape = list(access.indices), list(access.tensor.shape)
        for d, index in enumerate(indices):
            if {IMAGES, ROWS}.intersection(index.names):
                indices[d] = Affine(index.terms)
                shape[d] = indices[d].bounds(extents)[1] + 1
        tensor = replace(access.tensor, shape=tuple(shape))
        return replace(access, tensor=tensor, indices=tuple(indices))

    iterations = tuple(replace(it, extent=extents[it.name]) for it in operator.iterations)
    fewer = replace(operator.compute, iterations=iterations)
    band = replace(operator, compute=fewer, store=None).with_loads(load)
    return band if operator.store is None else replace(band, store=band.stored)
