"""Learn the schedules of ``tiling="few"`` over the layer tables, and judge them.

    python benchmarks/learn_few.py --pool /tmp/pool.jsonl --write  # all targets, minutes each
    python benchmarks/learn_few.py --pool /tmp/pool.jsonl --holdout heron
    python benchmarks/learn_few.py --pool /tmp/pool.jsonl --shipped  # judges those of the package

A long genetic search on the model gives the best schedules of each layer, which the pool keeps, so
that a run resumes. Greedily, the template comes next that brings all layers nearest to their best.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import repeat
from pathlib import Path

import numpy as np

import amos
from amos.explore.few import FINALISTS, list_candidates, rank_mappings
from amos.explore.genetic import GeneticSearch
from amos.explore.guided import Guided
from amos.explore.objective import Problem
from amos.plan import Candidate, Schedule
from amos.plan.target import target_of
from amos.schedule.few import Template, templates

#: Instruction and machine of each target.
UNITS = (
    ("vnni_dpbusd_m16k4_u8_s8_s32", "xeon_6240"),
    ("wmma_m16n16k16_f16_f32", "a100"),
    ("opencl_mad_m8_f32", "pocl"),
)
#: Layers of the tables, by table.
LAYERS = {
    "resnet18": [f"C{n}" for n in range(12)],
    "vgg16": ["V1", "V3", "V5", "V7", "V9"],
    "mobilenet": ["M0", "M2", "M4", "M6", "M8"],
    "heron": ["G1", "G2", "G3", "G4", "G5", "C1", "C3", "C5"],
    # Square products of a prime size, whose rows are not aligned.
    "gemm": ["509", "2039"],
}
#: Best mappings of a layer that templates come from, and are judged on.
_MAPPINGS = 4
_FOLDER = Path(amos.__file__).parent / "schedule" / "data"


class LongSearch(GeneticSearch):
    """A genetic search of some seconds."""

    inner = 4096


@dataclass(frozen=True)
class Best:
    """The best schedule of a mapping in a long search."""

    mapping: str
    schedule: dict[str, int | str]


@dataclass(frozen=True)
class Task:
    """A layer on an instruction of a machine, and the best mappings of a long search."""

    layer: str
    unit: str
    machine: str
    best: tuple[Best, ...]

    @cached_property
    def problem(self) -> Problem:
        """Its whole space."""
        return _problem(self.layer, self.unit, self.machine)

    @cached_property
    def seconds(self) -> float:
        """Predicted seconds of the best, by the model as it is now."""
        spaces = self.problem.spaces
        known = [
            Candidate(spaces[best.mapping].mapping, Schedule.of(best.schedule))
            for best in self.best
        ]
        return float(self.problem.seconds(known).min())


def _problem(layer: str, unit: str, machine: str) -> Problem:
    intrinsic = amos.intrinsics.get(unit)
    name, _, size = layer.partition(":")
    sizes = dict.fromkeys("mnk", int(size)) if name == "gemm" else {}
    operator = amos.operators.resolve(name if sizes else layer, sizes)
    mappings = amos.enumerate_mappings(operator, intrinsic)
    return Problem(list(mappings), amos.machines.get(machine, [intrinsic]))


def search_pool(path: Path, target: str | None = None) -> list[Task]:
    """The tasks with their best schedules; what the file lacks is searched and added.

    Args:
        path: of the file.
        target: name of the only target whose tasks are added.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    tasks = [
        Task(
            r["layer"],
            r["unit"],
            r["machine"],
            tuple(Best(b["mapping"], b["schedule"]) for b in r["best"]),
        )
        for r in rows
    ]
    known = {(task.layer, task.unit, task.machine) for task in tasks}
    names = [f"{table}:{row}" for table, rows in LAYERS.items() for row in rows]
    for unit, machine in UNITS:
        if target not in (None, target_of(amos.machines.get(machine)).name):
            continue
        for layer in names:
            if (layer, unit, machine) not in known:
                tasks.append(_search(layer, unit, machine))
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(tasks[-1])) + "\n")
    return tasks


def _search(layer: str, unit: str, machine: str) -> Task:
    guided = Guided(_problem(layer, unit, machine), np.random.default_rng(1), LongSearch, 0.0)
    guided.ask(8)
    best: dict[str, Best] = {}
    for candidate, seconds in sorted(guided.search.results, key=lambda result: result[1]):
        name = candidate.mapping.name
        if np.isfinite(seconds):
            best.setdefault(name, Best(name, candidate.schedule.as_dict()))
    return Task(layer, unit, machine, tuple(best.values())[:_MAPPINGS])


def learn(tasks: Sequence[Task], most: int) -> list[Template]:
    """Up to so many templates, the most useful first."""
    pool: dict[str, Template] = {}
    for task in tasks:
        problem = task.problem
        for best in task.best:
            space = problem.spaces[best.mapping]
            template = Template.of(space, Schedule.of(best.schedule))
            pool.setdefault(json.dumps(template.values, sort_keys=True), template)
    choices = [*pool.values()]
    best = [[best.mapping for best in task.best] for task in tasks]
    first = int(np.argmin(_mean_slowdowns(tasks, choices, best, np.full(len(tasks), 1e3))))
    # As a search will: the first template selects the mappings that all others are tried on.
    finalists = [_finalists(task.problem, choices[first]) for task in tasks]
    slowdown = np.array([_slowdowns(*x) for x in zip(tasks, repeat(choices), finalists)])
    order, covered = [first], slowdown[:, first]
    while len(order) < min(most, len(choices)):
        means = np.log(np.minimum(covered[:, None], slowdown)).mean(axis=0)
        means[order] = np.inf
        order.append(int(np.argmin(means)))
        covered = np.minimum(covered, slowdown[:, order[-1]])
    return [choices[n] for n in order]


def _finalists(problem: Problem, template: Template) -> list[str]:
    listed = [
        Candidate(mapping, schedule)
        for mapping in problem.mappings
        if (schedule := template.schedule(problem.space(mapping))) is not None
    ]
    return [mapping.name for mapping in rank_mappings(problem, listed)[:FINALISTS]]


def _mean_slowdowns(
    tasks: Sequence[Task],
    choices: Sequence[Template],
    mappings: Sequence[Sequence[str]],
    covered: np.ndarray,
) -> np.ndarray:
    rows = [_slowdowns(*x) for x in zip(tasks, repeat(choices), mappings)]
    means: np.ndarray = np.log(np.minimum(covered[:, None], np.array(rows))).mean(axis=0)
    return means


def _slowdowns(task: Task, choices: Sequence[Template], mappings: Sequence[str]) -> list[float]:
    """Times the best of the task that each template takes on some mappings."""
    problem = task.problem
    named = {mapping.name: mapping for mapping in problem.mappings}
    least = np.full(len(choices), 1e3)
    for name in mappings:
        schedules = [template.schedule(problem.spaces[name]) for template in choices]
        candidates = [Candidate(named[name], s) for s in schedules if s is not None]
        seconds = iter(problem.seconds(candidates))
        taken = [next(seconds) if s is not None else np.inf for s in schedules]
        least = np.minimum(least, np.array(taken) / task.seconds)
    return [float(x) for x in least]


def judge(tasks: Sequence[Task], choices: Sequence[Template]) -> None:
    """Print how the listed candidates of each task do beside its long search."""
    ratios, times = [], []
    for task in tasks:
        problem = task.problem
        start = time.perf_counter()
        candidates = list_candidates(problem, choices)
        least = float(problem.seconds(candidates).min())
        times.append(time.perf_counter() - start)
        ratios.append(least / task.seconds)
        print(
            f"{task.layer:14} {task.unit:30} {len(problem.mappings):3} mappings "
            f"{len(candidates):3} candidates {ratios[-1]:.3f} times the best, {times[-1]:.1f} s"
        )
    print(
        f"{len(tasks)} tasks: median {statistics.median(ratios):.4f}, "
        f"worst {max(ratios):.3f}, {max(times):.1f} s at most"
    )


def main() -> None:
    """Learn, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", type=Path, required=True)
    parser.add_argument("--most", type=int, default=100, help="templates of a target")
    parser.add_argument("--holdout", choices=LAYERS, help="a table to judge by alone")
    parser.add_argument("--target", help="only this one")
    parser.add_argument("--shipped", action="store_true", help="judge the package's; learn none")
    parser.add_argument("--write", action="store_true", help="write the files of the package")
    arguments = parser.parse_args()
    tasks = search_pool(arguments.pool, arguments.target)
    for name in {target_of(amos.machines.get(task.machine)).name: None for task in tasks}:
        if arguments.target not in (None, name):
            continue
        own = [t for t in tasks if target_of(amos.machines.get(t.machine)).name == name]
        held = [t for t in own if t.layer.partition(":")[0] == arguments.holdout]
        if arguments.shipped:
            choices = list(templates(target_of(amos.machines.get(own[0].machine))))
        else:
            choices = learn([t for t in own if t not in held], arguments.most)
        print(f"{name}: {len(choices)} templates")
        judge(held or own, choices)
        if arguments.write:
            text = ",\n".join(json.dumps(each.values) for each in choices)
            (_FOLDER / f"few_{name}.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
