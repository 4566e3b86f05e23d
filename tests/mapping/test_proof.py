"""The rules against execution and against brute force, on operators drawn at random."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amos.errors import MappingError
from amos.intrinsics import Intrinsic, Memory
from amos.ir import Operator
from amos.mapping import Mapping, enumerate_mappings, simulate
from amos.validate import (
    check_matching,
    evaluate,
    execute_matching,
    holds_on_matched,
    random_inputs,
)

RULES = ("paper", "access", "gather")


def matchings(op: Operator, intrinsic: Intrinsic) -> Iterator[np.ndarray]:
    """Every assignment of software iterations, as a matrix."""
    steps = len(intrinsic.iterations)
    for targets in product(range(steps + 1), repeat=len(op.iterations)):
        yield np.array(targets)[None, :] == np.arange(steps)[:, None]


def define(compute: str, extents: dict[str, int]) -> Intrinsic:
    operands = [part.split("[")[0].strip(" *+=") for part in compute.split("]")[:-1]]
    memory = [Memory(name, "load", "memory", (), "addr", ()) for name in operands]
    kinds = dict.fromkeys(operands, "int64")
    return Intrinsic.define("unit", compute, extents, kinds, memory, family="unit", source="none")


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Operator, Intrinsic]:
    """An operator and an intrinsic with the same arithmetic."""
    sources = draw(st.integers(1, 3))
    op = draw(statements(sources, "abcd", affine=True))
    intrinsic = draw(statements(sources, "ijr", affine=False))
    return (
        Operator.parse(*op, name="op"),
        define(*intrinsic),
    )


@st.composite
def statements(
    draw: st.DrawFn, sources: int, letters: str, affine: bool
) -> tuple[str, dict[str, int]]:
    """A statement that accumulates, and extents of at least 2 for its iterations."""
    names = letters[: draw(st.integers(1, len(letters)))]
    extents = {n: draw(st.integers(2, 3)) for n in names}

    def index(members: list[str]) -> str:
        low, terms = 0, []
        for n in members:
            c = draw(st.sampled_from([1, 1, 1, 2, -1])) if affine else 1
            low += min(0, c * (extents[n] - 1))
            terms.append(f"{n}*{c}" if c >= 0 else f"(0 - {n})")
        return " + ".join(terms) + (f" + {-low}" if low else "")

    def load(name: str, members: list[str]) -> str:
        groups: list[list[str]] = []
        for n in draw(st.permutations(members)):
            if groups and affine and draw(st.integers(0, 3)) == 0:
                groups[-1].append(n)
            else:
                groups.append([n])
        return f"{name}[{', '.join(map(index, groups)) or '0'}]"

    subsets = st.lists(st.sampled_from(names), unique=True, min_size=0 if affine else 1)
    chosen = [draw(subsets) for _ in range(sources)]
    spatial = draw(subsets)
    used = set(spatial).union(*chosen)
    chosen[0] = [*chosen[0], *(n for n in names if n not in used)]
    target = f"Dst[{', '.join(spatial) or '0'}]"
    factors = " * ".join(load(f"Src{m}", members) for m, members in enumerate(chosen))
    return f"{target} += {factors}", extents


def inputs_of(op: Operator) -> dict[str, np.ndarray]:
    """Generic data: chance equality of two sums is out of the question."""
    rng = np.random.default_rng(1)
    info = np.iinfo(np.int64)
    return {t.name: rng.integers(info.min, info.max, t.shape, endpoint=True) for t in op.inputs}


def prove(op: Operator, intrinsic: Intrinsic) -> int:
    """Gather is right about every assignment; the number of wrong ones."""
    inputs = inputs_of(op)
    expected = evaluate(op, inputs)
    wrong = 0
    for matrix in matchings(op, intrinsic):
        judged = check_matching(op, intrinsic, matrix, "gather").wrong
        got = execute_matching(op, intrinsic, matrix, inputs)
        assert (not judged) == np.array_equal(got, expected), (str(op), str(intrinsic), matrix)
        wrong += bool(judged)
    return wrong


@given(pairs())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_gather_is_what_execution_says(pair: tuple[Operator, Intrinsic]) -> None:
    prove(*pair)


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
    names = sorted({c for part in text.split("[")[1:] for c in part.split("]")[0] if c.isalpha()})
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
@settings(max_examples=60, deadline=None, derandomize=True)
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
@settings(max_examples=60, deadline=None, derandomize=True)
def test_access_is_algorithm_1_on_matched_iterations(pair: tuple[Operator, Intrinsic]) -> None:
    op, intrinsic = pair
    for matrix in matchings(op, intrinsic):
        verdict = check_matching(op, intrinsic, matrix, "access")
        x, z = op.access_matrix, intrinsic.access_matrix
        assert (not verdict.wrong) == holds_on_matched(x, matrix, z)


@given(pairs(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None, derandomize=True)
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
    every = list(matchings(op, intrinsic))
    base = [m for m in every if m.sum() and (m.sum(axis=1) <= 1).all() and _turns(op, intrinsic, m)]
    most = max(
        (int(m.any(axis=1).sum()) for m in every
         if m.sum() and not check_matching(op, intrinsic, m, "gather").wrong), default=0,
    )  # fmt: skip
    base = [m for m in base if m.sum() == most]
    unions = {m.tobytes(): m for m in base}
    for match in base:
        for other in list(unions.values()):
            union = other | match
            if (union.sum(axis=0) <= 1).all():
                unions[union.tobytes()] = union
    return set(unions)


def _turns(op: Operator, intrinsic: Intrinsic, matrix: np.ndarray) -> bool:
    """A base match makes each index list the intrinsic's, in some order of dimensions."""
    rename = {op.iterations[s].name: intrinsic.iterations[t].name for t, s in np.argwhere(matrix)}
    for load, operand in zip(op.operands, intrinsic.operands, strict=True):
        left = []
        for index in load.indices:
            terms = index.restrict(rename).terms
            if len(terms) > 1 or any(c < 0 for _, c in terms):
                return False
            left += [rename[n] for n, _ in terms]
        right = [i.names[0] for i in operand.indices if i.names[0] in rename.values()]
        if sorted(left) != sorted(right):
            return False
    return True


@given(pairs())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_paper_is_the_union_of_base_matches(pair: tuple[Operator, Intrinsic]) -> None:
    op, intrinsic = pair
    try:
        space = enumerate_mappings(op, intrinsic, "paper")
    except MappingError:
        return
    assert {m.matching.tobytes() for m in space} == _unions(op, intrinsic)


def test_orders_are_permutations_of_the_sources() -> None:
    op = Operator.parse("out[i,j] += a[i,k] * b[k] * d[k,j]", dict(i=2, j=2, k=2))
    three = define("Dst[i1,i2] += Src1[i1,r1] * Src2[r1] * Src3[r1,i2]", dict(i1=2, i2=2, r1=2))
    space = enumerate_mappings(op, three, "gather", commute=True)
    orders = sorted({m.order for m in space})
    assert (0, 1, 2) in orders
    assert (2, 1, 0) in orders
    for one, two in combinations(space, 2):
        assert one != two
    for mapping in space:
        assert isinstance(mapping, Mapping)
        assert check_matching(op, three, mapping.matching, "gather", order=mapping.order)
