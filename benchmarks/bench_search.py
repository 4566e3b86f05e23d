"""The search methods of two checkouts at equal scores, on the layer tables and the model alone.

    python benchmarks/bench_search.py --against ../main --layers resnet18 --seeds 10

A score is a predicted time, so nothing is compiled. Each checkout searches in a process of its
own; they take turns, run by run, so that a busy machine slows both down alike. The table has the
medians over the seeds of the best time after so many scores, as ratios: this checkout over the
other one, below 1 where this one is better. Seconds are processor time of the search without the
model, and of the whole run; the ratio is the median of those of all pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import IO

HERE = Path(__file__).resolve().parents[1]
#: Instruction, machine and dtype that layers are searched for.
TARGETS = {
    "cpu": ("vnni_dpbusd_m16k4_u8_s8_s32", "xeon_6240", "u8s8"),
    "gpu": ("wmma_m16n16k16_f16_f32", "a100", "f16"),
}


@dataclass(frozen=True)
class Job:
    """One run of a search method.

    Attributes:
        layer: of a table of :func:`amos.operators.layers`.
        target: one of ``TARGETS``.
        method: the search method.
        seed: of its random generator.
        batch: scores that it is told at a time.
        scores: after how many the best time is noted, ascending.
    """

    layer: str
    target: str
    method: str
    seed: int
    batch: int
    scores: tuple[int, ...]


@dataclass(frozen=True)
class Outcome:
    """What one run came to.

    Attributes:
        best: predicted seconds of the best candidate after each of the scores.
        search_seconds: processor time of asking and telling.
        total_seconds: the same with the model.
    """

    best: tuple[float, ...]
    search_seconds: float
    total_seconds: float


def search(job: Job) -> Outcome | None:
    """Run a method; ``None`` if the layer has no mapping onto the instruction."""
    import numpy as np

    import amos
    from amos.explore import Problem
    from amos.explore.methods import method

    unit, machine, dtype = TARGETS[job.target]
    op = amos.operators.resolve(job.layer, dtype=dtype)
    mappings = list(amos.enumerate_mappings(op, amos.intrinsics.get(unit)))
    if not mappings:
        return None
    start = time.process_time()
    problem = Problem(mappings, amos.machines.get(machine))
    run = method(job.method)(problem, np.random.default_rng(job.seed))
    model, told = 0.0, list[float]()
    while len(told) < job.scores[-1]:
        batch = run.ask(min(job.batch, job.scores[-1] - len(told)))
        if not batch:
            break
        before = time.process_time()
        seconds = problem.seconds(batch).tolist()
        model += time.process_time() - before
        run.tell(list(zip(batch, seconds, strict=True)))
        told += seconds
    total = time.process_time() - start
    return Outcome(tuple(min(told[:count]) for count in job.scores), total - model, total)


def serve() -> None:
    """Answer jobs on stdin with outcomes on stdout, a line of JSON each."""
    for line in sys.stdin:
        job = Job(**json.loads(line))
        done = search(Job(**{**asdict(job), "scores": tuple(job.scores)}))
        print(json.dumps(done and asdict(done)), flush=True)


class Checkout:
    """A process that searches with the package of one folder."""

    def __init__(self, folder: Path, stdin: IO[str], stdout: IO[str]) -> None:
        self.folder, self._stdin, self._stdout = folder, stdin, stdout

    def run(self, job: Job) -> Outcome | None:
        """Run a job there."""
        print(json.dumps(asdict(job)), file=self._stdin, flush=True)
        line = self._stdout.readline()
        if not line:
            sys.exit(f"{self.folder}: the search failed")
        done = json.loads(line)
        return done and Outcome(**done)


@contextmanager
def checkout(folder: Path) -> Iterator[Checkout]:
    """Start the process of a folder.

    Yields:
        what runs jobs there.
    """
    if not (folder / "amos").is_dir():
        sys.exit(f"{folder}: expected a checkout, there is no amos/ in it")
    command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Checkout(folder, process.stdin, process.stdout)
        process.stdin.close()


Pair = tuple[Outcome, Outcome]


def compare(arguments: argparse.Namespace, layer: str, target: str) -> list[Pair]:
    """Outcomes here and there of each seed; none if the layer cannot be mapped."""
    pairs: list[Pair] = []
    for seed in range(arguments.seeds):
        job = Job(
            layer, target, arguments.method, seed, arguments.batch, tuple(sorted(arguments.scores))
        )
        # Whoever comes second finds the caches warm, so that they take turns.
        here, there = arguments.here, arguments.there
        order = [here, there] if seed % 2 else [there, here]
        done = {each: each.run(job) for each in order}
        mine, other = done[here], done[there]
        if mine is None or other is None:
            return []
        pairs.append((mine, other))
    return pairs


def ratios(pairs: list[Pair]) -> list[float]:
    """Median best time here over that there, after each of the scores."""
    return [
        median(here.best[n] for here, _ in pairs) / median(there.best[n] for _, there in pairs)
        for n in range(len(pairs[0][0].best))
    ]


def report(rows: dict[str, list[Pair]], scores: list[int]) -> None:
    """Print one line a layer, and the means."""
    names = "  ".join(f"{count:>7}" for count in sorted(scores))
    print(f"{'layer':20}  {names}   search    total")
    table, paired = [], []
    for name, pairs in rows.items():
        quality = ratios(pairs)
        search_ratio = median(a.search_seconds / b.search_seconds for a, b in pairs)
        total_ratio = median(a.total_seconds / b.total_seconds for a, b in pairs)
        table.append([*quality, search_ratio, total_ratio])
        paired += pairs
        print(f"{name:20}  " + "  ".join(f"{x:7.4f}" for x in table[-1]))
    means = [geometric_mean(column) for column in zip(*table, strict=True)]
    print(f"{'geometric mean':20}  " + "  ".join(f"{x:7.4f}" for x in means))
    same = sum(a.best == b.best for a, b in paired)
    print(f"{same} of {len(paired)} runs came to the same times after the same scores")


def main() -> None:
    """Compare two checkouts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="the other checkout")
    parser.add_argument("--layers", nargs="+", default=["resnet18", "vgg16", "mobilenet"])
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=["cpu"])
    parser.add_argument("--method", default="ga")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--scores", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return
    if arguments.against is None:
        parser.error("--against is needed")
    from amos.operators import layers

    names = [name for name in layers() if name.split(":")[0] in arguments.layers]
    names += [name for name in arguments.layers if ":" in name]
    rows: dict[str, list[Pair]] = {}
    with ExitStack() as stack:
        arguments.here = stack.enter_context(checkout(HERE))
        arguments.there = stack.enter_context(checkout(arguments.against.resolve()))
        for target in arguments.targets:
            for layer in names:
                if pairs := compare(arguments, layer, target):
                    rows[f"{layer} {target}"] = pairs
                    print(f"{layer} {target}: {ratios(pairs)}", file=sys.stderr, flush=True)
    report(rows, arguments.scores)


if __name__ == "__main__":
    main()
