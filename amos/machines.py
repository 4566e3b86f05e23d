"""Machines by name: the described ones, and ``host``, which is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amos.perfmodel import Machine, catalogue

if TYPE_CHECKING:
    from amos.intrinsics import Intrinsic

__all__ = ["get", "names", "probe"]


def names() -> tuple[str, ...]:
    """Every machine that can be asked for, sorted."""
    return tuple(sorted((*catalogue.names(), "host")))


def get(name: str) -> Machine:
    """Look up a machine.

    ``host`` is measured the first time, which takes some seconds, and remembered;
    it has the rate of every intrinsic that this CPU can execute natively.

    Raises:
        UnknownNameError: there is no such machine.
        MeasureError: the host could not be measured.
    """
    if name != "host":
        return catalogue.get(name)
    from amos.measure import host_machine

    return host_machine(_native())


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
    """The intrinsics that this CPU executes."""
    from amos.codegen.tensor_intrin import implementation
    from amos.intrinsics import get as intrinsic
    from amos.intrinsics import names as intrinsics
    from amos.perfmodel.host import cpu

    units = [intrinsic(name) for name in intrinsics()]
    return [unit for unit in units if implementation(unit, cpu().features) == "native"]
