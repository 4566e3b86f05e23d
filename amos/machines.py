"""Machines by name: the described ones, and ``host``, which is measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from amos.perfmodel import Machine, catalogue

if TYPE_CHECKING:
    from amos.intrinsics import Intrinsic

__all__ = ["USUAL", "get", "names", "probe"]

#: Intrinsics whose rate is part of a description of the host. Measuring one takes
#: seconds, so the others wait until somebody asks.
USUAL = ("vnni_dpbusd_m16k4_u8_s8_s32",)


def names() -> tuple[str, ...]:
    """Every machine that can be asked for, sorted."""
    return tuple(sorted((*catalogue.names(), "host")))


def get(name: str, intrinsics: Sequence[Intrinsic] | None = None) -> Machine:
    """Look up a machine.

    ``host`` is measured the first time, which takes some seconds, and remembered.

    Args:
        name: the machine.
        intrinsics: those whose rate is asked for. On ``host`` it is measured if it is
            not known yet, by default of those of :data:`USUAL` that this CPU executes
            natively. A described machine without a figure takes it from the description
            of the intrinsic, if that has one of this machine or of no certain machine.

    Raises:
        UnknownNameError: there is no such machine.
        MeasureError: the host could not be measured.
    """
    if name != "host":
        return catalogue.get(name, intrinsics or ())
    from amos.measure import host_machine

    return host_machine(_native() if intrinsics is None else intrinsics)


def probe(*, fresh: bool = False) -> Machine:
    """Measure the host again; the better of each figure is kept.

    Args:
        fresh: forget what was measured before instead.

    Raises:
        MeasureError: the host could not be measured.
    """
    from amos.measure import host_machine

    return host_machine(_native(), fresh=fresh, again=True, levels_again=True)


def _native() -> list[Intrinsic]:
    """The usual intrinsics that this CPU executes."""
    from amos.codegen.tensor_intrin import implementation
    from amos.intrinsics import get as intrinsic
    from amos.perfmodel.host import cpu

    units = [intrinsic(name) for name in USUAL]
    return [unit for unit in units if implementation(unit, cpu().features) == "native"]
