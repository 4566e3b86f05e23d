"""One case: an operator on a unit, with a mapping and data, and what must come out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import amos
from amos.intrinsics import Intrinsic
from amos.intrinsics.virtual import unit
from amos.ir import Operator
from amos.plan import Schedule
from tests.fuzz import draw, expressions, groups, oracle

__all__ = ["Case", "Refused", "Wrong", "case", "compare", "small_unit"]

RULES = ("paper", "access", "gather")
#: Accumulators that no expression takes.
_WIDE = ("uint32", "int64", "uint64")
_ATTEMPTS = 30
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


class Refused(Exception):
    """The case says nothing: what was drawn has no mapping, or no schedule."""


class Wrong(Exception):
    """A defect, in words."""


@dataclass(frozen=True)
class Case:
    """An operator, mapped.

    Attributes:
        problem: its text, extents and dtypes.
        unit: the intrinsic.
        mapping: one of its mappings.
        inputs: an array for each input, in the container of its dtype.
        results: what is stored, by the oracle.
        told: Python that makes the operator and the mapping again.
    """

    problem: draw.Problem
    unit: Intrinsic
    mapping: Any
    inputs: dict[str, np.ndarray]
    results: tuple[expressions.Finished, ...]
    told: str

    def with_schedule(self, schedule: Schedule) -> str:
        """Python that makes the candidate again."""
        return f"{self.told}\nschedule = Schedule.of({schedule.as_dict()!r})"


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
    plain = draw.Problem(statement, {}, {}, "Dst")
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


def case(
    rng: np.random.Generator,
    about: Callable[[str], None],
    pick: Callable[[np.random.Generator], tuple[Intrinsic, str]],
    *,
    finished: bool = False,
    grouped: bool = False,
    several: bool = False,
    most: int = 20_000,
    epilogue: Callable[[np.random.Generator, draw.Problem], draw.Problem] = groups.epilogue,
    drawing: Callable[[np.random.Generator, Intrinsic], draw.Problem] | None = None,
) -> Case:
    """Draw until something maps.

    Args:
        rng: where chance comes from.
        about: is told what is looked at, before it is.
        pick: draws an intrinsic.
        finished: with an epilogue.
        grouped: with prologues, an epilogue and results stored elsewhere, or some of these.
        several: with more results than one, perhaps.
        most: points of all loops together.
        epilogue: draws it.
        drawing: draws an operator for an instruction; any by default.

    Raises:
        Refused: nothing that was drawn has a mapping.
        Wrong: shapes or dtypes are not what the text says.
    """
    reason = ""
    for _ in range(_ATTEMPTS):
        chosen, told = pick(rng)
        kinds = chosen.dtypes
        if finished and kinds[-1] in _WIDE:
            continue
        problem = draw.problem(rng, kinds, most=most) if drawing is None else drawing(rng, chosen)
        if not chosen.compute.sums_products:
            problem = groups.joined(problem, chosen.compute.combiner, chosen.compute.join)
        problem = epilogue(rng, problem) if finished else problem
        problem = _group(rng, problem, several) if grouped else problem
        rule, commute = str(rng.choice(RULES)), bool(rng.random() < 0.2)
        told = _told(problem, told, rule, commute)
        about(told)
        try:
            op = _operator(problem)
            space = amos.enumerate_mappings(op, chosen, rule=rule, commute=commute)
            if not len(space):
                raise Refused("no mapping")
        except (amos.AmosError, Refused) as error:
            reason = str(error)
            continue
        at = int(rng.integers(len(space)))
        told += f"\nmapping = space[{at}]"
        about(told)
        return _evaluated(rng, problem, chosen, space[at], told)
    raise Refused(reason.splitlines()[0] if reason else "nothing fits")


def _group(rng: np.random.Generator, start: draw.Problem, several: bool) -> draw.Problem:
    kind = start.dtypes[start.output]
    shapes = oracle.shapes_of(start.text, start.extents) | start.shapes
    problem = start
    if rng.random() < 0.6:
        problem = groups.prologues(rng, problem, shapes, _top(kind))
    if rng.random() < 0.6 and kind not in _WIDE:
        problem = groups.epilogue(rng, problem)
    problem = groups.store(rng, problem) if rng.random() < 0.6 else problem
    if several and rng.random() < 0.5 and kind not in _WIDE:
        problem = groups.results(rng, problem)
    return problem


def _operator(problem: draw.Problem) -> Operator:
    op = Operator.parse(problem.text, problem.extents, problem.dtypes, shapes=problem.shapes)
    for each in problem.prologues:
        op = op.with_prologue(each.head, each.text, each.dtypes)
    if problem.epilogue:
        op = op.with_epilogue(problem.epilogue, problem.extra)
    if problem.store:
        op = op.with_output(problem.store, problem.store_shapes)
    for more in problem.further:
        op = op.with_result(str(more), more.dtypes, more.shapes)
    return op


def _told(problem: draw.Problem, unit_text: str, rule: str, commute: bool) -> str:
    finish = "".join(
        f".with_prologue({each.head!r}, {each.text!r}, {each.dtypes!r})"
        for each in problem.prologues
    )
    if problem.epilogue:
        finish += f".with_epilogue({problem.epilogue!r}, {problem.extra!r})"
    finish += f".with_output({problem.store!r}, {problem.store_shapes!r})" if problem.store else ""
    finish += "".join(
        f".with_result({str(each)!r}, {each.dtypes!r}, {each.shapes!r})" for each in problem.further
    )
    return f"""op = amos.Operator.parse(
    {problem.text!r},
    {problem.extents!r},
    {problem.dtypes!r},
    shapes={problem.shapes!r},
){finish}
unit = {unit_text}
space = amos.enumerate_mappings(op, unit, rule={rule!r}, commute={commute})"""


def _evaluated(
    rng: np.random.Generator, problem: draw.Problem, chosen: Intrinsic, mapping: Any, told: str
) -> Case:
    op, kind = mapping.operator, problem.dtypes[problem.output]
    shapes = oracle.shapes_of(problem.text, problem.extents) | problem.shapes
    seen = {load.tensor.name: load.tensor.shape for load in op.operands}
    if any(seen[name] != shape for name, shape in shapes.items()):
        raise Wrong(f"shapes: expected {shapes}, got {seen}")
    computed = {each.source: each for each in problem.prologues}
    own = {n: shape for n, shape in shapes.items() if n != problem.output and n not in computed}
    inputs = draw.arrays(rng, own, problem.dtypes, _top(kind))
    sources = dict(inputs)
    for name, each in computed.items():
        sources[name], read = _computed(rng, op, each, shapes[name], problem.dtypes[name])
        inputs |= read
    state = oracle.evaluate(problem.text, problem.extents, sources, shapes[problem.output], kind)
    others = {t.name: t.shape for t in op.inputs if t.name in problem.behind}
    extra = draw.extras(rng, others, problem.behind)
    store, shape = problem.store, problem.store_shape
    if problem.further and not store:
        # Then the statement's own output keeps what it does not reach, as results elsewhere do.
        store, shape = re.split(r" \S*= ", problem.text)[0], shapes[problem.output]
    results = [expressions.finish(problem.epilogue, state, extra, kind, store, shape)]
    for more in problem.further:
        whole = (more.text, state, extra, kind, more.store, more.shape)
        results.append(
            expressions.finish(*whole)
            if more.sign == "="
            else expressions.combined(*whole, more.sign, more.last)
        )
    return Case(problem, chosen, mapping, inputs | extra, tuple(results), told)


def _top(kind: str) -> int:
    """How large floats may be: sums in half precision are exact up to 2048."""
    return 1 if kind == "float16" else 3


def _computed(
    rng: np.random.Generator,
    op: Operator,
    how: draw.Computed,
    shape: tuple[int, ...],
    kind: str,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """A source, and the arrays that it is computed of.

    Raises:
        Refused: it takes infinities to compute it.
    """
    shapes = {t.name: t.shape for t in op.inputs if t.name in how.dtypes}
    for _ in range(_ATTEMPTS):
        arrays = draw.extras(rng, shapes, how.dtypes)
        values, finite = expressions.source(how.head, how.text, arrays, shape, kind)
        if finite:
            return values.astype(draw.container(kind)), arrays
    raise Refused("infinities")


def compare(case: Case, got: Any, what: str) -> None:
    """Refuse results that are not the oracle's, bit for bit but where floats are added up.

    Raises:
        Wrong: it says how many elements differ, and shows one.
    """
    results = got if isinstance(got, tuple) else (got,)
    if len(results) != len(case.results):
        raise Wrong(f"{what}: expected {len(case.results)} results, got {len(results)}")
    for number, (one, expected) in enumerate(zip(results, case.results, strict=True)):
        _compare(one, expected, f"{what}, result {number}" if number else what)


def _compare(got: np.ndarray, stored: expressions.Finished, what: str) -> None:
    expected = stored.output
    if got.shape != expected.shape or got.dtype != draw.container(stored.kind):
        raise Wrong(
            f"{what}: expected {stored.kind} of {expected.shape}, got {got.dtype} of {got.shape}"
        )
    wrong = got != expected
    if np.any(stored.off):
        wrong = ~(np.abs(got.astype(np.float64) - expected) <= stored.off)
    if stored.signed:
        wrong |= np.signbit(got) != np.signbit(expected)
    wrong &= stored.defined
    if wrong.any():
        at = tuple(int(n) for n in np.argwhere(wrong)[0])
        raise Wrong(
            f"{what}: {int(wrong.sum())} of {wrong.size} wrong; at {at} "
            f"expected {expected[at]}, got {got[at]}"
        )
