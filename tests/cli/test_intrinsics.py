"""``amos intrinsics`` and ``amos operators``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amos import intrinsics, operators
from amos.cli import main
from amos.intrinsics import registry

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
    monkeypatch.setattr(
        intrinsics, "list_broken", lambda: {"acme": "acme:units: ImportError: gone"}
    )
    assert main(["intrinsics", "list", "--json"]) == 0
    printed = capsys.readouterr()
    assert (
        "plug-in 'acme' is broken and could not be loaded: acme:units: ImportError: gone"
        in printed.err
    )
    json.loads(printed.out)


def test_show_prints_both_abstractions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["intrinsics", "show", VNNI]) == 0
    text = capsys.readouterr().out
    assert text.startswith(str(intrinsics.get(VNNI)))
    assert "broadcast along" in text
    shown = _json(["intrinsics", "show", VNNI], capsys)
    assert shown["extents"] == {"i1": 16, "r1": 4}
    assert shown["dtypes"] == ["uint8", "int8", "int32"]


def test_list_has_what_a_program_needs(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row for row in _json(["intrinsics", "list"], capsys)}
    keys = {"name", "family", "m", "n", "k", "dtypes", "implementations", "source"}
    assert all(keys <= row.keys() for row in rows.values())
    vnni, wmma = rows[VNNI], rows["wmma_m32n8k16_f16_f32"]
    assert (vnni["m"], vnni["n"], vnni["k"]) == (16, 1, 4)
    assert (wmma["m"], wmma["n"], wmma["k"]) == (32, 8, 16)
    assert vnni["implementations"] == ["llvm", "c"]
    assert wmma["implementations"] == ["cuda"]


def test_show_tells_of_buffers_and_layouts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["intrinsics", "show", "vta_gemm_m1n16k16_s8_s32"]) == 0
    assert "capacity 131072 bytes; write_interval 3 cycles" in capsys.readouterr().out
    assert main(["intrinsics", "show", VNNI]) == 0
    assert "timing   latency 5, one every 0.5 cycles on xeon_6240 (" in capsys.readouterr().out
    row = _json(["intrinsics", "show", "wmma_m8n32k16_f16_f32"], capsys)
    assert row["shapes"]["where"] == "m*n*k == 4096" and row["registers"] == 31
    assert row["timing"][0]["machine"] == "v100" and row["timing"][0]["latency"] is None
    assert main(["intrinsics", "show", "mma_sync_m8n8k4_f64_f64"]) == 0
    assert "layout i1 = lane // 4, r1 = lane % 4" in capsys.readouterr().out


@pytest.mark.long
def test_check_of_one_name_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    row = _json(["intrinsics", "check", VNNI], capsys)
    assert {"name", "described", "compiled_for", "ran_on", "equal", "skipped"} <= row.keys()
    assert row["name"] == VNNI
    assert row["described"] is True and row["equal"] is True
    two = _json(["intrinsics", "check", VNNI, "gemmini_matmul_m16n16k16_s8_s32"], capsys)
    assert [each["name"] for each in two] == [VNNI, "gemmini_matmul_m16n16k16_s8_s32"]


@pytest.mark.long
def test_check_prints_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["intrinsics", "check", VNNI]) == 0
    line, summary = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{VNNI}: described; enumerates 1; compiles for ")
    assert "equal (" in line
    assert summary == "1 checked, 1 without a problem; 1 ran and 1 are equal"


def test_check_fails_for_a_broken_plug_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(intrinsics, "list_broken", lambda: {"acme": "gone"})
    monkeypatch.setattr(intrinsics, "names", lambda: ("gemmini_matmul_m16n16k16_s8_s32",))
    assert main(["intrinsics", "check"]) == 2
    printed = capsys.readouterr()
    assert "plug-in acme: BROKEN: gone" in printed.out
    assert "1 of 2 failed: plug-in acme" in printed.err


TOML = """
name = "acme_m8n8k4_s8_s32"
family = "acme"
source = "manual"
compute = "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]"
extents = { i1 = 8, i2 = 8, r1 = 4 }
dtypes = { Src1 = "s8", Src2 = "s8", Dst = "s32" }
memory = [
    "reg.Src1[i1, r1] = shared.Src1[addr_a + i1 * stride_a + r1]",
    "reg.Src2[r1, i2] = shared.Src2[addr_b + r1 * stride_b + i2]",
    "global.Dst[addr_c + i1 * stride_c + i2] = reg.Dst[i1, i2]",
]
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file with an intrinsic; each test has a registry of its own."""
    intrinsics.names()
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    path = tmp_path / "acme.toml"
    path.write_text(TOML)
    return str(path)


@pytest.mark.parametrize(
    "command",
    [
        ["map", "gemm"],
        ["map", "gemm", "acme_m8n8k4_s8_s32"],
        ["map", "gemm", VNNI],
        ["map", "gemm", "--target", "all"],
        ["map", "gemm", "--target", "cuda:sm_80"],
        ["intrinsics", "show"],
        ["intrinsics", "list"],
    ],
)
def test_every_command_takes_a_file(
    command: list[str], acme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--intrinsic", acme]) == 0
    printed = capsys.readouterr().out
    assert ("acme_m8n8k4_s8_s32" in printed) == (VNNI not in command)


def test_check_takes_a_file(acme: str, capsys: pytest.CaptureFixture[str]) -> None:
    row = _json(["intrinsics", "check", acme], capsys)
    assert row["name"] == "acme_m8n8k4_s8_s32"
    assert row["equal"] is True


def test_a_bad_file_is_refused_by_line(acme: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(acme).write_text(TOML.replace("family", "famly"))
    for command in (["intrinsics", "check", acme], ["map", "gemm", "--intrinsic", acme]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert f"{acme}:3: famly: expected one of name, compute" in error
        assert "did you mean 'family'" in error


def test_a_command_without_any_intrinsic_says_what_it_needs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["space", "gemm"]) == 2
    assert "describe one with --intrinsic FILE" in capsys.readouterr().err
    assert main(["explore", "gemm"]) == 2
    assert "give dtypes, or name one instruction" in capsys.readouterr().err


def test_instructions_of_a_machine_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["map", "gemm", "--dtype", "u8s8", "--machine", "xeon_6240"]
    listing = _json(command, capsys)
    rows = {row["intrinsic"]: row for row in listing["rows"]}
    first = rows["vnni_dpbusd_m16k4_u8_s8_s32"]
    assert first["mappings"] > 0 and 0 < first["predicted_seconds"] < 1
    assert rows["avx512_fmadd_m16_f32_f32"]["mappings"] == 0
    assert "is uint8" in rows["avx512_fmadd_m16_f32_f32"]["reason"]
    assert main(command) == 0
    assert "vnni_dpbusd_m16k4_u8_s8_s32" in capsys.readouterr().out


def test_instructions_are_listed_in_all_dtypes_where_they_are_open(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = _json(["map", "gemm", "--machine", "xeon_6240"], capsys)["rows"]
    seconds = {row["intrinsic"]: row["predicted_seconds"] for row in rows}
    assert seconds["vnni_dpbusd_m16k4_u8_s8_s32"] < seconds["avx512_fmadd_m16_f32_f32"]


def test_targets_are_tabulated(capsys: pytest.CaptureFixture[str]) -> None:
    rows = _json(["map", "conv2d", "--target", "cuda:sm_75", "--dtype", "f16"], capsys)["rows"]
    by_name = {row["intrinsic"]: row for row in rows}
    wmma = by_name["wmma_m16n16k16_f16_f32"]
    assert wmma["counts"] == {"paper": 35, "access": 49, "gather": 49}
    assert wmma["utilization"] == 1.0
    assert "is float16, its operand `Src1` is int8" in by_name["wmma_m16n16k16_s8_s32"]["why"]
    assert "wmma_m16n16k16_bf16_f32" not in by_name  # sm_80
    rows = _json(["map", "gemm", "--target", "x86:avx512_vnni"], capsys)["rows"]
    assert {row["intrinsic"].split("_")[0] for row in rows} == {"vnni"}


def test_a_target_says_what_another_order_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    types = ["--dtype", "a=s8", "--dtype", "b=u8", "--dtype", "c=s32"]
    text = ["c[i,j] += a[i,k] * b[k,j]", "--extent", "i=4", "--extent", "j=4", "--extent", "k=4"]
    rows = _json(["map", *text, *types, "--target", "x86:avx512_vnni"], capsys)["rows"]
    why = {row["intrinsic"]: row["why"] for row in rows}[VNNI]
    assert "`a` is int8, its operand `Src1` is uint8" in why
    assert why.endswith("with its sources in the order `b`, `a` it can: --commute")


def test_a_target_says_what_saturates(capsys: pytest.CaptureFixture[str]) -> None:
    text = ["c[i,j] += a[i,k] * b[k,j]", "--extent", "i=4", "--extent", "j=4"]
    command = ["map", *text, "--extent", "k=70000", "--target", "x86:avx512_vnni"]
    by_name = {row["intrinsic"]: row for row in _json(command, capsys)["rows"]}
    assert by_name[VNNI]["counts"]["paper"] == 1
    assert "up to 65793 products cannot" in by_name[VNNI.replace("dpbusd", "dpbusds")]["why"]


@pytest.mark.parametrize("target", ["cuda:80", "cuda", "arm:sve3"])
def test_unknown_targets_are_refused(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["map", "gemm", "--target", target]) == 2
    assert f"target '{target}'" in capsys.readouterr().err


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
