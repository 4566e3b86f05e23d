"""The README is short, its examples run, its intrinsic is one, its extras are all there are."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from amos import enumerate_mappings, intrinsics, operators

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]


def test_the_intrinsic_of_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    (block,) = re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S)
    lines = len(block.splitlines())
    assert lines <= 20
    assert f"takes {lines} lines" in text
    unit = intrinsics.from_toml(block)
    assert enumerate_mappings(operators.resolve("conv2d"), unit, rule="paper").count == 35


@pytest.mark.slow
def test_the_python_of_the_readme() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, str(README), "exec"), {})  # noqa: S102 - the page is ours


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="a source distribution has no docs/")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """To files that are there, and to headings that they have."""
    for link, _, heading in re.findall(r"\]\(([^)#:]*)(#([^)]+))?\)", page.read_text("utf-8")):
        target = page.parent / link if link else page
        assert target.exists(), link
        if heading:
            titles = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.M)
            slugs = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert heading in slugs, f"{link}#{heading}"


def test_the_readme_lists_every_extra() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", README.read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == sorted(EXTRAS)


def test_the_notebooks_need_no_other_extra() -> None:
    """One of them compares methods that learn; tests run them too."""
    assert set(EXTRAS["learned"]) <= set(EXTRAS["notebook"])
    missing = set(EXTRAS["notebook"]) - set(EXTRAS["test"])
    assert {name.partition(">")[0] for name in missing} == {"jupyterlab"}


@pytest.mark.parametrize(("name", "most"), [("README.md", 150), ("ARCHITECTURE.md", 200)])
def test_what_newcomers_read_is_short(name: str, most: int) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= most
