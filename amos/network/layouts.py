"""Layouts: channels last in the whole network, transposed at its borders."""

from __future__ import annotations

from typing import Any

__all__ = ["channels_last"]

#: Layouts of image and weight. Kernels have their weights packed ahead, whatever their order.
_LAYOUTS = {
    "relax.nn.conv1d": ["NWC", "OIW"],
    "relax.nn.conv2d": ["NHWC", "OIHW"],
    "relax.nn.conv3d": ["NDHWC", "OIDHW"],
    "relax.nn.conv2d_transpose": ["NHWC", "IOHW"],
}


def channels_last(module: Any) -> Any:
    """The module with the channels of images as the last axis."""
    from tvm import relax

    return relax.transform.ConvertLayout(_LAYOUTS)(module)
