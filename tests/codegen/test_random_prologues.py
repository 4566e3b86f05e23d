"""Random prologues on random operators and intrinsics, against an oracle of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import amos
from amos.cuda.codegen import emulate
from amos.cuda.codegen.emulate import compiler
from amos.cuda.plan import GpuPlan
from amos.ir import Operator
from amos.plan import Candidate
from amos.schedule import ScheduleSpace

Point = Mapping[str, Any]


@dataclass(frozen=True)
class Statement:
    """A statement, and what its accesses are once more."""

    text: str
    ranges: Mapping[str, tuple[int, int]]
    shapes: Callable[[Mapping[str, int]], list[tuple[int, ...]]]
    reads: Callable[[Point], list[tuple[Any, ...]]]
    written: tuple[str, ...]


STATEMENTS = (
    Statement(
        "out[n,p,q,k] += pad(first[n,p*2+r-1,q+s-1,c], {}) * second[k,c,r,s]",
        dict(n=(1, 2), p=(1, 5), q=(1, 7), k=(1, 20), c=(1, 9), r=(1, 3), s=(1, 3)),
        lambda e: [
            (e["n"], max(1, e["p"] * 2 + e["r"] - 4), max(1, e["q"] + e["s"] - 3), e["c"]),
            (e["k"], e["c"], e["r"], e["s"]),
        ],
        lambda i: [
            (i["n"], i["p"] * 2 + i["r"] - 1, i["q"] + i["s"] - 1, i["c"]),
            (i["k"], i["c"], i["r"], i["s"]),
        ],
        ("n", "p", "q", "k"),
    ),
    Statement(
        "out[b,i,j] += pad(first[b,i,k], {}) * second[k,j]",
        dict(b=(1, 3), i=(1, 9), j=(1, 35), k=(1, 40)),
        lambda e: [(e["b"], e["i"], e["k"]), (e["k"], e["j"])],
        lambda i: [(i["b"], i["i"], i["k"]), (i["k"], i["j"])],
        ("b", "i", "j"),
    ),
    Statement(
        "out[n,p,c] += pad(first[n,p+r-2,c], {}) * second[c,r]",
        dict(n=(1, 3), p=(1, 9), c=(1, 33), r=(1, 4)),
        lambda e: [(e["n"], max(1, e["p"] + e["r"] - 3), e["c"]), (e["c"], e["r"])],
        lambda i: [(i["n"], i["p"] + i["r"] - 2, i["c"]), (i["c"], i["r"])],
        ("n", "p", "c"),
    ),
)
UNITS = {
    ("uint8", "int8", "int32"): [
        "vnni_dpbusd_m16k4_u8_s8_s32",
        "vnni_dpbusd_lhs_m16k4_u8_s8_s32",
        "vnni_dpbusd_lanes_m16k4_u8_s8_s32",
    ],
    ("float32", "float32", "float32"): ["avx512_fmadd_m16_f32_f32", "avx2_fmadd_m8_f32_f32"],
    ("bfloat16", "bfloat16", "float32"): ["avx512bf16_dpbf16ps_m16k2_bf16_f32"],
    ("int8", "int8", "int32"): ["mma_sync_m16n8k32_s8_s32"],
    ("float16", "float16", "float32"): ["wmma_m16n16k16_f16_f32"],
}


@dataclass
class Drawn:
    """A random expression of tensors indexed by dimensions, as text and as values."""

    rng: np.random.Generator
    name: str
    shape: tuple[int, ...]
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = [f"d{n}" for n in range(len(self.shape))]

    def tensor(self, axes: Sequence[int]) -> tuple[str, np.ndarray]:
        """A new tensor along some dimensions, and its values along all of them."""
        name = f"{self.name}_{len(self.inputs)}"
        kind = str(self.rng.choice(["uint8", "int8", "int16", "int32", "float32"]))
        shape = [self.shape[axis] for axis in axes]
        if kind == "float32":
            values = (self.rng.integers(-16, 17, shape) / 8).astype(np.float32)
        else:
            values = self.rng.integers(0 if kind == "uint8" else -100, 100, shape).astype(kind)
        self.inputs[name], self.dtypes[name] = np.asarray(values), kind
        place = np.argsort(axes)
        full = np.asarray(values).transpose(place) if len(axes) else np.asarray(values)
        spread = [self.shape[d] if d in axes else 1 for d in range(len(self.shape))]
        value = full.reshape(spread).astype(np.float32 if kind == "float32" else np.int32)
        return f"{name}[{','.join(self.names[axis] for axis in axes)}]", value

    def leaf(self) -> tuple[str, Any]:
        if self.rng.random() < 0.3:
            if self.rng.random() < 0.5:
                number = int(self.rng.integers(0, 50))
                return str(number), np.int32(number)
            eighths = float(self.rng.integers(1, 32)) / 8
            return str(eighths), np.float32(eighths)
        axes = [d for d in range(len(self.shape)) if self.rng.random() < 0.4]
        return self.tensor([int(d) for d in self.rng.permutation(axes)])

    def expression(self, depth: int) -> tuple[str, Any]:
        if depth == 0:
            return self.leaf()
        name = self.rng.choice(["+", "-", "*", "max", "min", "relu", "round", "clip"])
        left, a = self.expression(depth - 1)
        if name == "relu":
            return f"relu({left})", np.where(a > 0, a, a.dtype.type(0))
        if name == "round":
            return f"round({left})", np.rint(a) if a.dtype == np.float32 else a
        if name == "clip":
            low, high = (a.dtype.type(n) for n in (-40, 90))
            above = np.where(a > low, a, low)
            return f"clip({left}, -40, 90)", np.where(above < high, above, high)
        right, b = self.expression(depth - 1)
        if np.float32 in (a.dtype, b.dtype):
            a, b = a.astype(np.float32), b.astype(np.float32)
        if name in ("max", "min"):
            return f"{name}({left}, {right})", np.where(a > b if name == "max" else a < b, a, b)
        made = {"+": np.add, "-": np.subtract, "*": np.multiply}[name](a, b)
        return f"({left} {name} {right})", made

    def source(self, kind: str) -> tuple[str, str, np.ndarray]:
        """Head and text of a prologue, and the values that it gives a source of a dtype."""
        first, a = self.tensor([int(d) for d in self.rng.permutation(len(self.shape))])
        rest, b = self.expression(int(self.rng.integers(0, 3)))
        sign = str(self.rng.choice(["+", "*"]))
        if np.float32 in (a.dtype, b.dtype):
            a, b = a.astype(np.float32), b.astype(np.float32)
        value = a + b if sign == "+" else a * b
        head = f"{self.name}[{','.join(self.names)}]"
        return head, f"{first} {sign} {rest}", np.broadcast_to(_stored(value, kind), self.shape)


def _stored(value: np.ndarray, kind: str) -> np.ndarray:
    """Rounded to nearest even and clamped, as wide as sums are."""
    if kind in ("uint8", "int8"):
        limits = np.iinfo(kind)
        return np.clip(np.rint(value.astype(np.float64)), limits.min, limits.max).astype(np.int64)
    value = value.astype(np.float32)
    if kind == "float16":
        return value.astype(np.float16).astype(np.float64)
    if kind == "bfloat16":
        bits = value.view(np.uint32).astype(np.uint64)
        odd = (bits >> np.uint64(16)) & np.uint64(1)
        bits = ((bits + np.uint64(0x7FFF) + odd) >> np.uint64(16)) << np.uint64(16)
        value = bits.astype(np.uint32).view(np.float32)
    return value.astype(np.float64)


def _plain(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    if kind in ("uint8", "int8"):
        limits = np.iinfo(kind)
        return rng.integers(limits.min, limits.max, shape, kind, endpoint=True)
    values = rng.integers(-16, 17, shape) / 8
    return values.astype(np.float16 if kind == "float16" else np.float32)


def _sums(
    statement: Statement,
    extents: Mapping[str, int],
    sources: Sequence[np.ndarray],
    padding: float,
) -> tuple[np.ndarray, np.ndarray]:
    """The operator's sums, point by point, and those of absolute values."""
    grid = np.indices(list(extents.values())).reshape(len(extents), -1)
    point = dict(zip(extents, grid, strict=True))
    product: Any = 1
    for values, indices in zip(sources, statement.reads(point), strict=True):
        inside: Any = True
        for at, size in zip(indices, values.shape, strict=True):
            inside = inside & (at >= 0) & (at < size)
        clipped = [np.clip(at, 0, n - 1) for at, n in zip(indices, values.shape, strict=True)]
        product = product * np.where(inside, values[tuple(clipped)], padding)
    shape = [extents[name] for name in statement.written]
    totals = np.zeros((2, *shape), product.dtype)
    at = tuple(point[name] for name in statement.written)
    np.add.at(totals[0], at, product)
    np.add.at(totals[1], at, np.abs(product))
    return totals[0], totals[1]


def check(seed: int, *, cuda: bool = False) -> str:
    """One random case; what it was, for whoever runs many of them."""
    rng = np.random.default_rng(seed)
    statement = STATEMENTS[int(rng.integers(len(STATEMENTS)))]
    kinds = [kinds for kinds, units in UNITS.items() if cuda == ("mma" in units[0])]
    kind = kinds[int(rng.integers(len(kinds)))]
    extents = {n: int(rng.integers(a, b, endpoint=True)) for n, (a, b) in statement.ranges.items()}
    shapes = statement.shapes(extents)
    padding = int(rng.choice([0, 0, 3]))
    names = ("first", "second", "out")
    op = Operator.parse(
        statement.text.format(padding), extents, dict(zip(names, kind, strict=True)),
        shapes=dict(zip(names, shapes, strict=False)),
        constants=["second"] if rng.random() < 0.6 else [],
    )  # fmt: skip
    inputs: dict[str, np.ndarray] = {}
    values = []
    which = int(rng.integers(1, 4))
    for number, (name, shape) in enumerate(zip(names, shapes, strict=False)):
        if which >> number & 1:
            drawn = Drawn(rng, name, shape)
            head, text, value = drawn.source(kind[number])
            op = op.with_prologue(head, text, drawn.dtypes)
            inputs |= drawn.inputs
        else:
            inputs[name] = value = _plain(rng, shape, kind[number])
        values.append(value.astype(np.int64 if kind[2] == "int32" else np.float64))
    expected, size = _sums(statement, extents, values, padding)
    unit = str(rng.choice(UNITS[kind]))
    space = amos.enumerate_mappings(op, unit, rule="gather", commute=True)
    if not len(space):
        return f"{unit}: no mapping of {op}"
    mapping = space[int(rng.integers(len(space)))]
    assert set(inputs) == {tensor.name for tensor in op.inputs}
    where = f"seed {seed}: {mapping.name} on {unit}: {op}"
    results = [amos.validate.evaluate(op, inputs), amos.simulate(mapping, inputs)]
    results.append(_ran(mapping, inputs, rng, cuda=cuda))
    for got in results:
        if kind[2] == "int32":
            np.testing.assert_array_equal(got, expected, where)
        else:
            assert (np.abs(got - expected) <= 1e-5 * size + 1e-5).all(), where
    return where


def _ran(
    mapping: Any, inputs: Mapping[str, np.ndarray], rng: np.random.Generator, *, cuda: bool
) -> np.ndarray:
    if cuda:
        schedule = ScheduleSpace(mapping, amos.machines.get("a100")).sample(rng)
        return emulate(GpuPlan.of(mapping, schedule, "sm_80"), inputs).outputs[0][0]
    candidate = Candidate(mapping, ScheduleSpace(mapping).sample(rng))
    kernel = amos.build(candidate, implementation="generic")
    got: np.ndarray = kernel(**inputs)
    op = mapping.operator
    packed = {x.name for name in op.constants for x in op.feeding(name)}
    kernel.pack(**{name: inputs[name] for name in packed})
    rest = {n: x for n, x in inputs.items() if n not in packed}
    np.testing.assert_array_equal(kernel(**rest), got)
    return got


@pytest.mark.parametrize("seed", range(8))
def test_cpu(seed: int) -> None:
    check(seed)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("seed", range(2))
def test_cuda(seed: int) -> None:
    check(seed, cuda=True)
