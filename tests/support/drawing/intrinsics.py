"""Instructions of the catalogue, and others that nobody has, each with Python that describes it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

import amos
from amos.intrinsics import Intrinsic
from amos.intrinsics.virtual import unit
from tests.support.drawing import groups, operators

__all__ = ["catalogue_unit", "executable", "joining_unit", "small_unit"]

_STATEMENTS = (
    "Dst[i1] += Src1[r1] * Src2[i1, r1]",
    "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]",
    "Dst[i1] += Src1[] * Src2[i1]",
    "Dst[] += Src1[r1] * Src2[r1]",
    "Dst[i1, i2] += Src1[i2] * Src2[i1, i2]",
    "Dst[i1, i2] += Src1[r1, i1, r2] * Src2[i2, r2, r1]",
    "Dst[i1] += Src1[i1, r1]",
    "Dst[i1] += Src1[i1] * Src2[r1] * Src3[i1, r1]",
)
_KINDS = (
    ("uint8", "int8", "int32"),
    ("int8", "int8", "int32"),
    ("int16", "int16", "int32"),
    ("uint8", "uint8", "uint32"),
    ("int32", "int32", "int32"),
    ("float32", "float32", "float32"),
    ("bfloat16", "bfloat16", "float32"),
    ("float16", "float16", "float32"),
)


def small_unit(rng: np.random.Generator) -> tuple[Intrinsic, str]:
    """An instruction that nobody has, and the Python that describes it."""
    statement = str(rng.choice(_STATEMENTS))
    sources = statement.count("Src")
    first, second, last = _KINDS[int(rng.integers(len(_KINDS)))]
    kinds = (*(first if n != 1 else second for n in range(sources)), last)
    names = [f"Src{n + 1}" for n in range(sources)] + ["Dst"]
    loops = sorted({token for token in ("i1", "i2", "r1", "r2") if token in statement})
    extents = {loop: int(rng.integers(1, 7)) for loop in loops}
    arguments = (statement, extents, dict(zip(names, kinds, strict=True)))
    return unit(*arguments), f"unit{arguments!r}"


def joining_unit(rng: np.random.Generator) -> tuple[Intrinsic, str]:
    """An instruction that nobody has, and that does not sum products."""
    statement = str(rng.choice(_STATEMENTS))
    combiner = str(
        rng.choice(["+", "max", "min"] if "r1" in statement else ["", "+", "max", "min"])
    )
    join = str(rng.choice(["+", "-", "*", "max", "min"]))
    plain = operators.Problem(statement, {}, {}, "Dst")
    text = groups.joined(plain, combiner, join).text
    sources = statement.count("Src")
    kind = str(rng.choice(["int32", "float32", "int16", "int8", "uint8"]))
    wide = kind if kind in ("int32", "float32") or rng.random() < 0.5 else "int32"
    names = [f"Src{n + 1}" for n in range(sources)]
    loops = sorted({token for token in ("i1", "i2", "r1", "r2") if token in statement})
    extents = {loop: int(rng.integers(1, 7)) for loop in loops}
    arguments = (text, extents, dict.fromkeys(names, kind) | {"Dst": wide})
    try:
        return unit(*arguments), f"unit{arguments!r}"
    except amos.AmosError:  # no value leaves lanes beyond its reduction alone
        return joining_unit(rng)


def catalogue_unit(rng: np.random.Generator, names: Sequence[str]) -> tuple[Intrinsic, str]:
    """One of the catalogue."""
    name = str(rng.choice(names))
    return amos.intrinsics.get(name), f"amos.intrinsics.get({name!r})"


@cache
def executable() -> tuple[str, ...]:
    """Intrinsics of the catalogue that this CPU runs natively."""
    from amos.codegen.tir.tensor_intrin import implementation
    from amos.machine.cpu import cpu

    features = cpu().features
    units = map(amos.intrinsics.get, amos.intrinsics.names())
    return tuple(u.name for u in units if implementation(u, features) == "native")
