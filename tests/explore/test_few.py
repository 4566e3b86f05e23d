"""``tiling="few"``: listed schedules, adapted to each mapping."""

from __future__ import annotations

import json

import numpy as np
import pytest

import amos
from amos.cli import main
from amos.errors import ExploreError, UnknownNameError
from amos.explore.few import Few, list_candidates
from amos.explore.methods import search_of
from amos.explore.objective import Problem
from amos.explore.ranking import rank_candidates
from amos.plan.target import target_of, targets
from amos.records import Measurement, Trial
from amos.schedule.few import MOST, Template, templates

VNNI, WMMA = "vnni_dpbusd_m16k4_u8_s8_s32", "wmma_m16n16k16_f16_f32"
CASES = [
    ("resnet18:C5", VNNI, "xeon_6240"),
    ("vgg16:V5", WMMA, "a100"),
    ("gemm", WMMA, "a100"),
    ("vgg16:V6", "opencl_mad_m8_f32", "pocl"),
]


def problem_of(layer: str, unit: str, machine: str) -> Problem:
    intrinsic = amos.intrinsics.get(unit)
    mappings = amos.enumerate_mappings(amos.operators.resolve(layer), intrinsic)
    return Problem(list(mappings), amos.machines.get(machine, [intrinsic]))


@pytest.mark.parametrize("case", CASES)
def test_at_most_200_feasible_candidates_near_a_search(case: tuple[str, str, str]) -> None:
    problem = problem_of(*case)
    listed = list_candidates(problem, templates(target_of(problem.machine)))
    assert 20 <= len(listed) <= MOST
    assert len({each.key for each in listed}) == len(listed)
    assert {each.mapping.name for each in listed} == {each.name for each in problem.mappings}
    for candidate in listed:
        problem.space(candidate.mapping).check(candidate.schedule)
    searched = problem.seconds(rank_candidates(problem, 4)).min()
    assert problem.seconds(listed).min() <= 1.15 * searched


def test_a_template_gives_its_own_schedule_back_and_fits_others() -> None:
    problem = problem_of("resnet18:C5", VNNI, "xeon_6240")
    space = problem.space(problem.mappings[0])
    rng = np.random.default_rng(0)
    for schedule in space.draw(5, rng):
        template = Template.of(space, schedule)
        assert template.schedule(space) == schedule
        for mapping in problem.mappings[1:3]:
            adapted = template.schedule(problem.space(mapping))
            assert adapted is not None
            problem.space(mapping).check(adapted)


def test_targets_with_templates_have_different_ones() -> None:
    for target in targets():
        choices = templates(target)
        texts = {json.dumps(each.values, sort_keys=True) for each in choices}
        assert len(texts) == len(choices)
        assert bool(choices) == bool(target.templates)


def test_orders_that_the_model_cannot_tell_apart_are_tried_of_the_best_alone() -> None:
    problem = problem_of("vgg16:V8", "opencl_mad_m8_f32", "pocl")
    search = Few(problem, np.random.default_rng(0))
    first = search.ask(8)
    predictions = [f"{seconds:.5g}" for seconds in problem.seconds(first)]
    assert predictions == sorted({*predictions}, key=float)
    for number, candidate in enumerate(first):
        times = (0.05 if number == 2 else 0.06,)
        problem.tell(Trial(number, candidate, float(predictions[number]), Measurement(times)))
    second = search.ask(8)
    ties = [f"{seconds:.5g}" == predictions[2] for seconds in problem.seconds(second)]
    assert ties == [True] * 5 + [False] * 3
    assert len({x.schedule.order for x in (first[2], *second[:5])}) == 6


def test_a_target_without_templates_draws() -> None:
    problem = problem_of("resnet18:C5", VNNI, "xeon_6240")
    listed = list_candidates(problem, (), 40)
    assert 20 <= len(listed) <= 40
    assert listed == list_candidates(problem, (), 40)


def _gemm() -> amos.Operator:
    return amos.operators.resolve("gemm", dict(m=256, n=256, k=256))


def test_explore_goes_through_the_list_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["gemm", WMMA, "--extent", "m=256,n=256,k=256", "--machine", "a100"]
    options = ["--executor", "model", "--tiling", "few", "--trials", "500", "--json"]
    assert main(["explore", *arguments, *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert 100 <= result["trials"] == result["space_size"] <= MOST
    assert result["method"] == "few"
    problem = Problem([*amos.enumerate_mappings(_gemm(), WMMA)], amos.machines.get("a100"))
    listed = problem.seconds(list_candidates(problem, templates(target_of(problem.machine))))
    assert result["predicted_seconds"] == listed.min()


def test_operators_of_a_method_that_the_list_replaces() -> None:
    options = amos.SearchOptions(tiling="few", toolbox={"mutate": lambda individual: individual})
    with pytest.raises(ExploreError, match="'ga', which has operators, got 'tiling few'"):
        search_of("ga", options)


def test_an_unknown_tiling_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown tiling 'fewer'"):
        amos.SearchOptions(tiling="fewer")  # type: ignore[arg-type]
