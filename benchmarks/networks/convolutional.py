"""Convolutional networks, after the papers that define them."""

from __future__ import annotations

import numpy as np

from networks.graph import Definition, Graph

__all__ = ["CONVOLUTIONAL"]


def _resnet18(g: Graph) -> str:
    """He et al., 2016, Table 1."""
    x = _stem(g)
    for stage in range(4):
        for unit in range(2):
            width, stride = 64 << stage, 2 if stage and not unit else 1
            y = _unit(g, x, width, 3, stride)
            y = g.normalize(g.conv(y, width, 3))
            x = _residual(g, x, y, stride)
    return g.classify(x)


def _resnet50(g: Graph) -> str:
    """He et al., 2016, Table 1, the stride in the 3×3 layer as everybody has it now."""
    x = _stem(g)
    for stage, repeat in enumerate((3, 4, 6, 3)):
        for unit in range(repeat):
            width, stride = 64 << stage, 2 if stage and not unit else 1
            y = _unit(g, _unit(g, x, width), width, 3, stride)
            y = g.normalize(g.conv(y, 4 * width))
            x = _residual(g, x, y, stride)
    return g.classify(x)


def _unit(g: Graph, x: str, k: int, window: int = 1, stride: int = 1, groups: int = 1) -> str:
    """A convolution, normalized, with ReLU."""
    return g.add("Relu", g.normalize(g.conv(x, k, window, stride, groups)))


def _stem(g: Graph) -> str:
    x = _unit(g, g.image(3, 224, 224), 64, 7, 2)
    return g.pool(x, "MaxPool", 3, 2, padding=1)


def _residual(g: Graph, x: str, y: str, stride: int, dimensions: int = 2) -> str:
    if stride > 1 or g.channels[x] != g.channels[y]:
        short = g.conv(x, g.channels[y], 1, stride, dimensions=dimensions)
        x = g.normalize(short, dimensions)
    return g.add("Relu", g.add("Add", y, x))


def _vgg16(g: Graph) -> str:
    """Simonyan and Zisserman, 2015, Table 1, configuration D."""
    x = g.image(3, 224, 224)
    for width, repeat in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeat):
            x = g.add("Relu", g.conv(x, width, 3, bias=True))
        x = g.pool(x, "MaxPool", 2, 2)
    x = g.add("Flatten", x, channels=512 * 49)
    for _ in range(2):
        x = g.add("Relu", g.gemm(x, 4096))
    return g.gemm(x, 1000)


def _mobilenet_v1(g: Graph) -> str:
    """Howard et al., 2017, Table 1."""
    x = _unit(g, g.image(3, 224, 224), 32, 3, 2)
    widths = (64, 128, 128, 256, 256, 512, *[512] * 5, 1024, 1024)
    strides = (1, 2, 1, 2, 1, 2, *[1] * 5, 2, 1)
    for width, stride in zip(widths, strides, strict=True):
        x = _unit(g, _unit(g, x, g.channels[x], 3, stride, g.channels[x]), width)
    return g.classify(x)


def _mobilenet_v2(g: Graph) -> str:
    """Sandler et al., 2018, Table 2."""

    def capped(x: str, k: int, window: int = 1, stride: int = 1, groups: int = 1) -> str:
        y = g.normalize(g.conv(x, k, window, stride, groups))
        return g.add("Clip", y, g.constant(np.float32(0)), g.constant(np.float32(6)))

    x = capped(g.image(3, 224, 224), 32, 3, 2)
    stages = (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    )
    for expansion, width, repeat, first in stages:
        for unit in range(repeat):
            stride, wide = first if not unit else 1, g.channels[x] * expansion
            y = capped(x, wide) if expansion > 1 else x
            y = capped(y, wide, 3, stride, wide)
            y = g.normalize(g.conv(y, width))
            x = g.add("Add", x, y) if unit else y
    return g.classify(capped(x, 1280))


def _shufflenet_v2(g: Graph) -> str:
    """Ma et al., 2018, Table 5, 1×."""
    x = _unit(g, g.image(3, 224, 224), 24, 3, 2)
    x, side = g.pool(x, "MaxPool", 3, 2, padding=1), 28
    for width, repeat in ((116, 4), (232, 8), (464, 4)):
        half = width // 2
        for unit in range(repeat):
            stride = 1 if unit else 2
            if unit:
                short, y = _split(g, x, half)
            else:
                c = g.channels[x]
                short, y = g.normalize(g.conv(x, c, 3, 2, c)), x
                short = _unit(g, short, half)
            y = _unit(g, y, half)
            y = g.normalize(g.conv(y, half, 3, stride, half))
            y = _unit(g, y, half)
            x = g.add("Concat", short, y, channels=width, axis=1)
            x = g.reshape(x, g.batch, 2, half, side, side)
            x = g.add("Transpose", x, perm=[0, 2, 1, 3, 4])
            x = g.reshape(x, g.batch, width, side, side, channels=width)
        side //= 2
    return g.classify(_unit(g, x, 1024))


def _split(g: Graph, x: str, half: int) -> tuple[str, str]:
    """The first and the second half of the channels."""
    axis = g.constant(np.array([1]))
    first, middle, end = (g.constant(np.array([n])) for n in (0, half, 2 * half))
    return (
        g.add("Slice", x, first, middle, axis, channels=half),
        g.add("Slice", x, middle, end, axis, channels=half),
    )


def _inception_v3(g: Graph) -> str:
    """Szegedy et al., 2016, Table 1, as later implementations have it; 299×299."""

    def unit(x: str, k: int, window: int | tuple[int, int] = 1, stride: int = 1) -> str:
        """A unit that keeps the image, or takes no padding where it has a stride."""
        padding = 0 if stride > 1 else None
        return g.add("Relu", g.normalize(g.conv(x, k, window, stride, padding=padding)))

    def bare(x: str, k: int) -> str:
        return g.add("Relu", g.normalize(g.conv(x, k, 3, padding=0)))

    def join(*branches: str) -> str:
        width = sum(g.channels[branch] for branch in branches)
        return g.add("Concat", *branches, channels=width, axis=1)

    def mean(x: str) -> str:
        return g.pool(x, "AveragePool", 3, 1, padding=1)

    x = unit(bare(unit(g.image(3, 299, 299), 32, 3, 2), 32), 64, 3)
    x = bare(unit(g.pool(x, "MaxPool", 3, 2), 80), 192)
    x = g.pool(x, "MaxPool", 3, 2)
    for width in (32, 64, 64):
        x = join(
            unit(x, 64),
            unit(unit(x, 48), 64, 5),
            unit(unit(unit(x, 64), 96, 3), 96, 3),
            unit(mean(x), width),
        )
    deep = unit(unit(unit(x, 64), 96, 3), 96, 3, 2)
    x = join(unit(x, 384, 3, 2), deep, g.pool(x, "MaxPool", 3, 2))
    for width in (128, 160, 160, 192):
        y = unit(unit(unit(x, width), width, (1, 7)), 192, (7, 1))
        z = unit(unit(unit(x, width), width, (7, 1)), width, (1, 7))
        z = unit(unit(z, width, (7, 1)), 192, (1, 7))
        x = join(unit(x, 192), y, z, unit(mean(x), 192))
    y = unit(unit(unit(unit(x, 192), 192, (1, 7)), 192, (7, 1)), 192, 3, 2)
    x = join(unit(unit(x, 192), 320, 3, 2), y, g.pool(x, "MaxPool", 3, 2))
    for _ in range(2):
        y, z = unit(x, 384), unit(unit(x, 448), 384, 3)
        y = join(unit(y, 384, (1, 3)), unit(y, 384, (3, 1)))
        z = join(unit(z, 384, (1, 3)), unit(z, 384, (3, 1)))
        x = join(unit(x, 320), y, z, unit(mean(x), 192))
    return g.classify(x)


def _dcgan(g: Graph) -> str:
    """The generator of Radford et al., 2016, Figure 1."""
    x = g.gemm(g.rows("noise", 100), 1024 * 16)
    x = g.reshape(x, g.batch, 1024, 4, 4, channels=1024)
    x = g.add("Relu", g.normalize(x))
    for width in (512, 256, 128):
        x = g.add("Relu", g.normalize(g.deconv(x, width, 4, 2, 1)))
    return g.add("Tanh", g.deconv(x, 3, 4, 2, 1))


def _resnet3d(g: Graph) -> str:
    """The 3-D ResNet-18 of Tran et al., 2018, Table 1: 8 frames of 112×112."""

    def unit(x: str, k: int, stride: int = 1) -> str:
        return g.normalize(g.conv(x, k, 3, stride, dimensions=3), 3)

    x = g.conv(g.image(3, 8, 112, 112), 64, (3, 7, 7), 2, dimensions=3)
    x = g.add("Relu", g.normalize(x, 3))
    for stage in range(4):
        for block in range(2):
            width, stride = 64 << stage, 2 if stage and not block else 1
            y = unit(g.add("Relu", unit(x, width, stride)), width)
            x = _residual(g, x, y, stride, dimensions=3)
    return g.classify(x, 400)


CONVOLUTIONAL: dict[str, Definition] = {
    "resnet18": _resnet18,
    "resnet50": _resnet50,
    "vgg16": _vgg16,
    "mobilenet_v1": _mobilenet_v1,
    "mobilenet_v2": _mobilenet_v2,
    "shufflenet_v2": _shufflenet_v2,
    "inception_v3": _inception_v3,
    "dcgan": _dcgan,
    "resnet3d": _resnet3d,
}
