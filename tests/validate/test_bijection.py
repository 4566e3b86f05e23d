"""Elements that accesses visit, against visiting all of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np

from amos.ir import Affine
from amos.validate.bijection import Substitution, Visits, substitution

Point = tuple[int, ...]


def affine_map(
    rng: np.random.Generator, letters: str, rank: int
) -> tuple[list[Affine], dict[str, int]]:
    """A few steps from a small set, so that equal accesses are not rare."""
    names = letters[: int(rng.integers(1, 4))]
    extents = {name: int(rng.choice([1, 2, 2, 3, 4, 6])) for name in names}
    steps = rng.choice([0, 0, 1, 1, 2, -1, 3, 4, 6, -2], (rank, len(names)))
    constants = rng.choice([0, 0, 0, 1, 5], rank)
    indices = [
        Affine.of(zip(names, map(int, row), strict=True), int(constant))
        for row, constant in zip(steps, constants, strict=True)
    ]
    return indices, extents


def regrouped(
    rng: np.random.Generator, indices: list[Affine], extents: dict[str, int]
) -> tuple[list[Affine], dict[str, int]]:
    """Iterations split in two and run backwards: another way to visit the same elements."""
    for name, extent in [*extents.items()]:
        if extent in (4, 6) and rng.random() < 0.5:
            low = 2 if rng.random() < 0.5 else extent // 2
            split = Affine.of({name + "0": 1, name + "1": low})
            indices = [_substituted(i, {name: split}) for i in indices]
            del extents[name]
            extents |= {name + "0": low, name + "1": extent // low}
    for name, extent in extents.items():
        if rng.random() < 0.3:
            back = Affine.of({name: -1}, extent - 1)
            indices = [_substituted(i, {name: back}) for i in indices]
    return indices, extents


def _substituted(index: Affine, by: dict[str, Affine]) -> Affine:
    total = Affine(constant=index.constant)
    for name, c in index.terms:
        total = total + by.get(name, Affine(((name, 1),))) * c
    return total


def visited_points(indices: Sequence[Affine], extents: dict[str, int]) -> dict[Point, list[Point]]:
    """Elements, and at which points they are visited."""
    where: dict[Point, list[Point]] = {}
    for point in itertools.product(*map(range, extents.values())):
        values = dict(zip(extents, point, strict=True))
        where.setdefault(tuple(i.evaluate(values) for i in indices), []).append(point)
    return where


def is_affine(points: dict[Point, Point]) -> bool:
    """Whether a function on a box is affine, by its differences."""
    for point, value in points.items():
        for d in range(len(point)):
            after = (*point[:d], point[d] + 1, *point[d + 1 :])
            second = (*point[:d], 1, *point[d + 1 :])
            start = (*point[:d], 0, *point[d + 1 :])
            if after in points:
                step = np.subtract(points[after], value)
                if not np.array_equal(step, np.subtract(points[second], points[start])):
                    return False
                origin = (0,) * len(point)
                unit = (*origin[:d], 1, *origin[d + 1 :])
                if not np.array_equal(step, np.subtract(points[unit], points[origin])):
                    return False
    return True


def is_separable(points: dict[Point, Point]) -> bool:
    """Whether a function on a box is a sum of functions of single coordinates."""
    origin = (0,) * len(next(iter(points), ()))
    for point, value in points.items():
        total = np.array(points[origin])
        for d, at in enumerate(point):
            alone = (*origin[:d], at, *origin[d + 1 :])
            total += np.subtract(points[alone], points[origin])
        if not np.array_equal(total, value):
            return False
    return True


def test_visits_and_substitutions_are_those_of_all_points() -> None:
    rng = np.random.default_rng(5)
    counts = Counter[str]()
    for number in range(2500):
        rank = int(rng.integers(1, 3))
        write, writing = affine_map(rng, "ijk", rank)
        if number % 2:
            read, reading = regrouped(rng, write, dict(writing))
            write, writing = regrouped(rng, write, writing)
        else:
            read, reading = affine_map(rng, "pqr", rank)
        stores, loads = Visits.of(write, writing), Visits.of(read, reading)
        written, visited = visited_points(write, writing), visited_points(read, reading)
        often = ({e: len(p) for e, p in written.items()}, {e: len(p) for e, p in visited.items()})
        assert stores.has_same_elements(loads) == (often[0] == often[1]), (
            write,
            writing,
            read,
            reading,
        )
        counts[f"same {stores.has_same_elements(loads)}"] += 1
        if max(often[0].values()) > 1:
            continue
        got = substitution(stores, loads)
        bijective = stores.has_same_elements(loads)
        pairs = {points[0]: visited[e][0] for e, points in written.items()} if bijective else {}
        assert (got is not None) == (bijective and is_separable(pairs)), (
            write,
            read,
            writing,
            reading,
        )
        counts[f"digits {got is not None}"] += bijective
        counts[f"affine {bijective and is_affine(pairs)}"] += bijective
        if got is not None:
            for point, image in pairs.items():
                values = dict(zip(writing, point, strict=True))
                values |= {str(d): d.at(values[d.iteration]) for d in got.digits}
                assert tuple(got.indices[n].evaluate(values) for n in reading) == image
    # Two thirds of three halves: neither's digits are the other's.
    assert counts.pop("digits False") > 5
    assert min(counts.values()) > 60, counts


def test_extents_do_not_matter() -> None:
    large = {"p": 1 << 20, "q": 1 << 20}
    flat = Visits.of([Affine.of({"n": 1})], {"n": 1 << 40})
    grid = Visits.of([Affine.of({"p": 1 << 20, "q": 1})], large)
    assert flat.has_same_elements(grid)
    there, back = substitution(grid, flat), substitution(flat, grid)
    assert there == Substitution({"n": Affine.of({"p": 1 << 20, "q": 1})})
    assert back is not None
    assert {n: str(i) for n, i in back.indices.items()} == {"p": "n//1048576", "q": "n%1048576"}
