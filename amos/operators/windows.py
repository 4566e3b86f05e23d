"""What all convolutions share: window indices, layouts and image sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amos.errors import OperatorError, shown

__all__ = ["IMAGE_AXES", "Axis", "letters", "slide", "with_outputs"]

#: Parameter of an image size → its output and its kernel.
IMAGE_AXES = {"depth": ("d", "t"), "h": ("p", "r"), "w": ("q", "s")}


@dataclass(frozen=True)
class Axis:
    """One sliding-window dimension: output ``p`` over kernel ``r``.

    Attributes:
        output, kernel: names of the two iterations.
        p, r: their extents.
        stride, dilation: steps of the window and within it, in elements.
        padding: zeros before the image, and as many after it.
        size: image size in elements; the smallest that fits if ``None``.
    """

    output: str
    kernel: str
    p: int
    r: int
    stride: int = 1
    dilation: int = 1
    padding: int = 0
    size: int | None = None

    @staticmethod
    def of(size: str, values: Mapping[str, Any]) -> Axis:
        """The axis of an image size, of an operator's parameters."""
        output, kernel = IMAGE_AXES[size]
        steps = (values[key] for key in ("stride", "dilation", "padding", size))
        return Axis(output, kernel, values[output], values[kernel], *steps)

    @property
    def reach(self) -> int:
        """Elements that one window spans."""
        return self.dilation * (self.r - 1) + 1

    @property
    def index(self) -> str:
        """Index into the unpadded image, as text."""
        return f"{self.output}*{self.stride} + {self.kernel}*{self.dilation} - {self.padding}"

    def image(self) -> int:
        """Size of the unpadded image.

        Raises:
            OperatorError: no image is left, or the size given has other outputs.
        """
        smallest = (self.p - 1) * self.stride + self.reach - 2 * self.padding
        if self.size is None:
            if smallest < 1:
                raise OperatorError(
                    f"padding {self.padding} leaves no image along {self.output!r}: "
                    f"{self.p} outputs of a window of {self.reach} read only padding"
                )
            return smallest
        outputs = self.outputs(self.size)
        if outputs != self.p or not outputs:
            raise OperatorError(
                f"image size {self.size} along {self.output!r} with window {self.reach}, "
                f"stride {self.stride} and padding {self.padding} gives "
                f"{outputs} outputs, " + (f"not {self.p}" if self.p else "expected at least one")
            )
        return self.size

    def outputs(self, size: int) -> int:
        """How many windows an image of a size has; 0 if none fits."""
        return max((size + 2 * self.padding - self.reach) // self.stride + 1, 0)


def with_outputs(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of an operator, and the outputs that follow from the image's size.

    Args:
        given: what the user gave; an output among it stays as it is.
        defaults: every parameter of the operator with its default.
    """
    follow = {}
    for size, (output, _) in IMAGE_AXES.items():
        # An image's size has no default; h of matrices, say, is another thing.
        if size in defaults and defaults[size] is None and given.get(size) and output not in given:
            follow[output] = Axis.of(size, {**defaults, **given}).outputs(given[size])
    return {**given, **follow}


def letters(layout: object, *allowed: str) -> str:
    """Check a layout such as ``"NHWC"``: one letter for each dimension of the image.

    Raises:
        OperatorError: the operator does not have that layout.
    """
    if layout not in allowed:
        raise OperatorError(f"unknown layout {shown(layout)}: expected {' or '.join(allowed)}")
    return str(layout)


def slide(text: str, extents: Mapping[str, int], axes: Sequence[Axis]) -> tuple[str, list[int]]:
    """A statement whose ``image`` is read with strides, and the image's shape.

    Args:
        text: the statement; each of its windows is written ``p+r``.
        extents: extent by iteration.
        axes: one for each window.

    Raises:
        OperatorError: an axis has no such image.

    >>> slide("o[p,c] += image[p+r,c]", {"p": 2, "r": 3, "c": 8}, [Axis("p", "r", 2, 3, padding=1)])
    ('o[p,c] += pad(image[p*1 + r*1 - 1, c])', [2, 8])
    """
    windows = {f"{axis.output}+{axis.kernel}": axis for axis in axes}
    read = re.search(r"image\[(.*?)\]", text)
    assert read is not None, text
    indices, shape = [], []
    for index in read[1].split(","):
        axis = windows.get(index)
        indices.append(axis.index if axis else index)
        shape.append(axis.image() if axis else extents[index])
    access = f"image[{', '.join(indices)}]"
    padded = f"pad({access})" if axes[0].padding else access
    return text.replace(read[0], padded), shape
