"""One case: an operator on a unit, with a mapping and data, and what must come out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import amos
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.plan import Schedule
from tests.support.drawing import groups, operators
from tests.support.drawing.operators import Computed, Problem
from tests.support.oracle import expressions, statements

__all__ = ["RULES", "Case", "Refused", "Wrong", "case", "compare"]

RULES = ("paper", "access", "gather")
#: Accumulators that no expression takes.
_WIDE = ("uint32", "int64", "uint64")
_ATTEMPTS = 30


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
        source: Python that makes the operator and the mapping again.
    """

    problem: Problem
    unit: Intrinsic
    mapping: Any
    inputs: dict[str, np.ndarray]
    results: tuple[expressions.Finished, ...]
    source: str

    def with_schedule(self, schedule: Schedule) -> str:
        """Python that makes the candidate again."""
        return f"{self.source}\nschedule = Schedule.of({schedule.as_dict()!r})"


def case(
    rng: np.random.Generator,
    about: Callable[[str], None],
    pick: Callable[[np.random.Generator], tuple[Intrinsic, str]],
    *,
    finished: bool = False,
    grouped: bool = False,
    several: bool = False,
    most: int = 20_000,
    epilogue: Callable[[np.random.Generator, Problem], Problem] = groups.epilogue,
    drawing: Callable[[np.random.Generator, Intrinsic], Problem] | None = None,
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
        chosen, source = pick(rng)
        kinds = chosen.dtypes
        if finished and kinds[-1] in _WIDE:
            continue
        problem = (
            operators.problem(rng, kinds, most=most) if drawing is None else drawing(rng, chosen)
        )
        if not chosen.compute.sums_products:
            problem = groups.joined(problem, chosen.compute.combiner, chosen.compute.join)
        problem = epilogue(rng, problem) if finished else problem
        problem = _group(rng, problem, several) if grouped else problem
        rule, commute = str(rng.choice(RULES)), bool(rng.random() < 0.2)
        source = _write_source(problem, source, rule, commute)
        about(source)
        try:
            op = _operator(problem)
            space = amos.enumerate_mappings(op, chosen, rule=rule, commute=commute)
            if not len(space):
                raise Refused("no mapping")
        except (amos.AmosError, Refused) as error:
            reason = str(error)
            continue
        at = int(rng.integers(len(space)))
        source += f"\nmapping = space[{at}]"
        about(source)
        return _evaluated(rng, problem, chosen, space[at], source)
    raise Refused(reason.splitlines()[0] if reason else "nothing fits")


def _group(rng: np.random.Generator, start: Problem, several: bool) -> Problem:
    kind = start.dtypes[start.output]
    shapes = statements.shapes_of(start.text, start.extents) | start.shapes
    problem = start
    if rng.random() < 0.6:
        problem = groups.prologues(rng, problem, shapes, _top(kind))
    if rng.random() < 0.6 and kind not in _WIDE:
        problem = groups.epilogue(rng, problem)
    problem = groups.store(rng, problem) if rng.random() < 0.6 else problem
    if several and rng.random() < 0.5 and kind not in _WIDE:
        problem = groups.results(rng, problem)
    return problem


def _operator(problem: Problem) -> Operator:
    op = Operator.parse(
        problem.text, problem.extents, problem.dtypes, shapes=problem.shapes,
        constants=problem.constants,
    )  # fmt: skip
    for prologue in problem.prologues:
        op = op.with_prologue(prologue.head, prologue.text, prologue.dtypes)
    if problem.epilogue:
        op = op.with_epilogue(problem.epilogue, problem.extra)
    if problem.store:
        op = op.with_output(problem.store, problem.store_shapes)
    for more in problem.further:
        op = op.with_result(str(more), more.dtypes, more.shapes)
    return op


def _write_source(problem: Problem, unit_text: str, rule: str, commute: bool) -> str:
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
    constants={problem.constants!r},
){finish}
unit = {unit_text}
space = amos.enumerate_mappings(op, unit, rule={rule!r}, commute={commute})"""


def _evaluated(
    rng: np.random.Generator,
    problem: Problem,
    chosen: Intrinsic,
    mapping: Any,
    source: str,
) -> Case:
    op, kind = mapping.operator, problem.dtypes[problem.output]
    shapes = statements.shapes_of(problem.text, problem.extents) | problem.shapes
    seen = {load.tensor.name: load.tensor.shape for load in op.operands}
    if any(seen[name] != shape for name, shape in shapes.items()):
        raise Wrong(f"shapes: expected {shapes}, got {seen}")
    computed = {prologue.source: prologue for prologue in problem.prologues}
    own = {n: shape for n, shape in shapes.items() if n != problem.output and n not in computed}
    inputs = operators.arrays(rng, own, problem.dtypes, _top(kind))
    sources = dict(inputs)
    for name, prologue in computed.items():
        sources[name], read = _computed(rng, op, prologue, shapes[name], problem.dtypes[name])
        inputs |= read
    state = statements.evaluate(
        problem.text, problem.extents, sources, shapes[problem.output], kind
    )
    shapes_behind = {t.name: t.shape for t in op.inputs if t.name in problem.read_after}
    extra = operators.extras(rng, shapes_behind, problem.read_after)
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
    return Case(problem, chosen, mapping, inputs | extra, tuple(results), source)


def _top(kind: str) -> int:
    """How large floats may be: sums in half precision are exact up to 2048."""
    return 1 if kind == "float16" else 3


def _computed(
    rng: np.random.Generator,
    op: Operator,
    how: Computed,
    shape: tuple[int, ...],
    kind: str,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """A source, and the arrays that it is computed of.

    Raises:
        Refused: it takes infinities to compute it.
    """
    shapes = {t.name: t.shape for t in op.inputs if t.name in how.dtypes}
    for _ in range(_ATTEMPTS):
        arrays = operators.extras(rng, shapes, how.dtypes)
        values, finite = expressions.source(how.head, how.text, arrays, shape, kind)
        if finite:
            return values.astype(operators.container(kind)), arrays
    raise Refused("infinities")


def compare(case: Case, got: Any, what: str) -> None:
    """Refuse results that are not the oracle's, bit for bit but where floats are added up.

    Raises:
        Wrong: it says how many elements differ, and shows one.
    """
    results = got if isinstance(got, tuple) else (got,)
    if len(results) != len(case.results):
        raise Wrong(f"{what}: expected {len(case.results)} results, got {len(results)}")
    for number, (actual, expected) in enumerate(zip(results, case.results, strict=True)):
        _compare(actual, expected, f"{what}, result {number}" if number else what)


def _compare(got: np.ndarray, stored: expressions.Finished, what: str) -> None:
    expected = stored.output
    if got.shape != expected.shape or got.dtype != operators.container(stored.kind):
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
