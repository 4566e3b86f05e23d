"""A tuned kernel as files that need neither TVM nor Python: one file of this room a format."""

from amos.export.formats import FORMATS, Format, Request, export

__all__ = ["FORMATS", "Format", "Request", "export"]
