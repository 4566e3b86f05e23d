"""Convolutions with other channel structures (AMOS, section 7.3: GRP, DEP, CAP, BCV).

Parameters are those of :mod:`amos.operators.convolutions`.

>>> print(depthwise_conv2d(c=8, k=2, p=4, q=4).compute)
out[n, c, k, p, q] += image[n, c, p + r, q + s] * weight[c, k, r, s]
"""

from __future__ import annotations

from amos.ir import Operator
from amos.operators.registry import build, register
from amos.operators.windows import Axis, access, letters

__all__ = [
    "batched_conv2d",
    "capsule_conv2d",
    "capsule_pose_conv2d",
    "depthwise_conv2d",
    "grouped_conv2d",
]

Dtype = str | tuple[str, ...] | None


@register("GRP", "grouped 2-D convolution")
def grouped_conv2d(
    *,
    n: int = 1,
    g: int = 32,
    c: int = 4,
    k: int = 4,
    p: int = 56,
    q: int = 56,
    r: int = 3,
    s: int = 3,
    stride: int = 1,
    dilation: int = 1,
    padding: int = 0,
    h: int | None = None,
    w: int | None = None,
    layout: str = "NGCHW",
    dtype: Dtype = None,
    name: str = "grouped_conv2d",
) -> Operator:
    """``out[n,g,k,p,q] += image[n,g,c,p+r,q+s] * weight[g,k,c,r,s]``.

    ``c`` and ``k`` count channels per group; layouts ``NGCHW`` and ``NHWGC`` are
    NCHW and NHWC with the channel dimension split. By default the first stage of
    ResNeXt-50 (32×4d).
    """
    order = letters(layout, "NGCHW", "NHWGC")
    rows = Axis("p", "r", p, r, stride, dilation, padding, h)
    columns = Axis("q", "s", q, s, stride, dilation, padding, w)
    indices = {"N": "n", "G": "g", "C": "c", "H": rows.index, "W": columns.index}
    sizes = {"N": n, "G": g, "C": c, "H": rows.image(), "W": columns.image()}
    out = access("out", order, {"N": "n", "G": "g", "C": "k", "H": "p", "W": "q"})
    image = access("image", order, indices, padding)
    return build(
        f"{out} += {image} * weight[g,k,c,r,s]",
        {"n": n, "g": g, "c": c, "k": k, "p": p, "q": q, "r": r, "s": s},
        name=name,
        dtype=dtype,
        shapes={"image": [sizes[letter] for letter in order]},
    )


@register("DEP", "depthwise 2-D convolution with a channel multiplier")
def depthwise_conv2d(
    *,
    n: int = 1,
    c: int = 512,
    k: int = 1,
    p: int = 14,
    q: int = 14,
    r: int = 3,
    s: int = 3,
    stride: int = 1,
    dilation: int = 1,
    padding: int = 0,
    h: int | None = None,
    w: int | None = None,
    layout: str = "NCHW",
    dtype: Dtype = None,
    name: str = "depthwise_conv2d",
) -> Operator:
    """``out[n,c,k,p,q] += image[n,c,p+r,q+s] * weight[c,k,r,s]``.

    ``k`` is the channel multiplier, a dimension of its own next to ``c``;
    without it no iteration could fill the columns of a matrix product. Layouts
    ``NCHW`` and ``NHWC`` (output ``n,p,q,c,k``). By default MobileNet-V1's five
    equal layers.
    """
    order = letters(layout, "NCHW", "NHWC")
    rows = Axis("p", "r", p, r, stride, dilation, padding, h)
    columns = Axis("q", "s", q, s, stride, dilation, padding, w)
    indices = {"N": "n", "C": "c", "H": rows.index, "W": columns.index}
    sizes = {"N": n, "C": c, "H": rows.image(), "W": columns.image()}
    out = access("out", order, {"N": "n", "C": "c, k", "H": "p", "W": "q"})
    image = access("image", order, indices, padding)
    return build(
        f"{out} += {image} * weight[c,k,r,s]",
        {"n": n, "c": c, "k": k, "p": p, "q": q, "r": r, "s": s},
        name=name,
        dtype=dtype,
        shapes={"image": [sizes[letter] for letter in order]},
    )


@register("BCV", "batched 2-D convolution: weights of its own for each sample")
def batched_conv2d(
    *,
    n: int = 16,
    c: int = 256,
    k: int = 256,
    p: int = 14,
    q: int = 14,
    r: int = 3,
    s: int = 3,
    stride: int = 1,
    dilation: int = 1,
    padding: int = 0,
    h: int | None = None,
    w: int | None = None,
    layout: str = "NCHW",
    dtype: Dtype = None,
    name: str = "batched_conv2d",
) -> Operator:
    """``out[n,k,p,q] += image[n,c,p+r,q+s] * weight[n,k,c,r,s]``; ``NCHW``, ``NHWC``.

    By default CondConv on ResNet-50's 14×14 stage.
    """
    order = letters(layout, "NCHW", "NHWC")
    rows = Axis("p", "r", p, r, stride, dilation, padding, h)
    columns = Axis("q", "s", q, s, stride, dilation, padding, w)
    indices = {"N": "n", "C": "c", "H": rows.index, "W": columns.index}
    sizes = {"N": n, "C": c, "H": rows.image(), "W": columns.image()}
    out = access("out", order, {"N": "n", "C": "k", "H": "p", "W": "q"})
    image = access("image", order, indices, padding)
    return build(
        f"{out} += {image} * weight[n,k,c,r,s]",
        {"n": n, "c": c, "k": k, "p": p, "q": q, "r": r, "s": s},
        name=name,
        dtype=dtype,
        shapes={"image": [sizes[letter] for letter in order]},
    )


@register("CAP", "capsule 2-D convolution: every output channel is a vector")
def capsule_conv2d(
    *,
    n: int = 1,
    c: int = 256,
    k: int = 32,
    v: int = 8,
    p: int = 6,
    q: int = 6,
    r: int = 9,
    s: int = 9,
    stride: int = 2,
    dilation: int = 1,
    padding: int = 0,
    h: int | None = None,
    w: int | None = None,
    dtype: Dtype = None,
    name: str = "capsule_conv2d",
) -> Operator:
    """``out[n,k,p,q,v] += image[n,c,p+r,q+s] * weight[k,c,r,s,v]``, capsules of length ``v``.

    The form that has Table 6's 105 mappings: the 35 of a 2-D convolution times
    the three non-empty subsets of {k, v}. With 4×4 pose matrices there are far
    more, see :func:`capsule_pose_conv2d`. By default CapsNet's primary capsules.
    """
    rows = Axis("p", "r", p, r, stride, dilation, padding, h)
    columns = Axis("q", "s", q, s, stride, dilation, padding, w)
    indices = {"N": "n", "C": "c", "H": rows.index, "W": columns.index}
    image = access("image", "NCHW", indices, padding)
    return build(
        f"out[n,k,p,q,v] += {image} * weight[k,c,r,s,v]",
        {"n": n, "c": c, "k": k, "v": v, "p": p, "q": q, "r": r, "s": s},
        name=name,
        dtype=dtype,
        shapes={"image": [n, c, rows.image(), columns.image()]},
    )


@register("CPM", "capsule 2-D convolution with pose matrices")
def capsule_pose_conv2d(
    *,
    n: int = 1,
    c: int = 32,
    k: int = 32,
    p: int = 6,
    q: int = 6,
    r: int = 3,
    s: int = 3,
    i: int = 4,
    j: int = 4,
    m: int = 4,
    stride: int = 2,
    dilation: int = 1,
    padding: int = 0,
    h: int | None = None,
    w: int | None = None,
    dtype: Dtype = None,
    name: str = "capsule_pose_conv2d",
) -> Operator:
    """``out[n,k,p,q,i,j] += image[n,c,p+r,q+s,i,m] * weight[k,c,r,s,m,j]``.

    Each channel is an ``i``×``m`` pose matrix that is multiplied by an
    ``m``×``j`` transform. By default the first convolutional capsules of matrix
    capsules with EM routing (the paper's reference for CAP), 4×4 poses.
    """
    rows = Axis("p", "r", p, r, stride, dilation, padding, h)
    columns = Axis("q", "s", q, s, stride, dilation, padding, w)
    indices = {"N": "n", "C": "c", "H": rows.index, "W": columns.index, "I": "i", "M": "m"}
    image = access("image", "NCHWIM", indices, padding)
    return build(
        f"out[n,k,p,q,i,j] += {image} * weight[k,c,r,s,m,j]",
        {"n": n, "c": c, "k": k, "p": p, "q": q, "i": i, "j": j, "r": r, "s": s, "m": m},
        name=name,
        dtype=dtype,
        shapes={"image": [n, c, rows.image(), columns.image(), i, m]},
    )
