"""Judging the model: on samples that it must rank perfectly, and on the stored ones."""

from __future__ import annotations

import gzip
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from amos import machines
from amos.errors import RecordError
from amos.machine import Costs, fitted_costs
from amos.perfmodel import evaluate
from amos.plan import Structure
from amos.reproduce import fig5
from amos.reproduce.samples import Dataset, Sample, candidates, load, save

#: Constants unlike those of any maker.
COSTS = replace(fitted_costs("GenuineIntel"), serial=12.0, find=20.0)
LAYERS = ("resnet18:C4", "resnet18:C10")


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    """Samples whose measured times are the model's own, with other constants."""
    machine = replace(machines.get("xeon_6240"), costs=COSTS)
    rows = []
    for layer in LAYERS:
        for candidate in candidates(layer, fig5.INTRINSIC, 12, seed=1):
            structure = Structure(candidate.mapping)
            batch = candidate.schedule.batch(structure)
            seconds = float(evaluate(structure, machine, batch).seconds[0])
            rows.append(Sample.of(layer, candidate, (seconds, 1.01 * seconds)))
    return Dataset(machine, fig5.INTRINSIC, tuple(rows))


def test_the_right_constants_rank_perfectly(dataset: Dataset) -> None:
    right = fig5.judge(dataset, LAYERS, costs=COSTS)
    assert right.overall.pairwise == 1.0
    assert right.overall.recall[40] == 1.0
    assert right.within_5pct == len(LAYERS)
    wrong = fig5.judge(dataset, LAYERS, costs=replace(COSTS, serial=0.01, find=0.01))
    assert wrong.overall.pairwise < 1.0


def test_the_whole_comparison(dataset: Dataset) -> None:
    accuracy = fig5.fig5(dataset, COSTS)["fitted_on"]
    assert accuracy["layers"] == list(LAYERS)
    # The second round is the first one, slower by a hundredth.
    assert accuracy["repeatability"]["pairwise"] == 1.0
    assert accuracy["repeatability"]["recall"]["40"] == 1.0
    assert accuracy["pooled"] == {"pairwise": 1.0, "recall40": 1.0}


def test_leaving_a_term_out_changes_a_prediction() -> None:
    """Every constant counts somewhere, and no term is listed that does nothing."""
    assert {name for off in fig5.TERMS.values() for name in off} | {"ahead"} == {
        field.name for field in fields(Costs)
    }
    dataset = fig5.load_stored()
    samples = dataset.of(("resnet18:C2", "vgg16:V3"))

    def predict(**off: float) -> np.ndarray:
        machine = dataset.machine_with(replace(fitted_costs(dataset.machine.maker), **off))
        return np.concatenate([each.predict(machine, "amos+") for each in samples])

    whole = predict()
    for off in fig5.TERMS.values():
        assert not np.array_equal(predict(**off), whole), off


def test_fitting_moves_towards_the_right_constants(dataset: Dataset) -> None:
    constants = fig5.fit(dataset, LAYERS, rounds=2)
    before, after = (
        fig5.judge(dataset, LAYERS, costs=c).overall
        for c in (fitted_costs(dataset.machine.maker), constants)
    )
    assert after.pairwise >= before.pairwise


def test_what_does_not_fit_leaves_the_rest_to_be_fitted(dataset: Dataset) -> None:
    measured = dataset.of(LAYERS)[0].measured
    predicted = 2 * measured
    assert fig5.error(predicted, measured) == 0.0
    predicted[0] = np.inf
    assert fig5.error(predicted, measured) == 0.0


def test_a_dataset_survives_its_file(dataset: Dataset, tmp_path: Path) -> None:
    save(dataset, tmp_path / "samples.gz")
    # The constants are the model's, so the file does not hold them.
    assert load(tmp_path / "samples.gz") == replace(
        dataset, machine=replace(dataset.machine, costs=Costs())
    )
    first = (tmp_path / "samples.gz").read_bytes()
    save(dataset, tmp_path / "samples.gz")
    assert (tmp_path / "samples.gz").read_bytes() == first


@pytest.mark.parametrize(
    "content",
    [b"", b"text", gzip.compress(b""), gzip.compress(b'{"version": 99}')],
    # Names are the same in every process: the file's bytes hold the time.
    ids=["empty", "text", "nothing", "newer"],
)
def test_what_is_no_dataset_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "samples.gz").write_bytes(content)
    with pytest.raises(RecordError, match=r"samples\.gz"):
        load(tmp_path / "samples.gz")


def test_a_sample_without_times_is_refused() -> None:
    with pytest.raises(RecordError, match=r"times must be positive, got \(0\.0,\)"):
        Sample("resnet18:C4", {}, {}, (0.0,))


def test_sampling_is_reproducible() -> None:
    first, second = (candidates("mobilenet:M1", fig5.INTRINSIC, 5, seed=3) for _ in range(2))
    assert [c.key for c in first] == [c.key for c in second]


def test_the_stored_samples_are_ranked_better_than_by_the_equation_alone() -> None:
    stored = fig5.load_stored()
    assert set(stored.layers) == {*fig5.FITTED_ON, *fig5.HELD_BACK}
    judged = fig5.judge(stored, fig5.HELD_BACK)
    refined = judged.overall
    paper = fig5.judge(stored, fig5.HELD_BACK, "amos").overall
    # Nothing of these layers was used for fitting; the samples do not change.
    assert refined.pairwise > 0.92
    assert refined.recall[40] > 0.92
    assert judged.within_5pct == len(fig5.HELD_BACK)
    assert refined.pairwise > paper.pairwise + 0.15
    assert np.isfinite(refined.trials)


def test_a_cpu_of_another_maker_has_constants_of_its_own() -> None:
    """Thirty-one candidates a layer, so that one is 3 % of a layer's recall."""
    second = fig5.second_cpu()
    assert second["machine"] != fig5.load_stored().machine.source
    assert set(second["layers"]) == set(fig5.HELD_BACK)
    assert set(second["fitted_on"]["layers"]) == set(fig5.FITTED_ON)
    assert second["pairwise"] > 0.88
    assert second["recall"]["40"] > 0.86
    assert second["top10_within_5pct"] >= 16
    # Those of the first CPU carry some way.
    assert second["pairwise"] > second["first_constants"]["pairwise"] > 0.86
    assert second["first_constants"]["pairwise"] > second["paper_equation"]["pairwise"] + 0.1
