"""Constants of CPUs by their maker, each fitted on samples of ResNet-18 measured there.

``amos reproduce fig5 --fit`` prints those of a new set of samples.
"""

from __future__ import annotations

from collections.abc import Mapping

from amos.machine.machine import Costs

#: By the name that a CPU gives its maker (the instruction CPUID, leaf 0).
FITTED: Mapping[str, Costs] = {
    # A server CPU with AVX-512 VNNI, Zen 5 (cpu family 26, model 2).
    "AuthenticAMD": Costs(
        dense=1.0,
        window=101.0,
        serial=0.807,
        find=5.45,
        reload=1.2,
        sweep=1.6,
        exchange=39.0,
        ahead=0.5,
        overlap=5.7,
        far=45.6,
    ),
    # A server CPU with AVX-512 VNNI and AMX (cpu family 6, model 167).
    "GenuineIntel": Costs(
        dense=1.55,
        window=35.0,
        serial=3.21,
        find=4.16,
        reload=1.13,
        sweep=1.19,
        exchange=32.7,
        ahead=2.38,
        overlap=2.8,
        far=1.6,
    ),
}


def fitted_costs(maker: str) -> Costs:
    """Return the constants of a maker's CPUs; AMD's for makers whose CPUs were not measured.

    Args:
        maker: as :attr:`amos.machine.Machine.maker`; machines that are no CPUs have
            none, and with it constants that leave every term out.
    """
    return FITTED.get(maker, FITTED["AuthenticAMD"]) if maker else Costs()
