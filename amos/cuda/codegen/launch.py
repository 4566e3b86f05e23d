"""The launch of a kernel, its arguments, and the operator, as data."""

from __future__ import annotations

from typing import Any

from amos.codegen.device.launch import describe_launch
from amos.cuda.codegen.kernel import KernelText
from amos.cuda.codegen.reductions import ELEMENT_THREADS, element_blocks
from amos.cuda.plan import GpuPlan


def launch_of(plan: GpuPlan, name: str) -> dict[str, Any]:
    """Return the contents of ``launch.json``."""
    text = KernelText(plan, name)
    return describe_launch(
        plan,
        kernel=name,
        **({"start": _elements(text.start, element_blocks(plan))} if text.start else {}),
        **({"end": _elements(text.end, element_blocks(plan, ends=True))} if text.end else {}),
        architecture=plan.architecture,
        grid=list(plan.grid),
        block=[plan.threads, 1, 1],
        shared_bytes=plan.shared_bytes,
        dynamic_shared_bytes=plan.dynamic_bytes,
    )


def _elements(name: str, blocks: int) -> dict[str, Any]:
    """Describe the launch of the function before or after, with the same arguments."""
    return {"kernel": name, "grid": [blocks, 1, 1], "block": [ELEMENT_THREADS, 1, 1]}
