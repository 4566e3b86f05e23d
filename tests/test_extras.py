"""Extras: what notebooks and modules import is declared, and each extra works by itself."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
#: Distributions whose modules have other names; None where another package brings the module.
DISTRIBUTIONS = {
    "IPython": "ipykernel",
    "google": "protobuf",
    "pyopencl": "pyopencl",
    "traitlets": "anywidget",
    "tvm": "apache-tvm",
    "tvm_ffi": "apache-tvm-ffi",
    "xgboost": "xgboost-cpu",
}
#: A statement for each extra that fails without it.
SMOKE = {
    "bench": "import cloudpickle, psutil, torch, tornado, xgboost",
    "cuda": "from amos.cuda.codegen.toolchain import compiler_for; import nvidia.cuda_nvcc",
    "distributed": "import amos, distributed, amos.measure.dask_executor",
    "learned": "import xgboost, amos; amos.explore(amos.operators.resolve('resnet18:C2', "
    "dtype='u8s8'), machine='xeon_6240', trials=2, method='cga', progress=False)",
    "networks": "import amos, onnx, onnxruntime, openvino, torch",
    "notebook": "",
    "onnx": "import amos, onnx, amos.network; amos.load_network",
    "opencl": "import pyopencl; assert pyopencl.get_platforms()",
    "test": "import amos, hypothesis, pytest, xgboost, onnxruntime",
    "torch": "import amos, torch; amos.load_network(torch.nn.Linear(8, 8), "
    "inputs=(torch.zeros(4, 8),)).tasks",
}


def _names(requirements: list[str]) -> set[str]:
    return {Requirement(each).name for each in requirements}


def _required(tree: ast.AST) -> Iterator[str]:
    """Packages that code imports, but for those whose absence it handles."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Try):
            continue
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        yield from _required(node)


def _foreign(source: str) -> set[str]:
    """Distributions that a source needs beside Python and AMOS."""
    names = {*_required(ast.parse(source))} - {*sys.stdlib_module_names, "amos"}
    return {DISTRIBUTIONS.get(name, name) for name in names}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_extra_has_what_notebooks_import(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    lines = [line for text in code for line in text.splitlines() if line[:1] not in ("%", "!")]
    declared = _names(PROJECT["dependencies"]) | _names(EXTRAS["notebook"])
    assert _foreign("\n".join(lines)) <= declared


def test_the_package_imports_only_what_is_declared() -> None:
    """Whatever a module imports, at its top or when used, some extra installs."""
    declared = _names(PROJECT["dependencies"]).union(*map(_names, EXTRAS.values()))
    undeclared = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "amos").rglob("*.py"))
        for name in _foreign(path.read_text(encoding="utf-8")) - declared
    }
    assert not undeclared


def test_each_extra_is_documented_and_tried() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert SMOKE.keys() == EXTRAS.keys()
    assert all(f"| `{name}` |" in readme for name in EXTRAS)


@pytest.mark.slow
@pytest.mark.extras
@pytest.mark.skipif(
    "AMOS_TEST_EXTRAS" not in os.environ, reason="downloads packages: make test-extras"
)
@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_an_extra_works_in_an_environment_of_its_own(extra: str, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    install = [python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    _run([*install, f"{ROOT}[{extra}]"], tmp_path)
    _run([python, "-P", "-W", "ignore", "-c", SMOKE[extra] or "import amos"], tmp_path)
    if extra == "notebook":
        path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        command: list[object] = [
            python,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            tmp_path,
        ]
        command += ["-c", os.devnull, "--nbmake", "--nbmake-timeout=600", ROOT / "notebooks"]
        _run(command, tmp_path, PATH=path)


def _run(command: Sequence[object], folder: Path, **variables: str) -> None:
    """Run a command that does not see this environment's packages."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=folder, env=clean | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
