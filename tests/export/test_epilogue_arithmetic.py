"""Drawn epilogues against arithmetic that is written here: exact integers, and floats that round.

Nothing below but the operator's sums comes from the product. NumPy's reference, the kernel
that TVM builds and the exported C must agree with it in every bit.
"""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import amos
from amos.export import export
from amos.ir.floats import pack
from amos.machine.cpu import cpu
from amos.plan import Candidate
from amos.schedule import ScheduleSpace
from amos.validate import evaluate

Array = np.ndarray
#: The intrinsic that accumulates, and the operator's dtype, by the accumulator's.
UNITS = {
    "int32": ("vnni_dpbusd_m16k4_u8_s8_s32", "u8s8"),
    "float32": ("avx512_fmadd_m16_f32_f32", "f32"),
}
INTEGERS = {"int32": 32, "int16": 16, "uint16": 16, "int8": 8, "uint8": 8}
CASTS = {
    "u8": (0, 255),
    "s8": (-128, 127),
    "s16": (-(2**15), 2**15 - 1),
    "s32": (-(2**31), 2**31 - 1),
}
_WHOLE = [0, 1, -1, 2, 7, 255, 65536, 46341, -46341, 2**31 - 1, -(2**31), 2**30, -(2**30)]
_REAL = [
    0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.1, 1.0, -1.0, 127.5, 254.5, 32767.5, 1e-40, 1e8, -1e8,
    2147483520.0, 2147483648.0, -2147483648.0, 3e9, -3e9, 16777217.0, 1e30, -1e30, 3e38,
]  # fmt: skip


class NotANumberError(Exception):
    """What becomes of a NaN is not stated."""


@dataclass(frozen=True)
class Term:
    """Text of an expression, and its value: exact integers, or float32."""

    text: str
    value: Array
    real: bool

    def as_real(self) -> Array:
        return self.value if self.real else self.value.astype(np.float64).astype(np.float32)


def _checked(value: Array) -> Array:
    if np.isnan(value).any():
        raise NotANumberError
    return value


def _wrapped(value: Array) -> Array:
    return (value + 2**31) % 2**32 - 2**31


@dataclass
class Drawing:
    """Draws an expression for accumulators of shape ``(m, n)``, and computes it."""

    rng: np.random.Generator
    acc: Array
    real: bool
    tensors: dict[str, tuple[str, Array]] = field(default_factory=dict)

    def term(self, depth: int) -> Term:
        if depth == 0 or self.rng.random() < 0.1:
            return self._leaf()
        name = self.rng.choice(
            ["+", "-", "*", "+", "-", "*", "max", "min", "relu", "clip", "round", "f32", "same"]
        )
        if name in ("relu", "round", "f32"):
            return self._of_one(name, self.term(depth - 1))
        if name == "same":
            inner = self.term(depth - 1)
            return self._sum("-", inner, inner)
        if name == "clip":
            x, low, high = (self.term(depth - 1) for _ in range(3))
            made = self._extreme("min", high, self._extreme("max", low, x))
            if not made.real or x.real or low.real:
                return Term(f"clip({x.text}, {low.text}, {high.text})", made.value, made.real)
            return made
        left, right = self.term(depth - 1), self.term(depth - 1)
        pair = self._extreme if name in ("max", "min") else self._sum
        return pair(name, left, right)

    def _leaf(self) -> Term:
        kind = self.rng.choice(["acc", "acc", "whole", "real", "tensor", "tensor"])
        if kind == "acc":
            return Term("acc", self.acc, self.real)
        if kind == "whole":
            number = int(self.rng.choice(_WHOLE))
            text = str(number) if number >= 0 else f"({number})"
            return Term(text, np.array(number, object), False)
        if kind == "real":
            value = float(self.rng.choice(_REAL))
            return Term(f"({value!r})", np.array(value, np.float32), True)
        return self._tensor()

    def _tensor(self) -> Term:
        name = f"t{len(self.tensors)}"
        real = self.rng.random() < 0.4
        kind = str(self.rng.choice(["float32", "bfloat16"] if real else list(INTEGERS)))
        at, shape = [("", ()), ("n", self.acc.shape[1:]), ("m,n", self.acc.shape)][
            self.rng.integers(3)
        ]
        if real:
            value = drawn_reals(self.rng, shape, kind)
            self.tensors[name] = (kind, value)
            return Term(f"{name}[{at}]", value, True)
        wide = drawn_integers(self.rng, shape, kind)
        self.tensors[name] = (kind, wide.astype(kind))
        return Term(f"{name}[{at}]", wide, False)

    def _sum(self, sign: str, left: Term, right: Term) -> Term:
        text = f"({left.text} {sign} {right.text})"
        act: Callable[[Array, Array], Array] = {
            "+": np.add, "-": np.subtract, "*": np.multiply
        }[sign]  # fmt: skip
        if left.real or right.real:
            return Term(text, _checked(act(left.as_real(), right.as_real())), True)
        return Term(text, np.asarray(_wrapped(act(left.value, right.value)), object), False)

    def _extreme(self, name: str, left: Term, right: Term) -> Term:
        real = left.real or right.real
        a, b = (left.as_real(), right.as_real()) if real else (left.value, right.value)
        chosen = np.where(a > b if name == "max" else a < b, a, b)
        return Term(f"{name}({left.text}, {right.text})", chosen, real)

    def _of_one(self, name: str, inner: Term) -> Term:
        text = f"{name}({inner.text})"
        if name == "f32":
            return Term(text, inner.as_real(), True)
        if name == "round":
            return Term(text, np.rint(inner.value) if inner.real else inner.value, inner.real)
        zero = Term("0", np.array(0, object), False)
        return Term(text, self._extreme("max", inner, zero).value, inner.real)

    def result(self, term: Term) -> tuple[str, Array]:
        """Text with a drawn dtype of the result, and its elements as they are stored."""
        cast = self.rng.choice(["", "f32", "bf16", *CASTS])
        if cast == "":
            return term.text, term.value if term.real else term.value.astype(np.int32)
        text = f"{cast}({term.text})"
        if cast == "f32":
            return text, term.as_real()
        if cast == "bf16":
            return text, _bfloat16(term.as_real())
        low, high = CASTS[cast]
        exact = np.rint(term.value.astype(np.float64)) if term.real else term.value
        made = np.where(exact < low, low, np.where(exact > high, high, exact))
        kind = {"u8": np.uint8, "s8": np.int8, "s16": np.int16, "s32": np.int32}[cast]
        return text, made.astype(kind)


def _bfloat16(value: Array) -> Array:
    """The upper halves, rounded to nearest even."""
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32).astype(np.uint64)
    upper = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return (upper << 16).astype(np.uint32).view(np.float32)


def drawn_integers(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Array:
    bits, low = INTEGERS[kind], 0 if kind.startswith("u") else -(1 << INTEGERS[kind] - 1)
    high = low + (1 << bits) - 1
    ends = rng.choice(np.array([low, high, low + 1, 0, 1, high // 2], np.int64), shape)
    inside = rng.integers(low, high, shape, endpoint=True) >> rng.integers(0, bits, shape)
    return np.asarray(np.where(rng.random(shape) < 0.4, ends, inside)).astype(object)


def drawn_reals(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Array:
    some = rng.choice(np.array(_REAL), shape)
    wide = rng.uniform(-2, 2, shape) * 2.0 ** rng.integers(-20, 32, shape)
    value = np.asarray(np.where(rng.random(shape) < 0.4, some, wide)).astype(np.float32)
    return np.asarray(_bfloat16(value) if kind == "bfloat16" else value).reshape(shape)


@dataclass(frozen=True)
class Case:
    """An operator with an epilogue, its inputs, and what is to be stored."""

    op: amos.Operator
    unit: str
    inputs: dict[str, Array]
    expected: Array

    @staticmethod
    def drawn(rng: np.random.Generator) -> Case:
        while True:
            try:
                with np.errstate(over="ignore", invalid="ignore"):
                    return Case._one(rng)
            except NotANumberError:
                pass

    @staticmethod
    def _one(rng: np.random.Generator) -> Case:
        kind = str(rng.choice(list(UNITS)))
        unit, short = UNITS[kind]
        m, n, k = 2, int(rng.choice([16, 19, 32])), 5 if kind == "int32" else 1
        op = amos.operators.get("gemm", m=m, n=n, k=k, dtype=short)
        first, second = (tensor.name for tensor in op.inputs)
        if kind == "int32":
            a, b = rng.integers(0, 256, (m, k), np.uint8), rng.integers(-128, 128, (k, n), np.int8)
            acc = (a.astype(np.int64) @ b.astype(np.int64)).astype(object)
        else:
            a, b = drawn_reals(rng, (m, k), "float32"), np.ones((k, n), np.float32)
            acc = np.float32(0) + a * b
        drawing = Drawing(rng, acc, kind == "float32")
        term = drawing.term(int(rng.integers(1, 5)))
        if "acc" not in term.text:
            term = drawing._sum(
                str(rng.choice(["+", "-", "*"])), Term("acc", acc, drawing.real), term
            )
        text, expected = drawing.result(term)
        read = {x: y for x, y in drawing.tensors.items() if f"{x}[" in text}
        made = op.with_epilogue(text, {name: known for name, (known, _) in read.items()})
        inputs = {first: a, second: b} | {name: value for name, (_, value) in read.items()}
        return Case(made, unit, inputs, np.broadcast_to(expected, (m, n)))


def _bits(array: Array) -> Array:
    """What is compared: floats by their bits, so that zeros have a sign."""
    return np.ascontiguousarray(array).view(np.uint32) if array.dtype.kind == "f" else array


def check(case: Case, rng: np.random.Generator, folder: Path | None) -> None:
    """The reference, the kernel, and in a folder the exported library."""
    known = str(case.op.epilogue)
    want = _bits(case.expected)
    np.testing.assert_array_equal(_bits(evaluate(case.op, case.inputs)), want, f"NumPy: {known}")
    space = amos.enumerate_mappings(case.op, amos.intrinsics.get(case.unit), rule="gather")
    mapping = space[int(rng.integers(len(space)))]
    found = Candidate(mapping, ScheduleSpace(mapping).sample(rng))
    kernel = amos.build(found)
    np.testing.assert_array_equal(_bits(kernel(**case.inputs)), want, f"kernel: {known}")
    if folder is not None and shutil.which("cc") is not None:
        got = exported(found, case, folder)
        np.testing.assert_array_equal(_bits(got), want, f"C: {known}")


def exported(found: Candidate, case: Case, folder: Path) -> Array:
    """What the exported library stores; operators here have no constants to pack."""
    fast = set(amos.intrinsics.get(case.unit).requires) <= cpu().features
    export(found, "so", folder, name="it", implementation=None if fast else "generic", force=True)
    library = ctypes.CDLL(str(folder / "libit.so"))
    size = int((folder / "it.h").read_text().partition("IT_WORKSPACE ")[2].split()[0])
    arrays = [_stored(case.inputs[t.name], str(t.dtype)) for t in case.op.inputs]
    kind = str(case.op.result_dtype)
    out = np.zeros(case.expected.shape, "uint16" if kind == "bfloat16" else kind)
    work = np.zeros(size + 64, np.uint8)
    aligned = work[-work.ctypes.data % 64 :]
    library.it(*(ctypes.c_void_p(x.ctypes.data) for x in (*arrays, out, aligned)))
    return (out.astype(np.uint32) << 16).view(np.float32) if kind == "bfloat16" else out


def _stored(array: Array, kind: str) -> Array:
    if kind != "bfloat16":
        return np.ascontiguousarray(array)
    return pack(array, kind).view(np.uint16).copy()


@pytest.mark.features
@pytest.mark.parametrize("seed", range(4))
def test_every_bit_is_that_of_exact_arithmetic(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    check(Case.drawn(rng), rng, tmp_path)


@pytest.mark.slow
def test_many_epilogues(tmp_path: Path) -> None:
    for seed in range(100):
        rng = np.random.default_rng((1, seed))
        check(Case.drawn(rng), rng, tmp_path / str(seed))


def _whole(acc: Array) -> Array:
    return np.asarray(_wrapped(acc)).astype(np.int32)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("relu(acc * 65536)", lambda acc: np.maximum(_whole(acc * 65536), 0)),
        ("u8(acc * acc)", lambda acc: np.clip(_whole(acc * acc), 0, 255).astype(np.uint8)),
        (
            "s8(acc * 65536 * 9 - 5 >> 18)",
            lambda acc: np.clip(_whole(acc * 589824 - 5) >> 18, -128, 127).astype(np.int8),
        ),
        ("-2147483648 + acc", lambda acc: _whole(acc - 2**31)),
        ("acc * 0 + (acc - acc)", lambda acc: _whole(acc * 0)),
        ("s32(acc * 1e9)", lambda acc: np.clip(acc * 10**9, -(2**31), 2**31 - 1).astype(np.int32)),
        ("acc * 0.0", lambda acc: acc.astype(np.float32) * np.float32(0)),
        ("(0.5 + acc) * f32(acc - acc)", lambda acc: acc.astype(np.float32) * np.float32(0)),
        (
            "(acc + 1e8) - 1e8",
            lambda acc: acc.astype(np.float32) + np.float32(1e8) - np.float32(1e8),
        ),
        (
            "acc * (0.1 + 0.7)",
            lambda acc: acc.astype(np.float32) * (np.float32(0.1) + np.float32(0.7)),
        ),
    ],
)
def test_what_a_simplifier_gets_wrong(
    text: str, expected: Callable[[Array], Array], tmp_path: Path
) -> None:
    """Overflow, clamping at ends that are no floats, signs of zeros, and products by zero."""
    rng = np.random.default_rng(0)
    a, b = np.full((2, 8), 255, np.uint8), rng.integers(-128, 128, (8, 16), np.int8)
    acc = (a.astype(np.int64) @ b.astype(np.int64)).astype(object)
    assert (acc < 0).any() and (acc > 0).any()
    op = amos.operators.get("gemm", m=2, n=16, k=8, dtype="u8s8").with_epilogue(text)
    check(Case(op, UNITS["int32"][0], {"a": a, "b": b}, expected(acc)), rng, tmp_path)


def test_nan_stays_nan(tmp_path: Path) -> None:
    """The same in the reference, in kernels and in C; a cast to an integer stores its least."""
    a = np.array([[np.nan], [-1.5]], np.float32)
    b = np.ones((1, 16), np.float32)
    op = amos.operators.get("gemm", m=2, n=16, k=1, dtype="f32")
    for text, expected in (
        ("relu(acc + 1)", [np.nan, 0]),
        ("max(acc, 3.0)", [np.nan, 3]),
        ("s8(acc + acc)", [-128, -3]),
    ):
        made = op.with_epilogue(text)
        want = np.broadcast_to(np.reshape(expected, (-1, 1)), (2, 16)).astype(made.result.dtype)
        case = Case(made, UNITS["float32"][0], {"a": a, "b": b}, want)
        check(case, np.random.default_rng(0), tmp_path / text[:2])
