"""Machines by name: the described ones, and ``host``, which is measured."""

from __future__ import annotations

from collections.abc import Sequence

from amos.intrinsics import Intrinsic
from amos.machine import Machine, catalogue

#: Intrinsics the first of which that this CPU executes is part of a description of the host.
#: Measuring a rate takes seconds, so the others are measured on request.
USUAL = ("vnni_dpbusd_m16k4_u8_s8_s32", "avx2_fmadd_m8_f32_f32")


def names() -> tuple[str, ...]:
    """List every available machine, sorted."""
    return tuple(sorted((*catalogue.names(), "host")))


def get(name: str | Machine, intrinsics: Sequence[str | Intrinsic] | None = None) -> Machine:
    """Look up a machine.

    ``host`` is measured the first time, which takes some seconds, and cached.

    Args:
        name: the machine; one that is given itself is returned as it is.
        intrinsics: names or descriptions of those whose rate is requested. On ``host`` it
            is measured if it is not known yet, by default of the first of :data:`USUAL` that
            this CPU executes natively. Of one that it does not execute, the rate of the description
            counts, if that has one of ``host`` or of no certain machine; otherwise that
            of the loops that replace it is measured. A described machine without a
            figure takes it from the description of the intrinsic, if that has one of
            this machine or of no certain machine.

    Raises:
        UnknownNameError: there is no such machine.
        MeasureError: the host could not be measured.
    """
    from amos.intrinsics import get as intrinsic

    units = None if intrinsics is None else [intrinsic(unit) for unit in intrinsics]
    if name != "host":
        return catalogue.get(name, units or ())
    from amos.measure import host_machine

    units = _native() if units is None else units
    # Rates of instructions that this CPU lacks cannot be measured.
    timed = [u for u in units if any(t.machine in ("", "host") for t in u.timing) and not _runs(u)]
    return catalogue.with_timings(host_machine([u for u in units if u not in timed]), timed)


def probe(*, fresh: bool = False) -> Machine:
    """Measure the host again; the better of each figure is kept.

    Args:
        fresh: discard earlier measurements first.

    Raises:
        MeasureError: the host could not be measured.
    """
    from amos.measure import host_machine

    return host_machine(_native(), fresh=fresh, again=True, levels_again=True)


def _native() -> list[Intrinsic]:
    """List the first usual intrinsic that this CPU executes, if any."""
    from amos.intrinsics import get as intrinsic

    return [unit for unit in map(intrinsic, USUAL) if _runs(unit)][:1]


def _runs(unit: Intrinsic) -> bool:
    """Return whether kernels on this CPU use the instruction itself."""
    from amos.codegen.tir.tensor_intrin import implementation
    from amos.machine.cpu import cpu

    return implementation(unit, cpu().features) == "native"
