"""Units of nobody, from their files through search and replay to an export that is run again."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amos.cli.app import main

pytestmark = pytest.mark.usefixtures("short_search", "one_guard")

MATMUL = """
name = "acme_matmul_m4n3k2_s8_s32"
family = "acme"
source = "test"
compute = "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]"
extents = { i1 = 4, i2 = 3, r1 = 2 }
dtypes = { Src1 = "s8", Src2 = "s8", Dst = "s32" }
timing = { interval = 4, source = "test" }
memory = [
    { statement = "pad.Src1[i1, r1] = global.Src1[addr_a + i1 + r1 * stride_a]", capacity = 400 },
    "pad.Src2[r1, i2] = global.Src2[addr_b + r1 * stride_b + i2]",
    { statement = "global.Dst[addr_c + i1 * stride_c + i2] = sums.Dst[i1, i2]", capacity = 960 },
]
"""
#: A filter of eight lanes: the call for one place of its window.
FILTER = """
name = "acme_filter_m8_s8_s32"
family = "acme"
source = "test"
compute = "Dst[i1] += Src1[i1] * Src2[]"
extents = { i1 = 8 }
dtypes = { Src1 = "s8", Src2 = "s8", Dst = "s32" }
timing = { interval = 1, source = "test" }
memory = [
    { statement = "line.Src1[i1] = global.Src1[addr_a + i1]", capacity = 256, banks = 2 },
    { statement = "taps.Src2[] = global.Src2[addr_b]", capacity = 64 },
    { statement = "global.Dst[addr_c + i1] = sums.Dst[i1]", capacity = 512 },
]
"""
BOARD = """
name = "acme_board"
source = "test"
cores = 1
clock = 5e8
[[level]]
name = "DRAM"
capacity = 0
units = 1
read_bandwidth = 4e9
write_bandwidth = 4e9
[peak]
[stream]
encoding = "calls"
instructions = 4096
latency = 20
scales = "s8"
"""
CONV = "out[k,p] += image[c,p + r] * weight[k,c,r]"
SIZES = ["--extent", "k=5,p=17", "--extent", "c=3,r=3", "--dtype", "s8"]
_NUMBERS = itertools.count()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    number = next(_NUMBERS)  # a name is registered once in a process
    for name, text in (("matmul", MATMUL), ("filter", FILTER), ("board", BOARD)):
        (tmp_path / f"{name}.toml").write_text(text.replace('"acme_', f'"acme{number}_'))
    return tmp_path


@pytest.mark.parametrize("unit", ["matmul", "filter"])
def test_from_a_file_to_an_export_that_computes(unit: str, files: Path, capsys: Any) -> None:
    command = ["explore", CONV, *SIZES, "--intrinsic", f"{unit}.toml", "--machine", "board.toml"]
    command += ["--trials", "3", "--records", "own.db", "--json"]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["simulated"] is True
    assert (report["max_difference"], report["verified_elements"]) == (0, 5 * 17)
    assert main(["records", "replay", "own.db", "1"]) == 0
    assert main(["export", "own.db", "--format", "stream", "--out", "own"]) == 0
    stream = json.loads((files / "own/stream.json").read_text())
    assert stream["simulated_cycles"] == round(report["measured_seconds"] * 5e8)
    before, expected = _tensors(stream, files / "own")
    assert np.array_equal(_run(stream, before), expected)
    capsys.readouterr()
    assert main(["export", "own.db", "--format", "vta", "--out", "other"]) == 2
    assert "expected the record of a kernel for vta_pynq, got one" in capsys.readouterr().err


def test_records_take_their_machine_along(files: Path, capsys: Any) -> None:
    command = ["explore", CONV, *SIZES, "--intrinsic", "filter.toml", "--machine", "board.toml"]
    assert main([*command, "--trials", "1", "--records", "own.db"]) == 0
    assert main(["records", "export", "own.db", "--output", "own.jsonl"]) == 0
    assert main(["records", "import", "read.db", "own.jsonl"]) == 0
    assert main(["records", "merge", "merged.db", "own.db"]) == 0
    for file in ("read.db", "merged.db"):
        assert main(["records", "replay", file, "1"]) == 0
    text = (files / "own.jsonl").read_text()
    row = json.loads(text)
    del row["figures"]
    (files / "own.jsonl").write_text(json.dumps(row))
    assert main(["records", "import", "without.db", "own.jsonl"]) == 0
    capsys.readouterr()
    assert main(["records", "replay", "without.db", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the record does not keep its machine, 'acme" in line


def test_an_epilogue_of_stores_is_in_the_export(files: Path) -> None:
    command = ["explore", CONV, *SIZES, "--intrinsic", "matmul.toml", "--machine", "board.toml"]
    command += ["--epilogue", "s8(relu(acc) * 0.01)", "--trials", "1", "--records", "own.db"]
    assert main(command) == 0
    assert main(["export", "own.db", "--format", "stream", "--out", "own"]) == 0
    stream = json.loads((files / "own/stream.json").read_text())
    before, expected = _tensors(stream, files / "own")
    assert expected.dtype == np.int8
    assert len(np.unique(expected)) > 3
    assert np.array_equal(_run(stream, before), expected)


def test_a_file_that_describes_no_machine(files: Path, capsys: Any) -> None:
    (files / "taken.toml").write_text(BOARD.replace("acme_board", "gemmini"))
    (files / "bad.toml").write_text(BOARD.replace('"s8"', '"f32"'))
    for name, message in (
        ("none.toml", "none.toml: expected a readable TOML file"),
        ("taken.toml", "name: expected one of its own, got 'gemmini'"),
        ("bad.toml", "scales: expected an integer dtype, of calls, got float32"),
    ):
        assert main(["machines", "show", name]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line


def _tensors(stream: Any, folder: Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """What is in DRAM before, as one flat array of fragments each, and the result behind it."""
    read = {}
    for entry in stream["tensors"]:
        values = np.frombuffer((folder / entry["file"]).read_bytes(), entry["dtype"])
        read[entry["name"]] = values.reshape(entry["shape"])
    (output,) = [x["name"] for x in stream["tensors"] if x["file"].startswith("expected")]
    return read, read.pop(output)


def _run(stream: Any, dram: dict[str, np.ndarray]) -> np.ndarray:
    """Instructions one after the other, element by element; tokens are not looked at."""
    kinds = {b["name"]: b for b in stream["buffers"]}
    chip = {n: np.full((b["depth"], *b["shape"]), 77, np.int64) for n, b in kinds.items()}
    regions = {}
    for entry in stream["tensors"]:
        shape = tuple(entry["shape"][1:])
        (size,) = {np.dtype(entry["dtype"]).itemsize * int(np.prod(shape, dtype=int))}
        regions[entry["name"]] = entry["address"] // size, entry["shape"][0]
    (output,) = [x for x in stream["tensors"] if x["file"].startswith("expected")]
    result = np.zeros(output["shape"], output["dtype"])
    for entry in stream["instructions"]:
        if entry["opcode"] == "calls":
            _call(stream["call"], entry, chip)
            continue
        own = kinds[entry["buffer"]]
        store, at = entry["opcode"] == "store", entry["sram"]
        (rows, columns), (top, first_column) = (entry["rows"], entry["columns"]), entry["before"]
        for y in range(-top, rows + entry["after"][0]):
            for x in range(-first_column, columns + entry["after"][1]):
                where = entry["dram"] + y * entry["stride"] + x
                if store:
                    result[where - regions[output["name"]][0]] = _scale(
                        chip[own["of"] or own["name"]][at], own
                    )
                elif 0 <= y < rows and 0 <= x < columns:
                    chip[own["name"]][at] = _read(stream, dram, regions, own, where)
                else:
                    chip[own["name"]][at] = 0
                at += 1
    return result


def _read(stream: Any, dram: Any, regions: Any, own: Any, where: int) -> np.ndarray:
    """The fragment of a buffer at an address, which counts its fragments."""
    for name, values in dram.items():
        base, rows = regions[name]
        if values.shape[1:] == tuple(own["shape"]) and base <= where < base + rows:
            return np.asarray(values[where - base])
    raise LookupError(f"nothing of {own['name']} at {where}")


def _scale(sums: np.ndarray, own: Any) -> np.ndarray:
    if own["scaling"] is None:
        return sums
    clipped = np.maximum(sums, 0) if own["scaling"]["relu"] else sums
    return np.clip(np.rint(clipped.astype("f4") * np.float32(own["scaling"]["factor"])), -128, 127)


def _call(call: Any, entry: Any, chip: Any) -> None:
    """Loops around calls; fragments are indexed by the letters of the statement."""
    dst, *sources = (chip[name] for name in entry["buffers"])
    indices = [x.split("[")[1].split("]")[0] for x in call["compute"].replace("+=", "*").split("*")]
    letters = [x.replace(", ", "").replace("i1", "i").replace("i2", "j") for x in indices]
    letters = [x.replace("r1", "r") for x in letters]
    steps = sorted(entry["loops"], key=lambda loop: loop["moves"][0] != 0)
    for number in np.ndindex(*(loop["length"] for loop in steps)):
        at = [
            base + sum(n * loop["moves"][op] for n, loop in zip(number, steps, strict=True))
            for op, base in enumerate(entry["bases"])
        ]
        if entry["first"] and not any(
            n for n, loop in zip(number, steps, strict=True) if not loop["moves"][0]
        ):
            dst[at[0]] = 0
        pattern = f"{','.join(letters[1:])}->{letters[0]}"
        dst[at[0]] += np.einsum(pattern, *(s[row] for s, row in zip(sources, at[1:], strict=True)))
