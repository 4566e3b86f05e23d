"""Networks in other precisions: what each changes and why, its error and its time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from amos._display import Shown, several
from amos.ir import Operator
from amos.network.external.partition import PartitionedNetwork


@dataclass(frozen=True)
class Exclusion:
    """Why a product that could be rounded is not."""

    cause: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.cause}: {self.detail}" if self.detail else self.cause


@dataclass(frozen=True)
class Errors:
    """By how much the results of a variant differ from those of the network as it was read.

    Attributes:
        choosing: the largest of the samples that a precision is chosen by.
        confirming: the largest of the samples that are held back; ``None`` where there are none.
    """

    choosing: float
    confirming: float | None = None

    @property
    def largest(self) -> float:
        """Of all samples."""
        return self.choosing if self.confirming is None else max(self.choosing, self.confirming)


@dataclass(frozen=True, eq=False)
class Variant:
    """A network in some precision.

    Attributes:
        name: ``"f32"``, ``"bf16"``, ``"f16"``, ``"mixed"``, ``"int8"`` or ``"mixed int8"``.
        predicted_seconds: of the kernels that have 95 % of the multiplications.
        operators: those of the products that were changed, with their epilogues.
        excluded: the others, which could be changed, by region and place, or by their names.
    """

    name: str
    network: PartitionedNetwork = field(repr=False)
    errors: Errors
    predicted_seconds: float
    operators: tuple[Operator, ...] = ()
    excluded: Mapping[str, Exclusion] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """By how much results differ, of all samples."""
        return self.errors.largest

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "precision": self.name,
            "error": _finite(self.error),
            "confirmed_error": _finite(self.errors.confirming),
            "predicted_seconds": self.predicted_seconds,
            "groups": [str(each) for each in self.operators],
            "excluded": {name: str(why) for name, why in self.excluded.items()},
        }


def _finite(error: float | None) -> float | None:
    """Convert an error to JSON, which has finite numbers only."""
    return error if error is not None and math.isfinite(error) else None


@dataclass(frozen=True, eq=False)
class Frontier(Shown):
    """Variants of a network, error against time.

    Attributes:
        variants: the fastest last.
        sample_count: how many samples errors were measured on.
        held_back_count: how many of these confirm what the others choose.
        random: whether these were random inputs.
        refused: why a precision is not among the variants.
    """

    variants: tuple[Variant, ...]
    chosen: Variant
    budget: float
    sample_count: int
    held_back_count: int
    random: bool
    refused: tuple[str, ...] = ()
    measure: str = "2-norm"

    def __str__(self) -> str:
        """Describe the choice in a line."""
        if self.chosen.name == "f32":
            differing = [f"{x.name} differs by {x.error:.2g}" for x in self.variants if x.error]
            return f"precision f32: {'; '.join((*differing, *self.refused))}"
        errors, noun = self.chosen.errors, "random input" if self.random else "sample"
        count = several(self.sample_count - self.held_back_count, noun)
        differ = f"{errors.choosing:.2g} ({self.measure}) on {count}"
        if errors.confirming is not None:
            differ += f", by {errors.confirming:.2g} on {self.held_back_count} held back"
        return (
            f"precision {self.chosen.name} in {several(len(self.chosen.operators), 'product')}: "
            f"results differ by {differ}; --precision f32 keeps them as they are"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "frontier": [each.to_dict() for each in self.variants],
            "chosen": self.chosen.name,
            "budget": self.budget,
            "samples": self.sample_count,
            "held_back": self.held_back_count,
            "random": self.random,
            "refused": list(self.refused),
        }
