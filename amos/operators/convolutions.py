"""Convolutions (AMOS, section 7.3: C1D, C2D, C3D, DIL, GRP, DEP, CAP, BCV).

Common parameters: ``n`` batch, ``c`` input channels, ``k`` output channels;
``p, q`` (and ``d``) the *output's* height, width (and depth), ``r, s`` (and
``t``) the kernel's. ``padding`` zeros lie on each side of the image, which is
stored without them. The image is the smallest that fits, so that a strided layer
whose image has an unread last row needs ``h`` and ``w`` given: ResNet's 56 -> 28
with stride 2 reads 55 rows. Where ``h`` or ``w`` (or ``depth``) is given and the outputs
along it are not, they follow from it. Dilation and stride count elements.

>>> from amos import operators
>>> operators.conv2d(n=1, c=64, k=128, p=28, q=28, stride=2, padding=1, h=56, w=56).inputs[0].shape
(1, 64, 56, 56)
>>> operators.conv2d(h=64, w=64, stride=2, padding=1).output.tensor.shape
(1, 64, 32, 32)
>>> print(operators.conv2d(n=1, c=8, k=8, p=4, q=4, layout="NHWC").compute)
out[n, p, q, k] += image[n, p + r, q + s, c] * weight[k, c, r, s]
>>> print(operators.depthwise_conv2d(c=8, k=2, p=4, q=4).compute)
out[n, c, k, p, q] += image[n, c, p + r, q + s] * weight[c, k, r, s]
"""

from __future__ import annotations

from amos.operators.formula import define

_CONV2D = {
    "NCHW": "out[n,k,p,q] += image[n,c,p+r,q+s] * weight[k,c,r,s]",
    "NHWC": "out[n,p,q,k] += image[n,p+r,q+s,c] * weight[k,c,r,s]",
}

define(
    "conv1d",
    "C1D",
    "1-D convolution",
    math={
        "NCH": "out[n,k,p] += image[n,c,p+r] * weight[k,c,r]",
        "NHC": "out[n,p,k] += image[n,p+r,c] * weight[k,c,r]",
    },
    defaults=dict(n=1, c=512, k=512, p=1599, r=3, stride=2),
    notes="By default the second layer of wav2vec 2.0's encoder, one second of speech.",
)

define(
    "conv2d",
    "C2D",
    "2-D convolution",
    math=_CONV2D,
    defaults=dict(n=1, c=64, k=64, p=56, q=56, r=3, s=3),
    notes="""By default ResNet-18's second convolution, over an image that holds its padding
    already (AMOS, Figure 3).
    """,
)

define(
    "dilated_conv2d",
    "DIL",
    "dilated 2-D convolution",
    math=_CONV2D,
    defaults=dict(n=1, c=512, k=512, p=33, q=33, r=3, s=3, dilation=2),
    notes="By default DeepLabv3's last ResNet stage on a 513-pixel image, output stride 16.",
)

define(
    "conv3d",
    "C3D",
    "3-D convolution",
    math={
        "NCDHW": "out[n,k,d,p,q] += image[n,c,d+t,p+r,q+s] * weight[k,c,t,r,s]",
        "NDHWC": "out[n,d,p,q,k] += image[n,d+t,p+r,q+s,c] * weight[k,c,t,r,s]",
    },
    defaults=dict(n=1, c=64, k=64, d=16, p=56, q=56, t=3, r=3, s=3),
    notes="By default the first residual stage of the 3-D ResNet-18 (R3D-18).",
)

define(
    "grouped_conv2d",
    "GRP",
    "grouped 2-D convolution",
    math={
        "NGCHW": "out[n,g,k,p,q] += image[n,g,c,p+r,q+s] * weight[g,k,c,r,s]",
        "NHWGC": "out[n,p,q,g,k] += image[n,p+r,q+s,g,c] * weight[g,k,c,r,s]",
    },
    defaults=dict(n=1, g=32, c=4, k=4, p=56, q=56, r=3, s=3),
    notes="""``c`` and ``k`` count channels per group; the layouts are NCHW and NHWC with the
    channel dimension split. By default the first stage of ResNeXt-50 (32×4d).
    """,
)

define(
    "depthwise_conv2d",
    "DEP",
    "depthwise 2-D convolution with a channel multiplier",
    math={
        "NCHW": "out[n,c,k,p,q] += image[n,c,p+r,q+s] * weight[c,k,r,s]",
        "NHWC": "out[n,p,q,c,k] += image[n,p+r,q+s,c] * weight[c,k,r,s]",
    },
    defaults=dict(n=1, c=512, k=1, p=14, q=14, r=3, s=3),
    notes="""``k`` is the channel multiplier, a dimension of its own next to ``c``; without it
    no iteration could fill the columns of a matrix product. By default MobileNet-V1's five
    equal layers.
    """,
)

define(
    "batched_conv2d",
    "BCV",
    "batched 2-D convolution: weights of its own for each sample",
    math={
        "NCHW": "out[n,k,p,q] += image[n,c,p+r,q+s] * weight[n,k,c,r,s]",
        "NHWC": "out[n,p,q,k] += image[n,p+r,q+s,c] * weight[n,k,c,r,s]",
    },
    defaults=dict(n=16, c=256, k=256, p=14, q=14, r=3, s=3),
    notes="By default CondConv on ResNet-50's 14×14 stage.",
)

define(
    "capsule_conv2d",
    "CAP",
    "capsule 2-D convolution: every output channel is a vector",
    math="out[n,k,p,q,v] += image[n,c,p+r,q+s] * weight[k,c,r,s,v]",
    defaults=dict(n=1, c=256, k=32, v=8, p=6, q=6, r=9, s=9, stride=2),
    notes="""Capsules have length ``v``. The form that has Table 6's 105 mappings: the 35 of a
    2-D convolution times the three non-empty subsets of {k, v}. With 4×4 pose matrices there
    are far more, see ``capsule_pose_conv2d``. By default CapsNet's primary capsules.
    """,
)

define(
    "capsule_pose_conv2d",
    "CPM",
    "capsule 2-D convolution with pose matrices",
    math="out[n,k,p,q,i,j] += image[n,c,p+r,q+s,i,m] * weight[k,c,r,s,m,j]",
    defaults=dict(n=1, c=32, k=32, p=6, q=6, r=3, s=3, i=4, j=4, m=4, stride=2),
    notes="""Each channel is an ``i``×``m`` pose matrix that is multiplied by an ``m``×``j``
    transform. By default the first convolutional capsules of matrix capsules with EM routing
    (the paper's reference for CAP), 4×4 poses.
    """,
)
