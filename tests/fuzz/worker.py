"""A process that runs cases until one of them ends it; it speaks JSON lines over two pipes."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tests.fuzz import chains, exports, graphs, inputs, kernels, modules, streams
from tests.fuzz.case import Refused, Wrong
from tests.support.drawing.generators import DrawnGenerator

__all__ = ["KINDS", "run"]

KINDS: dict[str, Callable[[np.random.Generator, Callable[[str], None]], str]] = {
    "simulation": kernels.simulation,
    "kernel": kernels.kernel,
    "epilogue": partial(kernels.kernel, finished=True),
    "chain": chains.kernel,
    "chain-simulation": chains.simulation,
    "chain-export": exports.chained,
    "cuda": kernels.cuda,
    "export": exports.exported,
    "opencl": kernels.opencl,
    "group-opencl": partial(kernels.opencl, grouped=True),
    "tail": kernels.tail,
    "tail-amx": partial(kernels.tail, tiles=True),
    "tail-vnni": kernels.tail,
    "tail-avx512": kernels.tail,
    "tail-avx2": kernels.tail,
    "group": kernels.group,
    "group-simulation": partial(kernels.simulation, grouped=True),
    "group-cuda": partial(kernels.cuda, grouped=True),
    "group-export": partial(exports.exported, grouped=True),
    "stream": streams.stream,
    "layer-stream": streams.layer,
    "module": modules.module,
    "graph": graphs.graph,
    "branches": graphs.branches,
    "text": inputs.text,
    "toml": inputs.toml,
    "loops": inputs.loops,
    "command": inputs.command,
    "record": inputs.record,
    "request": inputs.request,
}


def run(
    kind: str, make: Callable[[], np.random.Generator], about: Callable[[str], None]
) -> dict[str, Any]:
    """Run one case; the outcome in a word, and details."""
    try:
        return {"outcome": KINDS[kind](make(), about), "detail": ""}
    except Refused as error:
        return {"outcome": "refused", "detail": str(error)}
    except Wrong as error:
        return {"outcome": "wrong", "detail": str(error)}
    except BaseException:
        return {"outcome": "traceback", "detail": traceback.format_exc(limit=-8)}


def main() -> None:
    """Run the kind of each line; numbers are drawn by the process that wrote it."""
    answers = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8")
    warnings.simplefilter("ignore")

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    def draw(low: int, high: int) -> int:
        say({"draw": [low, high]})
        return int(sys.stdin.readline())  # an empty line ends the case

    while kind := sys.stdin.readline().strip():
        say(run(kind, lambda: DrawnGenerator(draw), lambda text: say({"about": text})))


if __name__ == "__main__":
    main()
