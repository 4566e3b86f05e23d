"""The wheel: everything once, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = target.glob("*.whl")
    return zipfile.ZipFile(wheel).namelist()


def test_wheel_holds_the_package_once(wheel_names: list[str]) -> None:
    sources = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "amos").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = [name for name in wheel_names if ".dist-info/" not in name]
    assert sorted(packed) == sorted(sources)


def test_wheel_is_typed_and_licensed(wheel_names: list[str]) -> None:
    assert "amos/py.typed" in wheel_names
    assert [name for name in wheel_names if name.endswith("licenses/LICENSE")]
    assert [name for name in wheel_names if name.endswith("entry_points.txt")]
