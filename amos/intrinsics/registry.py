"""Registered intrinsics: the built-in families and those of plug-ins, by one path.

A provider is a callable or an iterable that gives :class:`Intrinsic` objects.
The built-in families are providers of this package; a plug-in names its own in
the entry-point group ``amos.intrinsics``. Both are loaded on the first look-up,
so that importing AMOS imports no plug-in.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module, metadata
from typing import Any

from amos.errors import IntrinsicError, UnknownNameError
from amos.intrinsics.description import Intrinsic

__all__ = ["ENTRY_POINTS", "broken", "get", "names", "register"]

#: Entry-point group in which a plug-in names its providers.
ENTRY_POINTS = "amos.intrinsics"

#: Modules with a provider ``intrinsics``; one family each.
_BUILT_IN = ("amos.intrinsics.virtual", "amos.intrinsics.vnni", "amos.intrinsics.wmma")

_registered: dict[str, Intrinsic] = {}
_broken: dict[str, str] = {}
_loaded = False


def register(intrinsic: Intrinsic) -> Intrinsic:
    """Add an intrinsic under its name, and return it.

    Raises:
        IntrinsicError: the name is taken, or this is no intrinsic.
    """
    _load()
    return _add(intrinsic)


def get(name: str) -> Intrinsic:
    """The intrinsic of that name.

    Raises:
        UnknownNameError: no such intrinsic; the message suggests near names.
    """
    _load()
    try:
        return _registered[name]
    except (KeyError, TypeError):
        raise UnknownNameError("intrinsic", str(name), _registered) from None


def names() -> tuple[str, ...]:
    """Names of all registered intrinsics, sorted."""
    _load()
    return tuple(sorted(_registered))


def broken() -> dict[str, str]:
    """Plug-ins that could not be loaded: the entry point's name and the reason.

    A broken plug-in adds nothing, not even those of its intrinsics that are
    well formed, and takes no other plug-in down.
    """
    _load()
    return dict(_broken)


def _add(intrinsic: Any) -> Intrinsic:
    if not isinstance(intrinsic, Intrinsic):
        raise IntrinsicError(f"expected an Intrinsic, got {type(intrinsic).__name__}")
    if intrinsic.name in _registered:
        raise IntrinsicError(
            f"intrinsic {intrinsic.name!r} is registered already "
            f"(family {_registered[intrinsic.name].family!r})"
        )
    _registered[intrinsic.name] = intrinsic
    return intrinsic


def _add_all(provider: Any) -> None:
    """Register everything that a provider gives, or nothing of it."""
    given = provider() if callable(provider) else provider
    if isinstance(given, Intrinsic):
        given = (given,)
    if not isinstance(given, Iterable):
        raise IntrinsicError(f"expected Intrinsic objects, got {type(given).__name__}")
    added: list[str] = []
    try:
        for intrinsic in given:
            added.append(_add(intrinsic).name)
    except BaseException:
        for name in added:
            del _registered[name]
        raise


def _load() -> None:
    global _loaded
    if _loaded:
        return
    # Set first: a plug-in may call register() while it is being imported.
    _loaded = True
    for module in _BUILT_IN:
        _add_all(import_module(module).intrinsics)
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        try:
            _add_all(entry.load())
        except Exception as error:  # a plug-in can fail in any way whatever
            _broken[entry.name] = f"{entry.value}: {type(error).__name__}: {error}"
