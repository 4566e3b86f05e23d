"""Constants of CPUs by their maker, each fitted on samples of ResNet-18 measured there."""

from __future__ import annotations

from dataclasses import replace

from amos.perfmodel.machine import Costs, Machine

__all__ = ["as_fitted"]

#: Fitted on a server CPU of Intel with AVX-512 VNNI and AMX (cpu family 6, model 167).
_INTEL = Costs(
    broadcast=0.67,
    window=60.0,
    serial=2.9,
    read=1.1,
    near=0.34,
    test=2.1,
    digits=3.7,
    plain=0.84,
    spill=0.1,
    spill_mixed=0.6,
    reload=1.6,
    sweep=1.1,
    late=28.0,
    retain=5.8,
    overlap=4.0,
)
#: Seconds until a line that the other core took is back, fitted like the others. Kernels
#: whose cores write every other 128 bytes of 784 KiB take 7.5 ns a line in all.
_INTEL_EXCHANGE = 9e-9


def as_fitted(machine: Machine) -> Machine:
    """A measured machine with the constants of its maker's CPUs.

    CPUs of makers that no samples were measured on have those of AMD's.

    Args:
        machine: what a probe measured; ``source`` names the CPU.
    """
    if machine.source.startswith("measured on Intel"):
        return replace(machine, costs=_INTEL, exchange=machine.exchange or _INTEL_EXCHANGE)
    return machine
