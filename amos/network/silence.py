"""What others say while they work, and their errors say again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

#: Held while what belongs to the whole process, as standard error, is something else.
_PROCESS = RLock()
#: Loggers of the packages that export a module.
_EXPORTERS = ("torch._subclasses.fake_tensor", "torch.export", "torch.onnx", "onnxscript")


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
