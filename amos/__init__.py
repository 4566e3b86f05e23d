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
    from amos.errors import AmosError
    from amos.explore import MeasureOptions, SearchOptions, explore
    from amos.export import export
    from amos.intrinsics import Intrinsic
    from amos.ir import Operator
    from amos.ir.te import from_te
    from amos.machine import Machine
    from amos.mapping import enumerate_mappings, simulate
    from amos.plan import Candidate, CpuSchedule, GpuSchedule, Schedule
    from amos.plan.planning import plan
    from amos.records import Record
    from amos.runtime import build
    from amos.validate import check_matching

__version__ = "0.1.0"

__all__ = [
    "AmosError",
    "Candidate",
    "CpuSchedule",
    "GpuSchedule",
    "Intrinsic",
    "Machine",
    "MeasureOptions",
    "Operator",
    "Record",
    "Schedule",
    "SearchOptions",
    "__version__",
    "build",
    "check_matching",
    "enumerate_mappings",
    "explore",
    "explorer",
    "export",
    "from_te",
    "intrinsics",
    "machines",
    "operators",
    "plan",
    "predict",
    "simulate",
    "viz",
]

_MODULES = {
    # Modules that can be called, see amos._callable.
    "explore": "amos.explore",
    "export": "amos.export",
    "explorer": "amos.explorer",
    "intrinsics": "amos.intrinsics",
    "machines": "amos.machines",
    "operators": "amos.operators",
    "plan": "amos.plan",
    "viz": "amos.viz",
}
_HOMES = {
    "AmosError": "amos.errors",
    "Candidate": "amos.plan",
    "CpuSchedule": "amos.plan",
    "GpuSchedule": "amos.plan",
    "Intrinsic": "amos.intrinsics",
    "Machine": "amos.machine",
    "MeasureOptions": "amos.explore",
    "Operator": "amos.ir",
    "Record": "amos.records",
    "Schedule": "amos.plan",
    "SearchOptions": "amos.explore",
    "build": "amos.runtime",
    "check_matching": "amos.validate",
    "enumerate_mappings": "amos.mapping",
    "from_te": "amos.ir.te",
    "predict": "amos._predict",
    "simulate": "amos.mapping",
}


if not TYPE_CHECKING:
    # Hidden from type checkers, which would take any name for a public one.

    def __getattr__(name: str) -> object:
        value: object
        if name in _MODULES:
            value = import_module(_MODULES[name])
        elif name in _HOMES:
            value = getattr(import_module(_HOMES[name]), name)
        else:
            raise AttributeError(f"module 'amos' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
