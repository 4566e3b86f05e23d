"""The only import of TVM: check the installed packages, then import.

TVM's wheel accepts any ``apache-tvm-ffi``, but most do not work with it, and
with some the first ``tensorize`` ends the process. A message beats a crash.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from amos.errors import ToolchainError

# As in pyproject.toml; a test compares the two.
REQUIRED = {"apache-tvm": "<0.28,>=0.27.0.post1", "apache-tvm-ffi": "<0.1.15,>=0.1.14.post0"}

_CRASHING_FFI = Version("0.1.15")
#: Environment variable that decides whether TVM loads its GPU backends.
_BACKENDS = "TVM_DEVICE_BACKEND_AUTOLOAD"
#: TVM, once it was checked and imported: reading versions takes longer than some passes.
_tvm: ModuleType | None = None
#: Whether PyTorch was there before TVM.
_torch_first = False


def check_toolchain() -> None:
    """Check that the installed TVM packages are known to work together.

    Raises:
        ToolchainError: one is missing or outside its range; the message holds
            the command that repairs it.
    """
    for name, specifier in REQUIRED.items():
        try:
            installed = Version(version(name))
        except PackageNotFoundError:
            raise ToolchainError(f"{name} is not installed\n{_repair()}") from None
        if installed in SpecifierSet(specifier, prereleases=True):
            continue
        why = f"{name} {installed} is installed, but {specifier} is needed"
        if name == "apache-tvm-ffi":
            crashes = installed >= _CRASHING_FFI
            why += ": tensorize would crash" if crashes else ": TVM would not load"
        raise ToolchainError(f"{why}\n{_repair()}")


def load_tvm() -> ModuleType:
    """Import TVM after :func:`check_toolchain`.

    Raises:
        ToolchainError: TVM is missing, known not to work, or does not load.
    """
    global _tvm, _torch_first
    if _tvm is not None:
        return _tvm
    check_toolchain()
    _torch_first = "torch" in sys.modules
    try:
        with _without_unused(), _without_relax(), _without_backends(), _listing_functions_once():
            _tvm = import_module("tvm")
        return _tvm
    except Exception as error:  # a package that TVM imports may raise anything
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        culprit = _culprit(error)
        if not culprit:
            raise ToolchainError(f"TVM does not load: {first}\n{_repair()}") from error
        raise ToolchainError(
            f"TVM imports {culprit}, which does not load: {first}\n"
            f"install {culprit} anew, or remove it if nothing needs it"
        ) from error


class LazyModule:
    """A module that is imported when one of its names is used first."""

    def __init__(self, name: str, prepare: Callable[[], object] | None = None) -> None:
        self._name, self._prepare = name, prepare
        self._module: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        if self._module is None:
            if name.startswith("__"):  # of tools that look at every object
                raise AttributeError(name)
            if self._prepare is not None:
                self._prepare()
            self._module = import_module(self._name)
        return getattr(self._module, name)


tvm, te = LazyModule("tvm", load_tvm), LazyModule("tvm.te", load_tvm)
tirx, topi = LazyModule("tvm.tirx", load_tvm), LazyModule("tvm.topi", load_tvm)
s_tir, sym = LazyModule("tvm.s_tir", load_tvm), LazyModule("tvm.sym", load_tvm)
ir, tvm_ffi = LazyModule("tvm.ir", load_tvm), LazyModule("tvm_ffi", load_tvm)


@contextmanager
def _without_unused() -> Iterator[None]:
    """Hide modules that TVM imports if they are installed, and AMOS does not use.

    PyTorch takes seconds to import. Sessions of several processes lack their library here, and the
    first error of TVM reads the symbols of all others. Other threads may be about to import
    PyTorch, so nothing is hidden while any runs.
    """
    names = [n for n in ("tvm.runtime.disco", "torch") if n not in sys.modules]
    if threading.active_count() > 1:
        yield
        return
    hidden: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
    hidden.update(dict.fromkeys(names))
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


class _Relax(ModuleType):
    """Replaces TVM's networks, a third of its import, until one of their names is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) in (None, self):
            caller = str(sys._getframe(1).f_globals.get("__name__"))
            if name == "Function" and caller.startswith("tvm."):
                return _NoFunction
            sys.modules.pop(self.__name__, None)  # a thread may be here before TVM is loaded
        return getattr(import_module(self.__name__), name)


class _NoFunction:
    """Replaces functions that TVM looks up in the networks while they are not imported."""


@contextmanager
def _without_relax() -> Iterator[None]:
    """Let TVM import its networks when they are used; AMOS does not."""
    name = "tvm.relax"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = _Relax(name)
    try:
        yield
        import_module("tvm.script").register_dialect("relax", f"{name}.script")
    finally:
        if isinstance(sys.modules.get(name), _Relax):  # so that an import finds the real one
            sys.modules.pop(name, None)


@contextmanager
def _without_backends() -> Iterator[None]:
    """Leave out what TVM registers for GPUs, half of its import; AMOS writes their code itself.

    ``tvm.backend.loader.load("cuda")`` adds it, as does importing TVM before AMOS.
    """
    earlier = os.environ.get(_BACKENDS)
    os.environ[_BACKENDS] = "0"
    try:
        yield
    finally:
        del os.environ[_BACKENDS]
        if earlier is not None:
            os.environ[_BACKENDS] = earlier


@contextmanager
def _listing_functions_once() -> Iterator[None]:
    """Let TVM's 50 modules share one list of its functions, which each would rebuild."""
    registry: Any = import_module("tvm_ffi.registry")
    list_names = registry.list_global_func_names
    registry.list_global_func_names = cache(list_names)
    try:
        yield
    finally:
        registry.list_global_func_names = list_names


def torch_came_first() -> bool:
    """Return whether the program had imported PyTorch when TVM was loaded."""
    return _torch_first


def _culprit(error: Exception) -> str:
    """Name the package that failed while TVM imported it; empty for TVM itself."""
    last, trace = "", error.__traceback__
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in ("tvm", "tvm_ffi") or (last and package not in sys.stdlib_module_names):
            last = package
        trace = trace.tb_next
    return "" if last in ("tvm", "tvm_ffi") else last


def _repair() -> str:
    packages = " ".join(f"'{name}{specifier}'" for name, specifier in REQUIRED.items())
    return f"repair with: python -m pip install {packages}"
