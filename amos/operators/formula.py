"""An operator of the library: one line of math as text, and a default for each parameter."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from amos.errors import OperatorError, quote
from amos.ir import BufferLoad, Operator
from amos.operators.registry import Builder, add, build

#: Parameter of an image size → its output and its kernel.
IMAGE_AXES = {"depth": ("d", "t"), "h": ("p", "r"), "w": ("q", "s")}
#: Default steps of a window and within it, and zeros on each side.
STEPS = {"stride": 1, "dilation": 1, "padding": 0}


def define(
    name: str,
    code: str,
    description: str,
    *,
    math: str | Mapping[str, str],
    defaults: Mapping[str, int],
    notes: str,
    derived: Mapping[str, str] | None = None,
) -> Builder:
    """Put an operator into the library, with a parameter for each entry of ``defaults``.

    Where the math slides a window over ``image``, written ``image[n,c,p+r]``, the operator
    also has a stride, a dilation, a padding and the image's sizes as parameters, and the
    index becomes ``p*stride + r*dilation - padding``.

    Args:
        name, code, description: see :class:`~amos.operators.registry.Builder`.
        math: the statement; one for each layout, the default first, if there are several.
        defaults: extent by iteration, and steps of the window that are not 1, 1 and 0.
        notes: text of its docstring after the statement and the layouts.
        derived: iterations of the same extent as another one.
    """
    texts = {"": math} if isinstance(math, str) else math
    usual = next(iter(texts))
    windows = [size for size, (p, r) in IMAGE_AXES.items() if f"{p}+{r}" in texts[usual]]
    extents = [key for key in defaults if key not in STEPS]
    parameters: dict[str, Any] = {key: defaults[key] for key in extents}
    if windows:
        parameters |= STEPS | dict(defaults) | dict.fromkeys(windows)
    if usual:
        parameters["layout"] = usual
    parameters |= {"dtype": None, "name": name}

    def make(**overrides: Any) -> Operator:
        values = parameters | overrides
        for size in windows:
            output = IMAGE_AXES[size][0]
            if values[size] and output not in overrides:
                values[output] = _Axis.of(size, values).outputs
        text = texts[letters(values.get("layout", usual), *texts)]
        ranges = {key: values[key] for key in extents}
        ranges |= {key: values[origin] for key, origin in (derived or {}).items()}
        shapes = {}
        if windows:
            axes = [_Axis.of(size, values) for size in windows]
            text, shapes["image"] = _slide(text, ranges, axes)
        op = build(text, ranges, name=values["name"], dtype=values["dtype"], shapes=shapes)
        return _with_neutral_padding(op)

    statement = texts[usual]
    for p, r in (IMAGE_AXES[size] for size in windows if parameters["dilation"] > 1):
        statement = statement.replace(f"{p}+{r}", f"{p}+{r}*{parameters['dilation']}")
    layouts = tuple(texts) if usual else ()
    named = f"; layouts {', '.join(f'``{layout}``' for layout in layouts)}" if layouts else ""
    make.__doc__ = f"``{statement}``{named}.\n\n{inspect.cleandoc(notes)}"
    return add(Builder(name, code, description, make, parameters, layouts))


def _with_neutral_padding(op: Operator) -> Operator:
    """Pad a maximum or a minimum with values it never takes; a sum reads zeros there."""
    if op.compute.combiner not in ("max", "min"):
        return op

    def pad(load: BufferLoad) -> BufferLoad:
        value = op.compute.neutral("float32")
        return replace(load, padding=value) if load.padded else load

    return op.with_loads(pad)


def letters(layout: object, *allowed: str) -> str:
    """Check a layout such as ``"NHWC"``: one letter for each dimension of the image."""
    if layout not in allowed:
        raise OperatorError(f"unknown layout {quote(layout)}: expected {' or '.join(allowed)}")
    return str(layout)


@dataclass(frozen=True)
class _Axis:
    """One sliding-window dimension.

    Attributes:
        output, kernel: names of the two iterations.
        stride, dilation: steps of the window and within it, in elements.
        padding: zeros before the image, and as many after it.
        size: image size in elements; the smallest that fits if ``None``.
    """

    output: str
    kernel: str
    p: int
    r: int
    stride: int
    dilation: int
    padding: int
    size: int | None

    @staticmethod
    def of(size: str, values: Mapping[str, Any]) -> _Axis:
        output, kernel = IMAGE_AXES[size]
        steps = {step: values[step] for step in STEPS}
        return _Axis(output, kernel, values[output], values[kernel], size=values[size], **steps)

    @property
    def reach(self) -> int:
        """Number of elements that one window spans."""
        return self.dilation * (self.r - 1) + 1

    @property
    def index(self) -> str:
        """Index into the unpadded image, as text."""
        return f"{self.output}*{self.stride} + {self.kernel}*{self.dilation} - {self.padding}"

    @property
    def outputs(self) -> int:
        """Number of windows along the image; 0 if none fits."""
        assert self.size is not None
        return max((self.size + 2 * self.padding - self.reach) // self.stride + 1, 0)

    def image(self) -> int:
        """Return the size of the unpadded image; refuse sizes without these outputs."""
        if self.size is None:
            smallest = (self.p - 1) * self.stride + self.reach - 2 * self.padding
            if smallest < 1:
                raise OperatorError(
                    f"padding {self.padding} leaves no image along {self.output!r}: "
                    f"{self.p} outputs of a window of {self.reach} read only padding"
                )
            return smallest
        if self.outputs != self.p or not self.p:
            raise OperatorError(
                f"image size {self.size} along {self.output!r} with window {self.reach}, "
                f"stride {self.stride} and padding {self.padding} gives {self.outputs} outputs, "
                + (f"not {self.p}" if self.p else "expected at least one")
            )
        return self.size


def _slide(text: str, extents: Mapping[str, int], axes: Sequence[_Axis]) -> tuple[str, list[int]]:
    """Read ``image`` through windows, ``p+r``; return the statement and the image's shape."""
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
