"""The launch of a kernel, its arguments, and the operator, as data."""

from __future__ import annotations

from typing import Any

from amos.codegen.device.launch import describe_launch
from amos.opencl.plan import OpenClPlan


def launch_of(plan: OpenClPlan, name: str) -> dict[str, Any]:
    """Return the contents of ``launch.json``."""
    return describe_launch(
        plan,
        kernel=name,
        machine=plan.machine.name,
        extensions=list(plan.implementation.requires),
        global_size=plan.groups * plan.items,
        local_size=plan.items,
        local_bytes=plan.local_bytes,
    )
