"""Chains of a network as one kernel each, from records or from the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any, ClassVar, cast

from amos.chains.candidate import ChainCandidate
from amos.chains.measuring import chain_tolerance
from amos.chains.model import predict_chain
from amos.chains.records import rebuild_chain
from amos.chains.trials import ChainOption
from amos.chains.writer import schedule_products, write_chain
from amos.errors import AmosError
from amos.explore.choosing import RULE, Chooser
from amos.ir import Chain, Operator
from amos.machine.cpu import cpu
from amos.mapping import enumerate_mappings
from amos.measure.reference import References
from amos.network.kernels import TaskKernel
from amos.network.lowerings.base import Example, Lowering
from amos.network.task_records import operator_key
from amos.perfmodel import predict
from amos.records import Record
from amos.runtime.kernel import implementation_of

#: Stands for a missing file of records.
NO_RECORDS: Mapping[str, Sequence[Record]] = MappingProxyType({})


@dataclass(frozen=True)
class FusedChain(Lowering):
    """A chain whose tensors between statements stay in tiles.

    Attributes:
        option: tiles, mappings and schedules, with the model's account of them.
        measured: seconds of a record; ``None`` without one.
    """

    operator: Chain
    option: ChainOption
    measured: float | None = None
    shared: ClassVar = False
    views: ClassVar = True

    @property
    def candidate(self) -> ChainCandidate:
        """Tiles, mappings and schedules."""
        candidate: ChainCandidate = self.option.candidate
        return candidate

    @property
    def predicted(self) -> float:
        """Predicted seconds of the chain."""
        return self.option.prediction.seconds

    @property
    def instruction(self) -> str:
        """Names of the products' instructions."""
        return " + ".join(x.mapping.intrinsic.name for x in self.candidate.products.values())

    @property
    def mappings(self) -> int:
        """Number of combinations of mappings of the products."""
        return self.option.mappings

    @property
    def bound(self) -> str:
        """The statement that takes most of the time, by the model."""
        longest = max(self.option.prediction.steps, key=lambda step: step.seconds)
        return f"`{longest.tensor}`"

    def build(self, symbol: str) -> TaskKernel:
        """Compile the kernel; errors as of :meth:`Lowering.build`."""
        kinds = {n: implementation_of(x, None) for n, x in self.candidate.products.items()}
        scheduled = schedule_products(self.candidate, kinds)
        arguments, function = write_chain(self.candidate, scheduled, cpu().cores)
        kind = "generic" if "generic" in kinds.values() else "native"
        return self.compile(symbol, arguments, function, kind=kind)

    def example(self, references: References) -> Example:
        """Draw inputs and compute statement by statement."""
        inputs, (expected,) = references.get(cast(Operator, self.operator))
        return inputs, expected, (chain_tolerance(self.operator, expected),)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; seconds."""
        own = self.candidate.as_dict()
        mappings = " + ".join(each["mapping"] for each in own["products"].values())
        return super().to_dict() | own | {"mapping": mappings, "schedule": {}}


def put_recorded_first(
    modelled: Sequence[FusedChain],
    chooser: Chooser,
    count: int,
    ranked: Mapping[str, Sequence[Record]],
) -> tuple[FusedChain, ...]:
    """Return some kernels of a chain: those of records, the fastest first, then others."""
    recorded = [*islice(_recorded_lowerings(modelled[0].operator, chooser, ranked), count)]
    measured = [each.candidate for each in recorded]
    unmeasured = (each for each in modelled if each.candidate not in measured)
    return (*recorded, *unmeasured)[:count]


def _recorded_lowerings(
    chain: Chain, chooser: Chooser, ranked: Mapping[str, Sequence[Record]]
) -> Iterator[FusedChain]:
    """Lower a chain as the records of this machine have it, the fastest first, each kernel once."""
    machine, core = chooser.target(()), chooser.core
    passed = set[str]()
    for record in ranked.get(operator_key(chain), ()) if ranked else ():
        if record.candidate in passed or not (record.counts_here and record.times):
            continue
        passed.add(record.candidate)
        try:
            candidate = rebuild_chain(record)
        except AmosError:
            continue
        seconds, mappings = {}, 1
        for name, product in candidate.products.items():
            mapping, unit = product.mapping, product.mapping.intrinsic
            seconds[name] = predict(mapping, core.target([unit]), product.schedule).seconds
            mappings *= enumerate_mappings(mapping.operator, unit, RULE, commute=True).count
        prediction = predict_chain(candidate.tiling, seconds, bool(candidate.packs), machine)
        option = ChainOption(candidate, prediction, mappings, ())
        yield FusedChain(chain, option, record.seconds)
