"""Loading what the first kernel needs, ahead of the first kernel."""

from __future__ import annotations

from amos._toolchain import load_tvm

__all__ = ["warm_up"]


def warm_up() -> None:
    """Load TVM, which takes about a second.

    Raises:
        ToolchainError: TVM is missing, known not to work, or does not load.
    """
    load_tvm()
