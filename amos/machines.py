"""Machines by name: the described ones, and ``host``, which is measured."""

from __future__ import annotations

from amos.perfmodel import Machine, catalogue

__all__ = ["get", "names"]


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
    from amos.codegen.tensor_intrin import implementation
    from amos.intrinsics import get as intrinsic
    from amos.intrinsics import names as intrinsics
    from amos.measure import host_machine
    from amos.perfmodel.host import cpu

    units = [intrinsic(n) for n in intrinsics()]
    return host_machine([u for u in units if implementation(u, cpu().features) == "native"])
