"""Kernels of a network's tasks that were measured once, and the file that keeps them.

A pool is a gzipped file of JSON lines, a task each, with a scheduler's view of it and the
predicted and measured seconds of each kernel. `benchmarks/pool_tasks.py` writes it.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

from amos.errors import RecordError

#: Networks of which pools are stored, all of batch 1.
POOLED = ("resnet18_int8", "bert_f32")


@dataclass(frozen=True)
class PooledTask:
    """A task of a network with some of its kernels.

    Attributes:
        weight: how often it occurs.
        operations: arithmetic operations of one occurrence.
        bound: least seconds of the calls of the kernel that the model prefers.
        mappings: of each kernel, the number of its instruction and mapping.

    Raises:
        RecordError: kernels without a mapping or a time.
    """

    task: str
    kind: str
    weight: int
    operations: int
    bound: float
    mappings: tuple[int, ...]
    predicted: tuple[float, ...]
    measured: tuple[float, ...]

    def __post_init__(self) -> None:
        columns = self.mappings, self.predicted, self.measured
        for name, column in zip(("mappings", "predicted", "measured"), columns, strict=True):
            object.__setattr__(self, name, tuple(column))
        if len({*map(len, columns)}) != 1 or not all(x > 0 for x in (*self.measured, self.bound)):
            raise RecordError(f"pool of {self.task}: expected a mapping and times of each kernel")


def save(tasks: Sequence[PooledTask], path: Path) -> None:
    """Write a pool."""
    lines = (json.dumps(asdict(task)) for task in tasks)
    # No time stamp inside, so that the same pool is the same file.
    path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def load(path: Path) -> list[PooledTask]:
    """Read a pool; raise RecordError if the file is missing, or is no pool."""
    try:
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        return [PooledTask(**json.loads(line)) for line in lines]
    except (OSError, EOFError, ValueError, TypeError, RecordError) as error:
        raise RecordError(f"pool {str(path)!r} cannot be read: {error}") from error


def load_pool(network: str) -> list[PooledTask]:
    """Load a pool that comes with the package; one of :data:`POOLED`."""
    file = resources.files("amos.reproduce") / "data" / f"pool_{network}.jsonl.gz"
    with resources.as_file(file) as path:
        return load(path)
