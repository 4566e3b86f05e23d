"""Lower bounds of all mappings and schedules on a streamed unit: traffic, time, energy.

Tilings are searched as Orojenesis does (Huang et al., ISCA 2024): the least traffic that a buffer
of some capacity allows, over all tiles and orders. The traffic of the model is that of the streams,
byte by byte, so the bound holds for the simulator too. Every schedule stores results once, so
only the traffic of sources is searched.

Two floors keep the search short. A mapping moves no less than what its calls touch of each
operand. A tile of a source is loaded at least once for each step of the loops that move it, and
for each step of all spatial loops if the innermost of them moves it, or sums that are cut do, in
more tiles than have room. Both floors hold for every order and number of buffers, so that mappings
and tilings whose floor is not below the best can be left out.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence

from amos.machine import Machine
from amos.mapping import Mapping
from amos.perfmodel.bound import Bound
from amos.perfmodel.energy import missing_energies
from amos.streams.tilings import Least, Tilings

#: Joules are added up here in another order than those of a schedule.
_ROUNDING = 1 - 1e-14


def bound_of(mappings: Sequence[Mapping], machine: Machine) -> Bound:
    """Find what no schedule of any of the mappings, of one operator and unit, falls below."""
    tilings = [Tilings(mapping, machine) for mapping in mappings]
    port = machine.levels[-1].read_bandwidth

    def least_seconds(mapping_tilings: Tilings, stop: float) -> Least:
        enough = min(mapping_tilings.seconds * port, sys.float_info.max)
        least = mapping_tilings.least(mapping_tilings.ones, stop * port, enough=enough)
        return Least(max(mapping_tilings.seconds, least.amount / port), least.reached)

    traffic = _least(tilings, lambda x: x.floor(x.ones), lambda x, stop: x.least(x.ones, stop))
    time = _least(tilings, lambda x: x.floor_seconds, least_seconds)
    joules = None
    if not missing_energies(machine, mappings[0].intrinsic.scratchpads):
        least = _least(tilings, lambda x: x.joules_floor, Tilings.least_joules)
        joules = least.amount * _ROUNDING
    return Bound(traffic.amount, time.amount, joules, traffic.reached)


def _least(
    tilings: Sequence[Tilings],
    floor: Callable[[Tilings], float],
    least: Callable[[Tilings, float], Least],
) -> Least:
    """Return the least of all mappings, those of the lowest floor first."""
    best = Least(math.inf, True)
    for mapping_tilings in sorted(tilings, key=floor):
        if floor(mapping_tilings) >= best.amount:
            break
        amount = least(mapping_tilings, best.amount)
        best = amount if amount.amount < best.amount else best
    return best
