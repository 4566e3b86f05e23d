"""A transposed convolution by phases: no inserted zero is read.

A transposed convolution of stride ``m`` is a convolution over an image with ``m - 1`` zeros
between neighbours, so that all but one in ``m`` products along an axis are with zeros. Which
ones depends on the output's position modulo ``m`` alone, its *phase* ``a``. With the output at
``p*m + a`` and the kernel at ``r*m + g*a + c``, where ``g`` is one less than a multiple of
``m``, exactly those products are left that read the image: its index is affine in ``p``, ``r``
and ``a``. Each phase is a convolution of its own; together they are one operator, whose
mappings and schedules are those of any other.

Where the kernel's size is no multiple of the stride some phases have fewer taps than others,
and read zeros behind the kernel's ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from amos.errors import OperatorError

__all__ = ["Phases"]


@dataclass(frozen=True)
class Phases:
    """One axis of a transposed convolution.

    Attributes:
        output, kernel, phase: names of its three iterations.
        p, r: sizes of the output and of the kernel, in elements.
        stride: how far apart elements of the image are in the output.
        border: zeros before the zero-inserted image.

    Raises:
        OperatorError: the output has no whole number of steps.
    """

    output: str
    kernel: str
    phase: str
    p: int
    r: int
    stride: int
    border: int

    def __post_init__(self) -> None:
        if self.p % self.stride:
            raise OperatorError(
                f"transposed convolution by phases: {self.p} outputs along {self.output!r} are "
                f"no multiple of the stride {self.stride}; form='upsampled' takes any number"
            )

    @cached_property
    def _taps(self) -> tuple[int, int, int]:
        """Kernel positions of one phase, and ``g`` and ``c``: as few as cover the kernel."""
        m, found = self.stride, []
        for g in (-1, m - 1):
            c = self.border % m
            first = [-(-(-g * a - c) // m) for a in range(m)]
            last = [(self.r - 1 - g * a - c) // m for a in range(m)]
            found.append((max(last) - min(first) + 1, g, c + m * min(first)))
        return min(found)

    @property
    def extents(self) -> dict[str, int]:
        """Extent of each iteration; a single phase has none."""
        made = {self.output: self.p // self.stride, self.kernel: self._taps[0]}
        return made | ({self.phase: self.stride} if self.stride > 1 else {})

    @property
    def written(self) -> str:
        """Index of the output, as text."""
        return f"{self.output}*{self.stride}" + self._plus(1)

    @property
    def read(self) -> str:
        """Index of the image, as text."""
        _, g, c = self._taps
        fixed = (c - self.border) // self.stride
        return f"{self.output} + {self.kernel}{self._plus((1 + g) // self.stride)} + {fixed}"

    @property
    def tap(self) -> str:
        """Index of the kernel, which is read backwards, as text."""
        _, g, c = self._taps
        return f"{self.r - 1 - c} - {self.kernel}*{self.stride}{self._plus(-g)}"

    @property
    def partial(self) -> bool:
        """Whether some phase has fewer taps than another."""
        return self._taps[0] * self.stride != self.r

    def _plus(self, factor: int) -> str:
        if self.stride == 1 or not factor:
            return ""
        return f" {'+' if factor > 0 else '-'} {self.phase}*{abs(factor)}"
