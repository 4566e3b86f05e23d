"""The hierarchical performance model for one schedule, with its explanation.

AMOS, section 5.3: ``L_l = (prod S_l) * max(L_{l-1}, R_{l-1}, W_{l-1})`` with
``R = DataIn / bandwidth`` and ``W = DataOut / bandwidth``; level 0 is the
intrinsic. The loops of a level are those between the point where the data of one
execution fits the level's memory and the point where it fits the next one.

``model="amos"`` is that equation with warm caches. ``model="amos+"``, the default, adds terms that
it lacks: the rate of independent calls instead of their latency, overlapping windows counted once,
uneven shares of the cores, register pressure, caches that keep part of a larger working set, reads
and writes of a cache in sequence, interference of levels, memory far from a core whose time
overlaps little, the copies that stage operands, and the start of parallel regions. Targets whose
programs place data themselves have terms of their own (:mod:`amos.plan.target`).

Both assume warm caches, as in repeated timings of a kernel: operands that fit a level as a whole
are not loaded into it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amos._display import Shown
from amos.errors import MachineError
from amos.machine.machine import Machine
from amos.mapping.mapping import Mapping
from amos.perfmodel.batch import evaluate
from amos.perfmodel.energy import EnergyRow
from amos.perfmodel.terms import BatchPrediction
from amos.plan.schedule import Schedule
from amos.plan.structure import Structure
from amos.plan.target import target_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class LevelTime:
    """Costs of one level over the whole computation, in seconds.

    Attributes:
        level: name of the memory that feeds this level (``"intrinsic"`` for 0).
        trips: ``prod S_l``, executions of the inner loops.
        compute: seconds spent by everything inside.
        read: seconds to bring the sources in.
        write: seconds to take the destination out.
        bytes_in: bytes read through the level by one group of cores.
        slowest: the tensor with the most traffic.
    """

    level: str
    trips: int
    compute: float
    read: float
    write: float
    bytes_in: float
    bytes_out: float
    slowest: str


@dataclass(frozen=True)
class Term:
    """One summand of a prediction, as pictures show it.

    Attributes:
        name: ``"intrinsic: compute"``, ``"L1: read"``, or the name of another term.
        kind: ``"compute"``, ``"read"``, ``"write"`` or ``"other"``.
        seconds: over the whole computation.
        tensor: the tensor with the most traffic, of a read.
    """

    name: str
    kind: str
    seconds: float
    tensor: str = ""


@dataclass(frozen=True)
class Prediction(Shown):
    """A predicted run time and where it goes.

    Attributes:
        seconds: predicted latency of the whole operator.
        rows: one :class:`LevelTime` a level, the intrinsic first.
        staging: seconds spent moving operands into and out of their staged form.
        launch: seconds spent starting parallel regions.
        destination: the output tensor.
        reasons: on a GPU, the reasons behind terms: term (as ``"shared read"``)
            and words.
        exchange: seconds that cores wait for lines of the output that others took.
        energy: accesses of each operand at each level of a streamed unit, products first;
            empty elsewhere.
    """

    seconds: float
    rows: tuple[LevelTime, ...]
    staging: float
    launch: float
    destination: str
    reasons: tuple[tuple[str, str], ...] = ()
    exchange: float = 0.0
    energy: tuple[EnergyRow, ...] = ()

    @property
    def energy_joules(self) -> float | None:
        """Of all accesses and products; ``None`` where the machine lacks an energy."""
        joules = [row.joules for row in self.energy if row.joules is not None]
        return sum(joules) if joules and len(joules) == len(self.energy) else None

    @property
    def traffic_bytes(self) -> float:
        """Bytes from and to the outermost level."""
        return self.rows[-1].bytes_in + self.rows[-1].bytes_out

    @property
    def levels(self) -> pd.DataFrame:
        """One row a level: compute, read, write in seconds, and which one binds."""
        import pandas as pd

        frame = pd.DataFrame([vars(row) for row in self.rows]).set_index("level")
        frame["binding"] = [row.level == self.binding[0] for row in self.rows]
        return frame

    @property
    def terms(self) -> list[Term]:
        """All terms: the intrinsic, reads and writes of each level, and the others."""
        calls, *levels = self.rows
        terms = [Term("intrinsic: compute", "compute", calls.compute)]
        for row in levels:
            terms.append(Term(f"{row.level}: read", "read", row.read, row.slowest))
            terms.append(Term(f"{row.level}: write", "write", row.write))
        overheads = {
            "starting parallel regions": self.launch,
            "staging of operands": self.staging,
            "lines of the output that cores take from each other": self.exchange,
        }
        return terms + [Term(name, "other", seconds) for name, seconds in overheads.items()]

    @property
    def binding(self) -> tuple[str, str, float]:
        """Level, kind (``compute``, ``read``, ``write``) and seconds of the slowest term.

        Reads and writes of a level are two terms here, though those of a cache add up.
        """
        best = (self.rows[0].level, "compute", self.rows[0].compute)
        for row in self.rows[1:]:
            for kind, seconds in (("read", row.read), ("write", row.write)):
                if seconds > best[2]:
                    best = (row.level, kind, seconds)
        return best

    @property
    def bound(self) -> str:
        """Describe what limits the run, in words."""
        level, kind, seconds = self.binding
        compute = self.rows[0].compute
        overheads = [term for term in self.terms if term.kind == "other"]
        most = max(overheads, key=lambda term: term.seconds)
        if most.seconds > seconds:
            text = f"{most.name}: {most.seconds / compute:.2g}x the compute time"
            return text + self._because("launch" if most is overheads[0] else "staging")
        if kind == "compute":
            return "issue of the intrinsic" + self._because("intrinsic compute")
        row = next(row for row in self.rows if row.level == level)
        tensor = row.slowest if kind == "read" else self.destination
        text = f"{level} {kind}s of `{tensor}`: {seconds / compute:.2g}x the compute time"
        return text + self._because(f"{level} {kind}")

    def _because(self, term: str) -> str:
        words = "; ".join(text for about, text in self.reasons if about == term)
        return f" ({words})" if words else ""


def predict(
    mapping: Mapping, machine: Machine, schedule: Schedule, *, model: str = "amos+"
) -> Prediction:
    """Predict the latency of a mapping under a schedule.

    Args:
        machine: memory levels and the rate of the mapping's intrinsic.
        schedule: order, tiling and parallel loops.
        model: ``"amos+"``, or ``"amos"`` for the paper's equation with warm caches.

    Raises:
        MachineError: the machine has no rate for the intrinsic, or only one of loops that emulate
            it; a memory that the schedule places data in overflows, or there is no such model.
    """
    structure = Structure(mapping)
    batch = schedule.batch(structure)
    if overflows := [*target_of(machine, structure).overflows(structure, machine, batch)]:
        raise MachineError(f"{mapping.name} under {schedule}: {'; '.join(overflows)}")
    return prediction_of(structure, machine, evaluate(structure, machine, batch, model))


def prediction_of(
    structure: Structure, machine: Machine, batch: BatchPrediction, row: int = 0
) -> Prediction:
    """Describe one row of a batch.

    Raises:
        MachineError: loops emulate the intrinsic. Rates of two kernels can then be eight times
            apart: good enough to rank them, not to predict a time.
    """
    mapping = structure.mapping
    if machine.peak(mapping.intrinsic.name).generic:
        raise MachineError(
            f"no time is predicted of {mapping.intrinsic.name} on {machine.name}: loops stand for "
            "the instruction there, and compilers make another program of them in every kernel"
        )
    names = [mapping.operator.sources[i].tensor.name for i in mapping.order]
    longest = float(batch.compute[row])
    calls = structure.nest.calls
    rows = [LevelTime("intrinsic", calls, longest, 0.0, 0.0, 0.0, 0.0, "")]
    for level in machine.levels:
        name = level.name
        rows.append(
            LevelTime(
                name,
                round(float(batch.trips[name][row])),
                longest,
                float(batch.read[name][row]),
                float(batch.write[name][row]),
                float(batch.bytes_in[name][row]),
                float(batch.bytes_out[name][row]),
                names[int(batch.source[name][row])],
            )
        )
        longest = max(longest, rows[-1].read, rows[-1].write)
    return Prediction(
        float(batch.seconds[row]),
        tuple(rows),
        float(batch.staging[row]),
        float(batch.launch[row]),
        mapping.operator.result.name,
        target_of(machine, structure).explain(batch, row, names),
        float(batch.exchange[row]),
        tuple(
            EnergyRow(
                each.level,
                each.operand,
                float(each.read_bytes[row]),
                float(each.written_bytes[row]),
                None if each.joules is None else float(each.joules[row]),
            )
            for each in batch.accesses
        ),
    )
