"""Notebooks as they are committed; `make test-notebooks` runs them."""

from __future__ import annotations

import ast
import base64
import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NAMES = (
    "01_first_mapping",
    "02_mapping_spaces",
    "03_your_own_intrinsic",
    "04_performance_model",
    "05_search",
    "06_kernels",
    "07_tensor_core",
    "08_your_own_accelerator",
)
_KIB = 288

pytestmark = pytest.mark.skipif(
    not NOTEBOOKS, reason="an unpacked source distribution has no notebooks/"
)
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def _cells(path: Path, kind: str) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == kind]


def test_the_course_is_complete() -> None:
    assert tuple(path.stem for path in NOTEBOOKS) == NAMES


@each_notebook
def test_outputs_are_there_and_small(path: Path) -> None:
    assert path.stat().st_size < _KIB << 10
    code = _cells(path, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
    kinds = {kind for o in outputs for kind in o.get("data", {})}
    assert "application/vnd.plotly.v1+json" in kinds or path.stem == "03_your_own_intrinsic"
    assert "text/html" in kinds
    # Pages that only show notebooks draw no figure: each has a picture beside it.
    figures = [o["data"] for o in outputs if "application/vnd.plotly.v1+json" in o.get("data", {})]
    for data in figures:
        assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")


@each_notebook
def test_it_is_a_text_with_code_in_it(path: Path) -> None:
    """Every stretch of code has a few words before it."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert cells[0]["cell_type"] == "markdown"
    assert "".join(cells[0]["source"]).startswith(f"# {int(path.name[:2])}. ")
    assert len(_cells(path, "markdown")) >= 0.6 * len(_cells(path, "code"))


@each_notebook
def test_only_public_names_are_imported(path: Path) -> None:
    for cell in _cells(path, "code"):
        for node in ast.walk(ast.parse("".join(cell["source"]))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("amos"):
                names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
                assert not [name for name in names if name.startswith("_")]


def test_the_readme_names_them_all() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in NAMES)
