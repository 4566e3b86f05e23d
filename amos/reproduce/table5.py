"""AMOS, Table 5: each printed mapping of ResNet-18's layers is in our space."""

from __future__ import annotations

import re
from dataclasses import dataclass

from amos import intrinsics, operators
from amos.errors import MappingError
from amos.ir import Affine
from amos.mapping import Mapping, enumerate_mappings

#: The mappings as the paper prints them, for (i1, i2, r1), batch 16.
PRINTED: dict[str, tuple[str, str, str]] = {
    "C0": ("(n * 112 + q) mod 16", "k mod 16", "(c * 49 + r * 7 + s) mod 16"),
    "C1": ("(n * 56 + q) mod 16", "k mod 16", "(c * 3 + r) mod 16"),
    "C2": ("(p * 56 + q) mod 16", "k mod 16", "c mod 16"),
    "C3": ("(n * 784 + p * 28 + q) mod 16", "k mod 16", "(c * 3 + s) mod 16"),
    "C4": ("(p * 28 + q) mod 16", "k mod 16", "c mod 16"),
    "C5": ("(p * 28 + q) mod 16", "k mod 16", "c mod 16"),
    "C6": ("n mod 16", "k mod 16", "(c * 3 + s) mod 16"),
    "C7": ("(n * 196 + p * 14 + q) mod 16", "k mod 16", "c mod 16"),
    "C8": ("(p * 14 + q) mod 16", "k mod 16", "c mod 16"),
    "C9": ("(n * 49 + p * 7 + q) mod 16", "k mod 16", "(c * 9 + r * 3 + s) mod 16"),
    "C10": ("(n * 49 + p * 7 + q) mod 16", "k mod 16", "c mod 16"),
    "C11": ("n mod 16", "k mod 16", "(c * 9 + r * 3 + s) mod 16"),
}

_INTRINSIC = "wmma_m16n16k16_f16_f32"
_BATCH = 16


@dataclass(frozen=True)
class Table5Row:
    """One layer of Table 5.

    Attributes:
        printed: the paper's mapping, one text for each of i1, i2 and r1.
        name: the name of the mapping in our space; empty if there is none.
        index: its index in the space, or -1.
        count: size of the space.
        reason: why the printed mapping is not in the space; empty if it is.
    """

    layer: str
    printed: tuple[str, str, str]
    name: str
    index: int
    count: int
    reason: str = ""

    @property
    def is_in_space(self) -> bool:
        """Whether the printed mapping is in our space, factors included."""
        return not self.reason


def table5(rule: str = "paper") -> list[Table5Row]:
    """Look up the printed mapping of each layer, a row each.

    A printed mapping is found if a mapping has the same groups, and if fusing them in our loop
    order gives the very coefficients and moduli that the paper prints. The layers are in NCHW
    layout with batch 16, as in the paper.
    """
    return [_row(layer, printed, rule) for layer, printed in PRINTED.items()]


def _row(layer: str, printed: tuple[str, str, str], rule: str) -> Table5Row:
    op = operators.layer(f"resnet18:{layer}", layout="NCHW", n=_BATCH)
    space = enumerate_mappings(op, intrinsics.get(_INTRINSIC), rule)
    expected = [read_printed(text) for text in printed]
    order = list(op.extents)
    name = "-".join("".join(sorted(index.names, key=order.index)) for index, _ in expected)
    try:
        mapping = space.find(name)
    except MappingError as error:
        return Table5Row(layer, printed, "", -1, space.count, str(error))
    reason = _difference(mapping, expected)
    return Table5Row(layer, printed, mapping.name, space.index(mapping), space.count, reason)


def _difference(mapping: Mapping, expected: list[tuple[Affine, int]]) -> str:
    steps = mapping.intrinsic.iterations
    for step, (index, modulus) in zip(steps, expected, strict=True):
        ours = mapping.fused[step.name]
        if dict(ours.terms) != dict(index.terms) or step.extent != modulus:
            return f"{step.name} is ({ours}) mod {step.extent}, not ({index}) mod {modulus}"
    return ""


def read_printed(text: str) -> tuple[Affine, int]:
    """Parse ``"(c * 3 + r) mod 16"`` into the fused index and the modulus."""
    index, _, modulus = text.partition(" mod ")
    terms = re.findall(r"([a-z])(?: \* (\d+))?", index)
    return Affine.of((name, int(factor or 1)) for name, factor in terms), int(modulus)
