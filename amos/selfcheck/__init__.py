"""Compare implementations with their descriptions, with all tools that this machine has."""

from amos.selfcheck.check import check
from amos.selfcheck.report import Report

__all__ = ["Report", "check"]
