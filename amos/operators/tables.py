"""Layers of real networks and the configurations that papers measured, by name.

``resnet18`` holds the twelve convolutions of AMOS's Table 5, ``vgg16`` the distinct
convolutions of VGG-16, ``mobilenet`` the first and the distinct pointwise ones of
MobileNet (not the depthwise ones), ``heron`` the GEMMs and convolutions of Heron's
Table 9. Names read ``"resnet18:C5"``, ``"heron:G1"``.

>>> layer("resnet18:C3", n=16).inputs[0].shape
(16, 56, 56, 64)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from amos.errors import UnknownNameError
from amos.ir import Operator
from amos.operators.formula import IMAGE_AXES, STEPS
from amos.operators.registry import builder

#: AMOS, Table 6: number of feasible mappings on Tensor Core, in the paper's order.
TABLE_6: Mapping[str, int] = {
    "gemv": 1,
    "gemm": 1,
    "conv1d": 6,
    "conv2d": 35,
    "conv3d": 180,
    "transposed_conv2d": 7,
    "grouped_conv2d": 35,
    "dilated_conv2d": 35,
    "depthwise_conv2d": 11,
    "capsule_conv2d": 105,
    "batched_conv2d": 11,
    "grouped_fc": 1,
    "mean": 1,
    "variance": 1,
    "scan": 1,
}


@dataclass(frozen=True)
class Layer:
    """A row of a table: an operator of the library with the row's shape.

    Attributes:
        name: ``"table:row"``.
        parameters: parameters that the row sets; the others keep the operator's defaults.
        layout: layout unless another is asked for; ``None`` for matrix products.
    """

    name: str
    operator: str
    parameters: Mapping[str, int]
    layout: str | None = None

    def build(self, dtype: str | tuple[str, ...] | None = None, **changes: object) -> Operator:
        """Build the row's operator, with some parameters changed.

        An image size given by the row is dropped where a change makes another
        size necessary; it is then the smallest that fits. Outputs given by the
        row are dropped where the image has another size; they follow from it.
        """
        parameters: dict[str, object] = dict(self.parameters)
        for size, (output, kernel) in IMAGE_AXES.items():
            causes = (output, kernel, *STEPS)
            if any(changes.get(c, parameters.get(c)) != parameters.get(c) for c in causes):
                parameters.pop(size, None)
            if changes.get(size) is not None:
                parameters.pop(output, None)
        if self.layout is not None:
            parameters["layout"] = self.layout
        parameters |= {"name": self.name, "dtype": dtype} | changes
        return builder(self.operator)(**parameters)


# AMOS, Table 5 gives c, k, p, q, r, s and the stride of ResNet-18's, with n = 16. The
# image size and the padding are the network's own (He et al.): they are not in the
# table, and with stride 2 they do not follow from it. VGG-16: Simonyan and Zisserman,
# 2015, Table 1, column D. MobileNet-V1: Howard et al., 2017, Table 1, the first
# convolution, then every distinct pointwise one. Heron: its Table 9.
_CONVOLUTIONS = {
    # row: (n, image, c, k, kernel, padding, stride)
    "resnet18:C0": (1, 224, 3, 64, 7, 3, 2),
    "resnet18:C1": (1, 56, 64, 64, 3, 1, 1),
    "resnet18:C2": (1, 56, 64, 64, 1, 0, 1),
    "resnet18:C3": (1, 56, 64, 128, 3, 1, 2),
    "resnet18:C4": (1, 56, 64, 128, 1, 0, 2),
    "resnet18:C5": (1, 28, 128, 128, 3, 1, 1),
    "resnet18:C6": (1, 28, 128, 256, 3, 1, 2),
    "resnet18:C7": (1, 28, 128, 256, 1, 0, 2),
    "resnet18:C8": (1, 14, 256, 256, 3, 1, 1),
    "resnet18:C9": (1, 14, 256, 512, 3, 1, 2),
    "resnet18:C10": (1, 14, 256, 512, 1, 0, 2),
    "resnet18:C11": (1, 7, 512, 512, 3, 1, 1),
    "vgg16:V1": (1, 224, 3, 64, 3, 1, 1),
    "vgg16:V2": (1, 224, 64, 64, 3, 1, 1),
    "vgg16:V3": (1, 112, 64, 128, 3, 1, 1),
    "vgg16:V4": (1, 112, 128, 128, 3, 1, 1),
    "vgg16:V5": (1, 56, 128, 256, 3, 1, 1),
    "vgg16:V6": (1, 56, 256, 256, 3, 1, 1),
    "vgg16:V7": (1, 28, 256, 512, 3, 1, 1),
    "vgg16:V8": (1, 28, 512, 512, 3, 1, 1),
    "vgg16:V9": (1, 14, 512, 512, 3, 1, 1),
    "mobilenet:M0": (1, 224, 3, 32, 3, 1, 2),
    "mobilenet:M1": (1, 112, 32, 64, 1, 0, 1),
    "mobilenet:M2": (1, 56, 64, 128, 1, 0, 1),
    "mobilenet:M3": (1, 56, 128, 128, 1, 0, 1),
    "mobilenet:M4": (1, 28, 128, 256, 1, 0, 1),
    "mobilenet:M5": (1, 28, 256, 256, 1, 0, 1),
    "mobilenet:M6": (1, 14, 256, 512, 1, 0, 1),
    "mobilenet:M7": (1, 14, 512, 512, 1, 0, 1),
    "mobilenet:M8": (1, 7, 512, 1024, 1, 0, 1),
    "mobilenet:M9": (1, 7, 1024, 1024, 1, 0, 1),
    "heron:C1": (1, 56, 64, 64, 1, 0, 1),
    "heron:C2": (8, 28, 512, 128, 1, 1, 1),
    "heron:C3": (16, 14, 1024, 512, 1, 0, 2),
    "heron:C4": (32, 7, 512, 512, 3, 0, 1),
    "heron:C5": (32, 14, 256, 256, 3, 1, 1),
}

_PRODUCTS = {
    # row: (m, n, k)
    "heron:G1": (1024, 1024, 1024),
    "heron:G2": (4096, 4096, 4096),
    "heron:G3": (32, 1000, 2048),
    "heron:G4": (32, 4096, 4096),
    "heron:G5": (32, 1000, 4096),
}


def _conv2d(
    n: int, image: int, c: int, k: int, kernel: int, padding: int, stride: int
) -> dict[str, int]:
    output = (image + 2 * padding - kernel) // stride + 1
    sizes = {"n": n, "c": c, "k": k, "p": output, "q": output, "h": image, "w": image}
    return sizes | {"r": kernel, "s": kernel, "stride": stride, "padding": padding}


_LAYERS = {
    row: Layer(row, "conv2d", _conv2d(*sizes), "NHWC") for row, sizes in _CONVOLUTIONS.items()
} | {row: Layer(row, "gemm", {"m": m, "n": n, "k": k}) for row, (m, n, k) in _PRODUCTS.items()}


def layers(table: str | None = None) -> tuple[str, ...]:
    """List a table's layers in its order; those of all tables if omitted.

    Raises:
        UnknownNameError: there is no such table.

    >>> layers("heron")[:2]
    ('heron:C1', 'heron:C2')
    """
    tables = {name.split(":")[0] for name in _LAYERS}
    if table is None:
        return tuple(_LAYERS)
    if table not in tables:
        raise UnknownNameError("layer table", str(table), tables)
    return tuple(name for name in _LAYERS if name.startswith(f"{table}:"))


def layer_entry(name: str) -> Layer:
    """Look up a row by name."""
    if name not in _LAYERS:
        raise UnknownNameError("layer", str(name), _LAYERS)
    return _LAYERS[name]


def layer(
    name: str, /, dtype: str | tuple[str, ...] | None = None, **parameters: object
) -> Operator:
    """Build a layer, batch 1 and NHWC unless ``n`` and ``layout`` are given.

    ResNet-18's images are stored unpadded, with the network's padding in the
    operator. ``dtype="u8s8"`` gives the quantized form, u8·s8 -> s32.

    Raises:
        UnknownNameError: no table has such a row.
        OperatorError: a parameter is unknown or out of range.
    """
    return layer_entry(name).build(dtype, **parameters)
