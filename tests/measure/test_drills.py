"""The drills, at a size that takes seconds; `make drills` runs them whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.drills import (
    damage_drill,
    full_disk_drill,
    hostile_drill,
    kill_drill,
    overhead_drill,
    writers_drill,
)
from tests.support.misbehaviour import HOSTILE

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="needs /proc to see which processes live"
)


@pytest.mark.long
def test_kills(tmp_path: Path) -> None:
    figures = kill_drill(2, tmp_path, trials=30, seed=1)
    assert figures["completed_resumes"] == 2
    assert figures["interrupted"] > 0
    for name in ("lost_records", "duplicate_records", "corrupt_files"):
        assert figures[name] == 0


@pytest.mark.long
def test_hostile_candidates(tmp_path: Path) -> None:
    figures = hostile_drill(60, 2 * len(HOSTILE), tmp_path, timeout=0.5)
    assert figures["candidates"] == 60
    assert figures["unclassified"] == 0
    assert figures["leftover_processes"] == 0
    assert sum(figures["failures"].values()) == 2 * len(HOSTILE)
    assert set(figures["failures"]) == set(HOSTILE.values())


def test_a_full_disk(tmp_path: Path) -> None:
    figures = full_disk_drill(tmp_path)
    assert figures["full_disk_reported"] > 0
    assert figures["full_disk_lost"] == 0
    assert figures["full_disk_told"] == 1


def test_four_writers(tmp_path: Path) -> None:
    assert set(writers_drill(tmp_path, trials=12).values()) == {0}


def test_damaged_files(tmp_path: Path) -> None:
    figures = damage_drill(tmp_path)
    assert figures["damaged_refused"] == 3
    headless = figures["salvage"].pop("headless")
    assert "sqlite3" in headless["said"]
    assert ".recover" in headless["said"]
    for salvaged in figures["salvage"].values():
        assert salvaged["genuine"]
        assert salvaged["left_alone"]
        assert salvaged["salvaged"] > salvaged["of"] / 4


@pytest.mark.slow
def test_overhead() -> None:
    assert overhead_drill(10)["overhead_ms_real"] < 10
