"""Data that distinguishes a wrong implementation from a right one, and the comparison."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np

from amos.intrinsics import Intrinsic, execute
from amos.intrinsics.meaning import scalar_unit
from amos.ir import DType, dtype
from amos.ir.floats import limits, quantize

Fragments = dict[str, np.ndarray]

#: Calls on generic data, and calls around the edges of the accumulator's range.
_GENERIC, _EDGES = 24, 12
#: Scales of floats: ordinary, products that are subnormal in float32, wide apart.
_SCALES = (1.0, 1e-19, 1e-3, 1e3)


def draw_fragments(intrinsic: Intrinsic, rng: np.random.Generator) -> Fragments:
    """Draw inputs of many calls: generic, all-largest, all-smallest, and saturation edges.

    Returns:
        for each operand calls × fragment, in the dtype's container; the
        destination is the start value of the accumulator.
    """
    parts = [_draw_generic(intrinsic, rng, scale) for scale in _scales(intrinsic)]
    parts += [_draw_extremes(intrinsic), _draw_edges(intrinsic, rng)]
    names = [load.tensor.name for load in intrinsic.operands]
    return {name: np.concatenate([batch[name] for batch in parts]) for name in names}


def _kinds(intrinsic: Intrinsic) -> dict[str, tuple[DType, tuple[int, ...]]]:
    return {
        load.tensor.name: (kind, load.tensor.shape)
        for load, kind in zip(intrinsic.operands, intrinsic.kinds, strict=True)
    }


def _scales(intrinsic: Intrinsic) -> tuple[float, ...]:
    is_integer = all(kind.is_integer for kind, _ in _kinds(intrinsic).values())
    return _SCALES[:1] if is_integer else _SCALES


def _draw_generic(intrinsic: Intrinsic, rng: np.random.Generator, scale: float) -> Fragments:
    drawn = {}
    for name, (kind, shape) in _kinds(intrinsic).items():
        size = (_GENERIC, *shape)
        if kind.is_integer:
            low, high = kind.limits
            drawn[name] = rng.integers(low, high, size, kind.numpy, endpoint=True)
        else:
            # A tiny accumulator meets tiny products, else rounding would hide them.
            factor = (
                scale * scale if kind == dtype(intrinsic.dtypes[-1]) and scale < 1e-9 else scale
            )
            drawn[name] = quantize(rng.standard_normal(size) * factor, kind)
    return drawn


def _draw_extremes(intrinsic: Intrinsic) -> Fragments:
    """Combine largest and smallest values in every way, on three accumulators."""
    kinds = _kinds(intrinsic)
    *sources, target = kinds
    ranges = {name: limits(kind) for name, (kind, _) in kinds.items()}
    rows = list(product(*(ranges[name] for name in sources), (0, *ranges[target])))
    drawn = {}
    for column, (name, (kind, shape)) in enumerate(kinds.items()):
        values = np.array([row[column] for row in rows]).astype(kind.numpy)
        drawn[name] = np.broadcast_to(
            values.reshape([-1] + [1] * len(shape)), (len(rows), *shape)
        ).copy()
    return drawn


def _draw_edges(intrinsic: Intrinsic, rng: np.random.Generator) -> Fragments:
    """Draw accumulators near the ends of their range, which a call may or may not leave."""
    drawn = _draw_generic(intrinsic, rng, 1.0)
    drawn = {name: array[:_EDGES] for name, array in drawn.items()}
    target = intrinsic.destination.tensor
    kind = dtype(str(target.dtype))
    low, high = limits(kind)
    reach = rng.integers(0, 1 << 17, (_EDGES, *target.shape))
    if kind.is_integer:
        upper = rng.integers(0, 2, reach.shape).astype(bool)
        values = np.where(upper, int(high) - reach, int(low) + reach)
        drawn[target.name] = values.astype(kind.numpy)
    else:
        drawn[target.name] = quantize(high * rng.uniform(-1, 1, reach.shape), kind)
    return drawn


def compare(
    intrinsic: Intrinsic, inputs: Mapping[str, np.ndarray], got: np.ndarray, *, exact: bool
) -> str:
    """Compare a result with the meaning.

    Integers have to agree in every bit, and so have floats where the meaning
    fixes each rounding and ``exact`` asks for it; NaNs are all the same. Other
    floats may differ by the error of adding in any order: ``(n + 2)·ε`` times
    the sum of the magnitudes of the ``n`` products and the accumulator, with ε
    the precision that sums keep.

    Returns:
        the first difference in words, or nothing.
    """
    want = execute(intrinsic, inputs)
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"expected {want.dtype} of shape {want.shape}, got {got.dtype} of {got.shape}"
    with np.errstate(invalid="ignore"):
        same = (got == want) | ((got != got) & (want != want))
        if want.dtype.kind == "f" and not (exact and intrinsic.arithmetic.bitwise):
            same |= _is_near(intrinsic, inputs, got, want)
    if same.all():
        return ""
    where = tuple(int(i) for i in np.argwhere(~same)[0])
    return (
        f"{int((~same).sum())} of {same.size} elements differ; call {where[0]}, element "
        f"{list(where[1:])}: the meaning gives {want[where]!s}, the implementation {got[where]!s}"
    )


def _is_near(
    intrinsic: Intrinsic, inputs: Mapping[str, np.ndarray], got: np.ndarray, want: np.ndarray
) -> np.ndarray:
    kind = dtype(intrinsic.dtypes[-1])
    count = intrinsic.shape[2] + 2
    wide = {name: np.abs(array.astype(np.float64)) for name, array in inputs.items()}
    magnitude = _magnitude(intrinsic, wide)
    info = np.finfo(kind.numpy)
    eps = max(float(info.eps), intrinsic.arithmetic.precision)
    with np.errstate(over="ignore", invalid="ignore"):
        bound = count * (eps * magnitude + float(info.tiny))
        distance = np.abs(got.astype(np.float64) - want.astype(np.float64))
        # Where partial sums may overflow, any order may end in an infinity.
        risky = (magnitude > float(info.max) / 2) & ~(np.isfinite(got) & np.isfinite(want))
        return np.asarray((distance <= bound) | risky)


def _magnitude(intrinsic: Intrinsic, wide: Mapping[str, np.ndarray]) -> np.ndarray:
    names = [load.tensor.name for load in intrinsic.operands]
    with np.errstate(over="ignore"):
        return scalar_unit(intrinsic)(wide[names[-1]], [wide[name] for name in names[:-1]])
