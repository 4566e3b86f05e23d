"""Inputs of operators, and what NumPy makes of them."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from amos.ir import Operator

__all__ = ["References"]

#: Operators whose inputs and reference result are kept; one exploration has one.
_KEPT = 2
_SEED = 20220618


class References:
    """Inputs and expected outputs, computed once for each operator."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Operator, tuple[dict[str, np.ndarray], np.ndarray]] = OrderedDict()

    def get(self, operator: Operator) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Random inputs, and what the operator makes of them."""
        from amos.validate import evaluate, random_inputs

        if operator not in self._kept:
            inputs = random_inputs(operator, np.random.default_rng(_SEED))
            self._kept[operator] = inputs, evaluate(operator, inputs)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return self._kept[operator]

    @property
    def operators(self) -> frozenset[Operator]:
        """Operators whose results are there."""
        return frozenset(self._kept)

    @property
    def bytes(self) -> int:
        """Bytes of everything that is kept."""
        arrays = [x for inputs, result in self._kept.values() for x in (result, *inputs.values())]
        return sum(array.nbytes for array in arrays)
