"""The check before TVM is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from amos import _toolchain
from amos._toolchain import LazyModule
from amos.errors import ToolchainError

ROOT = Path(__file__).parent.parent
GOOD = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}


def _install(patch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    patch.setattr(_toolchain, "version", version)
    patch.setattr(_toolchain, "_tvm", None)


@pytest.mark.parametrize("ffi", ["0.1.14.post0", "0.1.14.post1"])
def test_accepts_what_works(monkeypatch: pytest.MonkeyPatch, ffi: str) -> None:
    _install(monkeypatch, GOOD | {"apache-tvm-ffi": ffi})
    _toolchain.check_toolchain()


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        (GOOD | {"apache-tvm-ffi": "0.1.15"}, "apache-tvm-ffi 0.1.15 .* tensorize would crash"),
        (GOOD | {"apache-tvm-ffi": "0.2.0rc1"}, "tensorize would crash"),
        (GOOD | {"apache-tvm-ffi": "0.1.13"}, "apache-tvm-ffi 0.1.13 .* TVM would not load"),
        (GOOD | {"apache-tvm-ffi": "0.1.14"}, "TVM would not load"),
        (GOOD | {"apache-tvm": "0.26.0"}, "apache-tvm 0.26.0 is installed, but .* is needed"),
        (GOOD | {"apache-tvm": "0.28.0"}, "apache-tvm 0.28.0 is installed"),
        ({"apache-tvm": "0.27.0.post1"}, "apache-tvm-ffi is not installed"),
        ({}, "apache-tvm is not installed"),
    ],
)
def test_refuses_the_rest_with_the_repair(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], message: str
) -> None:
    _install(monkeypatch, versions)
    with pytest.raises(ToolchainError, match=message) as caught:
        _toolchain.load_tvm()
    problem, repair = str(caught.value).splitlines()
    for name, requirement in _toolchain.REQUIRED.items():
        assert f"'{name}{requirement}'" in repair
    assert "pip install" in repair


def test_a_library_that_does_not_load_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> ModuleType:
        raise OSError("libtvm_ffi.so: undefined symbol\nand more")

    _install(monkeypatch, GOOD)
    monkeypatch.setattr(_toolchain, "import_module", fail)
    with pytest.raises(ToolchainError, match="TVM does not load: libtvm_ffi.so: undefined symbol"):
        _toolchain.load_tvm()


@pytest.mark.parametrize("raised", ["OSError('no lib.so')", "RuntimeError('no lib.so')"])
def test_a_broken_package_that_tvm_imports_is_named(
    raised: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TVM survives only its absence."""
    (tmp_path / "ml_dtypes").mkdir()
    (tmp_path / "ml_dtypes" / "__init__.py").write_text(f"raise {raised}\n")
    done = subprocess.run(
        [sys.executable, "-c", "from amos._toolchain import load_tvm; load_tvm()"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
    )
    *_, first, second = done.stderr.splitlines()
    assert "ToolchainError: TVM imports ml_dtypes, which does not load: no lib.so" in first
    assert second == "install ml_dtypes anew, or remove it if nothing needs it"


def test_tvm_does_not_import_torch(tmp_path: Path) -> None:
    """It would where it is installed, which takes seconds, and fail with a broken one."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("value = 7\n")
    code = "from amos._toolchain import load_tvm; load_tvm(); import sys; "
    code += "print('torch' in sys.modules); import torch; print(torch.value)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["False", "7"], done.stderr


def test_tvm_has_the_names_that_it_has_alone() -> None:
    """Its modules look for their functions in one list, which is made before all are imported."""
    code = "names = [m for m in sys.modules if m.startswith('tvm.') and '.disco' not in m]; "
    code += "print(sorted(f'{m}.{n}' for m in names for n in vars(sys.modules[m])))"
    alone, here = (
        subprocess.run(
            [sys.executable, "-c", f"import sys; {load}; {code}"],
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        for load in (
            "sys.modules['torch'] = None; import os; "
            "os.environ['TVM_DEVICE_BACKEND_AUTOLOAD'] = '0'; import tvm",
            "from amos._toolchain import load_tvm; load_tvm(); import tvm.relax",
        )
    )
    assert alone.stdout == here.stdout != "", here.stderr


@pytest.mark.parametrize("setting", ["", "os.environ['TVM_DEVICE_BACKEND_AUTOLOAD'] = '1'; "])
def test_tvm_loads_no_backends_for_gpus(setting: str) -> None:
    """They take half of its import; the variable of the environment is as it was before."""
    code = f"import os, sys; {setting}before = {{**os.environ}}; from amos._toolchain import "
    code += "load_tvm; load_tvm(); assert os.environ == before; from tvm.backend import loader; "
    code += "assert not loader.is_loaded('cuda'); loader.load('cuda'); "
    code += "print(loader.is_loaded('cuda'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == ["True"], done.stderr


@pytest.mark.parametrize(
    "use",
    [
        "tvm.relax.Var",
        "from tvm import relax; assert relax.Function is tvm.relax.Function",
        "tvm.script.from_source('@R.function\\ndef f(x: R.Tensor((1,))):\\n    return x')",
    ],
)
def test_networks_of_tvm_are_imported_when_they_are_used(use: str) -> None:
    code = "import sys; from amos._toolchain import load_tvm; tvm = load_tvm(); "
    code += "assert not any(n.startswith('tvm.relax') for n in sys.modules); "
    code += f"{use}; assert tvm.relax is sys.modules['tvm.relax']; assert tvm.relax.Function"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_threads_that_wait_for_tvm_import_its_networks() -> None:
    code = """
import sys, threading, time
from amos._toolchain import load_tvm
seen = []
def use():
    while "tvm" not in sys.modules:
        time.sleep(0.001)
    from tvm import relax
    seen.append(relax.Function)
threads = [threading.Thread(target=use) for _ in range(4)]
for thread in threads:
    thread.start()
tvm = load_tvm()
for thread in threads:
    thread.join()
assert seen == [tvm.relax.Function] * 4
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_kernels_are_compiled_without_networks_of_tvm() -> None:
    code = "import sys, amos; op = amos.operators.gemm(m=16, n=16, k=16, dtype='f32'); "
    code += "amos.build(amos.explore(op, trials=1).best); "
    code += "assert 'tvm' in sys.modules and 'tvm.relax' not in sys.modules"
    environment = {**os.environ, "AMOS_CACHE_MIB": "0"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=environment)


def test_ranges_are_those_of_the_package() -> None:
    project = ROOT / "pyproject.toml"
    declared = [
        Requirement(line)
        for line in tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
    ]
    ranges = {each.name: each.specifier for each in declared if each.name in _toolchain.REQUIRED}
    assert ranges == {name: SpecifierSet(text) for name, text in _toolchain.REQUIRED.items()}


def test_handles_of_modules_do_not_import_what_tools_ask_for() -> None:
    """``doctest`` asks every object for ``__wrapped__``, and the module may be missing."""
    missing = LazyModule("amos_is_missing")
    assert not hasattr(missing, "__wrapped__")
    with pytest.raises(ModuleNotFoundError):
        missing.anything  # noqa: B018
