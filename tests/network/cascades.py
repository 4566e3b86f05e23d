"""Small networks with cascades, and the chains that are chosen and used of them."""

from __future__ import annotations

from typing import Any

from amos.explore.choosing import Chooser
from amos.ir import Chain
from amos.network import CompiledNetwork, Network
from amos.network.lowerings.chains import FusedChain
from amos.network.lowerings.fused import choose_fused
from tests.network.models import Builder, load_whole

CHOOSER = Chooser("host")


def inverted_bottleneck(b: Builder, x: str, channels: int, stride: int = 1) -> tuple[str, str, str]:
    wide = 6 * channels
    first = b.node("Relu", b.convolution(x, (wide, channels, 1, 1)))
    second = b.node("Relu", b.convolution(first, (wide, 1, 3, 3), stride, group=wide))
    return first, second, b.convolution(second, (channels, wide, 1, 1))


def small_network(*, residual: bool = False, observed: str = "") -> tuple[Network, Any]:
    b = Builder()
    x = b.node("Relu", b.convolution(b.input("x", (2, 3, 16, 16)), (16, 3, 3, 3), 2))
    first, second, y = inverted_bottleneck(b, x, 16)
    if residual:
        y = b.node("Add", y, x)
    more = {"first": [first], "second": [second]}.get(observed, [])
    model = b.model(b.node("Relu", y), *more)
    return load_whole(model), model


def choose_chains_of(network: Network) -> list[Chain]:
    return [kernel.operator for kernel, *_ in choose_fused(network, CHOOSER).values()]


def used_chains(compiled: CompiledNetwork) -> list[Chain]:
    lowerings = [kernel.lowering for kernel in compiled.kernels.values()]
    return [each.operator for each in lowerings if isinstance(each, FusedChain)]
