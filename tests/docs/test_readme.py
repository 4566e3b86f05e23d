"""The intrinsic that the README shows is one, and as short as it says."""

from __future__ import annotations

import re
from pathlib import Path

from amos import enumerate_mappings, intrinsics, operators

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_intrinsic_of_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    (block,) = re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S)
    lines = len(block.splitlines())
    assert lines <= 20
    assert f"takes {lines} lines" in text
    unit = intrinsics.from_toml(block)
    assert enumerate_mappings(operators.resolve("conv2d"), unit, rule="paper").count == 35
