"""Choosing a precision under an error budget.

Every second sample is held back, to confirm what the others choose. Where rounding all products
breaks the budget, they are divided into parts. Each part's error is measured where it alone is
rounded, its time is predicted. Errors of several are taken to be independent, so their squares add
up: an integer program then selects the parts that save most time within the budget, and the whole
is measured on all samples. Where that breaks the budget, the program gets a smaller one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from amos.codegen.scheduled import last_line
from amos.errors import NetworkError, shown
from amos.ir import dtype
from amos.network.buckets import Loaded
from amos.network.external.partition import PartitionedNetwork
from amos.network.precision.frontier import Frontier, Variant
from amos.network.precision.rounding import PRODUCTS, ROUNDED
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
#: How often the program is asked, and what its budget is multiplied by after each failure.
_ATTEMPTS, _TIGHTER = 6, 0.7
#: Whole numbers that stand for the budget and for the largest saving in the integer program.
_SCALE = 1_000_000
#: Parts of the products, in the order of the graph, whose errors are measured one by one.
_MOST_PARTS = 12
#: Share of the budget that the samples may take by which is chosen: others differ by more.
_SHARE = 0.8


def keep_precision(network: Loaded) -> Loaded:
    """Return a network in its model's own precision.

    Of a model in 16 bits the factors of products are so, too, where that is predicted to be faster.
    """
    if isinstance(network, PartitionedNetwork) and network.factors:
        return Variants(network, rounded=network.factors).round_operations(PRODUCTS)
    return network


def has_choice(network: Loaded, samples: Samples | None) -> bool:
    """Whether ``auto`` may be another precision than the model's here."""
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
    check_choice(precision, budget)
    if not isinstance(network, PartitionedNetwork):
        raise NetworkError(f"precision {precision}: a network with buckets stays in f32")
    calls = read_samples(network, samples)
    refused: list[str] = []
    variants = Variants(network, calls, accuracy)
    rows = [variants.plain]
    for name in _ROUNDINGS.get(precision, ()):
        if any(row.name != "mixed" and _fits(row, budget) for row in rows[1:]):
            break  # float16, which no instruction here multiplies in pairs, is not faster
        factors = variants.with_factors(name)
        rows += _try(partial(_round, factors, precision, budget, refused), name, refused)
    if precision in ("int8", "auto"):
        if samples is None:
            refused.append("int8 needs samples, which give the ranges")
        else:
            rows += _try(lambda: [variants.quantize()], "int8", refused)
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


def _round(variants: Variants, precision: str, budget: float, refused: list[str]) -> list[Variant]:
    """The variants with rounded factors."""
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
    mixed = precision == "auto" and variants.rounded == ROUNDED and not _fits(rounded, budget)
    return [rounded, *(_round_parts(variants, budget) if mixed else [])]


def _select_variant(rows: Sequence[Variant], precision: str, budget: float) -> Variant:
    """Select the fastest variant within the budget, or the one that is named."""
    if precision == "auto":
        return [row for row in rows if _fits(row, budget)][-1]
    return next(row for row in rows if row.name == precision)


def _fits(variant: Variant, budget: float) -> bool:
    """Whether errors keep within the budget: with a margin where it was chosen by them."""
    choosing, confirming = variant.errors.choosing, variant.errors.confirming
    return choosing <= _SHARE * budget and (confirming is None or confirming <= budget)


def check_choice(precision: object, budget: object) -> None:
    """Refuse what is no precision or no budget.

    Raises:
        NetworkError: it is neither.
    """
    if precision not in PRECISIONS:
        raise NetworkError(f"precision: expected {', '.join(PRECISIONS)}, got {shown(precision)}")
    number = None if isinstance(budget, bool) else budget
    if not isinstance(number, int | float) or not 0 <= number < math.inf:
        raise NetworkError(f"budget: expected a number from 0 on, got {shown(budget)}")


def _round_parts(variants: Variants, budget: float) -> list[Variant]:
    """The variant that rounds what the integer program selects; none where nothing fits."""
    places = [*variants.saved]
    size = math.ceil(len(places) / _MOST_PARTS)
    parts = [places[begin : begin + size] for begin in range(0, len(places), size)]
    saved = [sum(map(variants.saved.__getitem__, each)) for each in parts]
    errors = [variants.sensitivity(each) for each in parts]
    tight = _SHARE * budget
    for _ in range(_ATTEMPTS):
        selected = select_parts(saved, errors, tight)
        if not selected:
            return []
        excluded = [x for n, each in enumerate(parts) if n not in selected for x in each]
        variant = variants.round_faster(excluded)
        if _fits(variant, budget):
            return [variant]
        tight *= _TIGHTER
    return []


def select_parts(saved: Sequence[float], errors: Sequence[float], budget: float) -> set[int]:
    """Select the parts that save most time, whose squared errors add up to the budget's.

    Args:
        saved: seconds that rounding saves, of each part.
        errors: where it alone is rounded.
        budget: of the whole.
    """
    fitting = [n for n, error in enumerate(errors) if error <= budget]
    if not fitting or not budget:
        return set()
    from ortools.sat.python import cp_model

    largest = max(saved[n] for n in fitting)
    model = cp_model.CpModel()
    variables = {n: model.new_bool_var(f"part {n}") for n in fitting}
    squares = (math.ceil(_SCALE * (errors[n] / budget) ** 2) * variables[n] for n in fitting)
    model.add(sum(squares) <= _SCALE)
    model.maximize(sum(max(1, round(_SCALE * saved[n] / largest)) * variables[n] for n in fitting))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.max_time_in_seconds = 1, 10.0
    solver.solve(model)
    return {n for n in fitting if solver.value(variables[n])}
