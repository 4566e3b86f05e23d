"""An explorer's server in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from amos.explorer import Engine
from amos.explorer.server import Server

__all__ = ["served"]


@contextmanager
def served(engine: Engine) -> Iterator[Server]:
    """A server that answers, on a port of its own, until the block ends."""
    server = Server(engine)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()
