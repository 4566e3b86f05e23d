"""Heron, Figure 12: search methods at equal evaluations, on GEMM and C2D.

An evaluation is one score in seconds. A method that proposes an infeasible
candidate spends an evaluation on it, as it would on a program that fails to
compile. No method sees the model but through its scores.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from amos import intrinsics, machines, operators
from amos.errors import ExploreError
from amos.explore.method import Search
from amos.explore.methods import method as find_method
from amos.explore.objective import Problem
from amos.explore.options import check_count
from amos.ir import Operator
from amos.mapping import enumerate_mappings
from amos.plan import Candidate
from amos.reproduce.rivals import Breeding

#: Compared, in the order of the paper: Figure 12, then Figure 13.
METHODS = ("cga", "ga_plain", "ga", "sa", "random", "cga1", "ga_sr", "ga_sat", "ga_mo")
_BATCH = 8
#: "Reached" means a run time of at most the best known one divided by this.
_SHARE = 0.95

#: Size of the pictures, and the margin of the curves.
_WIDTH, _HEIGHT, _EDGE = 640, 360, 48
_COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#7f7f7f", "#ff7f0e", "#9467bd", "#8c564b", "#17becf")

Scores = Callable[[Problem, Sequence[Candidate]], list[float]]


@dataclass(frozen=True)
class Run:
    """One method with one seed.

    Attributes:
        operator: ``"gemm"`` or ``"c2d"``.
        best: best seconds after each evaluation; infinite before the first success.
        valid_share: share of its proposals that were feasible.
        evaluations_to_95pct: evaluations until a run time within 95 % of the best
            known; ``None`` if it was not reached.
    """

    operator: str
    method: str
    seed: int
    best: tuple[float, ...]
    valid_share: float
    evaluations_to_95pct: int | None = None


@dataclass(frozen=True)
class Fig12:
    """All runs, one for each operator, method and seed, and the best seconds by operator."""

    machine: str
    evaluations: int
    best_known: dict[str, float]
    runs: tuple[Run, ...]

    def median(self, operator: str, method: str) -> float:
        """Return the median of the evaluations to 95 %; infinite for a run that never got there."""
        return statistics.median(
            math.inf if run.evaluations_to_95pct is None else run.evaluations_to_95pct
            for run in self.of(operator, method)
        )

    def of(self, operator: str, method: str) -> list[Run]:
        """Return the runs of one method on one operator."""
        return [r for r in self.runs if r.operator == operator and r.method == method]

    def reached_count(self, operator: str, method: str) -> int:
        """Count the seeds that reached 95 % of the best known."""
        return sum(r.evaluations_to_95pct is not None for r in self.of(operator, method))


def fig12(
    machine: str = "a100",
    evaluations: int = 300,
    seeds: int = 10,
    methods: Sequence[str] = METHODS,
    progress: Callable[[int, int, str], None] | None = None,
) -> Fig12:
    """Compare methods on G1 (GEMM, 1024 cubed) and C5 (C2D) of the paper's Table 9.

    Args:
        machine: a described machine with Tensor Cores, scored by the model; or
            ``"host"``, where every candidate is compiled, checked and timed.
        seeds: runs of each method, with seeds from 0 on.

    Raises:
        ExploreError: a budget is not positive.
        UnknownNameError: no such machine or method.
    """
    for name, value in (("evaluations", evaluations), ("seeds", seeds)):
        check_count(name, value)
    for name in methods:
        find_method(name)
    jobs = list(itertools.product(_operators(machine).items(), methods, range(seeds)))
    runs = []
    with _scores(machine) as scores:
        for number, ((code, op), name, seed) in enumerate(jobs):
            if progress is not None:
                progress(number, len(jobs), f"{code} {name} seed {seed}")
            runs.append(_run(code, op, machine, name, seed, evaluations, scores))
    best_known: dict[str, float] = {}
    for run in runs:
        best_known[run.operator] = min(best_known.get(run.operator, math.inf), run.best[-1])
    rated = (replace(run, evaluations_to_95pct=_evaluations_to(run, best_known)) for run in runs)
    return Fig12(machine, evaluations, best_known, tuple(rated))


def _operators(machine: str) -> dict[str, Operator]:
    if machine == "host":
        gemm = operators.resolve("gemm", extents=dict(m=256, n=256, k=256), dtype="u8s8")
        return {"gemm": gemm, "c2d": operators.resolve("resnet18:C5")}
    return {
        "gemm": operators.resolve("gemm", extents=dict(m=1024, n=1024, k=1024)),
        "c2d": Operator.parse(
            "out[n,k,p,q] += pad(image[n,c,p+r-1,q+s-1]) * weight[k,c,r,s]",
            extents=dict(n=32, k=256, p=14, q=14, c=256, r=3, s=3),
            shapes=dict(image=(32, 256, 14, 14)),
            name="C5",
        ),
    }


@contextlib.contextmanager
def _scores(machine: str) -> Iterator[Scores]:
    if machine != "host":
        yield lambda problem, batch: [float(x) for x in problem.seconds(batch)]
        return
    from amos.measure import Runner, Task

    with Runner(60.0) as runner:
        yield lambda _, batch: [runner.measure(Task(candidate)).seconds for candidate in batch]


def _run(
    code: str, op: Operator, machine: str, name: str, seed: int, evaluations: int, scores: Scores
) -> Run:
    unit = "vnni_dpbusd_m16k4_u8_s8_s32" if machine == "host" else "wmma_m16n16k16_f16_f32"
    mappings = list(enumerate_mappings(op, intrinsics.get(unit), rule="access"))
    problem = Problem(mappings, machines.get(machine))
    search = find_method(name)(problem, np.random.default_rng(seed))
    best, curve = math.inf, list[float]()
    while len(curve) < evaluations:
        wasted = _wasted_count(search)
        batch = search.ask(min(_BATCH, evaluations - len(curve)))
        if not batch and _wasted_count(search) == wasted:
            break
        curve += [best] * (_wasted_count(search) - wasted)
        batch_seconds = scores(problem, batch)
        search.tell(list(zip(batch, batch_seconds, strict=True)))
        for seconds in batch_seconds:
            best = min(best, seconds)
            curve.append(best)
    # A space that is used up early has nothing left to find.
    curve = (curve + [best] * evaluations)[:evaluations]
    valid = len(search.results) / max(1, len(search.results) + _wasted_count(search))
    return Run(code, name, seed, tuple(curve), valid)


def _wasted_count(search: Search) -> int:
    """Count infeasible proposals so far; only the rivals make any."""
    return search.wasted if isinstance(search, Breeding) else 0


def _evaluations_to(run: Run, best_known: dict[str, float]) -> int | None:
    goal = best_known[run.operator] / _SHARE
    return next((n for n, seconds in enumerate(run.best, 1) if seconds <= goal), None)


def curves(figure: Fig12) -> Iterator[dict[str, object]]:
    """Yield one row for each evaluation of each run, with the best seconds by then."""
    for run in figure.runs:
        for evaluation, seconds in enumerate(run.best, 1):
            yield {
                "operator": run.operator,
                "method": run.method,
                "seed": run.seed,
                "evaluation": evaluation,
                "best_seconds": seconds if math.isfinite(seconds) else None,
            }


def draw(figure: Fig12, picture: Path) -> None:
    """Write one SVG picture an operator: median and quartiles of each method's runs."""
    methods = dict.fromkeys(run.method for run in figure.runs)
    for operator, best in figure.best_known.items():
        lines = {name: [run.best for run in figure.of(operator, name)] for name in methods}
        path = picture.with_stem(f"{picture.stem}-{operator}")
        try:
            text = _curves(f"{operator} on {figure.machine}", lines, best)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ExploreError(f"picture {str(path)!r}: {error}") from error


def _curves(title: str, lines: Mapping[str, Sequence[Sequence[float]]], best: float) -> str:
    """Draw performance after each evaluation, as a share of the ``best`` seconds."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<text x="{_EDGE}" y="16" font-size="13">{title}</text>',
    ]
    for tick in (0.0, 0.25, 0.5, 0.75, 0.95, 1.0):
        y = _y(tick)
        parts.append(f'<path d="M{_EDGE} {y:.1f}H{_WIDTH - _EDGE}" stroke="#ddd"/>')
        parts.append(f'<text x="{_EDGE - 32}" y="{y + 4:.1f}">{tick:g}</text>')
    for number, (name, runs) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        low, middle, high = np.quantile(
            best / np.array(runs), (0.25, 0.5, 0.75), axis=0, method="nearest"
        )
        band = " ".join([*_points(low), *reversed(_points(high))])
        parts.append(f'<polygon points="{band}" fill="{colour}" fill-opacity="0.12"/>')
        parts.append(
            f'<polyline points="{" ".join(_points(middle))}" fill="none" stroke="{colour}" '
            'stroke-width="1.6"/>'
        )
        at = _EDGE + 64 * number
        parts.append(f'<text x="{at}" y="{_HEIGHT - 8}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _points(values: np.ndarray) -> list[str]:
    step = (_WIDTH - 2 * _EDGE) / max(1, len(values) - 1)
    return [f"{_EDGE + n * step:.1f},{_y(value):.1f}" for n, value in enumerate(values)]


def _y(value: float) -> float:
    return _HEIGHT - _EDGE - value * (_HEIGHT - 2 * _EDGE)
