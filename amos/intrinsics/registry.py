"""Registered intrinsics: the built-in families, plug-ins and files, by one path.

A provider is a callable or an iterable that gives :class:`Intrinsic` objects and,
after the intrinsic they belong to or before it, :class:`Implementation` objects.
The built-in families are providers of this package; a plug-in names its own in
the entry-point group ``amos.intrinsics``. Both are loaded on the first look-up,
so that importing AMOS imports no plug-in.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module, metadata
from pathlib import Path
from threading import RLock
from typing import Any

from amos.errors import IntrinsicError, UnknownNameError, quote
from amos.intrinsics.description import Intrinsic
from amos.intrinsics.implementation import KINDS, Implementation
from amos.intrinsics.toml_file import read

#: Entry-point group in which a plug-in names its providers.
ENTRY_POINTS = "amos.intrinsics"

#: Modules of this package with a provider ``intrinsics``; one family each.
_BUILT_IN = (
    "amx", "arm", "avx", "avx512bf16", "elementwise", "mali", "mma", "opencl", "pmadd", "systolic",
    "virtual", "vnni", "vta", "wmma",
)  # fmt: skip

_registered: dict[str, Intrinsic] = {}
#: By the name of the intrinsic, and by kind.
_implemented: dict[tuple[str, str], Implementation] = {}
#: The file that describes an intrinsic, by its name.
_files: dict[str, Path] = {}
_broken: dict[str, str] = {}
#: Built-in names, and keys of implementations, in every process.
_standard: set[str | tuple[str, str]] = set()
_loaded = False
#: Held while they are loaded, so that no other thread sees an incomplete registry.
_loading = RLock()


def register(intrinsic: Intrinsic, *sources: Implementation) -> Intrinsic:
    """Add an intrinsic under its name, with its implementations, and return it.

    Raises:
        IntrinsicError: the name is taken, this is no intrinsic, or an
            implementation belongs to another.
    """
    _load()
    _add_all([intrinsic, *sources])
    return intrinsic


def load(path: str | Path) -> Intrinsic:
    """Register the intrinsic that a TOML file describes, and return it.

    Loading a file again replaces its intrinsic; objects made from it before do not change.

    Raises:
        IntrinsicError: the file cannot be read or is not well formed, or the
            name is taken; the message names the file and the line or key.
    """
    if not isinstance(path, str | Path):
        raise IntrinsicError(f"expected the path of a TOML file, got {quote(path)}")
    intrinsic, *sources = read(Path(path))
    assert isinstance(intrinsic, Intrinsic)
    _load()
    name, file = intrinsic.name, Path(path).resolve()
    if _files.get(name) == file:
        _registered.pop(name, None)
        for kind in KINDS:
            _implemented.pop((name, kind), None)
    try:
        _add_all([intrinsic, *sources])
    except IntrinsicError as error:
        raise IntrinsicError(f"{path}: name: {error}") from None
    _files[name] = file
    return intrinsic


def get(name: str | Intrinsic) -> Intrinsic:
    """Look up an intrinsic by name; return an intrinsic itself unchanged, registered or not.

    Raises:
        UnknownNameError: no such intrinsic; the message suggests near names.
    """
    if isinstance(name, Intrinsic):
        return name
    _load()
    try:
        return _registered[name]
    except (KeyError, TypeError):
        raise UnknownNameError("intrinsic", name, _registered) from None


def names() -> tuple[str, ...]:
    """List the names of all registered intrinsics, sorted."""
    _load()
    return tuple(sorted(_registered))


def implementations(name: str) -> dict[str, Implementation]:
    """Return the implementations of an intrinsic by kind; none if it is not registered."""
    _load()
    return {kind: _implemented[name, kind] for kind in KINDS if (name, kind) in _implemented}


def is_native(intrinsic: Intrinsic, features: frozenset[str]) -> bool:
    """Return whether a CPU with these features has the instruction, or kernels have loops."""
    source = implementations(intrinsic.name).get("llvm")
    if source is None or not source.runs_here:
        return False
    return {*intrinsic.requires, *source.requires} <= features


def provide(objects: Iterable[Intrinsic | Implementation]) -> None:
    """Register objects that are not registered yet, as a process does that received them."""
    _load()
    _add_all([x for x in objects if not (isinstance(x, Intrinsic) and x.name in _registered)])


def adopt(objects: Iterable[Intrinsic | Implementation]) -> None:
    """Register the result of :func:`list_added` in another process, in place of own additions."""
    _load()
    for name in _registered.keys() - _standard:
        del _registered[name]
    for key in _implemented.keys() - _standard:
        del _implemented[key]
    _add_all(objects)


def list_added() -> tuple[Intrinsic | Implementation, ...]:
    """List the registrations of this process beyond built-in families and plug-ins."""
    _load()
    units = (unit for name, unit in _registered.items() if name not in _standard)
    return (*units, *(each for key, each in _implemented.items() if key not in _standard))


def list_broken() -> dict[str, str]:
    """List plug-ins that could not be loaded: the entry point's name and the reason.

    A broken plug-in adds nothing, not even those of its intrinsics that are
    well formed, and takes no other plug-in down.
    """
    _load()
    return dict(_broken)


def _add_all(provider: Any) -> None:
    """Register everything that a provider gives, or nothing of it."""
    items = provider() if callable(provider) else provider
    if isinstance(items, Intrinsic):
        items = (items,)
    if not isinstance(items, Iterable):
        raise IntrinsicError(f"expected Intrinsic objects, got {type(items).__name__}")
    units: dict[str, Intrinsic] = {}
    sources: dict[tuple[str, str], Implementation] = {}
    for item in list(items):
        if isinstance(item, Intrinsic):
            if (existing := _registered.get(item.name) or units.get(item.name)) is not None:
                raise IntrinsicError(
                    f"intrinsic {item.name!r} is registered already (family {existing.family!r})"
                )
            units[item.name] = item
        elif isinstance(item, Implementation):
            key = item.intrinsic, item.kind
            if (_implemented.get(key) or sources.get(key) or item) != item:
                raise IntrinsicError(
                    f"intrinsic {item.intrinsic!r} has another {item.kind!r} implementation already"
                )
            sources[key] = item
        else:
            raise IntrinsicError(f"expected an Intrinsic, got {type(item).__name__}")
    for name, kind in sources:
        if name not in units and name not in _registered:
            raise IntrinsicError(
                f"{kind!r} implementation of {name!r}: expected the name of a registered intrinsic"
            )
    _registered.update(units)
    _implemented.update(sources)


def _load() -> None:
    global _loaded
    with _loading:
        if _loaded:
            return
        # Set first: a plug-in may call register() while it is being imported.
        _loaded = True
        for module in _BUILT_IN:
            _add_all(import_module(f"amos.intrinsics.{module}").intrinsics)
        for entry in metadata.entry_points(group=ENTRY_POINTS):
            try:
                _add_all(entry.load())
            except Exception as error:  # a plug-in can fail in any way
                _broken[entry.name] = f"{entry.value}: {type(error).__name__}: {error}"
        _standard.update(_registered, _implemented)
