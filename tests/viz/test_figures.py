"""Figures are right in their data; how they look is plotly's concern."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amos
from amos import viz
from amos.errors import AmosError, ExploreError, MappingError, ToolchainError, UnknownNameError
from amos.explore import Exploration
from amos.explore.sampled import best_sampled
from amos.mapping.simulate import _elements
from amos.perfmodel import predict
from amos.schedule import ScheduleSpace
from amos.validate import Verdict
from amos.validate.buffers import FlatAccess
from amos.viz.palette import BAD, COLOURS, INK, LINES, MARK, OUTSIDE, ZERO
from amos.viz.slots import slots

pytest.importorskip("plotly", reason="plotly is not installed")

WMMA = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
CONV = amos.operators.resolve("conv2d")
SPACE = amos.enumerate_mappings(CONV, WMMA)
A100 = amos.machines.get("a100")


@pytest.fixture(scope="module")
def explorations() -> dict[str, Exploration]:
    return {
        name: amos.explore(CONV, WMMA, machine="a100", trials=12, seed=0, method=name)
        for name in ("ga", "random")
    }


def test_matching_shows_the_matrices() -> None:
    x, y, z = viz.matching(SPACE[5]).data
    assert (np.array(y.z) > 0).tolist() == SPACE[5].matching.tolist()
    assert (np.array(x.z) != 0).tolist() == CONV.access_matrix.tolist()
    assert (np.array(z.z) != 0).tolist() == WMMA.access_matrix.tolist()
    assert list(y.x) == [it.name for it in CONV.iterations]
    # Ones of loops that stay outside belong to no group.
    outer = [list(y.x).index(name) for name in SPACE[5].outer]
    assert {v for row in np.array(x.z)[:, outer].tolist() for v in row} <= {0, -1}


def test_matching_of_a_verdict_marks_cells() -> None:
    matrix = SPACE[0].matching.copy()
    matrix[:, 5], matrix[0, 5] = False, True
    verdict = amos.check_matching(CONV, WMMA, matrix)
    (mark,) = viz.matching(verdict).layout.shapes
    assert (mark.x0, mark.y0) == (4.5, -0.5)
    with pytest.raises(MappingError, match="made by hand"):
        viz.matching(Verdict("paper"))


@pytest.mark.parametrize("name", ["npq-k-crs", "np-k-c", "q-k-r"])
def test_slots_hold_what_the_simulation_stages(name: str) -> None:
    """Held against the code that runs mappings, for the first calls and the last one."""
    op = amos.Operator.parse(
        "out[n,k,p,q] += pad(image[n,c,p*2+r-1,q+s]) * weight[k,c,r,s]",
        dict(n=2, k=5, p=3, q=7, c=5, r=3, s=2),
    )
    mapping = amos.enumerate_mappings(op, WMMA).find(name)
    physical = mapping.physical()
    counts = [op.extents[n] for n in mapping.outer] + list(physical.tiles.values())
    loops = [*mapping.outer, *physical.tiles]
    for call in {0, 1, physical.calls // 2, physical.calls - 1}:
        place = dict(zip(loops, np.unravel_index(call, counts), strict=True))
        for slot, layout in zip(slots(mapping, call), physical.layouts.values(), strict=True):
            load = layout.load
            # The position of each element in its tensor, and 0 in the padding around it.
            numbered = np.arange(1, load.tensor.elements + 1).reshape(load.tensor.shape)
            flat = FlatAccess.of(load, numbered, op.extents)
            addresses, in_bounds = _elements(layout, flat, physical)
            at = tuple(int(place[n]) for n, _, _ in layout.outer)
            at += tuple(int(place[t]) for t, _, _ in layout.tiles)
            staged = np.where(in_bounds[at], flat.buffer[np.where(in_bounds, addresses, 0)[at]], 0)
            index = np.moveaxis(np.where(slot.used[..., None], slot.elements, 0), -1, 0)
            shown = np.where(slot.used, numbered[tuple(index)], 0)
            assert shown.tolist() == staged.tolist()


def test_fragments_have_a_frame_for_each_call() -> None:
    figure = viz.fragments(SPACE[0], calls=5)
    assert len(figure.frames) == len(figure.layout.sliders[0].steps) == 5
    assert [len(frame.data) for frame in figure.frames] == [3] * 5
    assert figure.frames[0].data[0].text[0][1] == "[0,0,0,1]"
    assert figure.frames[2].data[2].text[15][3] == slots(SPACE[0], 2)[2].labels()[15][3]


def test_fragments_that_cannot_be_drawn() -> None:
    mxu = amos.intrinsics.get("tpu_mxu_m128n128k128_bf16_f32")
    gemm = amos.operators.resolve("gemm")
    with pytest.raises(MappingError, match="16384 slots"):
        viz.fragments(amos.enumerate_mappings(gemm, mxu)[0])
    with pytest.raises(MappingError, match="at least one"):
        viz.fragments(SPACE[0], calls=0)
    with pytest.raises(MappingError, match="expected 0 to 28223"):
        slots(SPACE[0], 28224)


def test_space_has_a_point_for_each_mapping() -> None:
    figure = viz.space(SPACE, A100, by="r1", samples=4)
    points = {
        n: (x, y) for t in figure.data for n, x, y in zip(t.customdata, t.x, t.y, strict=True)
    }
    assert points.keys() == {mapping.name for mapping in SPACE}
    rng = np.random.default_rng(0)
    first = best_sampled(SPACE[0], A100, 4, rng)
    assert first is not None
    assert points["npq-k-crs"] == (1.0, first[0].seconds)
    assert {trace.name for trace in figure.data} >= {"r1 ← c, r, s", "r1 ← c"}
    with pytest.raises(UnknownNameError, match="intrinsic iteration"):
        viz.space(SPACE, A100, by="i9")
    with pytest.raises(AmosError, match="no rate"):
        viz.space(SPACE, amos.machines.get("xeon_4110"))


def test_landscape_is_the_model_where_schedules_are_feasible() -> None:
    mapping, (x, y) = SPACE[0], ("tile.i1.tile", "tile.i2.tile")
    space, rng = ScheduleSpace(mapping, A100), np.random.default_rng(0)
    best = best_sampled(mapping, A100, 64, rng)
    assert best is not None
    base = best[1].schedule
    (drawn,) = viz.landscape(mapping, A100, x, y, schedule=base).data
    (unasked,) = viz.landscape(mapping, A100, x, y).data
    assert drawn.z == unasked.z
    columns, rows = space.variables[x], space.variables[y]
    assert drawn.x == tuple(map(str, columns)) and drawn.y == tuple(map(str, rows))
    z = np.array(drawn.z)
    assert z.shape == (len(rows), len(columns))
    for _ in range(20):
        r, c = int(rng.integers(len(rows))), int(rng.integers(len(columns)))
        schedule = type(base).of(base.as_dict() | {x: columns[c], y: rows[r]})
        if space.is_feasible(schedule):
            assert z[r, c] == predict(mapping, A100, schedule).seconds * 1e6
        else:
            assert np.isinf(z[r, c])
    assert 0 < np.isinf(z).sum() < z.size
    with pytest.raises(UnknownNameError, match="schedule variable"):
        viz.landscape(mapping, A100, x, "color")


def test_accuracy_gives_the_share_of_pairs() -> None:
    figure = viz.accuracy({"right": ([1, 2, 3], [2, 4, 9]), "half": ([1, 2, 3], [3, 2, 1])})
    assert [trace.name for trace in figure.data] == ["right  100.0%", "half  0.0%"]
    assert "50.0% of pairs" in figure.layout.title.text
    assert list(figure.data[0].x) == [1, 2, 3]


def test_accuracy_of_the_stored_samples_is_that_of_the_table() -> None:
    from amos.reproduce import fig5

    data = fig5.load_stored()
    predictions = fig5.predictions(data)
    figure = viz.accuracy({"resnet18:C5": predictions["resnet18:C5"]})
    (judged,) = fig5.judge(data, ["resnet18:C5"]).layers
    assert figure.data[0].name == f"resnet18:C5  {judged.pairwise:.1%}"
    assert len(figure.data[0].x) == judged.samples


def test_accuracy_needs_measurements(explorations: dict[str, Exploration]) -> None:
    with pytest.raises(ExploreError, match="was measured"):
        viz.accuracy(explorations["ga"])


def test_progress_is_the_history(explorations: dict[str, Exploration]) -> None:
    figure = viz.progress(explorations)
    for trace, (name, exploration) in zip(figure.data, explorations.items(), strict=True):
        assert trace.name == name
        drawn = [float("inf") if y is None else y for y in trace.y]
        assert drawn == exploration.history
    assert viz.progress(explorations["ga"]).data[0].name == "ga"


def test_distribution_counts_every_candidate(explorations: dict[str, Exploration]) -> None:
    for trace, exploration in zip(
        viz.distribution(explorations).data, explorations.values(), strict=True
    ):
        finite = [t.seconds * 1e6 for t in exploration.trials if t.seconds < float("inf")]
        assert sum(trace.y) == len(finite)
        full = [n for n, count in enumerate(trace.y) if count]
        assert trace.x[full[0]] == pytest.approx(min(finite), rel=0.2)
        assert trace.x[full[-1]] == pytest.approx(max(finite), rel=0.2)
    assert sum(viz.distribution({"one": [1e-5]}).data[0].y) == 1
    with pytest.raises(ExploreError, match="none of the candidates"):
        viz.distribution({"none": [float("inf")]})


def test_roofline_stays_under_its_roofs() -> None:
    """A prediction that counts each level's bytes cannot be faster than that level."""
    machine = amos.machines.get("xeon_4110")
    op = amos.operators.resolve("resnet18:C5")
    drawn = 0
    for mapping in amos.enumerate_mappings(op, VNNI, rule="access"):
        best = best_sampled(mapping, machine, 8, np.random.default_rng(0))
        assert best is not None
        traces = viz.roofline(best[1], machine).data
        roofs = {trace.legendgroup: trace for trace in traces if trace.mode == "lines"}
        assert [*roofs] == [level.name for level in machine.levels]
        (peak,) = {y for roof in roofs.values() for y in roof.y[1:]}
        rate = op.operations / predict(mapping, machine, best[1].schedule).seconds
        assert rate <= peak * (1 + 1e-9)
        for point in traces:
            if point.mode == "markers":
                drawn += 1
                roof = roofs[point.legendgroup]
                assert point.y[0] == rate <= point.x[0] * roof.y[0] / roof.x[0] * (1 + 1e-9)
    assert drawn


def test_figures_are_light_cards_whose_text_can_be_read(contrast: Any) -> None:
    """Whatever the page is: 4.5 to 1 for text, 3 to 1 for what is drawn, as WCAG asks."""
    for figure in (viz.matching(SPACE[0]), viz.fragments(SPACE[0], 2), viz.progress({"a": [1.0]})):
        style = figure.layout.template.layout
        assert (figure.layout.paper_bgcolor, figure.layout.font.color) == (None, None)
        assert contrast(style.font.color, style.paper_bgcolor) >= 4.5
        assert style.paper_bgcolor == style.plot_bgcolor
    for ground in (*COLOURS, OUTSIDE, ZERO):
        assert contrast(INK, ground) >= 4.5
        assert contrast(MARK, ground) >= 3
    # Lines are also drawn on the page itself, by the HTML of an exploration.
    for ground in ("#ffffff", "#1e1e1e", "#111111"):
        assert all(contrast(line, ground) >= 3 for line in (*LINES, BAD))


def test_another_template_takes_the_place_of_ours() -> None:
    figure = viz.progress({"a": [1.0]}).update_layout(template="plotly_dark")
    assert "#ffffff" not in figure.to_json()
    assert figure.layout.template.layout.paper_bgcolor == "rgb(17,17,17)"


def test_a_figure_is_written_as_a_page(tmp_path: Path) -> None:
    viz.write(viz.progress({"a": [1.0]}), tmp_path / "a.html")
    assert "best seconds so far" in (tmp_path / "a.html").read_text(encoding="utf-8")
    with pytest.raises(AmosError, match="cannot be written"):
        viz.write(viz.progress({"a": [1.0]}), tmp_path / "none" / "a.html")


def test_without_plotly_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(ToolchainError, match=r"pip install 'amos-mapper\[notebook\]'"):
        viz.progress({"a": [1.0]})
