"""Is an implementation what the description says? Everything that can be tried here."""

from amos.selfcheck.check import check
from amos.selfcheck.report import Report

__all__ = ["Report", "check"]
