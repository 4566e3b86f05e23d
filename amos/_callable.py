"""Modules that can be called like the function they are named after.

``amos.explore`` is a package and a public function. Importing any part of the
package binds the attribute ``amos.explore`` to the module, so the module itself
has to be callable for ``amos.explore(...)`` to mean one thing at all times.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, cast


class _CallableModule(ModuleType):
    """A module whose call is forwarded to ``_call_target``, "module:function"."""

    _call_target: str

    def _function(self) -> Callable[..., Any]:
        home, name = self._call_target.split(":")
        return cast(Callable[..., Any], getattr(import_module(home), name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function()(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function())


def make_callable(module: str, function: str) -> None:
    """Make an imported module callable.

    Args:
        module: name of the module; pass ``__name__``.
        function: ``"module:function"`` that a call is forwarded to; imported at
            the first call.
    """
    target = sys.modules[module]
    target.__class__ = _CallableModule
    cast(_CallableModule, target)._call_target = function
