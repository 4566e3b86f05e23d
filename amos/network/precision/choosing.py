"""Choosing a precision under an error budget.

Each product's error is measured where it alone is rounded, its time is predicted. Errors of
several are taken to be independent, so their squares add up: an integer program then takes the
products that save most time within the budget, and the whole is measured. Where that breaks the
budget, the program gets a smaller one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amos.codegen.scheduled import last_line
from amos.errors import NetworkError, shown
from amos.network.buckets import Loaded
from amos.network.external.partition import PartitionedNetwork
from amos.network.precision.samples import Samples, read_samples
from amos.network.precision.variants import (
    Accuracy,
    Variant,
    Variants,
    has_bfloat16,
    plain_variant,
)

#: Names of precisions that are not the model's own.
PRECISIONS = ("bf16", "int8", "auto")
#: Relative 2-norm of the difference that ``auto`` allows by default.
BUDGET = 0.01
#: How often the program is asked, and what its budget is multiplied by after each failure.
_ATTEMPTS, _TIGHTER = 6, 0.7
#: Whole numbers that stand for the budget and for the largest saving in the integer program.
_SCALE = 1_000_000
#: Products whose errors are measured one by one: those that save most time.
_MOST = 48


@dataclass(frozen=True)
class Frontier:
    """Variants of a network, error against time.

    Attributes:
        variants: the fastest last.
        chosen: the fastest within the budget.
        budget: of the error.
        sample_count: how many samples errors were measured on.
        random: whether these were random inputs.
        refused: why a precision is not among the variants.
    """

    variants: tuple[Variant, ...]
    chosen: Variant
    budget: float
    sample_count: int
    random: bool
    refused: tuple[str, ...] = ()

    def __str__(self) -> str:
        """What was chosen, in a line."""
        if self.chosen.name == "f32":
            why = "; ".join(self.refused) or f"nothing faster keeps within {self.budget:g}"
            return f"precision f32: {why}"
        on = f"{self.sample_count} {'random inputs' if self.random else 'samples'}"
        return (
            f"precision {self.chosen.name} in {len(self.chosen.groups)} products: results differ "
            f"by {self.chosen.error:.2g} (2-norm) on {on}; --precision f32 keeps them as they are"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "frontier": [each.to_dict() for each in self.variants],
            "chosen": self.chosen.name,
            "budget": self.budget,
            "samples": self.sample_count,
            "random": self.random,
            "refused": list(self.refused),
        }


def choose_precision(
    network: Loaded,
    precision: str,
    *,
    budget: float = BUDGET,
    samples: Samples | None = None,
    accuracy: Accuracy | None = None,
) -> Frontier:
    """Choose the precision of a network's products.

    Args:
        network: what :func:`amos.load_network` returned.
        precision: one of :data:`PRECISIONS`; ``"auto"`` is the fastest one within the budget.
        budget: largest error that ``"auto"`` allows.
        samples: inputs of calls; without them errors are measured on random inputs, and nothing
            is quantized.
        accuracy: of results; the budget is then the loss of it that is allowed.

    Raises:
        NetworkError: an argument is none of these, the CPU lacks the instruction, or there are
            buckets, which stay in f32.
    """
    _check(precision, budget)
    if not isinstance(network, PartitionedNetwork):
        raise NetworkError(f"precision {precision}: a network with buckets stays in f32")
    calls = read_samples(network, samples)
    refused: list[str] = []
    made = [plain_variant(network)]
    try:
        variants = Variants(network, calls, accuracy)
        made += _of_bfloat16(variants, precision, budget, refused)
        made += _of_bytes(variants, precision, refused) if samples is not None else []
    except NetworkError:
        raise
    except Exception as error:  # of onnxruntime's types: random integers may be shapes
        refused.append(f"onnxruntime does not run it on these inputs: {last_line(error)}")
    if samples is None and precision != "bf16":
        refused.append("int8 needs samples, which give the ranges")
    if precision != "auto" and refused:
        raise NetworkError(f"precision {precision}: {refused[0]}")
    made.sort(key=lambda each: -each.predicted_seconds)
    chosen = _chosen(made, precision, budget)
    return Frontier(tuple(made), chosen, budget, len(calls), samples is None, tuple(refused))


def _of_bfloat16(
    variants: Variants, precision: str, budget: float, refused: list[str]
) -> list[Variant]:
    """The variants with factors in ``bfloat16``."""
    if precision == "int8":
        return []
    if not has_bfloat16():
        refused.append("this CPU does not multiply bf16 (avx512_bf16, amx_bf16)")
        return []
    rounded = variants.rounded()
    if not rounded.groups:
        refused.append("bf16 is predicted to save no time")
        return []
    mixed = precision == "auto" and rounded.error > budget
    return [rounded, *(_within_budget(variants, budget) if mixed else [])]


def _of_bytes(variants: Variants, precision: str, refused: list[str]) -> list[Variant]:
    """The variant in integers."""
    if precision == "bf16":
        return []
    try:
        return [variants.quantized()]
    except NetworkError as error:
        refused.append(str(error))
        return []


def _chosen(made: Sequence[Variant], precision: str, budget: float) -> Variant:
    if precision == "auto":
        return [each for each in made if each.error <= budget][-1]
    return next(each for each in made if each.name == precision)


def _check(precision: object, budget: object) -> None:
    if precision not in PRECISIONS:
        raise NetworkError(f"precision: expected {', '.join(PRECISIONS)}, got {shown(precision)}")
    number = isinstance(budget, int | float) and not isinstance(budget, bool)
    if not number or not 0 <= float(str(budget)) < math.inf:
        raise NetworkError(f"budget: expected a number from 0 on, got {shown(budget)}")


def _within_budget(variants: Variants, budget: float) -> list[Variant]:
    """The variant that rounds what the integer program chooses; none where nothing fits."""
    saved = dict(sorted(variants.saved.items(), key=lambda each: -each[1])[:_MOST])
    errors = {place: variants.sensitivity(place) for place in saved}
    tight = budget
    for _ in range(_ATTEMPTS):
        chosen = select_products(saved, errors, tight)
        if not chosen:
            return []
        variant = variants.rounded([place for place in variants.saved if place not in chosen])
        if variant.error <= budget:
            return [variant]
        tight *= _TIGHTER
    return []


def select_products(
    saved: dict[tuple[str, int], float], errors: dict[tuple[str, int], float], budget: float
) -> set[tuple[str, int]]:
    """Select the products that save most time, whose squared errors add up to the budget's.

    Args:
        saved: seconds that rounding saves, by product.
        errors: where it alone is rounded.
        budget: of the whole.
    """
    from ortools.sat.python import cp_model

    fitting = [place for place in saved if errors[place] <= budget]
    if not fitting:
        return set()
    largest = max(saved[place] for place in fitting)
    model = cp_model.CpModel()
    taken = {place: model.new_bool_var(f"{place}") for place in fitting}
    squares = {
        place: math.ceil(_SCALE * (errors[place] / budget) ** 2) if budget else 0
        for place in fitting
    }
    model.add(sum(squares[place] * taken[place] for place in fitting) <= _SCALE)
    model.maximize(sum(max(1, round(_SCALE * saved[p] / largest)) * taken[p] for p in fitting))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.max_time_in_seconds = 1, 10.0
    solver.solve(model)
    return {place for place in fitting if solver.value(taken[place])}
