"""Measurements: one record each, and the files that store them."""

from amos.records.measurement import FAILURES, Measurement, Trial
from amos.records.record import Record
from amos.records.store import Records

__all__ = ["FAILURES", "Measurement", "Record", "Records", "Trial"]
