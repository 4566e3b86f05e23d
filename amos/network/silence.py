"""What others say while they work, and their errors say again."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

#: Held while what belongs to the whole process, as standard error, is something else.
_PROCESS = RLock()


@contextmanager
def silent() -> Iterator[None]:
    """Nothing reaches standard error, from C++ either."""
    with _PROCESS, open(os.devnull, "w") as nowhere:
        usual = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(usual, 2)
            os.close(usual)


@contextmanager
def quiet() -> Iterator[None]:
    """PyTorch does not log the traces of what an error says in a line."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    with _PROCESS:
        before, logger.disabled = logger.disabled, True
        try:
            yield
        finally:
            logger.disabled = before
