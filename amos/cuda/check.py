"""Check and time a folder of exported kernels on the GPU of this machine.

This file is copied to the top of a folder that ``amos gpu-check --write`` makes, and
stands for itself: ``python check.py`` there needs NumPy, NVIDIA's driver, nvcc or the
PTX that lies beside the kernels, and PyTorch only to compare with. Kernels run in a
process of their own, which is replaced when one of them harms it. Results are in
``results.json``, written anew after each kernel, and in ``records.jsonl`` for ``amos
records import``.

Times are those of kernels one after another, their data in the caches as the one before
left it, launched by a CUDA graph; PyTorch's calls are timed both as they are made, and by a
graph in the same way.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import select
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from amos.cuda.baseline import GRAPH, baseline
from amos.cuda.runtime.driver import Device, KernelError, compile_folder, describe_gpu
from amos.cuda.runtime.loader import Kernel, read_launch

#: Seconds that one kernel may take, with PyTorch's ways to do the same.
_PATIENCE = 180.0
#: Targets: how many times as fast as PyTorch at batch 1, and as cuBLAS.
_ASKED = {"batch1": 2.5, "gemm": 0.5}


@dataclass(frozen=True)
class GpuRow:
    """One kernel on a GPU.

    Attributes:
        kernel: its folder, from the one that was asked for.
        correct: whether the elements that were compared are right.
        largest_difference: among them.
        elements: how many were compared.
        times: seconds of one launch, measured several times; empty if it was not timed.
        seconds: their median.
        tops: operations a second, in 10¹².
        baseline: seconds of each way that PyTorch has, as ``eager``; ``eager, graph`` is
            the same without the cost of the launch.
        problem: why it did not run; empty if it did.
        remark: why PyTorch was not measured, if it failed.
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
    remark: str = ""

    @property
    def baseline_seconds(self) -> float | None:
        """PyTorch's best."""
        return min(self.baseline.values()) if self.baseline else None

    @property
    def speed(self) -> float | None:
        """Speed relative to PyTorch's fastest variant."""
        best = self.baseline_seconds
        return None if best is None or not self.seconds else best / self.seconds

    @property
    def speed_of_calls(self) -> float | None:
        """The same beside PyTorch's calls as they are made, without graphs."""
        calls = [t for variant, t in (self.baseline or {}).items() if not variant.endswith(GRAPH)]
        return min(calls) / self.seconds if calls and self.seconds else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        derived = ("baseline_seconds", "speed", "speed_of_calls")
        return asdict(self) | {name: getattr(self, name) for name in derived}


def check_kernels(folder: Path, options: dict[str, Any]) -> Iterator[GpuRow]:
    """Check the kernels of a folder and below it, one after another, as they come.

    Raises:
        KernelError: there is no kernel, no GPU, or it is older than a kernel; said before
            any work.
    """
    names = sorted(str(path.parent.relative_to(folder)) for path in folder.rglob("launch.json"))
    if not names:
        raise KernelError(f"{folder}: no exported CUDA kernel (launch.json) in it")
    gpu = describe_gpu(options["library"])
    for name in names:
        try:
            needed = read_launch(folder / name)["architecture"]
        except (KernelError, KeyError):  # its row will say so
            continue
        if gpu["capability"] < int(needed.removeprefix("sm_")):
            raise KernelError(
                f"{folder / name}: the kernel needs {needed}, and {gpu['name']} is "
                f"sm_{gpu['capability']}"
            )
    if shutil.which("nvcc"):
        sys.stderr.write(f"nvcc compiles {len(names)} kernels for {gpu['name']}\n")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda n: compile_folder(folder / n, gpu["capability"]), names))
    while names:
        done = 0
        for row in _process(folder, names, options):
            done += 1
            yield replace(row, gpu=row.gpu or gpu["name"])
        names = names[done:]


def _process(folder: Path, names: Sequence[str], options: dict[str, Any]) -> Iterator[GpuRow]:
    """Yield rows of a child process, at least one; it ends early if a kernel harms it."""
    command = [*_this_program(), str(folder), "--serve", json.dumps(options)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for name in names:
            try:
                process.stdin.write(f"{name}\n")
                process.stdin.flush()
            except BrokenPipeError:
                yield GpuRow(name, "", problem=_end(process))
                return
            if not select.select([process.stdout], [], [], _PATIENCE)[0]:
                yield GpuRow(name, "", problem=f"it took more than {_PATIENCE:g} s")
                return
            line = process.stdout.readline()
            if not line.startswith("{"):
                yield GpuRow(name, "", problem=_end(process))
                return
            row = GpuRow(**json.loads(line))
            yield row
            if row.problem or row.remark:  # after an error the context of a GPU is of no use
                return
    finally:
        process.kill()
        process.communicate()


def _this_program() -> list[str]:
    """Return the command that runs this file: as a module of AMOS, or as a copied script."""
    if __spec__ is None or not __package__:
        return [sys.executable, __file__]
    from amos._processes import python

    return python(__spec__.name)


def _end(process: subprocess.Popen[str]) -> str:
    """Describe how a process ended that has closed its pipes."""
    try:
        return f"its process ended with status {process.wait(10)}"
    except subprocess.TimeoutExpired:
        return "its process closed its pipes"


def _serve(folder: Path, options: dict[str, Any]) -> None:
    """Read names of kernels, write rows."""
    device = Device(options["library"])
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    for line in sys.stdin:
        row = _row(folder, line.strip(), device, options)
        answers.write(json.dumps(asdict(row)) + "\n")
        answers.flush()


def _row(folder: Path, name: str, device: Device, options: dict[str, Any]) -> GpuRow:
    result: dict[str, Any] = {}
    try:
        launch = read_launch(folder / name)
        result |= {"intrinsic": launch["intrinsic"], "operator": launch["operator"]["name"]}
        with Kernel(folder / name, device) as kernel:
            result |= kernel.check(options["seed"])
            if options["timed"] and result["correct"]:
                result["times"] = tuple(kernel.times())
                result["seconds"] = statistics.median(result["times"])
                result["tops"] = launch["operations"] / result["seconds"] / 1e12
                if options["pytorch"]:
                    result |= _time_pytorch(launch)
    except KernelError as error:
        result |= {"problem": str(error), "correct": False}
    except Exception as error:  # of one kernel; the others are checked all the same
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        result |= {"problem": message, "correct": False}
    return GpuRow(name, device.name, **result)


def _time_pytorch(launch: dict[str, Any]) -> dict[str, Any]:
    """Time PyTorch; an error of it is no error of the kernel."""
    try:
        return {"baseline": baseline(launch)}
    except Exception as error:
        return {"remark": f"PyTorch: {type(error).__name__}: {error}".splitlines()[0]}


def summary(rows: Sequence[GpuRow]) -> dict[str, Any]:
    """Summarize rows: how many are right, and the two target figures.

    Of kernels of one operator in ``batch1`` and ``gemm`` the fastest right one counts.
    ``speed`` is beside the best way that PyTorch has, graphs included, ``calls`` beside
    its calls as they are made.
    """
    total: dict[str, Any] = {"kernels": len(rows), "right": sum(row.correct for row in rows)}
    for group, target in _ASKED.items():
        best: dict[str, tuple[float, float]] = {}
        for row in rows:
            parts = Path(row.kernel).parts
            if parts[0] == group and len(parts) > 1 and row.correct and row.speed is not None:
                this = row.speed, row.speed_of_calls or row.speed
                best[parts[1]] = max(best.get(parts[1], this), this)
        if best:
            strict, calls = map(statistics.geometric_mean, zip(*best.values(), strict=True))
            by_operator = {name: speeds[0] for name, speeds in best.items()}
            total[group] = {"speed": strict, "calls": calls, "asked": target, "of": by_operator}
    return total


def sentences(total: dict[str, Any]) -> Iterator[str]:
    """Describe a summary in sentences."""
    yield f"{total['right']} of {total['kernels']} kernels are right"
    for group, words in (("batch1", "batch 1"), ("gemm", "square product")):
        if speeds := total.get(group):
            yield (
                f"{words}: {speeds['calls']:.2f} times as fast as PyTorch's calls (the better of "
                f"eager and channels_last), {speeds['speed']:.2f} times where a graph launches "
                f"both: geometric mean of {len(speeds['of'])} (asked: {speeds['asked']})"
            )


def record_lines(rows: Iterable[GpuRow], folder: Path) -> list[str]:
    """Return a record of each measured kernel that came with one, as a line of JSON.

    The name of the machine stays the described one's: its space has the schedule. A
    damaged record is left out, and said so.
    """
    lines = []
    for row in rows:
        path = folder / row.kernel / "record.json"
        if not path.exists():
            continue
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            sealed, definition = record.pop("digest"), record.pop("definition", None)
            if sealed != _digest({k: v for k, v in record.items() if k != "id"}):
                raise ValueError
        except (OSError, ValueError, KeyError, AttributeError):
            sys.stderr.write(f"check: {path}: its values are not those that were written\n")
            continue
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
        extra = {"definition": definition} if definition else {}
        lines.append(json.dumps(record | {"digest": _digest(record)} | extra))
    return lines


#: Fields that all records of one run share.
_RUN = (
    "operator", "canonical", "intrinsic", "fingerprint", "machine", "machine_key", "method",
    "proposer", "seed", "options",
)  # fmt: skip


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def main() -> int:
    """Check the kernels of a folder; print what they come to, and write it down."""
    parser = argparse.ArgumentParser(description="Check and time exported CUDA kernels.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent)
    parser.add_argument("--driver", dest="library", default="libcuda.so.1", help="NVIDIA's driver")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-time", dest="timed", action="store_false", help="check only")
    parser.add_argument(
        "--no-pytorch", dest="pytorch", action="store_false", help="compare with nothing"
    )
    parser.add_argument("--serve", type=json.loads, help=argparse.SUPPRESS)
    options = vars(parser.parse_args())
    folder, served = options.pop("folder"), options.pop("serve")
    rows: list[GpuRow] = []
    try:
        if served is not None:
            _serve(folder, served)
            return 0
        for row in check_kernels(folder, options):
            rows.append(row)
            sys.stdout.write(f"{_sentence(row)}\n")
            sys.stdout.flush()
            # Write the rows so far, in case the run is ended early.
            so_far = {"summary": summary(rows), "rows": [each.to_dict() for each in rows]}
            _write(folder / "results.json", json.dumps({"gpu": row.gpu} | so_far, indent=1) + "\n")
    except KernelError as error:
        sys.stderr.write(f"check: {error}\n")
        return 2
    _write(folder / "records.jsonl", "".join(f"{line}\n" for line in record_lines(rows, folder)))
    sys.stdout.write("".join(f"{line}\n" for line in sentences(summary(rows))))
    return 0 if all(row.correct for row in rows) else 1


def _write(path: Path, text: str) -> None:
    try:
        partial = path.with_suffix(".part")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:  # the rows were printed all the same
        sys.stderr.write(f"check: {path}: {error.strerror}\n")


def _sentence(row: GpuRow) -> str:
    if row.problem or not row.correct:
        wrong = f"WRONG by {row.largest_difference:g}"
        return f"{row.kernel}: {row.problem or wrong}"
    if row.seconds is None:
        return f"{row.kernel}: right"
    comparison = "" if row.speed is None else f", {row.speed:.2f} times PyTorch's speed"
    comparison += f"; {row.remark}" if row.remark else ""
    return f"{row.kernel}: right, {row.seconds * 1e6:.2f} us, {row.tops:.3g} Top/s{comparison}"


if __name__ == "__main__":
    sys.exit(main())
