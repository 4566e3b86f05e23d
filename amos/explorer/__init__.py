"""An explorer of mapping spaces: one engine, a Jupyter widget, and a page of its own."""

from amos.explorer.engine import Engine
from amos.explorer.state import State
from amos.explorer.widget import widget

__all__ = ["Engine", "State", "widget"]
