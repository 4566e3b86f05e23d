"""Records of chains: the same chain and kernel again, and a search that goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import amos
from amos.chains import (
    ChainCandidate,
    ChainExploration,
    ChainKernel,
    Tiling,
    explore_chain,
    rebuild_chain,
)
from amos.chains.records import candidate_from
from amos.cli.app import app
from amos.errors import RecordError, UnknownNameError
from amos.intrinsics import Intrinsic
from amos.ir import Chain
from amos.records import Record, Records
from amos.records.canonical import chain_from, operator_values
from amos.records.exchange import export_lines, import_lines
from amos.validate import evaluate, random_inputs
from tests.chains.test_kernel import HALF, STENCIL
from tests.ir.test_chain import ATTENTION

pytestmark = pytest.mark.usefixtures("short_search", "one_guard")

SIZES = dict(b=2, q=24, k=32, d=16)


@pytest.mark.parametrize(
    ("text", "sizes", "dtypes"),
    [
        (ATTENTION, SIZES, HALF),
        (STENCIL, dict(v=62, y=59, x=70, r=3, s=4), dict(a="u8", w="s8", t="s32")),
        ("l = logsumexp(x[i,k] * s, axis=k); o = l * 2", dict(i=5, k=60), {}),
        ("n[i] += u8(x[i,k] * 60); o = n * 1", dict(i=3, k=48), {}),
    ],
)
def test_a_chain_is_read_back(text: str, sizes: dict[str, int], dtypes: dict[str, str]) -> None:
    chain = Chain.parse(text, sizes, dtypes, name="sample")
    again = chain_from(json.loads(json.dumps(operator_values(chain))))
    assert (again.steps, again.name, str(again)) == (chain.steps, "sample", str(chain))


def test_constants_are_read_back() -> None:
    text = "t[i,j] += x[i,k] * weight[k,j]; o[i,f] += t[i,j] * w[j,f]"
    for constants in ((), ("weight",), ("weight", "w")):
        chain = Chain.parse(text, dict(i=2, j=3, k=4, f=5), constants=constants)
        values = json.loads(json.dumps(operator_values(chain)))
        assert chain_from(values).constants == constants
        assert ("constants" in values) == bool(constants)  # earlier records have none


def test_values_that_are_no_chain_are_refused() -> None:
    with pytest.raises(RecordError, match="the record describes no chain: 'text'"):
        chain_from({"iterations": [], "dtypes": {}, "name": "x", "shapes": {}})
    values = operator_values(Chain.parse(ATTENTION, SIZES))
    with pytest.raises(RecordError, match="softmux"):
        chain_from(values | {"text": ATTENTION.replace("softmax", "softmux")})


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records") / "chains.db"


@pytest.fixture(scope="module")
def measured(file: Path) -> ChainExploration:
    """Two trials that were measured here, in the file."""
    return _explored(file, 2)


def _explored(file: Path, trials: int) -> ChainExploration:
    chain = Chain.parse(ATTENTION, SIZES)
    return explore_chain(chain, trials=trials, tiles=dict(b=1, q=8, k=16), records=file)


def _best(file: Path) -> Record:
    with Records(file, readonly=True) as records:
        return min(records.all(), key=lambda record: record.seconds)


@pytest.mark.long
def test_a_search_goes_on_where_it_stopped(measured: ChainExploration, file: Path) -> None:
    again = _explored(file, 3)
    assert (measured.replayed, again.replayed) == (0, 2)
    assert not measured.failures and measured.to_dict()["verified_elements"]
    assert str(again.trials[0]) == str(measured.trials[0])
    times = [trial.measurement and trial.measurement.times for trial in measured.trials]
    assert [x.measurement and x.measurement.times for x in again.trials[:2]] == times
    with Records(file, readonly=True) as records:
        assert len(records.all()) == len(again.trials)
        assert {record.standing for record in records.all()} == {"here"}
        names = {record.mapping_name for record in records.all()}
        assert set(records.to_frame()["mapping"]) == names


def test_a_kernel_is_rebuilt(measured: ChainExploration, file: Path) -> None:
    record = _best(file)
    candidate = rebuild_chain(record)
    assert str(candidate) in {str(trial.candidate) for trial in _explored(file, 3).trials}
    inputs = random_inputs(candidate.chain, np.random.default_rng(0))
    expected = evaluate(candidate.chain, inputs)
    kernel = amos.build(measured.best)
    assert isinstance(kernel, ChainKernel) and kernel.time() > 0 and "T.parallel" in kernel.source
    for result in (
        kernel(**inputs),
        ChainKernel(candidate)(**inputs),
        amos.simulate(candidate.chain, inputs),
        amos.simulate(measured.best.candidate, inputs),
    ):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(RecordError, match=r"amos\.chains\.rebuild_chain"):
        record.rebuild()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fingerprint": "0123"}, "another version of avx"),
        ({"schedule": {"tiles": "b:1,q:8", "packs": ""}}, ""),
        ({"schedule": {"tiles": "q:many", "packs": ""}}, "no kernel of its chain: invalid literal"),
        ({"schedule": {"tiles": "z:1", "packs": ""}}, "tile.z: no iteration of out"),
        ({"schedule": {"tiles": ""}}, "'packs'"),
        ({"schedule": {"tiles": "", "packs": "", "none/mapping": "b"}}, "'none'"),
    ],
)
def test_a_record_that_describes_no_kernel(
    measured: ChainExploration, file: Path, change: dict[str, object], message: str
) -> None:
    record = replace(_best(file), **change)  # type: ignore[arg-type]
    if not message:  # loops compute products without an instruction
        assert not rebuild_chain(record).products
        return
    with pytest.raises(RecordError, match=message):
        rebuild_chain(record)


@pytest.mark.long
def test_the_command_line(measured: ChainExploration, file: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments])
        assert result.exit_code == 0, result.output
        return result.output

    number = str(_best(file).id)
    (best, *_) = json.loads(run("records", "best", str(file), "--json"))
    assert best["operator"].startswith(ATTENTION)
    assert "winner     tiles b:1, q:8, k:16" in run("records", "replay", str(file), number)
    values = json.loads(run("records", "replay", str(file), number, "--repeat", "3", "--json"))
    assert values["tiles"] == dict(b=1, q=8, k=16) and values["verified_elements"]
    with Records(file, readonly=True) as records, Records(tmp_path / "copy.db") as copy:
        lines = [*export_lines(records)]
        assert import_lines(copy, lines).new == len(lines)
        # Lines have no order of keys: the tiles keep theirs.
        assert str(rebuild_chain(copy.get(1))) == str(rebuild_chain(records.get(1)))


def _modelled(
    file: Path, chain: Chain, unit: Intrinsic | None = None
) -> tuple[ChainExploration, list[Record]]:
    result = explore_chain(chain, unit, machine="xeon_6240", trials=2, records=file)
    with Records(file, readonly=True) as records:
        return result, records.all()


@pytest.mark.long
def test_the_model_alone_is_recorded(tmp_path: Path) -> None:
    result, (first, second) = _modelled(tmp_path / "x.db", Chain.parse(ATTENTION, SIZES))
    assert {first.standing, second.standing} == {"model"}
    assert first.predicted == result.trials[0].predicted and first.measurement is None


def test_a_chain_of_one_statement_is_rebuilt(tmp_path: Path) -> None:
    chain = Chain.parse("p[i,k] = softmax(x[i,k], axis=k)", dict(i=8, k=64))
    result, (record, *_) = _modelled(tmp_path / "x.db", chain)
    assert record.is_chain and str(rebuild_chain(record)) == str(result.trials[0].candidate)


def test_an_instruction_without_an_entry_is_recorded(tmp_path: Path) -> None:
    """It is as an object in Python; the record needs its entry to be rebuilt only."""
    own = replace(amos.intrinsics.get("avx512_fmadd_m16_f32_f32"), name="own")
    _, (record, *_) = _modelled(tmp_path / "x.db", Chain.parse(ATTENTION, SIZES), own)
    assert (record.intrinsic, record.standing) == ("own", "unknown intrinsic")
    with pytest.raises(UnknownNameError, match="unknown intrinsic 'own'"):
        rebuild_chain(record)


def test_rows_that_roll_are_recorded() -> None:
    text = "t[v,x] += a[v,x+r] * w[r]; o[y,x] += t[y+s,x] * u[s]"
    chain = Chain.parse(text, dict(v=12, y=9, x=7, r=3, s=4))
    candidate = ChainCandidate(Tiling.of(chain, dict(y=4, x=5), "y"), {})
    again = candidate_from(chain, candidate.values())
    assert again.tiling == candidate.tiling
    assert str(again.tiling) == "x:5, y:4 rolling"
