"""How long the mapping space takes: counting, listing, judging, and its memory.

``python benchmarks/bench_mapping.py`` prints a table, writes
``benchmarks/results/mapping.json`` and exits with 1 if a goal is missed. Every
registered intrinsic is used, and renamed copies until there are at least 60.
"""

from __future__ import annotations

import json
import platform
import resource
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from time import perf_counter

import numpy as np

from amos import intrinsics, operators
from amos.errors import MappingError
from amos.intrinsics import Intrinsic
from amos.intrinsics.virtual import unit as virtual_unit
from amos.ir import Operator
from amos.mapping import Mapping, MappingSpace, enumerate_mappings
from amos.mapping.spaces import assignments
from amos.validate import RULES, algorithm_1_batch, check_matching

RESULTS = Path(__file__).resolve().parent / "results" / "mapping.json"
UNITS = 60
WMMA = "wmma_m16n16k16_f16_f32"


@dataclass(frozen=True)
class Row:
    """A measured value; ``goal`` is an upper bound unless ``at_least``."""

    what: str
    value: float
    unit: str
    goal: float | None = None
    at_least: bool = False
    note: str = ""

    @property
    def met(self) -> bool:
        if self.goal is None:
            return True
        return self.value >= self.goal if self.at_least else self.value <= self.goal


def timed(action: Callable[[], object], tries: int = 1) -> float:
    times = []
    for _ in range(tries):
        start = perf_counter()
        action()
        times.append(perf_counter() - start)
    return min(times)


def many_intrinsics() -> list[Intrinsic]:
    registered = [intrinsics.get(name) for name in intrinsics.names()]
    copies = -(-max(0, UNITS - len(registered)) // len(registered))
    renamed = [replace(unit, name=f"{unit.name}_{n}") for n in range(copies) for unit in registered]
    return [*registered, *renamed][: max(UNITS, len(registered))]


def spaces(ops: list[Operator], units: list[Intrinsic]) -> list[MappingSpace]:
    found = []
    for op, unit, rule in product(ops, units, RULES):
        try:
            found.append(enumerate_mappings(op, unit, rule))
        except MappingError:
            continue
    return found


def whole_table() -> list[Row]:
    ops = [operators.get(name) for name in operators.names()]
    units = many_intrinsics()
    assignments.cache_clear()
    start = perf_counter()
    found = spaces(ops, units)
    count = sum(space.count for space in found)
    counted = perf_counter() - start
    start = perf_counter()
    listed = sum(1 for space in found for _ in space)
    listing = perf_counter() - start
    start = perf_counter()
    names = len({mapping.name for space in found for mapping in space})
    naming = perf_counter() - start
    assert listed == count
    note = f"{len(ops)} operators × {len(units)} intrinsics × {len(RULES)} rules: {count} mappings"
    return [
        Row("count everything", counted, "s", 1, note=note),
        Row("list everything", listing, "s", 3, note="after counting"),
        Row("list with names", naming, "s", note=f"{names} different names"),
    ]


def anew(op: Operator, unit: Intrinsic) -> list[Mapping]:
    """The mappings under the paper's rule, without what another pair left behind."""
    assignments.cache_clear()
    return list(enumerate_mappings(op, unit))


def conv3d() -> list[Row]:
    op, unit = operators.get("conv3d"), intrinsics.get(WMMA)
    count = len(anew(op, unit))
    cold = timed(lambda: anew(op, unit), 5)
    warm = timed(lambda: list(enumerate_mappings(op, unit)), 5)
    note = f"{count} mappings, nothing shared"
    return [
        Row("list C3D", 1e3 * cold, "ms", 5, note=note),
        Row("list C3D again", 1e3 * warm, "ms", note="its access structure is known"),
    ]


def fourteen_loops() -> list[Row]:
    """Four windows, so that base matches exclude each other."""
    text = "out[n,k,b,d,p,q] += x[n,c,b+e,d+t,p+r,q+s,m,l] * w[k,c,e,t,r,s,m,l]"
    text = text.replace("out[n,", "out[n,g,").replace("x[n,", "x[n,g,")
    op = Operator.parse(text, dict.fromkeys("ngkbdpqcetrsml", 3), name="conv4d")
    unit = virtual_unit(
        "Dst[i1,i2,i3] += Src1[i1,i2,r1,r2,r3] * Src2[i3,r1,r2,r3]",
        dict.fromkeys(["i1", "i2", "i3", "r1", "r2", "r3"], 4),
    )
    assignments = (len(unit.iterations) + 1) ** len(op.iterations)
    rows = []
    for rule in RULES:
        start = perf_counter()
        count = enumerate_mappings(op, unit, rule).count
        took = perf_counter() - start
        note = f"{count} of {assignments:.1e} assignments"
        rows.append(Row(f"count {len(op.iterations)} loops, {rule}", took, "s", 1, note=note))
    return rows


def batch() -> Row:
    op, unit = operators.get("conv2d"), intrinsics.get(WMMA)
    steps, size = len(unit.iterations), 1 << 17
    targets = np.random.default_rng(0).integers(0, steps + 1, (size, len(op.iterations)))
    matrices = targets[:, None, :] == np.arange(steps)[None, :, None]
    took = timed(
        lambda: algorithm_1_batch(op.access_matrix, matrices, unit.access_matrix, matched=True), 3
    )
    return Row("judge a batch", size / took / 1e6, "million/s", 1, True, "conv2d, Algorithm 1")


def brute_force() -> list[Row]:
    """Judging every assignment, where that still ends."""
    rows = []
    unit = intrinsics.get(WMMA)
    steps = len(unit.iterations)
    for name in ("gemm", "conv1d", "conv2d"):
        op = operators.get(name)
        ours = timed(lambda op=op: anew(op, unit), 3)  # type: ignore[misc]

        def filtered(op: Operator = op) -> int:
            every = product(range(steps + 1), repeat=len(op.iterations))
            targets = (np.array(t)[None, :] == np.arange(steps)[:, None] for t in every)
            return sum(bool(check_matching(op, unit, m, "paper")) for m in targets)

        slow = timed(filtered)
        every = (steps + 1) ** len(op.iterations)
        note = f"{every} assignments judged one by one in {slow:.3g} s"
        rows.append(Row(f"brute force, {name}", slow / ours, "times slower", note=note))
    return rows


def memory() -> Row:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scale = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return Row("peak memory", peak / scale, "MB", 300, note="of this process, Python included")


def main() -> int:
    rows = [
        *conv3d(),
        *whole_table(),
        *fourteen_loops(),
        batch(),
        *brute_force(),
        memory(),
    ]
    for row in rows:
        goal = "" if row.goal is None else f"{'≥' if row.at_least else '≤'} {row.goal:g}"
        verdict = "" if row.goal is None else "ok" if row.met else "MISSED"
        left = f"{row.what:24} {row.value:10.4g} {row.unit:13} {goal:8} {verdict:6}"
        print(f"{left}  {row.note}".rstrip())
    python = f"{platform.python_implementation()} {platform.python_version()}"
    report = {
        "processor": platform.machine(),
        "python": python,
        "numpy": np.__version__,
        "rows": [asdict(row) | {"met": row.met} for row in rows],
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
