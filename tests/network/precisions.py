"""What tests of precisions share: a network of two products, and its variants and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import amos
from amos.network.external.partition import PartitionedNetwork
from amos.network.precision.samples import read_samples
from amos.network.precision.variants import Variants, has_bfloat16
from tests.network.models import Builder

multiplies_bfloat16 = pytest.mark.skipif(
    not has_bfloat16(), reason="this CPU has neither avx512_bf16 nor amx_bf16"
)


def perceptron(width: int = 128, rows: int = 8) -> Any:
    """Two products with a ReLU between, whose hidden row another operator reads as well."""
    b = Builder()
    hidden = b.node("Relu", b.node("MatMul", b.input("x", (rows, width)), b.random(width, width)))
    return b.model(b.node("Add", b.node("MatMul", hidden, b.random(width, width)), hidden))


def variants_of(network: PartitionedNetwork) -> Variants:
    return Variants(network, read_samples(network, None))


def results_of(network: PartitionedNetwork, arrays: Sequence[np.ndarray]) -> np.ndarray:
    (result,) = amos.compile(network, progress=False).outputs_of(arrays)
    return result
