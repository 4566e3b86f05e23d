"""Tables and pictures: displays of objects, and figures of spaces and searches.

:func:`html` and :func:`text` show any object. Every other function returns a plotly
figure; plotly is loaded when the first one is made, which without it raises a ``ToolchainError``.
"""

from amos.viz.designs import designs
from amos.viz.display import html, text
from amos.viz.matrices import matching
from amos.viz.networks import report
from amos.viz.plotting import write
from amos.viz.rooflines import roofline
from amos.viz.searches import accuracy, allocation, distribution, progress
from amos.viz.sizes import sizes
from amos.viz.sliders import sliders
from amos.viz.slots import fragments
from amos.viz.spaces import landscape, space
from amos.viz.timelines import timeline

__all__ = [
    "designs",
    "accuracy",
    "allocation",
    "distribution",
    "fragments",
    "html",
    "landscape",
    "matching",
    "progress",
    "report",
    "roofline",
    "sizes",
    "sliders",
    "space",
    "text",
    "timeline",
    "write",
]
