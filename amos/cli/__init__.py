"""The command line, ``amos``."""

from amos.cli.app import main

__all__ = ["main"]
