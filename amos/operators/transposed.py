"""The transposed convolution (AMOS, section 7.3: T2D), and how it reads no inserted zero.

A transposed convolution of stride ``m`` is a convolution over an image with ``m - 1`` zeros
between neighbours, so that all but one in ``m`` products along an axis are with zeros. Which
ones depends on the output's position modulo ``m`` alone, its *phase* ``a``. With the output at
``p*m + a`` and the kernel at ``r*m + g*a + c``, where ``g`` is one less than a multiple of
``m``, exactly those products are left that read the image: its index is affine in ``p``, ``r``
and ``a``. Each phase is a convolution of its own; together they are one operator, whose
mappings and schedules are those of any other.

Where the kernel's size is no multiple of the stride some phases have fewer taps than others,
and read zeros behind the kernel's ends. With the zeros inserted there is a single phase.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from amos.errors import OperatorError
from amos.ir import Operator
from amos.operators.registry import Dtype, build, register
from amos.operators.windows import letters

__all__ = ["transposed_conv2d"]


@register("T2D", "transposed 2-D convolution, over a zero-inserted image or by phases")
def transposed_conv2d(
    *,
    n: int = 1,
    c: int = 512,
    k: int = 256,
    p: int = 16,
    q: int = 16,
    r: int = 4,
    s: int = 4,
    stride: int = 2,
    padding: int = 1,
    form: str = "upsampled",
    layout: str = "NCHW",
    dtype: Dtype = None,
    name: str = "transposed_conv2d",
) -> Operator:
    """``out[n,k,p,q] += pad(upsampled[n,c,p+r-2,q+s-2]) * weight[c,k,3-r,3-s]``.

    ``upsampled`` is the image with ``stride - 1`` zeros between neighbours: an
    image of 8 rows becomes (8 - 1)·2 + 1 = 15. ``padding`` is what a framework
    calls it, so ``r - 1 - padding`` zeros surround ``upsampled``. The kernel is
    read backwards; a reversed index matches no index of an instruction, hence
    Table 6's 7 mappings instead of 35. With a kernel stored reversed it would be
    an ordinary convolution. By default DCGAN's third layer, 8×8 -> 16×16.

    ``form="phases"`` computes the same of the ``image`` without the zeros, in one
    step in ``stride``² (:mod:`amos.operators.transposed`). Its extents are named ``p`` and
    ``q`` for the output's steps, and ``a`` and ``b`` for the phases of one step;
    ``layout`` is ``NCHW`` or ``NHWC``.

    Raises:
        OperatorError: ``padding`` is r (or s) or more, no image gives ``p``, ``q``, or
            phases of them are not all equally long.

    >>> print(transposed_conv2d(form="phases", layout="NHWC").compute.dst)
    out[n, p*2 + a, q*2 + b, k]
    """
    border = (r - 1 - padding, s - 1 - padding)
    if min(border) < 0:
        raise OperatorError(
            f"transposed_conv2d: padding {padding} is not below the kernel's {r}×{s}"
        )
    if form not in ("upsampled", "phases"):
        raise OperatorError(f"unknown form {form!r}: expected 'upsampled' or 'phases'")
    order = letters(layout, "NCHW", "NHWC")
    h, below = _upsampled("p", p, r, stride, padding)
    w, right = _upsampled("q", q, s, stride, padding)
    tensor, step, zeros = "upsampled", 1, max(*border, below, right) > 0
    if form == "phases":
        # Which phases read beyond the image, bounds tell; pad() costs nothing where none does.
        tensor, step, zeros = "image", stride, True
    rows = _Phases("p", "r", "a", p, r, step, border[0])
    columns = _Phases("q", "s", "b", q, s, step, border[1])
    sizes = {"N": n, "C": c, "H": (h - 1) // step + 1, "W": (w - 1) // step + 1}
    written = {"N": "n", "C": "k", "H": rows.written, "W": columns.written}
    read = {"N": "n", "C": "c", "H": rows.read, "W": columns.read}
    image = _pad(f"{tensor}[{', '.join(read[letter] for letter in order)}]", zeros)
    weight = _pad(f"weight[c, k, {rows.tap}, {columns.tap}]", rows.partial or columns.partial)
    return build(
        f"out[{', '.join(written[letter] for letter in order)}] += {image} * {weight}",
        {"n": n, "c": c, "k": k, **rows.extents, **columns.extents},
        name=name,
        dtype=dtype,
        shapes={tensor: [sizes[letter] for letter in order], "weight": [c, k, r, s]},
    )


def _pad(access: str, zeros: bool) -> str:
    return f"pad({access})" if zeros else access


def _upsampled(output: str, p: int, r: int, stride: int, padding: int) -> tuple[int, int]:
    """Size of the zero-inserted image, and the rows of output padding that read zeros."""
    steps, remainder = divmod(p - r + 2 * padding, stride)
    if steps < 0:
        raise OperatorError(
            f"transposed_conv2d: no image gives {p} outputs along {output!r} "
            f"with window {r} and padding {padding}"
        )
    return steps * stride + 1, remainder


@dataclass(frozen=True)
class _Phases:
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
