"""AMOS: mapping tensor computations onto hardware intrinsics.

``import amos`` loads nothing but this file: every public name is imported when
it is first used, and TVM only when a kernel is generated.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amos import explorer, intrinsics, machines, operators, viz
    from amos._predict import predict
    from amos.cuda import GpuSchedule
    from amos.errors import AmosError
    from amos.explore import MeasureOptions, SearchOptions, explore
    from amos.export import export
    from amos.intrinsics import Intrinsic
    from amos.ir import Operator
    from amos.ir.te import from_te
    from amos.machine import Machine
    from amos.mapping import enumerate_mappings, simulate
    from amos.network import compile, load_network, tune
    from amos.opencl import OpenClSchedule
    from amos.plan import Candidate, CpuSchedule, Schedule
    from amos.plan.planning import plan
    from amos.records import Record, Records
    from amos.runtime import build
    from amos.streams import StreamSchedule
    from amos.streams.networks import compile_for_unit
    from amos.validate import check_matching, fold_zero_point, fusable, fuse

__version__ = "0.1.0"

__all__ = [
    "AmosError",
    "Candidate",
    "CpuSchedule",
    "GpuSchedule",
    "Intrinsic",
    "Machine",
    "MeasureOptions",
    "OpenClSchedule",
    "Operator",
    "Record",
    "Records",
    "Schedule",
    "SearchOptions",
    "StreamSchedule",
    "__version__",
    "build",
    "check_matching",
    "compile",
    "compile_for_unit",
    "enumerate_mappings",
    "explore",
    "explorer",
    "export",
    "from_te",
    "fold_zero_point",
    "fusable",
    "fuse",
    "intrinsics",
    "load_network",
    "machines",
    "operators",
    "plan",
    "predict",
    "simulate",
    "tune",
    "viz",
]

#: The module that defines a public name; any other name is itself a module.
_HOMES = {
    name: home
    for home, names in {
        "amos._kernels": ["build", "simulate"],
        "amos._predict": ["predict"],
        "amos.errors": ["AmosError"],
        "amos.explore": ["MeasureOptions", "SearchOptions"],
        "amos.intrinsics": ["Intrinsic"],
        "amos.ir": ["Operator"],
        "amos.ir.te": ["from_te"],
        "amos.machine": ["Machine"],
        "amos.mapping": ["enumerate_mappings"],
        "amos.network": ["compile", "load_network", "tune"],
        "amos.plan": ["Candidate", "CpuSchedule", "Schedule"],
        "amos.cuda": ["GpuSchedule"],
        "amos.opencl": ["OpenClSchedule"],
        "amos.streams": ["StreamSchedule"],
        "amos.streams.networks": ["compile_for_unit"],
        "amos.records": ["Record", "Records"],
        "amos.validate": ["check_matching", "fold_zero_point", "fusable", "fuse"],
    }.items()
    for name in names
}


if not TYPE_CHECKING:
    # Hidden from type checkers, which would take any name for a public one.

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'amos' has no attribute {name!r}")
        home = import_module(_HOMES.get(name, f"amos.{name}"))
        value = globals()[name] = getattr(home, name) if name in _HOMES else home
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
