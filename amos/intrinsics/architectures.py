"""CUDA architectures among the features that intrinsics require and machines have."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["newest"]

_ARCHITECTURE = re.compile(r"sm_(\d+)a?", re.ASCII)


def newest(features: Iterable[str]) -> int:
    """Number of the newest architecture among names of features; 0 if there is none.

    >>> newest(["sm_70", "sm_80", "avx2"])
    80
    """
    matches = map(_ARCHITECTURE.fullmatch, features)
    return max((int(match[1]) for match in matches if match), default=0)
