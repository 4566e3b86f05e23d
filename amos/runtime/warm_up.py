"""Loading what the first kernel needs, ahead of the first kernel."""

from __future__ import annotations

from amos.intrinsics import get
from amos.ir import Operator
from amos.mapping import enumerate_mappings
from amos.plan import Candidate
from amos.runtime.kernel import build
from amos.schedule import ScheduleSpace

__all__ = ["warm_up"]


def warm_up() -> None:
    """Build a kernel, which takes about a second the first time: TVM loads itself piecemeal.

    Nothing is run, so that no threads are started and the process can be forked.

    Raises:
        ToolchainError: TVM is missing, known not to work, or does not load.
    """
    op = Operator.parse("out[i,j] += a[i,k] * b[j,k]", extents=dict(i=1, j=16, k=4))
    mapping = enumerate_mappings(op, get("vnni_dpbusd_m16k4_u8_s8_s32"))[0]
    candidate = Candidate(mapping, ScheduleSpace(mapping).smallest())
    build(candidate, implementation="generic")
