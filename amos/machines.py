"""Machines by name: the described ones, and ``host``, which is measured."""

from __future__ import annotations

from collections.abc import Sequence

from amos.intrinsics import Intrinsic
from amos.perfmodel import Machine, catalogue

__all__ = ["USUAL", "get", "names"]

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
        intrinsics: for ``host``, those whose rate is measured if it is not known
            yet; by default the ones of :data:`USUAL` that this CPU executes natively.

    Raises:
        UnknownNameError: there is no such machine.
        MeasureError: the host could not be measured.
    """
    if name != "host":
        return catalogue.get(name)
    from amos.codegen.tensor_intrin import implementation
    from amos.intrinsics import get as intrinsic
    from amos.measure import host_machine
    from amos.perfmodel.host import cpu

    if intrinsics is None:
        units = [intrinsic(n) for n in USUAL]
        intrinsics = [u for u in units if implementation(u, cpu().features) == "native"]
    return host_machine(intrinsics)
