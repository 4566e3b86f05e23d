"""Units that streams of instructions drive: queues, buffers and costs."""

from __future__ import annotations

from dataclasses import dataclass

from amos.errors import MachineError, OperatorError
from amos.ir import dtype

#: Instruction sets of streams.
ENCODINGS = ("vta", "calls")
#: Implausible cycles of a step of an instruction.
_CYCLES = 1 << 31


@dataclass(frozen=True)
class StreamUnit:
    """A load, a compute and a store queue, ordered by tokens alone; costs in cycles.

    The buffers of operands are those of the intrinsic's memory statements. Queues share
    one port to DRAM, whose bandwidth is that of the machine's last level.

    Attributes:
        encoding: instruction set, one of :data:`ENCODINGS`: that of VTA, or loops around calls
            of any intrinsic, which have no binary form.
        instructions: most instructions of one stream; by default as many as can be simulated.
        micro_ops: number of micro-operations that fit on chip; of VTA.
        issue: from the end of an instruction to the start of the next one in its queue.
        drain: from the last operation of a compute instruction to its result.
        latency: from a request to DRAM to its first data.
        scales: dtype of stored results, after ``relu`` and a float32 factor, rounded to nearest
            even and clamped; empty if sums are stored unchanged. Of ``calls``.
    """

    encoding: str
    instructions: int = 1 << 22
    micro_ops: int = 0
    issue: int = 1
    drain: int = 0
    latency: int = 0
    scales: str = ""

    def __post_init__(self) -> None:
        if self.encoding not in ENCODINGS:
            raise MachineError(
                f"encoding: expected {' or '.join(ENCODINGS)}, got {self.encoding!r}"
            )
        if self.scales:
            self._check_scales()
        for name in ("micro_ops", "instructions") if self.clears else ("instructions",):
            if getattr(self, name) < 1:
                raise MachineError(f"{name}: expected 1 or more, got {getattr(self, name)}")
        for name in ("issue", "drain", "latency"):
            if not 0 <= getattr(self, name) < _CYCLES:
                raise MachineError(
                    f"{name}: expected 0 or more cycles, below 2**31, got {getattr(self, name)}"
                )

    def _check_scales(self) -> None:
        try:
            object.__setattr__(self, "scales", dtype(self.scales).name)
        except OperatorError as error:
            raise MachineError(f"scales: {error}") from None
        if not dtype(self.scales).is_integer or self.clears:
            raise MachineError(
                f"scales: expected an integer dtype, of calls, got {self.scales} of {self.encoding}"
            )

    @property
    def clears(self) -> bool:
        """Whether accumulators are set to zero by instructions of their own."""
        return self.encoding == "vta"

    def __str__(self) -> str:
        micro = f"room for {self.micro_ops:,} micro-operations; " if self.micro_ops else ""
        return (
            f"streams of {self.encoding} instructions, at most {self.instructions:,}; "
            f"{micro}cycles to issue {self.issue}, to drain "
            f"{self.drain}, to DRAM {self.latency}"
        )
