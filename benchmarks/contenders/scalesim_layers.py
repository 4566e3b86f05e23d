"""Layers that SCALE-Sim simulates; runs in an environment that has scalesim, not in that of AMOS.

    pip install scalesim 'numpy<2.3'              # into an environment of its own, VENV
    VENV/bin/python benchmarks/contenders/scalesim_layers.py < benchmarks/acme/scalesim.json

A job has the sizes of an array and its buffers, elements a cycle from DRAM, and `layers` by name:
height and width of the image with its padding, those of the window, channels, filters and stride.
Results are cycles by name; weights stay in the array.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

CONFIG = """\
[general]
run_name = run
[architecture_presets]
ArrayHeight = {rows}
ArrayWidth = {columns}
IfmapSramSzkB = {image_kib}
FilterSramSzkB = {weight_kib}
OfmapSramSzkB = {result_kib}
IfmapOffset = 0
FilterOffset = 10000000
OfmapOffset = 20000000
Dataflow = ws
Bandwidth = {bandwidth}
ReadRequestBuffer = 512
WriteRequestBuffer = 512
[layout]
IfmapCustomLayout = False
FilterCustomLayout = False
IfmapSRAMBankBandwidth = 10
IfmapSRAMBankNum = 10
IfmapSRAMBankPort = 2
FilterSRAMBankBandwidth = 10
FilterSRAMBankNum = 10
FilterSRAMBankPort = 2
[sparsity]
SparsitySupport = false
SparseRep = ellpack_block
OptimizedMapping = false
BlockSize = 8
RandomNumberGeneratorSeed = 40
[run_presets]
InterfaceBandwidth = USER
UseRamulatorTrace = False
"""
HEADER = "name, height, width, window height, window width, channels, filters, stride,\n"


def simulate(job: dict[str, Any], name: str, sizes: list[int], folder: Path) -> float:
    """Simulate one layer: cycles with the first loads."""
    from scalesim.scale_sim import scalesim

    config, topology, layout = (folder / x for x in ("scale.cfg", "topology.csv", "layout.csv"))
    config.write_text(CONFIG.format(**job["array"]))
    topology.write_text(f"{HEADER}{name}, {', '.join(map(str, sizes))},\n")
    layout.write_text(f"name,\n{name}, {', '.join(['1'] * 14)},\n")
    run = scalesim(
        save_disk_space=True,
        verbose=False,
        config=str(config),
        topology=str(topology),
        layout=str(layout),
    )
    run.run_scale(top_path=str(folder))
    heading, row, *_ = (folder / "run" / "COMPUTE_REPORT.csv").read_text().splitlines()
    columns = [column.strip() for column in heading.split(",")]
    return float(row.split(",")[columns.index("Total Cycles (incl. prefetch)")])


def main() -> None:
    """Simulate the layers of standard input."""
    job, results = json.load(sys.stdin), {}
    for name, sizes in job["layers"].items():
        with (
            tempfile.TemporaryDirectory() as folder,
            open(os.devnull, "w") as sink,
            contextlib.redirect_stdout(sink),
        ):
            results[name] = simulate(job, name, sizes, Path(folder))
        print(name, results[name], file=sys.stderr, flush=True)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
