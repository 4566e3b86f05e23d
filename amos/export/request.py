"""A request to export: a mapping, a candidate, a trial, or a record, under a name."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from amos.chains import ChainExploration, ChainTrial, rebuild_chain
from amos.chains.search import chain_candidate
from amos.codegen.c.types import KEYWORDS
from amos.codegen.naming import spell
from amos.errors import ExportError, RecordError
from amos.ir import Chain, Operator
from amos.machine import Machine, catalogue
from amos.plan import Candidate
from amos.records import Record, Records
from amos.records.exchange import best_records
from amos.records.rows import COLUMNS, record_of
from amos.schedule import candidate_of

#: Reserved names: keywords, and names in a kernel's text and its test program.
_OWN = re.compile(
    f"{KEYWORDS}|main|memcpy|memset|exit|atoi|qsort|printf|fabs|ldexpf|posix_memalign"
    r"|clock_gettime|malloc|free|atexit|random_bits|bfloat16|from_bfloat16|float_bits|scaled"
    r"|allocate|release|blocks|seconds|order"
    r"|of_\w+|some_\w+"
    r"|(?:load|store|all|max|min|select|round|nearest|sqrt|fma|call|amos)_\w+"
)


@dataclass(frozen=True)
class Request:
    """One kernel to export.

    Attributes:
        candidate: a :class:`~amos.plan.Candidate`, or a kernel of a chain for a CPU or another
            target.
        name: a C identifier: the function's name, and the stem of every file.
        implementation: ``"native"``, ``"generic"``, or ``None`` to choose.
        architecture: of the GPU that a CUDA kernel is for, as ``"sm_80"``; empty for that
            of the described machine, or else the oldest that has the instruction.
        machine: described machine whose cores and caches a kernel in C is planned for;
            ``"host"`` for this computer.
        described: machine that the kernel was made for, if its schedules need one.
    """

    candidate: Any
    name: str
    implementation: str | None = None
    architecture: str = ""
    machine: str = "host"
    described: Machine | None = None

    @property
    def operator(self) -> Operator | Chain:
        """The operator that the kernel computes."""
        is_chain = not isinstance(self.candidate, Candidate)
        computed: Operator | Chain
        computed = self.candidate.chain if is_chain else self.candidate.mapping.operator
        return computed

    @property
    def alone(self) -> Candidate:
        """The kernel of a single operator; raise ExportError if it is that of a chain."""
        if not isinstance(self.candidate, Candidate):
            raise ExportError(f"{self.operator.name}: chains are exported as c, so or opencl only")
        return self.candidate


def request_of(
    kernel: Any, name: str | None, implementation: str | None, architecture: str | None
) -> Request:
    """Make the request for a kernel; missing options are the record's.

    Raises:
        ExportError: the name is no C identifier, or has another meaning.
        MappingError: it is no mapping, candidate, trial or record.
        RecordError: there is no such record, or it describes no candidate.
    """
    if isinstance(kernel, str | Path):
        kernel = _read(str(kernel))
    machine, described = "host", None
    if isinstance(kernel, Record):
        candidate = rebuild_chain(kernel) if kernel.is_chain else kernel.rebuild()
        described = kernel.described
        implementation = implementation or kernel.implementation or None
        if kernel.machine.name in catalogue.names():
            machine = kernel.machine.name
    else:
        is_chain = isinstance(kernel, ChainExploration | ChainTrial) or hasattr(kernel, "tiling")
        candidate = chain_candidate(kernel) if is_chain else candidate_of(kernel)
        measured = getattr(kernel, "measurement", None)
        implementation = implementation or getattr(measured, "implementation", None)
    request = Request(candidate, "", implementation, architecture or "", machine, described)
    return replace(request, name=_choose_name(name, request.operator))


def _choose_name(name: str | None, operator: Operator | Chain) -> str:
    """Name the function and the files; by default after the operator."""
    tensors = {tensor.name for tensor in (*operator.inputs, operator.result)}
    if name is None:
        plain = spell(operator.name.lower().strip("_") or "kernel", _OWN)
        return f"{plain}_kernel" if plain in tensors else plain
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
        raise ExportError(f"name {name!r}: expected a C identifier, such as conv2d_c5")
    if name in tensors or _OWN.fullmatch(name):
        raise ExportError(f"name {name!r}: a tensor or C itself has that name; choose another")
    return name


def _read(text: str) -> Record:
    """Read the record that a text names."""
    path, _, number = text.rpartition(":")
    if path and number.isdigit():
        with Records(path, readonly=True) as records:
            return records.get(int(number))
    file = Path(text)
    return _read_file(file) if file.suffix in (".json", ".jsonl") else _find_best(file)


def _find_best(file: Path) -> Record:
    with Records(file, readonly=True) as records:
        best = best_records(records.all())
    here = [record for record in best if record.counts_here] or best
    if not here:
        raise RecordError(f"{str(file)!r} holds no record of a kernel that ran")
    # Of instructions that competed for one operator on one machine, take the fastest.
    if len({(record.operator, record.machine_key) for record in here}) == 1:
        return min(here, key=lambda record: record.seconds)
    choice = ", ".join(f"{file}:{record.id}" for record in here[:6])
    raise RecordError(f"{str(file)!r} holds the best of {len(here)} kernels; name one: {choice}")


def _read_file(file: Path) -> Record:
    """Read a record on its own in a JSON file, or the only line of an exported one."""
    try:
        row = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(row, dict):
            # `records show --json` adds fields that are not part of the record.
            row = {k: v for k, v in row.items() if k in (*COLUMNS, "digest", "definition")}
        return record_of(row)
    except RecordError as error:
        raise RecordError(f"{str(file)!r}: {error}") from error
    except OSError as error:
        raise RecordError(f"{str(file)!r}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"{str(file)!r}: expected one record as JSON; amos records import reads several"
        ) from error
