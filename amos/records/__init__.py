"""What was measured: one record a measurement, and the files that keep them."""

from amos.records.measurement import FAILURES, Measurement
from amos.records.record import Record
from amos.records.store import Records
from amos.records.trial import Trial

__all__ = ["FAILURES", "Measurement", "Record", "Records", "Trial"]
