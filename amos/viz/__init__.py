"""Tables and pictures: what objects look like, and figures of spaces and searches."""

from amos.viz.display import html, text

__all__ = ["html", "text"]
