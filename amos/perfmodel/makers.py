"""Constants of CPUs by their maker, each fitted on samples of ResNet-18 measured there."""

from __future__ import annotations

from dataclasses import replace

from amos.perfmodel.machine import Costs, Machine

__all__ = ["as_fitted"]

#: Fitted on a server CPU of Intel with AVX-512 VNNI and AMX (cpu family 6, model 167).
_INTEL = Costs(
    broadcast=0.67,
    dense=1.3,
    window=70.0,
    serial=2.7,
    read=0.71,
    near=0.24,
    test=4.6,
    digits=3.7,
    plain=0.92,
    spill=0.085,
    spill_mixed=0.42,
    reload=1.13,
    sweep=1.0,
    late=21.0,
    retain=3.4,
    overlap=2.8,
    far=1.6,
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
