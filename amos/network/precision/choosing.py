"""Choosing a precision under an error budget.

Every second sample is held back, to confirm what the others choose. Where rounding all products
breaks the budget, some are (:mod:`amos.network.precision.parts`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from amos.codegen.scheduling import last_line
from amos.errors import NetworkError, quote
from amos.ir import dtype
from amos.network.buckets import Loaded
from amos.network.external.partition import PartitionedNetwork
from amos.network.precision.frontier import Errors, Frontier, Variant
from amos.network.precision.parts import QuantizedProducts, select_places
from amos.network.precision.rounding import ROUNDED
from amos.network.precision.samples import Samples, read_samples
from amos.network.precision.variants import (
    FEATURES,
    Accuracy,
    AccuracyError,
    Variants,
    has_bfloat16,
    multiplies,
)

PRECISIONS = ("f32", "bf16", "f16", "int8", "auto")
#: Dtypes of factors that a precision tries.
_ROUNDINGS = {"bf16": (ROUNDED,), "f16": ("float16",), "auto": (ROUNDED, "float16")}
#: Relative 2-norm of the difference that ``auto`` allows by default.
BUDGET = 0.01
#: Share of the budget that the samples may take by which is chosen: others differ by more.
_SHARE = 0.8


def keep_precision(network: Loaded) -> Loaded:
    """Return a network in its model's own precision.

    Of a model in 16 bits the factors of products are so, too, where that is predicted to be faster.
    """
    if isinstance(network, PartitionedNetwork) and network.factors:
        return Variants(network, rounded=network.factors).round_operations()
    return network


def has_choice(network: Loaded, samples: Samples | None) -> bool:
    """Return whether ``auto`` may be another precision than the model's here."""
    if not isinstance(network, PartitionedNetwork):
        return False
    return (has_bfloat16() and network.factors != ROUNDED) or samples is not None


def choose_precision(
    network: Loaded,
    precision: str,
    *,
    budget: float = BUDGET,
    samples: Samples | None = None,
    accuracy: Accuracy | None = None,
) -> Frontier:
    """Choose the precision of a network's products, with the arguments of :func:`amos.compile`.

    Args:
        precision: one of :data:`PRECISIONS`; ``"auto"`` is the fastest one within the budget.

    Raises:
        NetworkError: an argument is none of these, the CPU lacks the instruction, or there are
            buckets, which stay in f32.
    """
    check_choice(precision, budget)
    if not isinstance(network, PartitionedNetwork):
        raise NetworkError(f"precision {precision}: a network with buckets stays in f32")
    calls = read_samples(network, samples)
    refused: list[str] = []
    variants = Variants(network, calls, accuracy)
    is_drawn = samples is None and accuracy is None
    rows = [variants.plain]
    for name in _ROUNDINGS.get(precision, ()):
        fitting = {row.name for row in rows[1:] if _fits(row, budget)}
        if fitting - {"mixed"} or (fitting and not variants.waits_for_weights):
            break  # no instruction here multiplies pairs of f16: only weights come sooner
        factors = variants.with_factors(name)
        rows += _try(partial(_round, factors, precision, budget, refused, is_drawn), name, refused)
    if precision in ("int8", "auto"):
        if samples is None:
            refused.append("int8 needs samples, which give the ranges")
        else:
            rows += _try(partial(_quantize, variants, precision, budget), "int8", refused)
    if precision != "auto" and refused:
        raise NetworkError(f"precision {precision}: {refused[0]}")
    rows.sort(key=lambda row: -row.predicted_seconds)
    chosen = _select_variant(rows, precision, budget)
    measure = "2-norm" if accuracy is None else "loss of accuracy"
    return Frontier(
        variants=tuple(rows),
        chosen=chosen,
        budget=budget,
        sample_count=len(calls),
        held_back_count=len(variants.confirming),
        random=samples is None,
        refused=tuple(refused),
        measure=measure,
    )


def _try(make: Callable[[], list[Variant]], name: str, refused: list[str]) -> list[Variant]:
    """Make variants, or note why there are none; only an error of the user's is passed on.

    A model that onnxruntime does not run on these inputs, as where random integers are shapes,
    or does not quantize, is still compiled in f32.
    """
    try:
        return make()
    except AccuracyError:
        raise
    except Exception as error:  # onnxruntime and onnx raise errors of their own
        refused.append(f"{name}: {last_line(error)}")
        return []


def _round(
    variants: Variants, precision: str, budget: float, refused: list[str], is_drawn: bool
) -> list[Variant]:
    """List the variants with rounded factors.

    Random inputs may leave all results as they are, as where a limit on them is an input, too.
    Then they say nothing about errors.
    """
    name = dtype(variants.rounded).short
    if not multiplies(variants.rounded):
        features = ", ".join(sorted(FEATURES[variants.rounded]))
        refused.append(f"this CPU does not multiply {name} ({features})")
        return []
    if not variants.saved:
        refused.append(f"{name} is predicted to save no time")
        return []
    rounded = variants.round_faster()
    if variants.rounded == "float16" and not math.isfinite(rounded.error):
        refused.append("some values are beyond the range of f16")
        return []
    if is_drawn and precision == "auto" and not rounded.errors.largest:
        refused.append(f"{name}: no result of random inputs depends on it; it needs samples")
        return []
    mixed = precision == "auto" and variants.rounded == ROUNDED and not _fits(rounded, budget)
    return [rounded, *(_round_parts(variants, budget) if mixed else [])]


def _quantize(variants: Variants, precision: str, budget: float) -> list[Variant]:
    """List the variants in integers: of all operators, and of some products within the budget."""
    whole = variants.quantize()
    is_faster = whole.predicted_seconds < variants.plain.predicted_seconds
    if precision != "auto" or _fits(whole, budget) or not is_faster:
        return [whole]
    products = QuantizedProducts(variants, whole)
    selected = select_places(products, _SHARE * budget, partial(_use, budget=budget))
    return [whole] if selected is None else [whole, products.quantize(*selected)]


def _select_variant(rows: Sequence[Variant], precision: str, budget: float) -> Variant:
    """Select the fastest variant within the budget, or the one that is named."""
    if precision == "auto":
        return [row for row in rows if _fits(row, budget)][-1]
    return next(row for row in rows if row.name == precision)


def _fits(variant: Variant, budget: float) -> bool:
    """Return whether errors keep the budget: with a margin where the choice was made by them."""
    return _use(variant.errors, budget) <= 1


def _use(errors: Errors, budget: float) -> float:
    """Return the share of the budget that errors take; choosing may use a part of it."""
    shares = (errors.choosing, _SHARE * budget), (errors.confirming or 0.0, budget)
    return max(_ratio(error, most) for error, most in shares)


def _ratio(error: float, most: float) -> float:
    """Return an error over the most that is allowed, which may be none."""
    if most:
        return error / most
    return 0.0 if error <= 0 else math.inf


def check_choice(precision: object, budget: object) -> None:
    """Raise NetworkError for values that are no precision or no budget."""
    if precision not in PRECISIONS:
        raise NetworkError(f"precision: expected {', '.join(PRECISIONS)}, got {quote(precision)}")
    number = None if isinstance(budget, bool) else budget
    if not isinstance(number, int | float) or not 0 <= number < math.inf:
        raise NetworkError(f"budget: expected a number from 0 on, got {quote(budget)}")


def _round_parts(variants: Variants, budget: float) -> list[Variant]:
    """Return the variant that rounds some of the products; none where nothing fits."""
    selected = select_places(variants, _SHARE * budget, partial(_use, budget=budget))
    if selected is None:
        return []
    return [variants.round_faster(*selected)]
