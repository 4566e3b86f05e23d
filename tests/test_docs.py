"""The examples in the documentation are what happens."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
#: Pages that are no sessions of Python; their blocks run in tests/docs/.
ELSEWHERE = {"add_an_intrinsic.md"}
PAGES = sorted(page for page in DOCS.glob("*.md") if page.name not in ELSEWHERE)


@pytest.mark.skipif(not PAGES, reason="an unpacked source distribution has no docs/")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples(page: Path) -> None:
    found = doctest.testfile(
        str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert found.attempted
    assert found.failed == 0
