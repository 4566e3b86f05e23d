"""A tuned kernel as files that need neither TVM nor Python: one file of this room a format.

The package can be called: ``amos.export(kernel, format, out)`` is
:func:`amos.export.formats.export`.
"""

from amos._callable import make_callable
from amos.export.formats import export, formats
from amos.export.request import Request

__all__ = ["Request", "export", "formats"]

make_callable(__name__, "amos.export.formats:export")
