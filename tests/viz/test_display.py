"""What objects look like in a notebook and in a terminal."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import amos
from amos.explore import Exploration
from amos.records import Trial
from amos.schedule import ScheduleSpace
from amos.validate import Verdict
from amos.viz import html, text
from amos.viz.display import describe
from amos.viz.drawings import Curve, Matrices
from amos.viz.latex import compute_latex, memory_latex
from tests.support.drawing.generators import drawn

WMMA = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
CONV = amos.operators.resolve("conv2d")
SPACE = amos.enumerate_mappings(CONV, WMMA)


@pytest.fixture(scope="module")
def exploration() -> Exploration:
    return amos.explore(CONV, WMMA, machine="a100", trials=8, seed=0)


def _wrong() -> Verdict:
    """r1 ← {c, s} is fine, i1 ← {p, r} is not, and nothing is left for i2."""
    matrix = np.zeros((3, 7), dtype=bool)
    matrix[0, [2, 5]] = matrix[2, [4, 6]] = True
    return amos.check_matching(CONV, WMMA, matrix, "paper")


@pytest.fixture(scope="module")
def objects(exploration: Exploration) -> dict[str, Any]:
    return {
        "Operator": CONV,
        "Intrinsic": WMMA,
        "Mapping": SPACE[0],
        "VirtualMapping": SPACE[0].virtual(),
        "PhysicalMapping": SPACE[0].physical(),
        "Verdict": _wrong(),
        "FusionVerdict": amos.fusable("y[i] += a[i,k]", "z[i] = y[i]", {"i": 4, "k": 2}),
        "MappingSpace": SPACE,
        "Prediction": exploration.prediction,
        "Exploration": exploration,
        "Trial": exploration.best,
        "Candidate": exploration.best.candidate,
        "ScheduleSpace": ScheduleSpace(SPACE[0]),
        "Machine": exploration.machine,
    }


class _Checked(HTMLParser):
    """Every tag that opens closes again."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_object_is_shown_in_both_ways(objects: dict[str, Any]) -> None:
    for name, shown in objects.items():
        assert type(shown).__name__ == name
        drawn = shown._repr_html_()
        assert drawn == html(shown)
        checked = _Checked()
        checked.feed(drawn)
        assert checked.open == [], name
        assert len(text(shown).splitlines()) >= 2
        # Nothing is fetched from elsewhere, and the same object looks the same again.
        assert "http" not in drawn.replace(html.__doc__ or "", "")
        assert drawn == html(shown)


def test_ipython_prints_the_text(objects: dict[str, Any]) -> None:
    pretty = pytest.importorskip("IPython.lib.pretty", reason="IPython is not installed").pretty
    for shown in objects.values():
        assert pretty(shown) == text(shown)


def test_a_kernel_shows_its_source() -> None:
    class Kernel:
        __module__ = "amos.runtime.kernel"
        implementation, inputs, source = "generic", ("a", "b"), "@T.prim_func"
        candidate = type("", (), {"mapping": SPACE[0]})

    assert "@T.prim_func" in text(Kernel())


def test_an_operator_is_complete() -> None:
    rendered = text(CONV)
    for words in (str(CONV), "k     spatial      64", "r     reduce        3", "1 × 64 × 58 × 58"):
        assert words in rendered
    assert re.search(r"weight +\. +1 +\. +\. +1 +1 +1", rendered)


def test_a_mapping_shows_the_three_matrices() -> None:
    (shown,) = (block for block in describe(SPACE[0]) if isinstance(block, Matrices))
    x, y, z = shown.shown
    assert np.array_equal(x.values, CONV.access_matrix)
    assert np.array_equal(y.values, SPACE[0].matching)
    assert np.array_equal(z.values, WMMA.access_matrix)
    # A column of X has the colour of the row of Y that it goes to.
    assert x.colours == y.colours == (0, 1, 0, 0, 2, 2, 2)
    assert text(SPACE[0]).count("\n") > 15
    assert "28,224 calls, utilization 100.0%" in text(SPACE[0])


def test_a_verdict_marks_the_cells_at_fault() -> None:
    verdict = _wrong()
    assert verdict.cells == (("i1", "r"),)
    assert verdict.rows == ("i2",)
    drawn = verdict._repr_html_()
    assert drawn.count('class="o x"') == 1
    assert drawn.count('<tr class="idle">') == 1
    assert "1!" in text(verdict) and "<- idle" in text(verdict)
    assert all(reason in text(verdict) for reason in verdict.reasons)


@pytest.mark.parametrize("rule", ["paper", "access", "gather"])
@drawn(60)
def test_cells_at_fault_are_those_that_reasons_name(rule: str, rng: np.random.Generator) -> None:
    """Every mark is a one of the matrix, and a reason speaks of it; and the other way round."""
    matrix = np.equal.outer(np.arange(3), rng.integers(-1, 3, 7))
    verdict = amos.check_matching(CONV, WMMA, matrix, rule)
    assert bool(verdict.cells) == bool(verdict.wrong)
    names = [it.name for it in CONV.iterations]
    for step, name in verdict.cells:
        assert matrix[["i1", "i2", "r1"].index(step), names.index(name)]
        assert any(f"`{name}`" in reason for reason in verdict.wrong)
    assert all(any(f"`{step}`" in reason for reason in verdict.idle) for step in verdict.rows)


def test_verdicts_are_equal_whatever_they_are_drawn_from() -> None:
    verdict = _wrong()
    assert verdict == Verdict(verdict.rule, verdict.wrong, verdict.idle)
    assert "Not valid" in text(Verdict("paper", ("made by hand",)))


def test_why_two_operators_are_not_one() -> None:
    verdict = amos.fusable("y[i] += a[i,k]", "z[k] += y[i] * b[i,k]", {"i": 4, "k": 2})
    assert "Not fusable" in text(verdict)
    assert "the consumer sums over `i`" in text(verdict)


def test_a_large_space_is_cut_and_says_so() -> None:
    op = amos.Operator.parse(
        "o[a,b,c,d,e,f] += x[a,b,c,g,h,i] * y[d,e,f,g,h,i]", dict.fromkeys("abcdefghi", 4)
    )
    space = amos.enumerate_mappings(op, WMMA)
    assert "the first 200 are shown" in text(space)
    assert html(space).count("<tr>") == 201


def test_an_exploration_in_which_nothing_ran(exploration: Exploration) -> None:
    from dataclasses import replace

    from amos.records import Measurement

    failed = Measurement(failure="crash", message="signal 11")
    trials = tuple(Trial(t.number, t.candidate, t.predicted, failed) for t in exploration.trials)
    rendered = text(replace(exploration, trials=trials, prediction=None))
    assert "8 crash" in rendered
    assert "nothing ran" in rendered
    assert "nothing ran" in html(replace(exploration, trials=trials))


def test_names_are_escaped() -> None:
    op = amos.Operator.parse("o[i] += a[i,k] * b[k]", dict(i=4, k=4), name="<script>")
    assert "<script>" not in html(op)
    assert "&lt;script&gt;" in html(op)


def test_latex_is_balanced_and_says_it_all() -> None:
    for name in amos.intrinsics.names():
        unit = amos.intrinsics.get(name)
        for latex in (compute_latex(unit.compute), memory_latex(unit)):
            assert latex.count("{") == latex.count("}")
            assert latex.count("[") == latex.count("]")
        assert memory_latex(unit).count("&=") == len(unit.memory)
    assert "\\mathrm{pad}(" in compute_latex(amos.operators.resolve("resnet18:C5").compute)


def test_every_intrinsic_and_operator_can_be_shown() -> None:
    for name in amos.intrinsics.names():
        assert name in text(amos.intrinsics.get(name))
        html(amos.intrinsics.get(name))
    for name in amos.operators.names():
        html(amos.operators.resolve(name))


def test_a_curve_falls_in_steps() -> None:
    curve = Curve("best", (float("inf"), 4.0, 4.0, 1.0))
    (path,) = re.findall(r'<path d="([^"]+)"', curve._repr_html_())
    assert path.startswith("M") and path.count("H") == 2
    assert str(curve).split("\n") == ["  best", "    2: 4 s, 4: 1 s"]


def test_showing_an_operator_loads_no_plotting_and_no_compiler() -> None:
    code = (
        "import sys, amos\n"
        "amos.operators.resolve('conv2d')._repr_html_()\n"
        "amos.intrinsics.get('wmma_m16n16k16_f16_f32')._repr_html_()\n"
        "print(sorted({'plotly', 'anywidget', 'IPython', 'tvm', 'deap'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_table_is_sorted_in_a_browser(browser: Any) -> None:
    page = browser.new_page()
    page.set_content(html(SPACE))
    page.click("text=utilization")
    cells = page.locator("table.s td.n:last-child").all_inner_texts()
    values = [float(value) for value in cells]
    assert values == sorted(values) and len(set(values)) > 3
    page.click("text=utilization")
    assert page.locator("table.s td.n:last-child").first.inner_text() == "1"
    page.close()
