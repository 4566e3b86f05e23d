"""``amos intrinsics`` and ``amos operators``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from amos import intrinsics, operators
from amos.cli import main

VNNI = "vnni_dpbusd_m16k4_u8_s8_s32"


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_list_names_every_intrinsic(capsys: pytest.CaptureFixture[str]) -> None:
    rows = _json(["intrinsics", "list"], capsys)
    assert [row["name"] for row in rows] == list(intrinsics.names())
    assert main(["intrinsics", "list"]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in intrinsics.names())


def test_list_tells_of_broken_plug_ins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(intrinsics, "broken", lambda: {"acme": "acme:units: ImportError: gone"})
    assert main(["intrinsics", "list", "--json"]) == 0
    printed = capsys.readouterr()
    assert "plug-in 'acme' could not be loaded: acme:units: ImportError: gone" in printed.err
    json.loads(printed.out)


def test_show_prints_both_abstractions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["intrinsics", "show", VNNI]) == 0
    text = capsys.readouterr().out
    assert text.startswith(str(intrinsics.get(VNNI)))
    assert "broadcast along" in text
    shown = _json(["intrinsics", "show", VNNI], capsys)
    assert shown["extents"] == {"i1": 16, "r1": 4}
    assert shown["dtypes"] == ["uint8", "int8", "int32"]


def test_check_passes_for_every_intrinsic(capsys: pytest.CaptureFixture[str]) -> None:
    rows = _json(["intrinsics", "check"], capsys)
    assert [row["name"] for row in rows] == list(intrinsics.names())
    assert all(row["ok"] for row in rows)


def test_check_fails_for_a_broken_plug_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(intrinsics, "broken", lambda: {"acme": "gone"})
    assert main(["intrinsics", "check"]) == 2
    printed = capsys.readouterr()
    assert "plug-in acme: gone" in printed.out
    assert "failed: plug-in acme" in printed.err
    assert main(["intrinsics", "check", VNNI]) == 0


def test_operators_lists_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    rows = _json(["operators"], capsys)
    assert [row["name"] for row in rows] == list(operators.names())


def test_operators_lists_the_layers_of_a_network(capsys: pytest.CaptureFixture[str]) -> None:
    rows = _json(["operators", "resnet18"], capsys)
    assert [row["name"] for row in rows] == [f"resnet18:C{n}" for n in range(12)]
    assert rows[5]["shapes"]["weight"] == [128, 128, 3, 3]


def test_operators_shows_one_with_other_extents(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = _json(["operators", "gemm", "--extent", "m=16", "--dtype", "f16"], capsys)
    assert row["extents"]["m"] == 16
    assert row["dtypes"]["a"] == "float16"
