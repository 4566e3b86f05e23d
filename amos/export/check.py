"""Check and time a folder of exported kernels on the GPU of this machine.

This file is copied to the top of a folder that ``amos gpu-check --write`` makes, and
stands for itself: ``python check.py`` there needs NumPy, NVIDIA's driver, nvcc or the
PTX that lies beside the kernels, and PyTorch only to compare with. Kernels run in a
process of their own, which is replaced when one of them harms it. What was found is in
``results.json``, and in ``records.jsonl`` for ``amos records import``.

Times are those of kernels one after another, their data in the caches as the one before
left it; PyTorch's are made in the same way.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import select
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from amos.codegen.cuda.driver import Device, KernelError, compile_folder, described
from amos.codegen.cuda.loader import Kernel, read_launch
from amos.export.baseline import baseline

__all__ = ["GpuRow", "check_kernels", "record_lines", "sentences", "summary"]

#: Seconds that one kernel may take, with PyTorch's ways to do the same.
_PATIENCE = 180.0
#: Figures that are asked for: over PyTorch at batch 1, and of cuBLAS.
_ASKED = {"batch1": 2.5, "gemm": 0.5}


@dataclass(frozen=True)
class GpuRow:
    """One kernel on a GPU.

    Attributes:
        kernel: its folder, from the one that was asked for.
        gpu: name of the GPU.
        intrinsic: name of the intrinsic.
        operator: the operator's name.
        correct: whether the elements that were compared are right.
        largest_difference: among them.
        elements: how many were compared.
        times: seconds of one launch, measured several times; empty if it was not timed.
        seconds: their median.
        tops: operations a second, in 10¹².
        baseline: seconds of each way that PyTorch has, as ``eager``.
        problem: why it did not run; empty if it did.
    """

    kernel: str
    gpu: str
    intrinsic: str = ""
    operator: str = ""
    correct: bool = False
    largest_difference: float = 0.0
    elements: int = 0
    times: tuple[float, ...] = ()
    seconds: float | None = None
    tops: float | None = None
    baseline: dict[str, float] | None = None
    problem: str = ""

    @property
    def baseline_seconds(self) -> float | None:
        """PyTorch's best."""
        return min(self.baseline.values()) if self.baseline else None

    @property
    def speed(self) -> float | None:
        """How many times as fast as PyTorch's best."""
        best = self.baseline_seconds
        return None if best is None or not self.seconds else best / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return asdict(self) | {"baseline_seconds": self.baseline_seconds, "speed": self.speed}


def check_kernels(
    folder: Path, names: Sequence[str], *, seed: int, timed: bool, pytorch: bool, library: str
) -> Iterator[GpuRow]:
    """Check kernels one after another, as they come.

    Raises:
        KernelError: there is no GPU, or it is older than a kernel; said before any work.
    """
    gpu = described(library)
    for name in names:
        needed = read_launch(folder / name)["architecture"]
        if gpu["capability"] < int(needed.removeprefix("sm_")):
            raise KernelError(
                f"{folder / name}: the kernel needs {needed}, and {gpu['name']} is "
                f"sm_{gpu['capability']}"
            )
    if shutil.which("nvcc"):
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda n: compile_folder(folder / n, gpu["capability"]), names))
    options = ["--seed", str(seed)]
    options += [] if timed else ["--no-time"]
    options += [] if pytorch else ["--no-pytorch"]
    left = list(names)
    while left:
        done = 0
        for row in _process(folder, left, options, library):
            done += 1
            yield row
        if done < len(left):
            yield GpuRow(
                left[done], gpu["name"], problem=f"its process ended or took {_PATIENCE:g} s"
            )
        left = left[done + 1 :]


def _process(
    folder: Path, names: Sequence[str], options: Sequence[str], library: str
) -> Iterator[GpuRow]:
    """Rows of a process of its own; it ends early if a kernel harms it."""
    me = ["-m", __spec__.name] if __spec__ is not None and __package__ else [__file__]
    command = [sys.executable, *me, str(folder), "--driver", library, "--serve", *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for name in names:
            try:
                process.stdin.write(f"{name}\n")
                process.stdin.flush()
            except BrokenPipeError:
                return
            if not select.select([process.stdout], [], [], _PATIENCE)[0]:
                return
            line = process.stdout.readline()
            if not line.startswith("{"):
                return
            row = GpuRow(**json.loads(line))
            yield row
            if row.problem:  # after an error the context of a GPU is of no use
                return
    finally:
        process.kill()
        process.communicate()


def _serve(folder: Path, given: argparse.Namespace) -> None:
    """Read names of kernels, write rows."""
    device = Device(given.driver)
    for line in sys.stdin:
        row = _row(folder, line.strip(), device, given)
        sys.stdout.write(json.dumps(asdict(row)) + "\n")
        sys.stdout.flush()


def _row(folder: Path, name: str, device: Device, given: argparse.Namespace) -> GpuRow:
    launch = read_launch(folder / name)
    known: dict[str, Any] = {
        "intrinsic": launch["intrinsic"],
        "operator": launch["operator"]["name"],
    }
    try:
        with Kernel(folder / name, device) as kernel:
            known |= kernel.check(given.seed)
            if not given.no_time and known["correct"]:
                known["times"] = tuple(kernel.times())
                known["seconds"] = statistics.median(known["times"])
                known["tops"] = launch["operations"] / known["seconds"] / 1e12
                known["baseline"] = {} if given.no_pytorch else baseline(launch)
    except KernelError as error:
        known["problem"] = str(error)
    return GpuRow(name, device.name, **known)


def summary(rows: Sequence[GpuRow]) -> dict[str, Any]:
    """What the rows come to: how many are right, and the two figures that are asked for.

    Of kernels of one operator in ``batch1`` and ``gemm`` the fastest right one counts.
    """
    found: dict[str, Any] = {"kernels": len(rows), "right": sum(row.correct for row in rows)}
    for group in _ASKED:
        best: dict[str, float] = {}
        for row in rows:
            part = Path(row.kernel).parts
            if part[0] == group and len(part) > 1 and row.correct and row.speed is not None:
                best[part[1]] = max(best.get(part[1], 0.0), row.speed)
        if best:
            mean = math.exp(sum(map(math.log, best.values())) / len(best))
            found[group] = {"speed": mean, "asked": _ASKED[group], "of": best}
    return found


def sentences(found: dict[str, Any]) -> Iterator[str]:
    """A summary in words."""
    yield f"{found['right']} of {found['kernels']} kernels are right"
    if "batch1" in found:
        part = found["batch1"]
        yield (
            f"batch 1: {part['speed']:.2f} times as fast as PyTorch, the better of eager and "
            f"channels_last: geometric mean of {len(part['of'])} operators (asked: {part['asked']})"
        )
    if "gemm" in found:
        part = found["gemm"]
        yield f"square product: {part['speed']:.2f} of cuBLAS's speed (asked: {part['asked']})"


def record_lines(rows: Iterable[GpuRow], folder: Path) -> list[str]:
    """A record of each measured kernel that came with one, as a line of JSON.

    The name of the machine stays the described one's: its space has the schedule.

    Raises:
        KernelError: a record is damaged.
    """
    lines = []
    for row in rows:
        path = folder / row.kernel / "record.json"
        if not path.exists():
            continue
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            sealed = record.pop("digest")
        except (ValueError, KeyError, AttributeError) as error:
            raise KernelError(f"{path}: no record: {error}") from None
        if sealed != _digest({k: v for k, v in record.items() if k != "id"}):
            raise KernelError(f"{path}: its values are not those that were written")
        where = record["machine"] | {"model": row.gpu, "system": "", "compilers": {}}
        failure = "" if row.correct else "error" if row.problem else "wrong"
        record |= {
            "machine": where,
            "machine_key": hashlib.sha256(json.dumps(where).encode()).hexdigest()[:16],
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),  # noqa: UP017
            "times": list(row.times) if row.correct else [],
            "implementation": "native",
            "verified_elements": row.elements,
            "max_difference": min(row.largest_difference, 1e300),
            "failure": failure,
            "message": row.problem or ("" if row.correct else "another result than NumPy's"),
        }
        record["run"] = _digest({name: record[name] for name in _RUN})
        lines.append(json.dumps(record | {"digest": _digest(record)}))
    return lines


#: What all records of one run share.
_RUN = (
    "operator", "canonical", "intrinsic", "fingerprint", "machine", "machine_key", "method",
    "proposer", "seed", "options",
)  # fmt: skip


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the kernels of a folder; print what they come to, and write it down."""
    parser = argparse.ArgumentParser(description="Check and time exported CUDA kernels.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent)
    parser.add_argument("--driver", default="libcuda.so.1", help="NVIDIA's driver")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-time", action="store_true", help="check only")
    parser.add_argument("--no-pytorch", action="store_true", help="compare with nothing")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    names = sorted(
        str(p.parent.relative_to(given.folder)) for p in given.folder.rglob("launch.json")
    )
    rows = []
    try:
        if given.serve:
            _serve(given.folder, given)
            return 0
        if not names:
            raise KernelError(f"{given.folder}: no exported CUDA kernel (launch.json) in it")
        for row in check_kernels(
            given.folder,
            names,
            seed=given.seed,
            timed=not given.no_time,
            pytorch=not given.no_pytorch,
            library=given.driver,
        ):
            rows.append(row)
            sys.stdout.write(f"{_sentence(row)}\n")
            sys.stdout.flush()
        lines = record_lines(rows, given.folder)
    except KernelError as error:
        sys.stderr.write(f"check: {error}\n")
        return 2
    found = summary(rows)
    whole = {"gpu": rows[0].gpu, "summary": found, "rows": [row.to_dict() for row in rows]}
    (given.folder / "results.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    records = "".join(f"{line}\n" for line in lines)
    (given.folder / "records.jsonl").write_text(records, encoding="utf-8")
    sys.stdout.write("".join(f"{line}\n" for line in sentences(found)))
    return 0 if found["right"] == found["kernels"] else 1


def _sentence(row: GpuRow) -> str:
    if row.problem or not row.correct:
        return f"{row.kernel}: {row.problem or 'WRONG'}"
    if row.seconds is None:
        return f"{row.kernel}: right"
    beside = "" if row.speed is None else f", {row.speed:.2f} times PyTorch's speed"
    return f"{row.kernel}: right, {row.seconds * 1e6:.2f} us, {row.tops:.3g} Top/s{beside}"


if __name__ == "__main__":
    sys.exit(main())
