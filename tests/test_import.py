"""``import amos``: quick, and every public name is there when it is used."""

from __future__ import annotations

import inspect
import subprocess
import sys
import types

import pytest

import amos
from amos._callable import make_callable

_HEAVY = ("tvm", "pandas", "sympy", "deap", "typer", "rich", "numpy")


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_import_is_quick_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); import amos; "
        "print(time.perf_counter() - start, *sys.modules)"
    )
    seconds, *modules = _python(code).split()
    assert not set(_HEAVY) & set(modules)
    assert float(seconds) < 0.5


@pytest.mark.parametrize("name", amos.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(amos, name) is not None
    assert name in dir(amos)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'amos' has no attribute 'nothing'"):
        _ = amos.nothing  # type: ignore[attr-defined]


def test_the_public_names_load_no_compiler_and_no_pictures() -> None:
    code = (
        "import sys, amos\n"
        "for name in amos.__all__: getattr(amos, name)\n"
        "heavy = {'tvm', 'pandas', 'plotly', 'anywidget', 'ipywidgets', 'IPython'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert _python(code) == "[]"


def test_explore_is_a_function_whatever_was_imported_before() -> None:
    code = (
        "import inspect, amos.explore\n"
        "import amos\n"
        "assert callable(amos.explore)\n"
        "print(*inspect.signature(amos.explore).parameters)"
    )
    assert "seed" in _python(code).split()


def test_a_callable_module_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("callable_module_of_a_test")
    module.add = lambda a, b=2: a + b  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    make_callable(module.__name__, f"{module.__name__}:add")
    assert module(1) == 3  # type: ignore[operator]
    assert list(inspect.signature(module).parameters) == ["a", "b"]  # type: ignore[arg-type]
