"""Layers that ZigZag evaluates; runs in an environment that has zigzag-dse, not in that of AMOS.

    PYTHON zigzag_layers.py < jobs.json > results.json

A job has `hardware` or the name of an `example` of ZigZag's own, `layer` and `mapping`, each with
the keys of ZigZag's files, and what is optimized.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

#: ZigZag's names of accesses that read, and of those that write.
READS, WRITES = ("RD_OUT_TO_LOW", "RD_OUT_TO_HIGH"), ("WR_IN_BY_LOW", "WR_IN_BY_HIGH")


def evaluate(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Evaluate one layer: cycles, picojoules, and bytes of each operand at each memory."""
    import zigzag
    from zigzag.api import get_hardware_performance_zigzag

    if "example" in job:
        hardware = Path(zigzag.__path__[0]) / "inputs" / "hardware" / f"{job['example']}.yaml"
    else:
        hardware = folder / "hardware.yaml"
        hardware.write_text(json.dumps(job["hardware"]))
    mapping = folder / "mapping.yaml"
    mapping.write_text(json.dumps([job["mapping"]]))
    _, _, results = get_hardware_performance_zigzag(
        [job["layer"]],
        str(hardware),
        str(mapping),
        opt=job["optimize"],
        dump_folder=str(folder / "out"),
        loma_show_progress_bar=False,
    )
    cost = results[0][1][0][0]
    return {
        "cycles": cost.latency_total2,
        "picojoules": cost.energy_total,
        "levels": list(_levels(cost)),
    }


def _levels(cost: Any) -> Any:
    """Yield bytes of each operand at each memory."""
    from zigzag.hardware.architecture.memory_port import DataDirection

    for operand, accesses in cost.memory_word_access.items():
        memory = cost.memory_operand_links.layer_to_mem_op(operand)
        levels = cost.accelerator.memory_hierarchy.get_memory_levels(memory)
        for level, access in zip(levels, accesses, strict=True):
            sizes = {
                each.name: access.get(each) * (level.get_max_bandwidth(memory, each) or 0) / 8
                for each in DataDirection
            }
            yield {
                "operand": operand.name,
                "level": level.memory_instance.name,
                "read_bytes": sum(sizes[name] for name in READS),
                "written_bytes": sum(sizes[name] for name in WRITES),
            }


def main() -> None:
    """Evaluate the jobs of standard input."""
    jobs, results = json.load(sys.stdin), []
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as name, open(os.devnull, "w") as sink:
        for job in jobs:
            try:
                with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
                    results.append(evaluate(job, Path(name)))
            except Exception as error:  # ZigZag raises errors of many types
                results.append({"error": f"{type(error).__name__}: {error}"})
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
