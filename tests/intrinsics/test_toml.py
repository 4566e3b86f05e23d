"""Intrinsics in TOML: what may be written, and every way of being wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from amos import intrinsics
from amos.errors import IntrinsicError
from amos.intrinsics import registry

GOOD = """\
name = "acme_m8n8k4_s8_s32"
family = "acme"
source = "manual, section 4"
compute = "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]"
extents = { i1 = 8, i2 = 8, r1 = 4 }
dtypes = { Src1 = "s8", Src2 = "s8", Dst = "s32" }
memory = [
  { statement = "buf.Src1[i1, r1] = global.Src1[addr_a + i1 * 4 + r1]", capacity = 64 },
  "buf.Src2[r1, i2] = global.Src2[addr_b + r1 * stride_b + i2]",
  "global.Dst[addr_c + i1 * stride_c + i2] = acc.Dst[i1, i2]",
]
registers = 2
requires = ["acme"]
arithmetic = { saturate = true }
shapes = { m = [8, 16], n = [8], k = [4], where = "m * n <= 128" }
timing = { latency = 4, interval = 1.5, source = "manual, table 2" }

[implementation]
c = "for (int x = 0; x < 64; ++x) Dst[x] += 0;"
[implementation.cuda]
source = "Dst[0] = 0;"
architectures = ["sm_80"]
"""


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    registry.names()
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setattr(registry, "_implemented", dict(registry._implemented))
    yield


def test_everything_can_be_written() -> None:
    unit, *sources = intrinsics.read(GOOD)
    assert isinstance(unit, intrinsics.Intrinsic)
    assert unit == intrinsics.from_toml(GOOD)
    assert unit.shape == (8, 8, 4)
    assert unit.arithmetic.saturate
    assert unit.shapes is not None and len(unit.shapes.members) == 2
    (timing,) = unit.timing
    assert (timing.latency, timing.interval) == (4, 1.5)
    several = GOOD.replace("timing = {", 'timing = [{ interval = 2, source = "me" }, {')
    several = several.replace('"manual, table 2" }', '"manual, table 2" }]')
    first, second = intrinsics.from_toml(several).timing
    assert (first.latency, second) == (None, timing)
    assert (unit.registers, unit.requires) == (2, ("acme",))
    assert [m.capacity for m in unit.memory] == [64, 0, 0]
    assert unit.memory[0].strides == ("4", "1")
    c, cuda = (s for s in sources if isinstance(s, intrinsics.Implementation))
    assert (c.kind, cuda.kind, cuda.architectures) == ("c", "cuda", ("sm_80",))


@pytest.mark.usefixtures("own_registry")
def test_a_file_can_be_loaded_again(tmp_path: Path) -> None:
    """As it is, or edited; another file may not take its name."""
    path, copy_path = tmp_path / "acme.toml", tmp_path / "other.toml"
    path.write_text(GOOD)
    copy_path.write_text(GOOD)
    unit = intrinsics.load(path)
    assert intrinsics.get(unit.name) is unit
    assert set(intrinsics.implementations(unit.name)) == {"c", "cuda"}
    assert intrinsics.load(str(path)) == unit
    path.write_text(GOOD[: GOOD.index("[implementation")].replace("registers = 2", "registers = 3"))
    edited = intrinsics.load(path)
    assert (unit.registers, edited.registers) == (2, 3)
    assert intrinsics.get(unit.name) is edited
    assert not intrinsics.implementations(unit.name)
    with pytest.raises(IntrinsicError, match="other.toml: name: .*'acme_m8n8k4_s8_s32' is registe"):
        intrinsics.load(copy_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('family = "acme"\n', "", "<text>: family: expected this key, found none"),
        ("registers = 2", "registres = 2", "<text>:12: registres: .*did you mean 'registers'"),
        ("registers = 2", 'registers = "two"', "registers: expected a whole number.*'two'"),
        ("registers = 2", "registers = true", "expected a whole number, found True"),
        ("registers = 2", "registers = -2", "<text>:12: registers: .*zero or more, got -2"),
        ('name = "acme_m8n8k4_s8_s32"', "name = 3", "<text>:1: name: expected a text, found 3"),
        ("i1 = 8,", "i1 = 0,", "<text>:5: extents: .*positive integer, got 0"),
        ("i1 = 8, i2 = 8, r1 = 4", "", "<text>:5: extents: .*no extent given for i1, i2, r1"),
        ("Dst[i1, i2] +=", "Dst[i1, i9] +=", "<text>:5: extents: .*no extent given for i9"),
        ("Dst[i1, i2] +=", "Dst[i1, i2] ++", "<text>:4: compute: "),
        ('Src1 = "s8"', 'Src1 = "s9"', "<text>:6: dtypes: .*unknown dtype 's9'"),
        ("dtypes = {", "dtypes = 4 #", "<text>:6: dtypes: expected a table, found 4"),
        ("capacity = 64", "capacity = 16", "<text>:7: memory: .*one fragment, 32 bytes, got 16"),
        ("capacity = 64", "capcity = 64", r"memory\[0\].capcity: expected one of .*'capacity'"),
        ("Src1[i1, r1] *", "Src1[i1 + r1, r1] *", "4: compute: .*got 'i1 [+] r1'; a unit with a w"),
        ("buf.Src1[i1, r1] =", "buf.Src1[i1 + r1] =", r":7: memory\[0\]: .*no single iteration"),
        ('"global.Dst[addr_c', '#"', "<text>:7: memory: .*no memory statement covers operand Dst"),
        ("buf.Src2[r1, i2] =", "buf.Src2[r1, i2] :", r"<text>:7: memory\[1\]: .*0 signs '='"),
        ("saturate = true", 'saturate = "yes"', ":14: arithmetic.saturate: expected true or false"),
        ("saturate = true", "round = 3", "<text>:14: arithmetic.round: expected one of saturate"),
        ("m = [8, 16]", "m = [16]", ":15: shapes: .*expected one of 16x8x4 with .*, got 8x8x4"),
        ("m = [8, 16], ", "", "<text>:15: shapes.m: expected this key, found none"),
        ("interval = 1.5", "interval = 0", "<text>:16: timing: .*above zero, below 2.*got 0"),
        ("timing = {", "timing = 3 #", "<text>:16: timing: expected a list of tables, found 3"),
        ("timing = {", "timing = [3] #", r"<text>:16: timing\[0\]: expected a table, found 3"),
        ("latency = 4", "latncy = 4", "<text>:16: timing.latncy: .*did you mean 'latency'"),
        ('source = "manual, table 2"', "source = 7", ":16: timing.source: .* a text, found 7"),
        ('requires = ["acme"]', 'requires = "acme"', "requires: expected a list of texts"),
        ("c = \"for", "d = \"for", "implementation.d: expected one of llvm, c, cuda, opencl"),
        ('architectures = ["sm_80"]', "", "cuda: .*architectures: expected at least one"),
        ("registers = 2", "registers = 2\nregisters = 3", "<text>:13: expected TOML"),
        ("registers = 2", "registers == 2", "<text>:12: expected TOML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(IntrinsicError, match=message):
        intrinsics.read(GOOD.replace(old, new, 1))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        IntrinsicError, match=r"gone\.toml: expected a readable TOML file, found: No"
    ):
        intrinsics.read(tmp_path / "gone.toml")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xff"')
    with pytest.raises(IntrinsicError, match=r"latin\.toml: expected a readable TOML file"):
        intrinsics.read(tmp_path / "latin.toml")
