"""The rules against execution and against brute force, on operators drawn at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from amos.errors import MappingError
from amos.intrinsics import Intrinsic
from amos.intrinsics.virtual import unit
from amos.ir import Operator
from amos.mapping import enumerate_mappings, simulate
from amos.validate import (
    Verdict,
    check_matching,
    evaluate,
    execute_matching,
    holds_on_matched,
    random_inputs,
)

RULES = ("paper", "access", "gather")
Judge = Callable[[Operator, Intrinsic, np.ndarray], Verdict]


def matchings(op: Operator, intrinsic: Intrinsic) -> Iterator[np.ndarray]:
    """Every assignment of software iterations, as a matrix."""
    steps = len(intrinsic.iterations)
    for targets in product(range(steps + 1), repeat=len(op.iterations)):
        yield np.array(targets)[None, :] == np.arange(steps)[:, None]


def define(compute: str, extents: dict[str, int]) -> Intrinsic:
    return unit(compute, extents, "int64")


@st.composite
def pairs(draw: st.DrawFn, letters: str = "abcd") -> tuple[Operator, Intrinsic]:
    """An operator and an intrinsic with the same arithmetic, every extent at least 2."""
    sources, accumulate = draw(st.integers(1, 3)), draw(st.integers(0, 4)) > 0
    text, extents, shapes = draw(operators_(sources, letters, accumulate))
    op = Operator.parse(text, extents, name="op", shapes=shapes)
    return op, define(*draw(units(sources, accumulate)))


@st.composite
def units(draw: st.DrawFn, sources: int, accumulate: bool) -> tuple[str, dict[str, int]]:
    """The statement of an intrinsic: each operand has some of the iterations."""
    names = "ijr"[: draw(st.integers(1, 3))]
    subsets = st.lists(st.sampled_from(names), unique=True, min_size=1)
    target = draw(subsets) if accumulate else list(names)
    chosen = [draw(subsets) for _ in range(sources)]
    chosen[0] += [n for n in names if n not in {*target, *sum(chosen, [])}]
    factors = " * ".join(f"Src{m}[{', '.join(members)}]" for m, members in enumerate(chosen))
    sign = "+=" if accumulate else "="
    return f"Dst[{', '.join(target)}] {sign} {factors}", dict.fromkeys(names, 2)


@st.composite
def operators_(
    draw: st.DrawFn, sources: int, letters: str, accumulate: bool
) -> tuple[str, dict[str, int], dict[str, tuple[int, ...]]]:
    """Text, extents and shapes of an operator.

    Indices are sums of iterations with strides, reversed or shared between
    dimensions; a source may be padded, and may be a tensor that is read twice.
    """
    names = letters[: draw(st.integers(1, len(letters)))]
    extents = {n: draw(st.integers(2, 3)) for n in names}
    subsets = st.lists(st.sampled_from(names), unique=True)
    target = draw(subsets) if accumulate else list(names)
    chosen = [draw(subsets) for _ in range(sources)]
    chosen[0] += [n for n in names if n not in {*target, *sum(chosen, [])}]
    loads: list[list[dict[str, int]]] = [draw(indices(members)) for members in chosen]
    shapes: dict[str, tuple[int, ...]] = {}
    factors: list[str] = []
    for m, dims in enumerate(loads):
        # Src0 is read twice where the second access has as many dimensions.
        again = m > 0 and len(dims) == len(loads[0]) and draw(st.integers(0, 3)) == 3
        name = "Src0" if again else f"Src{m}"
        low = [sum(min(0, c * (extents[n] - 1)) for n, c in dim.items()) for dim in dims]
        reach = [1 + sum(abs(c) * (extents[n] - 1) for n, c in dim.items()) for dim in dims]
        padding = [0] * len(dims)
        # Zeros are not generic data: two values of each iteration stay inside.
        if not again and dims and draw(st.integers(0, 2)) == 2:
            padding = [int(all(extents[n] > 2 for n in dim)) for dim in dims]
        inner = ", ".join(
            " + ".join([*(f"{n}*({c})" for n, c in dim.items()), str(-below - pad)])
            for dim, below, pad in zip(dims, low, padding, strict=True)
        )
        load = f"{name}[{inner}]"
        factors.append(f"pad({load})" if any(padding) else load)
        sizes = [n - pad for n, pad in zip(reach, padding, strict=True)]
        old = shapes.setdefault(name, tuple(sizes))
        shapes[name] = tuple(map(max, old, sizes))
    sign = "+=" if accumulate else "="
    return f"Dst[{', '.join(target)}] {sign} {' * '.join(factors)}", extents, shapes


@st.composite
def indices(draw: st.DrawFn, members: list[str]) -> list[dict[str, int]]:
    """An index list in which each member occurs, one in three with a second dimension."""
    dims: list[dict[str, int]] = []
    for n in draw(st.permutations(members)):
        c = draw(st.sampled_from([1, 1, 1, 2, -1]))
        if dims and draw(st.integers(0, 3)) == 3:
            dims[-1][n] = c
        else:
            dims.append({n: c})
    if dims and draw(st.integers(0, 5)) == 5:
        dims.append({draw(st.sampled_from(members)): 1})
    return dims


def inputs_of(op: Operator) -> dict[str, np.ndarray]:
    """Generic data: chance equality of two sums is out of the question."""
    rng = np.random.default_rng(1)
    info = np.iinfo(np.int64)
    return {t.name: rng.integers(info.min, info.max, t.shape, endpoint=True) for t in op.inputs}


def counterexample(op: Operator, intrinsic: Intrinsic, judge: Judge) -> str:
    """The first assignment about which verdict and execution disagree, in words."""
    inputs = inputs_of(op)
    expected = evaluate(op, inputs)
    right: list[tuple[np.ndarray, Verdict]] = []
    for matrix in matchings(op, intrinsic):
        verdict = judge(op, intrinsic, matrix)
        got = execute_matching(op, intrinsic, matrix, inputs)
        equal = np.array_equal(got, expected)
        if equal == bool(verdict.wrong):
            says = "the same" if equal else "something else"
            return f"{_describe(op, intrinsic, matrix)} computes {says}, but is {verdict}"
        if equal:
            right.append((matrix, verdict))
    # A right matching is idle exactly if another right one fills more of the unit.
    most = max(int(matrix.any(axis=1).sum()) for matrix, _ in right)
    for matrix, verdict in right:
        filled = int(matrix.any(axis=1).sum())
        if bool(verdict.idle) != (filled < most or filled == 0):
            return f"{_describe(op, intrinsic, matrix)} fills {filled} of {most}, but is {verdict}"
    return ""


def _describe(op: Operator, intrinsic: Intrinsic, matrix: np.ndarray) -> str:
    groups = {
        step.name: [op.iterations[s].name for s in np.flatnonzero(row)]
        for step, row in zip(intrinsic.iterations, matrix, strict=True)
    }
    return f"{op} on {intrinsic.compute}: {groups}"


def gather(op: Operator, intrinsic: Intrinsic, matrix: np.ndarray) -> Verdict:
    return check_matching(op, intrinsic, matrix, "gather")


def prove(op: Operator, intrinsic: Intrinsic) -> int:
    """Gather is right about every assignment; the number of wrong ones."""
    example = counterexample(op, intrinsic, gather)
    assert not example, example
    return sum(bool(gather(op, intrinsic, matrix).wrong) for matrix in matchings(op, intrinsic))


@given(pairs())
@settings(max_examples=150, derandomize=True)
@pytest.mark.long
def test_gather_is_what_execution_says(pair: tuple[Operator, Intrinsic]) -> None:
    prove(*pair)


@pytest.mark.slow
@given(pairs("abcde"))
@settings(
    max_examples=1500,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_gather_is_what_execution_says_of_many(pair: tuple[Operator, Intrinsic]) -> None:
    prove(*pair)


def test_operators_drawn_are_of_every_kind() -> None:
    """Padded, reversed, shared, repeated, read twice, copied: none is left out by chance."""
    seen: set[str] = set()

    @given(pairs())
    @settings(max_examples=300, derandomize=True, database=None)
    def check(pair: tuple[Operator, Intrinsic]) -> None:
        op = pair[0]
        names = [load.tensor.name for load in op.sources]
        kinds = {
            "padded": any(load.padded for load in op.sources),
            "read twice": len(set(names)) < len(names),
            "copy": not op.compute.accumulates,
            "no output dimension": not op.output.indices,
        }
        for load in op.sources:
            terms = [term for index in load.indices for term in index.terms]
            kinds["reversed"] = kinds.get("reversed", False) or any(c < 0 for _, c in terms)
            kinds["strided"] = kinds.get("strided", False) or any(c > 1 for _, c in terms)
            shared = any(len(index.terms) > 1 for index in load.indices)
            kinds["shared"] = kinds.get("shared", False) or shared
            twice = len({n for n, _ in terms}) < len(terms)
            kinds["repeated"] = kinds.get("repeated", False) or twice
        seen.update(kind for kind, there in kinds.items() if there)
        seen.add(f"{len(names)} sources")

    check()
    assert seen == {
        *("padded", "read twice", "copy", "no output dimension"),
        *("reversed", "strided", "shared", "repeated"),
        *("1 sources", "2 sources", "3 sources"),
    }


def _forgets_sources(op: Operator, intrinsic: Intrinsic, matrix: np.ndarray) -> Verdict:
    """A rule with a hole: only the kinds have to agree."""
    verdict = gather(op, intrinsic, matrix)
    kinds = tuple(reason for reason in verdict.wrong if "spatial" in reason)
    return Verdict(verdict.rule, kinds, verdict.idle)


def _refuses_replication(op: Operator, intrinsic: Intrinsic, matrix: np.ndarray) -> Verdict:
    """A rule that is too strict: patterns have to be equal."""
    verdict = check_matching(op, intrinsic, matrix, "access")
    return Verdict("gather", verdict.wrong, gather(op, intrinsic, matrix).idle)


def _never_idle(op: Operator, intrinsic: Intrinsic, matrix: np.ndarray) -> Verdict:
    return Verdict("gather", gather(op, intrinsic, matrix).wrong)


@pytest.mark.parametrize(
    ("judge", "loops", "words"),
    [
        (_forgets_sources, 1, "computes something else, but is"),
        (_refuses_replication, 1, "computes the same, but is wrong"),
        (_never_idle, 1, "fills 0 of"),
    ],
)
@pytest.mark.long
def test_a_faulty_rule_is_found_and_shrunk(judge: Judge, loops: int, words: str) -> None:
    """The proof can fail in each direction, and then shows the smallest operator."""
    op, intrinsic = find(
        pairs(),
        lambda pair: words in counterexample(pair[0], pair[1], judge),
        settings=settings(max_examples=500, derandomize=True, database=None),
    )
    assert len(op.iterations) <= loops + 1
    assert len(intrinsic.iterations) <= 2
    assert set(op.extents.values()) == {2}
    example = counterexample(op, intrinsic, judge)
    assert words in example
    assert len(example) < 400


MATMUL = define("Dst[i1,i2] += Src1[i1,r1] * Src2[r1,i2]", dict(i1=2, i2=2, r1=2))
VECTOR = define("Dst[i1] += Src1[r1] * Src2[i1,r1]", dict(i1=2, r1=2))


@pytest.mark.parametrize(
    ("text", "intrinsic"),
    [
        ("out[k,p] += image[c,p+r] * weight[k,c,r]", MATMUL),
        ("out[k,p,q] += image[p*2+r,q+s] * weight[k,r,s]", VECTOR),
        ("out[k,p] += image[k,p+r] * weight[k,r]", MATMUL),
        ("out[i,j] += a[i,k] * a[j,k]", MATMUL),
        ("out[i] += a[i,k] * a[i,k]", MATMUL),
        ("out[k,p] += image[c,p+r] * weight[k,c,1-r]", MATMUL),
        ("out[i] += a[k,k] * b[k,i]", VECTOR),
        ("out[i,j] += a[k] * b[i,k]", VECTOR),
    ],
)
def test_every_assignment_of_known_operators(text: str, intrinsic: Intrinsic) -> None:
    names = sorted(
        {c for access in text.split("[")[1:] for c in access.split("]")[0] if c.isalpha()}
    )
    assert prove(Operator.parse(text, dict.fromkeys(names, 2)), intrinsic)


@pytest.mark.slow
def test_every_assignment_of_a_2d_convolution() -> None:
    """Any of n, p, q to i1, k to i2, any of c, r, s to r1: all others are wrong."""
    text = "out[n,k,p,q] += image[n,c,p*2+r,q*2+s] * weight[k,c,r,s]"
    assert prove(Operator.parse(text, dict.fromkeys("nkpqcrs", 2)), MATMUL) == 4**7 - 2**7


def test_padding_and_copies() -> None:
    padded = Operator.parse(
        "out[k,p] += pad(image[p+r-1]) * weight[k,r]",
        dict(k=2, p=3, r=3),
        shapes=dict(image=(3,)),
    )
    assert prove(padded, VECTOR)
    copy = Operator.parse("out[i,j] = a[j,i]", dict(i=2, j=3))
    assert prove(copy, define("Dst[i1,i2] = Src[i1,i2]", dict(i1=2, i2=2))) == 0


@given(pairs())
@settings(max_examples=60, derandomize=True)
def test_enumeration_is_the_filter(pair: tuple[Operator, Intrinsic]) -> None:
    op, intrinsic = pair
    try:
        spaces = {rule: enumerate_mappings(op, intrinsic, rule) for rule in RULES}
    except MappingError:
        assert not any(
            check_matching(op, intrinsic, m, rule) for m in matchings(op, intrinsic)
            for rule in RULES
        )  # fmt: skip
        return
    for rule, space in spaces.items():
        accepted = {
            m.tobytes() for m in matchings(op, intrinsic) if check_matching(op, intrinsic, m, rule)
        }
        listed = list(space)
        assert {m.matching.tobytes() for m in listed} == accepted
        assert len(listed) == space.count == len(accepted)
        assert listed == [space[i] for i in range(space.count)]
        none = len(intrinsic.iterations)
        keys = [[none if t < 0 else t for t in m.assignment] for m in listed]
        assert keys == sorted(keys)
    assert set(spaces["paper"]) <= set(spaces["access"]) <= set(spaces["gather"])


@given(pairs())
@settings(max_examples=60, derandomize=True)
def test_access_is_algorithm_1_on_matched_iterations(pair: tuple[Operator, Intrinsic]) -> None:
    op, intrinsic = pair
    for matrix in matchings(op, intrinsic):
        verdict = check_matching(op, intrinsic, matrix, "access")
        x, z = op.access_matrix, intrinsic.access_matrix
        assert (not verdict.wrong) == holds_on_matched(x, matrix, z)


@given(pairs(), st.randoms(use_true_random=False))
@settings(max_examples=60, derandomize=True)
def test_simulation_is_the_operator(pair: tuple[Operator, Intrinsic], random: object) -> None:
    op, intrinsic = pair
    try:
        space = enumerate_mappings(op, intrinsic, "gather", commute=True)
    except MappingError:
        return
    for index in {0, space.count // 2, space.count - 1} if space else set():
        mapping = space[index]
        inputs = random_inputs(mapping.operator, np.random.default_rng(2))
        expected = evaluate(mapping.operator, inputs)
        np.testing.assert_array_equal(simulate(mapping, inputs), expected)


def _unions(op: Operator, intrinsic: Intrinsic) -> set[bytes]:
    """The paper's rule from its definition: set all others to zero and compare indices."""
    candidates = list(matchings(op, intrinsic))
    base = [
        m for m in candidates if m.sum() and (m.sum(axis=1) <= 1).all() and _turns(op, intrinsic, m)
    ]
    most = max(
        (int(m.any(axis=1).sum()) for m in candidates
         if m.sum() and not check_matching(op, intrinsic, m, "gather").wrong), default=0,
    )  # fmt: skip
    base = [m for m in base if m.sum() == most]
    unions = {m.tobytes(): m for m in base}
    for match in base:
        for mask in list(unions.values()):
            union = mask | match
            if (union.sum(axis=0) <= 1).all():
                unions[union.tobytes()] = union
    return set(unions)


def _turns(op: Operator, intrinsic: Intrinsic, matrix: np.ndarray) -> bool:
    """A base match makes each index list the intrinsic's, in some order of dimensions."""
    rename = {op.iterations[s].name: intrinsic.iterations[t].name for t, s in np.argwhere(matrix)}
    for load, operand in zip(op.operands, intrinsic.operands, strict=True):
        renamed: list[str] = []
        for index in load.indices:
            terms = index.restrict(rename).terms
            if len(terms) > 1 or any(c < 0 for _, c in terms):
                return False
            renamed += [rename[n] for n, _ in terms]
        right = [i.names[0] for i in operand.indices if i.names[0] in rename.values()]
        if sorted(renamed) != sorted(right):
            return False
    return True


@given(pairs())
@settings(max_examples=60, derandomize=True)
def test_paper_is_the_union_of_base_matches(pair: tuple[Operator, Intrinsic]) -> None:
    op, intrinsic = pair
    try:
        space = enumerate_mappings(op, intrinsic, "paper")
    except MappingError:
        return
    assert {m.matching.tobytes() for m in space} == _unions(op, intrinsic)
