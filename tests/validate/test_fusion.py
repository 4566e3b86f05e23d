"""Which operators are one, against computing both of them."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import numpy as np
import pytest

import amos
from amos.ir import Affine, Operator
from amos.validate import evaluate, random_inputs
from amos.validate.fusion import fusable
from tests.support.drawing.generators import drawn
from tests.validate.test_bijection import (
    affine_map,
    is_affine,
    is_separable,
    regrouped,
    visited_points,
)

SIZES = {"i": 4, "j": 8, "k": 16, "p": 2, "q": 2, "r": 3}
GEMM = "y[i,j] += a[i,k] * b[k,j]"


def _shift(indices: list[Affine], extents: dict[str, int]) -> list[Affine]:
    return [index + max(0, -index.bounds(extents)[0]) for index in indices]


def _shape(indices: list[Affine], extents: dict[str, int]) -> tuple[int, ...]:
    return tuple(index.bounds(extents)[1] + 1 for index in indices)


def _listed(indices: list[Affine]) -> str:
    return ", ".join(map(str, indices))


def _drawn(rng: np.random.Generator, related: bool) -> tuple[Operator, Operator] | None:
    """A producer and a consumer whose indices are drawn."""
    rank = int(rng.integers(1, 3))
    write, writing = affine_map(rng, "ijk", rank)
    read, reading = (
        regrouped(rng, write, dict(writing)) if related else affine_map(rng, "pqs", rank)
    )
    write, read = _shift(write, writing), _shift(read, reading)
    sizes = zip(_shape(write, writing), _shape(read, reading), strict=True)
    shape = tuple(max(each) + int(rng.integers(0, 4) == 0) for each in sizes)
    order = [str(name) for name in rng.permutation([*reading])]
    factor = [name for name in reading if rng.random() < 0.5]
    dtypes = dict.fromkeys(("a", "b", "y", "w", "z"), "int32")
    try:
        return (
            Operator.parse(
                f"y[{_listed(write)}] += a[{', '.join(writing)}, m] * b[m]",
                writing | {"m": 2},
                {name: dtypes[name] for name in "aby"},
                shapes={"y": shape},
            ),
            Operator.parse(
                f"z[{', '.join(order)}] = y[{_listed(read)}] * w[{', '.join(factor)}]",
                reading,
                {name: dtypes[name] for name in "ywz"},
                shapes={"y": shape},
            ),
        )
    except amos.AmosError:
        return None  # the drawn producer stores two results in one element


def _inputs(rng: np.random.Generator, *operators: Operator) -> dict[str, np.ndarray]:
    tensors = {t.name: t.shape for op in operators for t in op.inputs}
    return {n: rng.integers(-999, 999, s).astype(np.int32) for n, s in tensors.items()}


def _one_after_the_other(
    producer: Operator, consumer: Operator, inputs: dict[str, np.ndarray]
) -> np.ndarray:
    first = evaluate(producer, {t.name: inputs[t.name] for t in producer.inputs})
    all_inputs = inputs | {producer.result.name: first}
    return np.asarray(evaluate(consumer, {t.name: all_inputs[t.name] for t in consumer.inputs}))


def _fused(op: Operator, inputs: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(evaluate(op, {t.name: inputs[t.name] for t in op.inputs}))


def test_behind_exactly_where_every_element_is_read_once() -> None:
    counts = Counter[bool]()

    @drawn(500)
    def check(rng: np.random.Generator) -> None:
        if (pair := _drawn(rng, related=rng.random() < 0.5)) is None:
            return
        producer, consumer = pair
        written = visited_points(
            producer.output.indices, {it.name: it.extent for it in producer.spatial}
        )
        read = visited_points(consumer.sources[0].indices, consumer.extents)
        once = {e: len(p) for e, p in written.items()} == {e: len(p) for e, p in read.items()}
        pairs = {written[e][0]: read[e][0] for e in written} if once else {}
        # Digits may tell where a result is stored, not what else is read.
        factor = [n for n, name in enumerate(consumer.extents) if name in consumer.sources[1].names]
        images = {point: tuple(image[n] for n in factor) for point, image in pairs.items()}
        verdict = fusable(producer, consumer)
        fits = once and is_separable(pairs) and is_affine(images)
        assert bool(verdict) == fits, f"{producer}\n{consumer}\n{verdict}"
        counts[bool(verdict)] += 1
        if verdict.fused is not None:
            inputs = _inputs(rng, producer, consumer)
            inputs.pop("y")
            expected = _one_after_the_other(producer, consumer, inputs)
            np.testing.assert_array_equal(_fused(verdict.fused, inputs), expected)

    check()
    assert min(counts[True], counts[False]) > 30, counts


@pytest.mark.parametrize(
    ("consumer", "reason"),
    [
        ("z[j] = w[j]", "does not read `y`; it reads `w`"),
        ("z[i,r] += y[i,j] * w[j,r]", "behind: the consumer sums over `j`"),
        ("z[i,r] += y[i,j] * w[j,r]", "beside: each element of `y` is read again for each `r`"),
        ("z[p] max= y[p*2 + q,j]", r"beside: `z\[i//2\]` keeps a part of `i`"),
        ("z[i] *= y[i,j]", "beside: a further result adds"),
        ("a[i] += y[i,j]", "beside: .*'a' is"),
        ("z[i,j,r] = y[i,j] * w[r]", "each element of `y` is read again for each `r`"),
        ("z[i,p] = y[i,p]", "8 points, and 32 elements .*: not each of them"),
        ("z[i,p,q,r] = y[i,p*4+q+r]", "48 points, and 32 elements .*: some more than once"),
        ("z[i,p] = y[i,p] * y[p,i]", r"reads `y\[i, p\]` and `y\[p, i\]`"),
        ("z[i,j] = pad(y[i,j-1])", "reads outside of `y`"),
        ("z[i,j] = y[i,j] * pad(w[i-1])", r"`pad\(w\[i - 1\]\)` is padded"),
        ("z[i,j] = y[i,j] * b[i,j]", "'b' is a tensor of the statement already"),
        ("a[i,j] = y[i,j]", "'a' is both read and written"),
    ],
)
def test_reasons(consumer: str, reason: str) -> None:
    verdict = fusable(GEMM, consumer, SIZES)
    assert not verdict
    assert re.search(reason, str(verdict)), verdict
    assert re.search("before: the producer sums over `k`|does not read", str(verdict))


def test_beside_what_every_element_is_read_for() -> None:
    counts = Counter[str]()

    @drawn(400)
    def check(rng: np.random.Generator) -> None:
        if (pair := _drawn(rng, related=True)) is None:
            return
        producer, consumer = pair
        loops = [it.name for it in consumer.iterations if rng.random() < 0.5]
        sign = str(rng.choice(["+=", "max=", "min="]))
        sources = " * ".join(map(str, consumer.sources))
        text = f"z[{', '.join(loops)}] {sign} {sources}"
        consumer = Operator.parse(
            text,
            {name: n for name, n in consumer.extents.items() if re.search(rf"\b{name}\b", text)},
            dict.fromkeys("ywz", "int32"),
            shapes={"y": producer.result.shape},
        )
        if rng.random() < 0.5:
            read = {name: n for name, n in consumer.extents.items() if name in loops}
            text = f"s16(acc * 3 - e[{', '.join(read)}]) >> 1"
            consumer = consumer.with_epilogue(text, {"e": "int32"})
        verdict = fusable(producer, consumer)
        if verdict.fused is None or verdict.rule != "beside":
            return
        counts["beside"] += 1
        inputs = _inputs(rng, producer, consumer)
        inputs.pop("y")
        expected = _one_after_the_other(producer, consumer, inputs)
        own = {t.name: inputs[t.name] for t in verdict.fused.inputs}
        first, second = evaluate(verdict.fused, own)
        np.testing.assert_array_equal(second, expected, str(verdict))
        own = {t.name: inputs[t.name] for t in producer.inputs}
        np.testing.assert_array_equal(first, evaluate(producer, own))

    check()
    assert counts["beside"] > 30


def test_what_is_rounded_in_the_middle_stays() -> None:
    """Also where the consumer says nothing of dtypes."""
    for consumer in ("z[j,i] = y[i,j]", "z[i] += y[i,j]"):
        verdict = fusable(f"{GEMM} then u8(relu(acc) * s[])", consumer, SIZES)
        assert verdict.fused and "u8(relu(acc) * s[])" in verdict.how
        inputs = random_inputs(verdict.fused, np.random.default_rng(0))
        got = evaluate(verdict.fused, inputs)
        sums = np.maximum(inputs["a"] @ inputs["b"], 0)
        middle = np.clip(np.rint(sums * inputs["s"]), 0, 255)
        if isinstance(got, tuple):
            np.testing.assert_array_equal(got[1], middle.sum(1))
        else:
            np.testing.assert_array_equal(got, middle.T)


def test_shapes_and_dtypes_of_what_is_read() -> None:
    first = Operator.parse(GEMM, {"i": 4, "j": 8, "k": 16}, {"y": "int32"})
    wider = Operator.parse("z[i,j] = y[i,j]", {"i": 4, "j": 8}, shapes={"y": (4, 9)})
    assert "`y` is (4, 8), and the consumer reads (4, 9)" in str(fusable(first, wider))
    floats = Operator.parse("z[i,j] = y[i,j]", {"i": 4, "j": 8}, {"y": "f32"})
    assert "`y` is int32, and the consumer reads float32" in str(fusable(first, floats))


def test_before_exactly_where_the_inverse_is_a_permutation() -> None:
    """A prologue gives every element of a source, by the indices of that element."""
    counts = Counter[bool]()

    @drawn(500)
    def check(rng: np.random.Generator) -> None:
        if (pair := _elementwise_first(rng, whole=rng.random() < 0.67)) is None:
            return
        producer, consumer = pair
        write = producer.output.indices
        written = visited_points(write, producer.extents)
        box = itertools.product(*map(range, producer.result.shape))
        pairs = {e: written[e][0] for e in box} if len(written) == producer.result.elements else {}
        verdict = fusable(producer, consumer)
        assert bool(verdict) == (bool(pairs) and is_affine(pairs)), f"{producer}\n{verdict}"
        counts[bool(verdict)] += 1
        if verdict.fused is not None:
            inputs = _inputs(rng, producer, consumer)
            expected = _one_after_the_other(producer, consumer, inputs)
            inputs.pop("y")
            np.testing.assert_array_equal(_fused(verdict.fused, inputs), expected)

    check()
    assert min(counts[True], counts[False]) > 30, counts


def _elementwise_first(rng: np.random.Generator, whole: bool) -> tuple[Operator, Operator] | None:
    """An elementwise producer, and a consumer that reads windows, rows, or what is around."""
    rank = int(rng.integers(1, 4))
    write, writing = affine_map(rng, "ijk", rank)
    if whole:  # each iteration a dimension of its own, as they are or backwards
        writing = {name: int(rng.integers(1, 5)) for name in "ijk"[:rank]}
        signs = rng.choice([1, 1, -1], rank)
        write = [Affine.of({n: int(c)}) for n, c in zip(writing, signs, strict=True)]
        write = [write[n] for n in rng.permutation(rank)]
    write = _shift(write, writing)
    extra = int(rng.integers(0, 4) == 0)
    shape = tuple(size + extra for size in _shape(write, writing))
    read, reading = affine_map(rng, "pqr", rank)
    sizes = reading | {"m": 2}
    pad = int(rng.integers(-1, 2))
    access = f"y[{_listed([index + pad for index in read])}]"
    source = f"pad({access}, {int(rng.integers(-3, 4))})"
    kinds = dict.fromkeys(("x", "s", "y", "w", "z"), "int32")
    factor = [name for name in writing if rng.random() < 0.5]
    try:
        return (
            Operator.parse(
                f"y[{_listed(write)}] = x[{', '.join(writing)}] * s[{', '.join(factor)}]",
                writing,
                {name: kinds[name] for name in "xsy"},
                shapes={"y": shape},
            ),
            Operator.parse(
                f"z[{', '.join(reading)}] += {source} * w[m]",
                sizes,
                {name: kinds[name] for name in "ywz"},
                shapes={"y": shape},
            ),
        )
    except amos.AmosError:
        return None


@pytest.mark.parametrize(
    ("consumer", "how", "dtypes"),
    [
        ("z[j,i] = y[i,j]", "the epilogue u8(acc * s[j]) and the output z[j, i]", {"z": "u8"}),
        ("z[i,j] = y[i,j]", "s16(u8(acc * s[j])) ", {"z": "s16"}),
        ("z[i,j] = y[i,j] * w[i]", "u8(acc * s[j]) * w[i] ", {"w": "f32"}),
        ("z[i,j] = y[i,j] * w[i]", "u8(acc * s[j]) * w[i] ", {"w": "s8", "z": "s32"}),
        ("z[i,j] = w[i] - y[i,j]", "w[i] - u8(acc * s[j]) ", {"w": "s8", "z": "s32"}),
        ("z[i,j] = max(y[i,j], w[j])", "max(u8(acc * s[j]), w[j]) ", {"w": "u8", "z": "s32"}),
        ("z[i,j] = y[i,j] + w[i]", "f32(u8(acc * s[j])) + f32(w[i])", {"w": "s8", "z": "f32"}),
        ("z[i,j] = y[i,j] then bf16(acc * 0.5)", "bf16(u8(acc * s[j]) * 0.5)", {"z": "s32"}),
        ("z[i,j] += w[i,j] then u8(acc + y[i,j])", "u8(w[i, j] + u8(acc * s[j]))", {"z": "f32"}),
    ],
)
def test_what_is_rounded_stays_rounded(consumer: str, how: str, dtypes: dict[str, str]) -> None:
    """Of an epilogue to bytes, whose elements another operator goes on with."""
    sizes = {"i": 4, "j": 8}
    producer = Operator.parse(GEMM, sizes | {"k": 16}, {"a": "u8", "b": "s8", "y": "s32"})
    producer = producer.with_epilogue("u8(acc * s[j])")
    statement, _, epilogue = consumer.partition(" then ")
    kinds = {n: k for n, k in (dtypes | {"y": "u8"}).items() if f"{n}[" in statement}
    second = Operator.parse(statement, sizes, kinds)
    if epilogue:
        second = second.with_epilogue(epilogue, {"y": "u8"} if "y[" in epilogue else {})
    verdict = fusable(producer, second)
    assert how in str(verdict), verdict
    assert verdict.fused is not None
    inputs = amos.validate.random_inputs(verdict.fused, np.random.default_rng(3))
    inputs["s"] = np.float32(2.0) ** -np.arange(4, 12).astype(np.float32)
    expected = _one_after_the_other(producer, second, inputs)
    assert len(np.unique(expected)) > 7
    np.testing.assert_array_equal(_fused(verdict.fused, inputs), expected)


def test_what_an_expression_computes_otherwise() -> None:
    kinds = {"a": "u8", "b": "s8", "y": "s32"}
    narrow = fusable(GEMM, "z[i,j] = y[i,j] * w[i]", SIZES, kinds | {"w": "s32", "z": "s8"})
    assert "int8 is wrapped around by an operator" in str(narrow)
    wide = fusable(GEMM, "z[i,j] = y[i,j] * w[i]", SIZES, kinds | {"w": "s32", "z": "int64"})
    assert "no expression gives int64" in str(wide)


def test_a_row_of_operators_becomes_one() -> None:
    """A scaled input, a product, an activation, a transposition and a reshape."""
    sizes = dict(i=4, j=6, k=8, a=2, b=3)
    kinds = dict.fromkeys(("x", "s", "y", "z", "v", "u", "t"), "f32")
    texts = [
        "y[i,k] = x[k,i] * s[k]",
        "z[i,j] += y[i,k] * w[k,j]",
        "v[j,i] = z[i,j] then relu(acc + t[j])",
        "u[a,i,b] = v[a*3 + b,i]",
    ]
    first, *later = texts
    fused: Operator | None = None
    for text in later:
        verdict = fusable(fused or first, text, sizes, kinds)
        assert verdict.fused is not None, verdict
        fused = verdict.fused
    assert fused is not None
    assert str(fused.prologues[0]) == "y[i, k] = x[k, i] * s[k]"
    assert str(fused.store) == "u[j//3, i, j%3]"
    renamed = fusable(GEMM, "z[i,j] = y[i,j]", SIZES).fused
    assert renamed == Operator.parse(GEMM.replace("y", "z"), {"i": 4, "j": 8, "k": 16}, name="y")
    rng = np.random.default_rng(0)
    inputs = {t.name: rng.integers(-4, 5, t.shape).astype(np.float32) for t in fused.inputs}
    x, s, w, t = (inputs[name] for name in "xswt")
    expected = np.maximum((x * s[:, None]).T @ w + t, 0).T
    np.testing.assert_array_equal(_fused(fused, inputs), expected.reshape(2, 3, 4).swapaxes(1, 2))


def test_before_inside_what_a_kernel_computes_already() -> None:
    """A scaled skip connection of an epilogue, and a tensor that a prologue reads."""
    sizes = {"i": 4, "j": 8, "k": 16}
    kinds = {"a": "u8", "b": "s8", "o": "s32"}
    anchor = Operator.parse("o[i,j] += a[i,k] * b[k,j]", sizes, kinds)
    residual = anchor.with_epilogue("u8(acc * 0.01 + y[j,i])", {"y": "f32"})
    scaled = Operator.parse("y[j,i] = q[i,j] * s[j]", {"i": 4, "j": 8}, {"q": "u8", "s": "f32"})
    verdict = fusable(scaled.with_dtypes({"y": "float32"}), residual)
    assert "as part of the epilogue u8(acc * 0.01 + f32(q[i, j]) * s[j])" in str(verdict)
    assert verdict.fused is not None
    inputs = amos.validate.random_inputs(verdict.fused, np.random.default_rng(0))
    expected = _one_after_the_other(scaled, residual, inputs)
    np.testing.assert_array_equal(_fused(verdict.fused, inputs), expected)

    computed = anchor.with_prologue("b", "s8(w[k,j] * y[j,k])", {"w": "f32", "y": "f32"})
    moved = Operator.parse("y[j,k] = q[k,j]", {"j": 8, "k": 16}, {"q": "s8", "y": "f32"})
    verdict = fusable(moved, computed)
    assert "as part of the prologue b[k, j] = s8(w[k, j] * f32(q[k, j]))" in str(verdict)
    assert verdict.fused is not None
    inputs = amos.validate.random_inputs(verdict.fused, np.random.default_rng(0))
    expected = _one_after_the_other(moved, computed, inputs)
    np.testing.assert_array_equal(_fused(verdict.fused, inputs), expected)


def test_several_results() -> None:
    """Those of a producer stay beside the one that goes on; a consumer's would be lost."""
    sizes = {"i": 4, "j": 8}
    kinds = {"a": "u8", "b": "s8", "y": "s32"}
    anchor = Operator.parse(GEMM, sizes | {"k": 16}, kinds)
    several = anchor.with_result("f[i,j] = f32(acc * 0.5)")
    plain = Operator.parse("z[i,j] = y[j,i]", {"i": 8, "j": 4}, {"y": "s32"})
    verdict = fusable(several, plain)
    assert verdict.fused is not None
    assert [str(each) for each in verdict.fused.further] == [str(each) for each in several.further]
    assert "the consumer has several results" in str(
        fusable(anchor, plain.with_result("f[i,j] = f32(acc * 0.5)"))
    )
    scaled = Operator.parse("y[j] = x[j] * s[]", {"j": 8})
    reading = Operator.parse("z[i] += y[j] * w[i,j]", sizes)
    assert fusable(scaled, reading)
    assert "the producer has several results" in str(
        fusable(scaled.with_result("f[j] = acc * 0.5"), reading)
    )


def test_doubles_are_stored_elsewhere_and_not_computed_with() -> None:
    kinds = dict.fromkeys("abyzs", "f64")
    assert fusable(GEMM, "z[j,i] = y[i,j]", SIZES, kinds).how == "as the output z[j, i]"
    assert "do not hold float64" in str(fusable(GEMM, "z[j,i] = y[i,j] * s[]", SIZES, kinds))
