"""Requests on standard input, each a command with arguments; answers as JSON lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["serve"]


def serve(worker: Callable[[Path], Any]) -> None:
    """Answer with the methods of a worker, which is made of the folder in the arguments."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    able = worker(Path(sys.argv[1]))
    for line in sys.stdin:
        command, arguments = json.loads(line)
        try:
            answer = {"value": getattr(able, command)(**arguments)}
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            answer = {"error": f"{type(error).__name__}: {lines[-1]}"}
        print(json.dumps(answer), file=answers, flush=True)
