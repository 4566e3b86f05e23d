"""An intrinsic of one's own, from its file to an exported kernel, with the file and without."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from amos import intrinsics
from amos.cli import main
from amos.codegen.tir.tensor_intrin import implementation
from amos.errors import RecordError
from amos.intrinsics import registry
from amos.machine.cpu import cpu
from amos.records import Record, Records
from amos.records.exchange import export_lines, import_lines, merge
from amos.records.salvage import salvage

pytestmark = pytest.mark.usefixtures("short_search", "one_guard")

NAME = "acme_madd_m8k2_s16_s32"
#: LLVM's instruction has no form in C of its own.
OWN = f"""
name = "{NAME}"
family = "acme"
source = "ACME Manual, MADD"
compute = "Dst[i1] += Src1[r1] * Src2[i1, r1]"
extents = {{ i1 = 8, r1 = 2 }}
dtypes = {{ Src1 = "s16", Src2 = "s16", Dst = "s32" }}
requires = ["avx2"]
registers = 16
timing = {{ interval = 0.5, latency = 5, source = "ACME Manual, table 1" }}
memory = [
    "reg.Src1[r1] = memory.Src1[addr_a + r1]",
    "reg.Src2[i1, r1] = memory.Src2[addr_b + i1 * 2 + r1]",
    "memory.Dst[addr_c + i1] = reg.Dst[i1]",
]

[implementation.llvm]
machine = "x86_64"
source = '''
Dst[T.ramp(T.int32(0), 1, 8)] = Dst.vload([0], "int32x8") + T.call_llvm_pure_intrin(
    "int32x8",
    "llvm.x86.avx2.pmadd.wd",
    T.reinterpret("int16x16", T.broadcast(T.reinterpret("int32", Src1.vload([0], "int16x2")), 8)),
    T.reinterpret("int16x16", Src2.vload([0, 0], "int16x16")),
)
'''

[implementation.c]
machine = "x86_64"
flags = ["-mavx2"]
headers = "#include <immintrin.h>"
source = '''
int pair;
__builtin_memcpy(&pair, Src1, 4);
__m256i sums = _mm256_madd_epi16(_mm256_set1_epi32(pair), _mm256_loadu_si256((void *)Src2));
_mm256_storeu_si256((__m256i *)Dst, _mm256_add_epi32(_mm256_loadu_si256((void *)Dst), sums));
'''
"""
GEMM = ["explore", "out[i,j] += a[i,k] * weight[j,k]", "--dtype", "s16", "--dtype", "out=s32"]
SIZES = ["--extent", "i=6", "--extent", "j=19", "--extent", "k=7"]

Fresh = Callable[[], None]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "own.toml"
    path.write_text(OWN)
    return path


@pytest.fixture
def fresh() -> Iterator[Fresh]:
    """``fresh()`` leaves only what every process has registered."""
    registry.names()
    units, sources = dict(registry._registered), dict(registry._implemented)
    with pytest.MonkeyPatch.context() as patch:

        def forget() -> None:
            patch.setattr(registry, "_registered", dict(units))
            patch.setattr(registry, "_implemented", dict(sources))

        forget()
        yield forget


@pytest.fixture(scope="module")
def recorded(file: Path) -> Path:
    """The record of a kernel that the model chose; nothing was built or measured."""
    registry.names()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_registered", dict(registry._registered))
        patch.setattr(registry, "_implemented", dict(registry._implemented))
        path = file.with_name("tuning.db")
        own = ["--intrinsic", str(file), "--trials", "1", "--records", str(path), "--json"]
        assert main([*GEMM, *SIZES, *own, "--machine", "xeon_6240"]) == 0
    return path


@pytest.mark.parametrize("command", [["explore", "--trials", "1"], ["predict"], ["map"]])
def test_a_file_in_place_of_a_name(
    command: list[str], file: Path, fresh: Fresh, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = [] if command == ["map"] else ["--machine", "xeon_6240"]
    name, *own = command
    assert main([name, GEMM[1], str(file), *GEMM[2:], *SIZES, *own, *machine]) == 0
    assert "madd" in capsys.readouterr().out


@pytest.mark.parametrize("options_given", [False, True])
@pytest.mark.long
def test_replay_and_export(
    recorded: Path,
    file: Path,
    options_given: bool,
    fresh: Fresh,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = ["--intrinsic", str(file)] if options_given else []
    assert main(["records", "replay", str(recorded), "1", "--repeat", "2", *own, "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)
    assert (replayed["intrinsic"], replayed["notes"]) == (NAME, [])
    fresh()
    exported = ["export", f"{recorded}:1", "--format", "c", "--name", "own", "--out", str(tmp_path)]
    assert main([*exported, *own]) == 0
    unit = intrinsics.get(NAME)
    if implementation(unit, cpu().features) != "native":
        pytest.skip("this CPU lacks AVX2, which the implementations are written for")
    assert f"call_{NAME}(" in (tmp_path / "own.c").read_text()
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler, or no make, on the PATH")
    done = subprocess.run(
        ["make", "-sf", "own.mk", "test"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "114 elements are right" in done.stdout


def test_without_the_file_records_are_still_ours(
    recorded: Path, fresh: Fresh, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh()
    assert main(["records", "best", str(recorded)]) == 0
    assert NAME in (printed := capsys.readouterr().out)
    assert "left out" not in printed
    with Records(recorded, readonly=True) as records:
        rows, lines = records.all(), list(export_lines(records))
    copies: dict[str, list[Record]] = {"salvaged": list(salvage(recorded).records.values())}
    for name in ("imported", "merged"):
        with Records(tmp_path / f"{name}.db") as target:
            _ = import_lines(target, lines) if name == "imported" else merge(target, recorded)
            copies[name] = target.all()
    for row in (*rows, *(row for copy in copies.values() for row in copy)):
        assert row.standing == "model"
        fresh()
        assert row.rebuild().mapping.intrinsic.name == NAME


def test_another_version_stands_beside(recorded: Path, file: Path, fresh: Fresh) -> None:
    fresh()
    intrinsics.load(_changed(file, "registers = 16", "registers = 8"))
    with Records(recorded, readonly=True) as records:
        row = records.get(1)
    assert row.standing == "other version of the intrinsic"
    unit = row.rebuild().mapping.intrinsic
    assert unit.name == f"{NAME}_{row.fingerprint}"
    assert set(intrinsics.implementations(unit.name)) == {"llvm", "c"}
    with pytest.raises(RecordError, match="keeps another intrinsic than acme_madd"):
        replace(row, definition={**(row.definition or {}), "registers": 4}).rebuild()


def test_what_is_not_known_is_called_that(
    recorded: Path, fresh: Fresh, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh()
    with Records(recorded, readonly=True) as records, Records(tmp_path / "bare.db") as bare:
        rows = records.all()
        bare.add_all([replace(row, definition=None) for row in rows])
    assert main(["records", "best", str(tmp_path / "bare.db")]) == 0
    assert "1 left out (1 of an intrinsic that is not registered here)" in capsys.readouterr().out
    assert main(["records", "replay", str(tmp_path / "bare.db"), "1"]) == 2
    assert f"unknown intrinsic {NAME!r}" in capsys.readouterr().err


def _changed(file: Path, old: str, new: str) -> Path:
    path = file.with_name("changed.toml")
    path.write_text(file.read_text().replace(old, new))
    return path
