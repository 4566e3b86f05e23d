"""Which operators PyTorch's settings allow to be computed in ``bfloat16``."""

from __future__ import annotations


def reducible_operations() -> frozenset[str]:
    """Return the products of ``float32`` whose factors PyTorch allows to be rounded.

    ``torch.set_float32_matmul_precision("medium")`` is such a permission for matrix products, and
    ``torch.backends.mkldnn.conv.fp32_precision = "bf16"`` for convolutions. ``"high"`` asks for
    10 bits of mantissa, of which ``bfloat16`` has 7.
    """
    import torch

    mkldnn = torch.backends.mkldnn
    settings = {"MatMul": mkldnn.matmul, "Conv": mkldnn.conv, "ConvTranspose": mkldnn.conv}
    return frozenset(name for name, each in settings.items() if each.fp32_precision == "bf16")
