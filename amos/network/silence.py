"""What others say while they work, and their errors say again."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

#: Held while what belongs to the whole process, as standard error, is something else.
_PROCESS = RLock()
#: Loggers of the packages that export a module.
_EXPORTERS = ("torch._subclasses.fake_tensor", "torch.export", "torch.onnx", "onnxscript")


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
    """PyTorch and onnxscript log nothing while they export; errors say in a line what failed."""
    loggers = [logging.getLogger(name) for name in _EXPORTERS]
    with _PROCESS:
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
