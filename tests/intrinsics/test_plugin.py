"""The sample plug-in, installed as a package and used in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MATMUL = "acme_matmul_m8n8k4_s8_s32"
OUTER = "acme_outer_m8n8_f32_f32"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sample package, and one with a package that cannot be imported."""
    package = ROOT / "examples" / "acme-intrinsics"
    if not package.exists():
        pytest.skip("an unpacked source distribution has no examples/")
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    command += ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
    done = subprocess.run(
        [*command, str(package)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    broken = target / "broken_intrinsics-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: broken-intrinsics\nVersion: 1.0\n"
    )
    (broken / "entry_points.txt").write_text("[amos.intrinsics]\nbroken = broken_intrinsics:give\n")
    (target / "broken_intrinsics.py").write_text("raise RuntimeError('out of order')\n")
    return target


def _amos(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    return subprocess.run(
        [sys.executable, "-m", "amos", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=site,
        timeout=120,
    )


def _json(site: Path, *arguments: str) -> Any:
    done = _amos(site, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_plug_in_is_listed_and_the_broken_one_is_named(site: Path) -> None:
    done = _amos(site, "intrinsics", "list", "--json")
    names = [row["name"] for row in json.loads(done.stdout)]
    assert {MATMUL, OUTER, "vnni_dpbusd_m16k4_u8_s8_s32"} <= set(names)
    assert "plug-in 'broken' is broken and could not be loaded" in done.stderr
    assert "broken_intrinsics:give: RuntimeError: out of order" in done.stderr


def test_the_plug_in_maps(site: Path) -> None:
    assert _json(site, "map", "conv2d", MATMUL)["count"] == 49
    assert _json(site, "map", "gemm", OUTER)["count"] == 1


@pytest.mark.long
def test_the_plug_in_checks(site: Path) -> None:
    row = _json(site, "intrinsics", "check", MATMUL)
    assert row["described"] is True
    assert row["equal"] is True
    assert row["ran_on"]
