"""Convolutions in one, two and three dimensions (AMOS, section 7.3: C1D, C2D, C3D, DIL, T2D).

Common parameters: ``n`` batch, ``c`` input channels, ``k`` output channels;
``p, q`` (and ``d``) the *output's* height, width (and depth), ``r, s`` (and
``t``) the kernel's. ``padding`` zeros lie on each side of the image, which is
stored without them. The image is the smallest that fits, so that a strided layer
whose image has an unread last row needs ``h`` and ``w`` given: ResNet's 56 -> 28
with stride 2 reads 55 rows. Where ``h`` or ``w`` (or ``depth``) is given and the outputs
along it are not, they follow from it. Dilation and stride count elements.

>>> conv2d(n=1, c=64, k=128, p=28, q=28, stride=2, padding=1, h=56, w=56).inputs[0].shape
(1, 64, 56, 56)
>>> conv2d(h=64, w=64, stride=2, padding=1).output.tensor.shape
(1, 64, 32, 32)
>>> print(conv2d(n=1, c=8, k=8, p=4, q=4, layout="NHWC").compute)
out[n, p, q, k] += image[n, p + r, q + s, c] * weight[k, c, r, s]
"""

from __future__ import annotations

from amos.errors import OperatorError
from amos.ir import Operator
from amos.operators.phases import Phases
from amos.operators.registry import build, register
from amos.operators.windows import Axis, access, letters

__all__ = ["conv1d", "conv2d", "conv3d", "dilated_conv2d", "transposed_conv2d"]

Dtype = str | tuple[str, ...] | None


@register("C1D", "1-D convolution")
def conv1d(
    *,
    n: int = 1,
    c: int = 512,
    k: int = 512,
    p: int = 1599,
    r: int = 3,
    stride: int = 2,
    dilation: int = 1,
    padding: int = 0,
    h: int | None = None,
    layout: str = "NCH",
    dtype: Dtype = None,
    name: str = "conv1d",
) -> Operator:
    """``out[n,k,p] += image[n,c,p+r] * weight[k,c,r]``; layouts ``NCH`` and ``NHC``.

    By default the second layer of wav2vec 2.0's encoder, one second of speech.
    """
    order = letters(layout, "NCH", "NHC")
    rows = Axis("p", "r", p, r, stride, dilation, padding, h)
    out = access("out", order, {"N": "n", "C": "k", "H": "p"})
    image = access("image", order, {"N": "n", "C": "c", "H": rows.index}, padding)
    sizes = {"N": n, "C": c, "H": rows.image()}
    return build(
        f"{out} += {image} * weight[k,c,r]",
        {"n": n, "c": c, "k": k, "p": p, "r": r},
        name=name,
        dtype=dtype,
        shapes={"image": [sizes[letter] for letter in order]},
    )


@register("C2D", "2-D convolution")
def conv2d(
    *,
    n: int = 1,
    c: int = 64,
    k: int = 64,
    p: int = 56,
    q: int = 56,
    r: int = 3,
    s: int = 3,
    stride: int = 1,
    dilation: int = 1,
    padding: int = 0,
    h: int | None = None,
    w: int | None = None,
    layout: str = "NCHW",
    dtype: Dtype = None,
    name: str = "conv2d",
) -> Operator:
    """``out[n,k,p,q] += image[n,c,p+r,q+s] * weight[k,c,r,s]``; layouts ``NCHW``, ``NHWC``.

    By default ResNet-18's second convolution, over an image that holds its
    padding already (AMOS, Figure 3).
    """
    order = letters(layout, "NCHW", "NHWC")
    rows = Axis("p", "r", p, r, stride, dilation, padding, h)
    columns = Axis("q", "s", q, s, stride, dilation, padding, w)
    indices = {"N": "n", "C": "c", "H": rows.index, "W": columns.index}
    sizes = {"N": n, "C": c, "H": rows.image(), "W": columns.image()}
    out = access("out", order, {"N": "n", "C": "k", "H": "p", "W": "q"})
    image = access("image", order, indices, padding)
    return build(
        f"{out} += {image} * weight[k,c,r,s]",
        {"n": n, "c": c, "k": k, "p": p, "q": q, "r": r, "s": s},
        name=name,
        dtype=dtype,
        shapes={"image": [sizes[letter] for letter in order]},
    )


@register("DIL", "dilated 2-D convolution")
def dilated_conv2d(
    *,
    n: int = 1,
    c: int = 512,
    k: int = 512,
    p: int = 33,
    q: int = 33,
    r: int = 3,
    s: int = 3,
    stride: int = 1,
    dilation: int = 2,
    padding: int = 0,
    h: int | None = None,
    w: int | None = None,
    layout: str = "NCHW",
    dtype: Dtype = None,
    name: str = "dilated_conv2d",
) -> Operator:
    """``out[n,k,p,q] += image[n,c,p+r*2,q+s*2] * weight[k,c,r,s]``: a 2-D convolution.

    By default DeepLabv3's last ResNet stage on a 513-pixel image, output stride 16.
    """
    return conv2d(
        n=n,
        c=c,
        k=k,
        p=p,
        q=q,
        r=r,
        s=s,
        stride=stride,
        dilation=dilation,
        padding=padding,
        h=h,
        w=w,
        layout=layout,
        dtype=dtype,
        name=name,
    )


@register("C3D", "3-D convolution")
def conv3d(
    *,
    n: int = 1,
    c: int = 64,
    k: int = 64,
    d: int = 16,
    p: int = 56,
    q: int = 56,
    t: int = 3,
    r: int = 3,
    s: int = 3,
    stride: int = 1,
    dilation: int = 1,
    padding: int = 0,
    depth: int | None = None,
    h: int | None = None,
    w: int | None = None,
    layout: str = "NCDHW",
    dtype: Dtype = None,
    name: str = "conv3d",
) -> Operator:
    """``out[n,k,d,p,q] += image[n,c,d+t,p+r,q+s] * weight[k,c,t,r,s]``.

    Layouts ``NCDHW`` and ``NDHWC``; ``depth``, ``h`` and ``w`` are the image's
    sizes. By default the first residual stage of the 3-D ResNet-18 (R3D-18).
    """
    order = letters(layout, "NCDHW", "NDHWC")
    slices = Axis("d", "t", d, t, stride, dilation, padding, depth)
    rows = Axis("p", "r", p, r, stride, dilation, padding, h)
    columns = Axis("q", "s", q, s, stride, dilation, padding, w)
    sizes = {"N": n, "C": c, "D": slices.image(), "H": rows.image(), "W": columns.image()}
    indices = {"N": "n", "C": "c", "D": slices.index, "H": rows.index, "W": columns.index}
    out = access("out", order, {"N": "n", "C": "k", "D": "d", "H": "p", "W": "q"})
    image = access("image", order, indices, padding)
    return build(
        f"{out} += {image} * weight[k,c,t,r,s]",
        {"n": n, "c": c, "k": k, "d": d, "p": p, "q": q, "t": t, "r": r, "s": s},
        name=name,
        dtype=dtype,
        shapes={"image": [sizes[letter] for letter in order]},
    )


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
    step in ``stride``² (:mod:`amos.operators.phases`). Its extents are named ``p`` and
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
    if form == "phases":
        rows = Phases("p", "r", "a", p, r, stride, border[0])
        columns = Phases("q", "s", "b", q, s, stride, border[1])
        return _by_phases(
            rows, columns, order, dict(N=n, C=c, H=(h - 1) // stride + 1, W=(w - 1) // stride + 1),
            k, dtype, name,
        )  # fmt: skip
    inserted = {"N": "n", "C": "c", "H": f"p + r - {border[0]}", "W": f"q + s - {border[1]}"}
    out = access("out", order, {"N": "n", "C": "k", "H": "p", "W": "q"})
    image = access("upsampled", order, inserted, max(*border, below, right))
    sizes = {"N": n, "C": c, "H": h, "W": w}
    return build(
        f"{out} += {image} * weight[c, k, {r - 1}-r, {s - 1}-s]",
        {"n": n, "c": c, "k": k, "p": p, "q": q, "r": r, "s": s},
        name=name,
        dtype=dtype,
        shapes={"upsampled": [sizes[letter] for letter in order]},
    )


def _by_phases(
    rows: Phases,
    columns: Phases,
    order: str,
    sizes: dict[str, int],
    k: int,
    dtype: Dtype,
    name: str,
) -> Operator:
    """The transposed convolution whose axes are these, over an image of these sizes."""
    out = access("out", order, {"N": "n", "C": "k", "H": rows.written, "W": columns.written})
    # Which phases read beyond the image, bounds tell; pad() costs nothing where none does.
    image = access("image", order, {"N": "n", "C": "c", "H": rows.read, "W": columns.read}, 1)
    weight = f"weight[c, k, {rows.tap}, {columns.tap}]"
    if rows.partial or columns.partial:
        weight = f"pad({weight})"
    return build(
        f"{out} += {image} * {weight}",
        {"n": sizes["N"], "c": sizes["C"], "k": k, **rows.extents, **columns.extents},
        name=name,
        dtype=dtype,
        shapes={
            "image": [sizes[letter] for letter in order],
            "weight": [sizes["C"], k, rows.r, columns.r],
        },
    )


def _upsampled(output: str, p: int, r: int, stride: int, padding: int) -> tuple[int, int]:
    """Size of the zero-inserted image, and the rows of output padding that read zeros."""
    steps, remainder = divmod(p - r + 2 * padding, stride)
    if steps < 0:
        raise OperatorError(
            f"transposed_conv2d: no image gives {p} outputs along {output!r} "
            f"with window {r} and padding {padding}"
        )
    return steps * stride + 1, remainder
