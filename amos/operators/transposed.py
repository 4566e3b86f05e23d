"""The transposed convolution (AMOS, section 7.3: T2D), also without the inserted zeros.

A transposed convolution of stride ``m`` is a convolution over an image with ``m - 1`` zeros
between neighbours, so that all but one in ``m`` products along an axis are with zeros. Which
ones depends on the output's position modulo ``m`` alone, its *phase* ``a``. With the output at
``p*m + a`` and the kernel at ``r*m + g*a + c``, where ``g`` is one less than a multiple of
``m``, exactly the products that read the image remain: its index is affine in ``p``, ``r``
and ``a``. Each phase is a convolution of its own; together they are one operator, whose
mappings and schedules are those of any other.

Where the kernel's size is no multiple of the stride some phases have fewer taps than others,
and read zeros behind the kernel's ends. With the zeros inserted there is a single phase.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from amos.errors import OperatorError
from amos.ir import Operator
from amos.operators.formula import letters
from amos.operators.registry import Dtype, build, register


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

    ``upsampled`` is the image with ``stride - 1`` zeros between neighbours: of 8 rows it has
    (8 - 1)·2 + 1 = 15. ``padding`` is that of frameworks, so ``r - 1 - padding`` zeros
    surround ``upsampled``. The kernel is read backwards; a reversed index matches no index of an
    instruction, hence Table 6's 7 mappings instead of 35. By default DCGAN's third layer,
    8×8 -> 16×16.

    ``form="phases"`` reads the ``image`` without the zeros (:mod:`amos.operators.transposed`):
    ``p`` and ``q`` are steps of the output, ``a`` and ``b`` the phases of one step.

    Raises:
        OperatorError: ``padding`` is r (or s) or more, no image gives ``p``, ``q``, or
            phases of them are not all equally long.

    >>> print(transposed_conv2d(form="phases", layout="NHWC").compute.dst)
    out[n, p*2 + a, q*2 + b, k]
    """
    if form not in ("upsampled", "phases"):
        raise OperatorError(f"unknown form {form!r}: expected 'upsampled' or 'phases'")
    phases = form == "phases"
    source = "image" if phases else "upsampled"
    rows = transposed_axis(("p", "r", "a"), (p, r), stride, padding, phases)
    columns = transposed_axis(("q", "s", "b"), (q, s), stride, padding, phases)
    order = letters(layout, "NCHW", "NHWC")
    # Bounds decide which phases read beyond the image; pad() is free where none does.
    padded = phases or rows.zeros or columns.zeros
    sizes = {"N": n, "C": c, "H": rows.size, "W": columns.size}
    return build(
        transposed_text((rows, columns), order, source, padded=padded),
        {"n": n, "c": c, "k": k, **rows.extents, **columns.extents},
        name=name,
        dtype=dtype,
        shapes={source: [sizes[letter] for letter in order], "weight": [c, k, r, s]},
    )


def transposed_text(
    axes: Sequence[TransposedAxis],
    order: Iterable[str],
    source: str = "image",
    *,
    padded: bool = True,
) -> str:
    """Write a transposed convolution along some axes."""

    def access(tensor: str, channel: str, places: Iterable[str]) -> str:
        along = dict(zip("HW"[-len(axes) :], places, strict=True))
        index = {"N": "n", "C": channel, **along}
        return f"{tensor}[{', '.join(index[letter] for letter in order)}]"

    out = access("out", "k", (axis.written for axis in axes))
    image = _pad(access(source, "c", (axis.read for axis in axes)), padded)
    taps = ", ".join(axis.tap for axis in axes)
    return f"{out} += {image} * {_pad(f'weight[c, k, {taps}]', any(x.partial for x in axes))}"


def _pad(access: str, zeros: bool) -> str:
    return f"pad({access})" if zeros else access


@dataclass(frozen=True)
class TransposedAxis:
    """One axis of a transposed convolution.

    Attributes:
        written, read, tap: indices of the output, the image and the kernel, as text.
        extents: extent of each iteration; a single phase has none.
        size: size of the image, or of the zero-inserted one.
        zeros: whether zeros are read around the zero-inserted image.
        partial: whether some phase has fewer taps than another.
    """

    written: str
    read: str
    tap: str
    extents: dict[str, int]
    size: int
    zeros: bool
    partial: bool


def transposed_axis(
    names: tuple[str, str, str], sizes: tuple[int, int], stride: int, padding: int, phases: bool
) -> TransposedAxis:
    """Write an axis with these names of output, kernel and phase, and sizes of the first two.

    Raises:
        OperatorError: ``padding`` is the kernel's size or more, no image gives the output,
            or phases of it are not all equally long.
    """
    (output, kernel, phase), (p, r) = names, sizes
    if padding >= r:
        raise OperatorError(
            f"transposed convolution: padding {padding} is not below the kernel's {r}"
        )
    steps, beyond = divmod(p - r + 2 * padding, stride)
    if steps < 0:
        raise OperatorError(
            f"transposed convolution: no image gives {p} outputs along {output!r} "
            f"with window {r} and padding {padding}"
        )
    m = stride if phases else 1
    if p % m:
        raise OperatorError(
            f"transposed convolution by phases: {p} outputs along {output!r} are "
            f"no multiple of the stride {m}; form='upsampled' takes any number"
        )
    border = r - 1 - padding  # zeros before the zero-inserted image
    taps, g, c = min(_taps(r, m, border % m, g) for g in (-1, m - 1))

    def by_phase(factor: int) -> str:
        return f" {'+' if factor > 0 else '-'} {phase}*{abs(factor)}" if m > 1 and factor else ""

    return TransposedAxis(
        written=f"{output}*{m}{by_phase(1)}",
        read=f"{output} + {kernel}{by_phase((1 + g) // m)} + {(c - border) // m}",
        tap=f"{r - 1 - c} - {kernel}*{m}{by_phase(-g)}",
        extents={output: p // m, kernel: taps} | ({phase: m} if m > 1 else {}),
        size=steps * stride // m + 1,
        zeros=max(border, beyond) > 0,
        partial=taps * m != r,
    )


def _taps(r: int, m: int, c: int, g: int) -> tuple[int, int, int]:
    """Return kernel positions in a phase, ``g``, and ``c`` such that the first one is zero."""
    first = [-(-(-g * a - c) // m) for a in range(m)]
    last = [(r - 1 - g * a - c) // m for a in range(m)]
    return max(last) - min(first) + 1, g, c + m * min(first)
