"""The encoders of streams, in one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from amos.ir import Operator
from amos.machine.stream_unit import StreamUnit
from amos.streams import vta
from amos.streams.codegen import calls
from amos.streams.codegen.instructions import Stream
from amos.streams.plan import StreamPlan


@dataclass(frozen=True)
class Encoder:
    """The writer of streams of one instruction set.

    Attributes:
        check: refuses an operator that no stream of an intrinsic, by name, computes.
        program: the stream of a plan.
        binary: bits of the fields that a stream's buffers need; ``None`` without a binary form.
    """

    check: Callable[[Operator, StreamUnit, str], object]
    program: Callable[[StreamPlan], Stream]
    binary: Callable[[Stream], vta.Encoding] | None = None


def encoder_of(unit: StreamUnit) -> Encoder:
    """Return the encoder of a unit's instruction set."""
    return _ENCODERS[unit.encoding]


#: By :data:`amos.machine.stream_unit.ENCODINGS`.
_ENCODERS = {
    "vta": Encoder(
        check=lambda operator, unit, name: vta.check(operator),
        program=vta.program,
        binary=lambda stream: vta.Encoding.of(stream.buffers),
    ),
    "calls": Encoder(check=calls.check, program=calls.program),
}
