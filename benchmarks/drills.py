"""Failure drills of a tuning run; writes drills.json and prints what it holds."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from tests.support.drills import run_all

#: What must hold: the largest value allowed, or the exact one.
_MOST = {"lost_records": 0, "duplicate_records": 0, "corrupt_files": 0, "unclassified": 0}
_MOST |= {"leftover_processes": 0, "leftover_files": 0, "overhead_ms": 10.0}
_MOST |= {"full_disk_lost": 0, "writers_failed": 0, "writers_missing": 0, "writers_duplicates": 0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--candidates", type=int, default=1000)
    parser.add_argument("--hostile", type=int, default=100)
    parser.add_argument("--output", type=Path, default=Path("drills.json"))
    options = parser.parse_args()
    start = time.monotonic()
    figures = run_all(options.kills, options.candidates, options.hostile)
    figures["seconds"] = round(time.monotonic() - start, 1)
    options.output.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for name, value in figures.items():
        print(f"{name:22} {value}")
    broken = [f"{k} = {figures[k]}, at most {v}" for k, v in _MOST.items() if figures[k] > v]
    if figures["completed_resumes"] != options.kills:
        broken.append(f"{figures['completed_resumes']} of {options.kills} resumes completed")
    for line in broken:
        print(f"BROKEN  {line}")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
