"""The examples in the documentation are what happens, and can be copied as they stand."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from amos.errors import AmosError

ROOT = Path(__file__).resolve().parent.parent
#: Pages whose blocks have no results below them; they run in tests/docs/.
ELSEWHERE = {"add_an_intrinsic.md"}
PAGES = sorted(
    page
    for page in (ROOT / "docs").glob("*.md")
    if page.name not in ELSEWHERE and "```python" in page.read_text(encoding="utf-8")
)
COPIED = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "notebooks").glob("*.*")]
    + [*(ROOT / "examples").rglob("*.md")]
)
_BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?", re.M | re.S)


def _shown(code: str, names: dict[str, Any]) -> str:
    """What a notebook shows of a cell: what it prints, then the value of its last line."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, "a block", "exec"), names)  # noqa: S102 - the page is ours
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "a block", "eval"), names)  # noqa: S307
                if value is not None:
                    print(repr(value))  # noqa: T201 - as a notebook does
    except AmosError as error:
        return f"{type(error).__name__}: {error}"
    return printed.getvalue()


@pytest.mark.skipif(not PAGES, reason="an unpacked source distribution has no docs/")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples(page: Path) -> None:
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    assert blocks
    names: dict[str, Any] = {}
    for code, expected in blocks:
        assert _shown(code, names).split() == expected.split(), code


@pytest.mark.parametrize("page", COPIED, ids=lambda page: page.name)
def test_what_is_copied_carries_no_prompt(page: Path) -> None:
    if page.suffix == ".ipynb":
        cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
        lines = [line for cell in cells for line in "".join(cell["source"]).splitlines()]
    else:
        lines = page.read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if line.lstrip().startswith((">>>", "$ "))]
