"""Spelling of an operator's names in generated code.

A generator has identifiers of its own, and some that it derives from an operator's. It lists them
as one pattern. A name of the operator that matches the pattern, is no identifier of C, or is
already in use gets another spelling before code is generated; all other names are kept. Messages,
records, headers and the arguments of kernels keep the user's names.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeVar

from amos.ir import Operator
from amos.mapping.mapping import Mapping
from amos.plan import Candidate
from amos.plan.schedule import Plan

Planned = TypeVar("Planned", bound=Candidate | Plan)


def spell(name: str, own: re.Pattern[str], used: Container[str] = ()) -> str:
    """Return the nearest identifier to a name that is neither a generator's own nor in use.

    >>> own = re.compile("while|t_.*")
    >>> spell("weight", own), spell("a.1", own), spell("while", own), spell("t_p", own)
    ('weight', 'a_1', 'while_', 'user_t_p')
    >>> spell("c", own, {"c", "c_"}), spell("1x", own)
    ('user_c', 'user_1x')
    """
    return next(each for each in _spellings(name) if each not in used and not own.fullmatch(each))


def _spellings(name: str) -> Iterator[str]:
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    if plain and not plain[0].isdigit():
        yield plain
        yield f"{plain}_"
    yield f"user_{plain}"
    yield from (f"user_{plain}_{number}" for number in count(1))


@dataclass(frozen=True)
class Names:
    """Spellings of an operator's tensors and iterations, each different from all the others."""

    tensors: MappingType[str, str]
    iterations: MappingType[str, str]

    @staticmethod
    def of(operator: Operator, own: re.Pattern[str], *, tensors: bool = True) -> Names:
        """Choose spellings that a generator can have.

        Args:
            own: the generator's own identifiers, and those that it derives from others.
            tensors: whether tensors have names in the code; they keep theirs otherwise.
        """
        used: set[str] = set()
        inner = (load.tensor for load in operator.operands)  # a prologue's source is no input
        stores = (operator.stored, *(result.store for result in operator.further))
        tensors_ = (*operator.inputs, *inner, *(store.tensor for store in stores))
        read = [tensor.name for tensor in tensors_]

        def choose_spellings(names: Iterable[str]) -> dict[str, str]:
            spellings: dict[str, str] = {}
            for name in names:
                if name not in spellings:
                    spellings[name] = spell(name, own, used)
                    used.add(spellings[name])
            return spellings

        written = choose_spellings(read) if tensors else {name: name for name in read}
        return Names(written, choose_spellings(it.name for it in operator.iterations))

    def loop(self, name: str) -> str:
        """Return the spelling of a loop: an iteration, or a tile, which has no name of a user."""
        return self.iterations.get(name, name)

    def operator(self, operator: Operator) -> Operator:
        """Return the operator under these names; itself if they are its own."""
        pairs = (*self.tensors.items(), *self.iterations.items())
        if all(name == spelling for name, spelling in pairs):
            return operator
        return operator.rename(self.tensors.__getitem__, self.iterations.__getitem__)

    def mapping(self, mapping: Mapping) -> Mapping:
        """Return the mapping of the operator under these names."""
        operator = self.operator(mapping.operator)
        return mapping if operator is mapping.operator else replace(mapping, operator=operator)

    def rename(self, planned: Planned) -> Planned:
        """Rename the mapping and the schedule of a candidate or a plan."""
        mapping = self.mapping(planned.mapping)
        if mapping is planned.mapping:
            return planned
        return replace(planned, mapping=mapping, schedule=planned.schedule.rename_loops(self.loop))
