"""One case: an operator on a unit, with a mapping and data, and what must come out."""

from __future__ import annotations

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
from tests.fuzz import draw, oracle

__all__ = ["Case", "Refused", "Wrong", "case", "compare", "small_unit"]

RULES = ("paper", "access", "gather")
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
        expected: the stored output, by the oracle.
        defined: where the oracle says anything.
        kind: dtype of the result.
        told: Python that makes the operator and the mapping again.
    """

    problem: draw.Problem
    unit: Intrinsic
    mapping: Any
    inputs: dict[str, np.ndarray]
    expected: np.ndarray
    defined: np.ndarray
    kind: str
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
    most: int = 20_000,
) -> Case:
    """Draw until something maps.

    Args:
        rng: where chance comes from.
        about: is told what is looked at, before it is.
        pick: draws an intrinsic.
        finished: with an epilogue.
        most: points of all loops together.

    Raises:
        Refused: nothing that was drawn has a mapping.
        Wrong: shapes or dtypes are not what the text says.
    """
    reason = ""
    for _ in range(_ATTEMPTS):
        chosen, told = pick(rng)
        kinds = chosen.dtypes
        if finished and kinds[-1] not in ("int32", "float32"):
            continue
        problem = draw.problem(rng, kinds, most=most)
        problem = draw.epilogue(rng, problem) if finished else problem
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


def _operator(problem: draw.Problem) -> Operator:
    op = Operator.parse(problem.text, problem.extents, problem.dtypes, shapes=problem.shapes)
    return op.with_epilogue(problem.epilogue, problem.extra) if problem.epilogue else op


def _told(problem: draw.Problem, unit_text: str, rule: str, commute: bool) -> str:
    finish = f".with_epilogue({problem.epilogue!r}, {problem.extra!r})" if problem.epilogue else ""
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
    op = mapping.operator
    shapes = oracle.shapes_of(problem.text, problem.extents) | problem.shapes
    kind = problem.dtypes[problem.output]
    own = {name: shape for name, shape in shapes.items() if name != problem.output}
    seen = {t.name: t.shape for t in (*op.inputs, op.output.tensor)}
    if any(seen[name] != shape for name, shape in shapes.items()):
        raise Wrong(f"shapes: expected {shapes}, got {seen}")
    # Sums in half precision are exact up to 2048.
    inputs = draw.arrays(rng, own, problem.dtypes, 1 if kind == "float16" else 3)
    state = oracle.evaluate(problem.text, problem.extents, inputs, shapes[problem.output], kind)
    expected, defined = state.output, np.ones(state.output.shape, bool)
    if problem.epilogue:
        others = {t.name: t.shape for t in op.inputs if t.name in problem.extra}
        extra = draw.extras(rng, others, problem.extra)
        expected, defined, kind = oracle.finish(problem.epilogue, state, extra, kind)
        inputs |= extra
    return Case(problem, chosen, mapping, inputs, expected, defined, kind, told)


def compare(case: Case, got: np.ndarray, what: str) -> None:
    """Refuse an output that is not the oracle's, bit for bit where it was finished.

    Raises:
        Wrong: it says how many elements differ, and shows one.
    """
    expected = case.expected
    if got.shape != expected.shape or got.dtype != draw.container(case.kind):
        raise Wrong(
            f"{what}: expected {case.kind} of {expected.shape}, got {got.dtype} of {got.shape}"
        )
    wrong = (got != expected) & case.defined
    whole = case.problem.dtypes[case.problem.output] in oracle.LIMITS
    if case.problem.epilogue and whole and expected.dtype.kind == "f":
        wrong |= (np.signbit(got) != np.signbit(expected)) & case.defined
    if wrong.any():
        at = tuple(int(n) for n in np.argwhere(wrong)[0])
        raise Wrong(
            f"{what}: {int(wrong.sum())} of {wrong.size} wrong; at {at} "
            f"expected {expected[at]}, got {got[at]}"
        )
