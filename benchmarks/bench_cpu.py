"""Kernels of AMOS against oneDNN, PyTorch and MetaSchedule on this CPU.

    python benchmarks/bench_cpu.py [--quick] [--workloads all] [--contenders …] [--trials 16,64,256]

First everything is tuned, one contender after the other; then everything is timed in
rounds, one contender after the other in each round, by processes that sleep while
others run. Every contender has all cores, weights packed ahead, warm caches, and a
result that equals NumPy's. What was tuned or timed before is not done again
(--again times anew), so a run can be interrupted; tuning is kept beside the results.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from contenders import metaschedule, onednn, pytorch
from contenders.machine import machine
from contenders.pool import ContenderError, Pool
from contenders.report import pictures, table
from contenders.workloads import find, names

from amos.machine.cpu import cpu

RESULTS = Path(__file__).parent / "results"
#: ``amos`` uses what the CPU has but AMX, and ``onednn-vnni`` may use nothing later than VNNI;
#: ``amos-amx`` uses AMX, as plain ``onednn`` does where the CPU has it. Without AMX, the two are
#: left out. Those with ``-avx2`` overlook all that came after AVX2; they are asked for by name.
CONTENDERS = (
    *("amos", "amos-amx", "fixM1", "fixM2", "onednn_f32", "onednn_u8"),
    *("onednn-vnni_f32", "onednn-vnni_u8", "pytorch", "pytorch-vnni", "metaschedule"),
    *("amos-avx2", "onednn-avx2_f32", "onednn-avx2_u8", "pytorch-avx2"),
)
#: What the machine can do at most, with VNNI and with AMX, takes turns with all of them.
PEAKS = ("peak", "peak-amx", "peak-avx2")
NEEDS_AMX = ("-amx", "-vnni", "-vnni_f32", "-vnni_u8")
ASKED = tuple(name for name in CONTENDERS if "-avx2" in name)
#: Seconds between two turns, in which idle thread pools go to sleep.
PAUSE = 0.01
QUICK = dict(workloads="resnet18:C5,resnet18:C4", trials="4", rounds=5)
#: What half an hour on two cores shows best.
SHORT = dict(workloads="resnet18", trials="16,64", rounds=25)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=None, help="names and tables, or all")
    parser.add_argument("--contenders", default=None, help=",".join(CONTENDERS))
    parser.add_argument("--trials", default=None, help="measured trials, such as 16,64,256")
    parser.add_argument("--fixed-trials", default=None, help="of fixM1 and fixM2")
    parser.add_argument("--meta-trials", default=None, help="of metaschedule")
    parser.add_argument("--meta-workloads", default=None, help="by default the same ones")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help="two layers, a few minutes")
    parser.add_argument("--short", action="store_true", help="ResNet-18, about half an hour")
    parser.add_argument(
        "--dtype", choices=("u8s8", "u8s7", "f32"), default="u8s8", help="s7: half the range of s8"
    )
    parser.add_argument("--again", action="store_true", help="time anew what was timed before")
    parser.add_argument("--out", type=Path, default=RESULTS / "cpu.json")
    given = parser.parse_args()
    os.environ["AMOS_BENCH_DTYPE"] = given.dtype
    preset: dict[str, Any] = dict(workloads="all", trials="16,64,256", rounds=25)
    if given.quick:
        preset |= QUICK | dict(fixed_trials="4", meta_trials="4")
    if given.short:
        preset |= SHORT | dict(fixed_trials="16", meta_trials="64")
        preset |= dict(meta_workloads="resnet18:C2,resnet18:C5,resnet18:C11")
    preset.setdefault("contenders", ",".join(n for n in CONTENDERS if n not in ASKED))
    for name, value in preset.items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    given.fixed_trials = given.fixed_trials or given.trials
    given.meta_trials = given.meta_trials or "64,256"
    given.meta_workloads = given.meta_workloads or given.workloads
    if unknown := set(given.contenders.split(",")) - set(CONTENDERS):
        parser.error(f"unknown contender {', '.join(unknown)}; known: {', '.join(CONTENDERS)}")
    try:
        names(given.workloads), names(given.meta_workloads)
    except KeyError as error:
        parser.error(f"unknown workload {error}")
    return given


def numbers(text: str) -> list[int]:
    return sorted(int(part) for part in text.split(","))


def entries(given: argparse.Namespace, workload: str) -> list[tuple[str, int]]:
    """Contenders of a workload with their trials; 0 where nothing is tuned."""
    work, made = find(workload), []
    for contender in [*given.contenders.split(","), *PEAKS]:
        if contender.endswith(NEEDS_AMX) and "amx_int8" not in cpu().features:
            continue
        if contender == "peak-avx2" and not {*ASKED} & {*given.contenders.split(",")}:
            continue
        if contender in PEAKS:
            made.append((contender, 0))
        elif contender.startswith("onednn"):
            if onednn.supported(work):
                made.append((contender, 0))
        elif contender.startswith("pytorch"):
            if pytorch.supported(work):
                made.append((contender, 0))
        elif contender == "metaschedule":
            if metaschedule.supported(work) and workload in names(given.meta_workloads):
                made += [(contender, n) for n in numbers(given.meta_trials)]
        elif contender.startswith("amos"):
            made += [(contender, n) for n in numbers(given.trials)]
        elif work.operator == "conv2d":
            made += [(contender, n) for n in numbers(given.fixed_trials)]
    return made


def family(contender: str, kind: str = "") -> str:
    """The process that runs a contender; oneDNN's profile would slow down the calls."""
    if contender.startswith(("onednn", "pytorch")):
        library = contender.partition("_")[0]
        return library.replace("onednn", "primitive") if kind == "primitive" else library
    return contender if contender in ("metaschedule", "amos-avx2", *PEAKS) else "amos"


class Store:
    """A JSON file of what is known, written after every change."""

    def __init__(self, path: Path, empty: Any) -> None:
        self.path = path
        self.value = json.loads(path.read_text()) if path.exists() else empty

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.value, indent=1) + "\n", encoding="utf-8")
        new.replace(self.path)


def tune_all(pool: Pool, given: argparse.Namespace, tuned: Store) -> None:
    """Tune what is not tuned yet; seconds add up over the trials that build on fewer."""
    chosen = names(given.workloads)
    for number, workload in enumerate(chosen):
        spent: dict[str, float] = {}
        for contender, trials in entries(given, workload):
            key = f"{workload} {contender} {trials}"
            if not trials:
                continue
            if key not in tuned.value:
                start = time.monotonic()
                try:
                    found = pool.ask(
                        family(contender),
                        "tune",
                        workload=workload,
                        contender=contender,
                        trials=trials,
                    )
                except ContenderError as error:
                    found = {"error": str(error), "seconds": time.monotonic() - start}
                if contender != "metaschedule":
                    found["seconds"] += spent.get(contender, 0.0)
                # Named for what was asked: a method may have less to try.
                found["tried"] = trials
                tuned.value[key] = found
                tuned.save()
                told = found.get("error") or f"{found['seconds']:.0f} s"
                print(f"tuned  {number + 1}/{len(chosen)} {key}: {told}", flush=True)
            spent[contender] = tuned.value[key]["seconds"]
    pool.close()


#: A contender, its trials, the kind of call, and the name under which it is loaded.
Turn = tuple[str, int, str, str]


def loaded(pool: Pool, given: argparse.Namespace, workload: str, tuned: Store) -> list[Turn]:
    """What of all contenders is to be timed on one workload."""
    turns = []
    for contender, trials in entries(given, workload):
        known = tuned.value.get(f"{workload} {contender} {trials}")
        if known and "error" in known:
            print(f"  {workload} {contender} {trials}: {known['error']}")
            continue
        request = dict(workload=workload, contender=contender, tuned=known)
        for kind in ("call", "primitive") if contender.startswith("onednn") else ("",):
            try:
                made = pool.ask(family(contender, kind), "load", **request)
            except ContenderError as error:
                print(f"  {workload} {contender} {trials}: {error}")
                continue
            turns += [(contender, trials, kind, name) for name in made]
    return turns


def time_workload(
    pool: Pool, given: argparse.Namespace, workload: str, tuned: Store
) -> list[dict[str, Any]]:
    """Rows of one workload, all its contenders in turns."""
    work, turns = find(workload), loaded(pool, given, workload, tuned)
    seconds: dict[str, list[float]] = {name: [] for *_, name in turns}
    before = busy()
    for number in range(given.rounds):
        # The order changes, so that nobody always follows the same one.
        for contender, _, kind, name in turns if number % 2 else turns[::-1]:
            time.sleep(PAUSE)
            seconds[name].append(pool.ask(family(contender, kind), "time", name=name))
    stolen = others(before)
    for process in {family(contender, kind) for contender, _, kind, _ in turns}:
        pool.ask(process, "drop")
    rows = []
    for contender, trials, _, name in turns:
        low, middle, high = np.percentile(seconds[name], [25, 50, 75])
        kind = name.rpartition("/")[2]
        known = tuned.value.get(f"{workload} {contender} {trials}") or {}
        rows.append(
            {
                "workload": workload,
                "operator": work.operator,
                "dtype": pytorch.computed_in(kind)
                if contender.startswith("pytorch")
                else given.dtype,
                "contender": contender if kind == "kernel" else f"{contender}_{kind}",
                "trials": trials,
                "tuning_seconds": round(known.get("seconds", 0.0), 1),
                "median_seconds": middle,
                "spread": (high - low) / middle,
                "tops": work.operations / middle / 1e12,
                "mapping": known.get("mapping", ""),
                "rounds": given.rounds,
                "others": stolen,
            }
        )
    return rows


def asked(contender: str) -> str:
    """The contender that a row's name belongs to: rows of one differ in what was called."""
    known = (c for c in (*CONTENDERS, *PEAKS) if contender == c or contender.startswith(f"{c}_"))
    return max(known, key=len, default=contender)


def busy() -> tuple[float, float]:
    """Seconds that CPUs were taken by others' machines or waited for, and all of them."""
    try:
        first = Path("/proc/stat").read_text().splitlines()[0].split()
    except OSError:
        return 0.0, 0.0
    ticks = list(map(int, first[1:9]))
    return float(ticks[7]), float(sum(ticks))


def others(before: tuple[float, float]) -> float:
    """Share of the CPUs that the hypervisor gave to others meanwhile."""
    stolen, total = (late - early for late, early in zip(busy(), before, strict=True))
    return round(stolen / total, 4) if total else 0.0


def peak_tops(rows: list[dict[str, Any]]) -> dict[str, float]:
    """10^12 operations a second that the machine could do, the median of all workloads' runs."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if asked(row["contender"]) in PEAKS:
            found.setdefault(row["contender"], []).append(row["tops"])
    return {name: float(np.median(values)) for name, values in sorted(found.items())}


def judged_machine(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """This machine, with what it can do at most."""
    peaks = peak_tops(rows)
    return {
        **machine("apache-tvm", "torch", "numpy"),
        "features": sorted(f for f in cpu().features if f.startswith(("avx512", "amx"))),
        "caches": [cache.capacity for cache in cpu().caches],
        "peak_tops": peaks.get("peak_registers", 0.0),
        "peaks": peaks,
    }


def main() -> int:
    given = options()
    work = given.out.parent / f"{given.out.stem}.work"
    work.mkdir(parents=True, exist_ok=True)
    tuned, results = Store(work / "tuned.json", {}), Store(given.out, {"machine": {}, "rows": []})
    pool, start = Pool(work), time.monotonic()
    tune_all(pool, given, tuned)
    print(f"tuned in {time.monotonic() - start:.0f} s; load {os.getloadavg()[0]:.2f}", flush=True)
    try:
        for workload in names(given.workloads):
            rows = results.value["rows"]
            done = {(asked(r["contender"]), r["trials"]) for r in rows if r["workload"] == workload}
            if not given.again and {(c, n) for c, n in entries(given, workload)} <= done:
                continue
            fresh = time_workload(pool, given, workload, tuned)
            # One workload's rows are always of one run: old ones would not compare.
            results.value["rows"] = [r for r in rows if r["workload"] != workload] + fresh
            results.value["machine"] = judged_machine(results.value["rows"])
            results.save()
            print("\n".join(table(fresh, results.value["machine"])), flush=True)
    finally:
        pool.close()
    text = table(results.value["rows"], results.value["machine"])
    given.out.with_suffix(".txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    pictures(results.value["rows"], results.value["machine"], given.out)
    print("\n".join(text[-12:]))
    print(f"in {time.monotonic() - start:.0f} s: {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
