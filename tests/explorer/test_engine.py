"""What the explorer answers, and that nonsense gets the command line's words."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import runpy
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import amos
from amos.cli import main
from amos.explorer import Engine, State
from tests.support.drawing.generators import drawn

LARGE: dict[str, Any] = dict(
    operator="o[a,b,c,d,e,f,g,h,i,j] += x[a,b,c,d,e,k,l,m,n] * y[f,g,h,i,j,k,l,m,n]",
    extents=", ".join(f"{n}=4" for n in "abcdefghijklmn"),
)
ENGINE = Engine()


def _judge(**state: Any) -> dict[str, Any]:
    return ENGINE.answer({"kind": "judge", "state": state})


def _rows(state: dict[str, Any], **how: Any) -> dict[str, Any]:
    return ENGINE.answer({"kind": "rows", "state": state, "first": 0, "count": 50} | how)


def _run(code: str, folder: Path) -> str:
    """What a program prints."""
    path = folder / "shown.py"
    path.write_text(code, encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        runpy.run_path(str(path))
    return output.getvalue()


def test_the_first_mapping_is_shown_first() -> None:
    answer = _judge()
    assert answer["ok"]
    assert answer["verdict"]["kind"] == "valid"
    assert answer["mapping"]["name"] == "npq-k-crs"
    assert answer["prediction"]["machine"] == "a100"
    assert answer["count"] == "49"
    json.dumps(answer, allow_nan=False)


@pytest.mark.parametrize("rule", ["paper", "access", "gather"])
@drawn(40)
def test_verdicts_are_those_of_the_package(rule: str, rng: np.random.Generator) -> None:
    op = amos.operators.resolve("conv2d")
    unit = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
    assignment = rng.integers(-1, 3, 7)
    verdict = amos.check_matching(op, unit, np.equal.outer(np.arange(3), assignment), rule)
    answer = _judge(rule=rule, assignment=assignment.tolist())
    assert answer["verdict"]["reasons"] == list(verdict.reasons)
    assert (answer["mapping"] is not None) == bool(verdict)
    assert (rule in answer["verdict"]["accepted_by"]) == bool(verdict)


@pytest.mark.parametrize(
    ("field", "text", "argv"),
    [
        ("operator", "conv2", ["conv2", "wmma_m16n16k16_f16_f32"]),
        ("operator", "o[i] +=", ["o[i] +=", "wmma_m16n16k16_f16_f32"]),
        ("intrinsic", "wmmma", ["conv2d", "wmmma"]),
        ("extents", "k=many", ["conv2d", "wmma_m16n16k16_f16_f32", "--extent", "k=many"]),
        ("extents", "zz=3", ["conv2d", "wmma_m16n16k16_f16_f32", "--extent", "zz=3"]),
        ("extents", "k=0", ["conv2d", "wmma_m16n16k16_f16_f32", "--extent", "k=0"]),
        ("dtype", "f99", ["conv2d", "wmma_m16n16k16_f16_f32", "--dtype", "f99"]),
        ("layout", "ABC", ["conv2d", "wmma_m16n16k16_f16_f32", "--layout", "ABC"]),
    ],
)
def test_nonsense_gets_the_words_of_the_command_line(
    field: str, text: str, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    answer = _judge(**{field: text})
    assert not answer["ok"]
    assert list(answer["errors"]) == [field]
    assert main(["map", *argv]) == 2
    assert answer["errors"][field] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (None, ""),
        ([], ""),
        ({}, ""),
        ({"kind": "eval", "code": "1"}, ""),
        ({"kind": ["judge"]}, ""),
        ({"kind": "judge"}, ""),
        ({"kind": "judge", "state": {"code": "import os"}}, ""),
        ({"kind": "judge", "state": {"operator": 3}}, "operator"),
        ({"kind": "judge", "state": {"operator": "c" * 1001}}, "operator"),
        ({"kind": "judge", "state": {"extents": "k=1\0"}}, "extents"),
        ({"kind": "judge", "state": {"extents": f"k={10**10}"}}, "extents"),
        ({"kind": "judge", "state": {"rule": "mine"}}, "rule"),
        ({"kind": "judge", "state": {"machine": "host"}}, "machine"),
        ({"kind": "judge", "state": {"assignment": "0"}}, "matching"),
        ({"kind": "judge", "state": {"assignment": [0.5]}}, "matching"),
        ({"kind": "judge", "state": {"assignment": [True]}}, "matching"),
        ({"kind": "judge", "state": {"assignment": [5] * 7}}, "matching"),
        ({"kind": "judge", "state": {"assignment": [0] * 65}}, "matching"),
        ({"kind": "rows", "state": {}, "first": -1}, "filter"),
        ({"kind": "rows", "state": {}, "count": "9"}, "filter"),
        ({"kind": "rows", "state": {}, "order": "; drop"}, "filter"),
        ({"kind": "rows", "state": {}, "words": "i9:n"}, "filter"),
        ({"kind": "rows", "state": {}, "words": "i1:nx"}, "filter"),
        ({"kind": "rows", "state": {}, "least": 2}, "least"),
        ({"kind": "rows", "state": {}, "least": float("nan")}, "least"),
    ],
)
def test_what_is_no_message_is_refused(message: object, field: str) -> None:
    answer = ENGINE.answer(message)
    assert not answer["ok"]
    assert list(answer["errors"]) == [field]


_KEYS = st.sampled_from(["kind", "state", "first", "words", "operator", "extents", "x"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["judge", "rows", "instructions"]), _JSON)
def test_any_json_gets_an_answer(kind: str, state: object) -> None:
    answer = ENGINE.answer({"kind": kind, "state": state, "first": 0, "count": 5})
    json.dumps(answer, allow_nan=False)


def test_the_code_says_the_same(tmp_path: Path) -> None:
    answer = _judge(operator="conv2d", extents="k=32 p=28", rule="access", machine="v100")
    lines = _run(answer["code"], tmp_path).splitlines()
    assert lines[0] == "valid (access)"
    assert lines[1] == answer["mapping"]["expression"]
    assert (
        f"{answer['prediction']['seconds'] * 1e6:.4g} us: {answer['prediction']['bound']}" in lines
    )


def test_the_code_of_a_refused_matching_says_why(tmp_path: Path) -> None:
    answer = _judge(operator="gemm", assignment=[0, 0, 2])
    output = _run(answer["code"], tmp_path)
    assert output.startswith("wrong (access)")
    assert all(reason in output for reason in answer["verdict"]["reasons"])


def test_what_a_wider_rule_makes_of_a_refused_matching_is_shown_as_refused(tmp_path: Path) -> None:
    answer = _judge(assignment=[-1, 1, -1, 0, 2, -1, 2], rule="paper")
    assert answer["verdict"]["kind"] == "wrong"
    assert answer["verdict"]["accepted_by"] == ["access", "gather"]
    shown = answer["mapping"]
    assert (shown["name"], shown["rule"], shown["refused"]) == ("q-k-cs", "access", True)
    output = _run(answer["code"], tmp_path)
    assert output.startswith("wrong (paper)")
    assert shown["expression"] in output
    # To Python it is no mapping.
    verdict, mapping = ENGINE.judge(answer["state"])
    assert not verdict
    assert mapping is None
    wider = _judge(assignment=[-1, 1, -1, 0, 2, -1, 2], rule="access")["mapping"]
    assert wider | {"refused": True} == shown


def test_sources_can_be_fed_in_another_order(tmp_path: Path) -> None:
    space = amos.enumerate_mappings(
        amos.operators.resolve("conv2d"),
        amos.intrinsics.get("wmma_m16n16k16_f16_f32"),
        commute=True,
    )
    answer = _judge(commute=True)
    assert answer["orders"] == [[[0, 1], "image, weight"], [[1, 0], "weight, image"]]
    assert answer["count"] == "98"
    rows = _rows({"commute": True, "machine": ""}, count=100)["rows"]
    assert [row["name"] for row in rows] == [mapping.name for mapping in space]
    last = rows[-1]
    answer = _judge(commute=True, assignment=last["assignment"], order=last["order"])
    assert answer["mapping"]["name"] == last["name"]
    assert answer["mapping"]["name"].endswith("~10")
    assert answer["x"]["rows"] == ["weight", "image", "out"]
    assert answer["z"]["rows"] == ["Src1 = weight", "Src2 = image", "Dst = out"]
    output = _run(answer["code"], tmp_path)
    assert output.startswith("valid (access)")
    assert answer["mapping"]["expression"] in output
    # The same matching in the given order: refused, and it is said where it would do.
    answer = _judge(commute=True, assignment=last["assignment"], order=[0, 1])
    assert answer["verdict"]["kind"] == "wrong"
    assert answer["verdict"]["accepted_in"] == ["weight, image"]


def test_an_order_that_is_not_looked_at_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "(0, 1)" in _judge(order=[1, 0])["errors"]["order"]
    assert list(_judge(commute=True, order=[0, 0])["errors"]) == ["order"]
    assert list(_judge(commute="yes")["errors"]) == ["commute"]
    # Where only another order will do, the words are those of the command line.
    text = "o[i,j] += a[k,j] * b[i,k]"
    state = dict(
        operator=text, extents="i=16, j=16, k=16", intrinsic="vnni_dpbusd_m16k4_u8_s8_s32",
        dtype="s8,u8,s32",
    )  # fmt: skip
    error = _judge(**state)["errors"]["intrinsic"]
    assert "--commute" in error
    argv = ["map", text, state["intrinsic"], "--dtype", "s8,u8,s32"]
    assert main([*argv, *(f"--extent={name}=16" for name in "ijk")]) == 2
    assert error in capsys.readouterr().err
    assert _judge(**state, commute=True)["mapping"]["name"].endswith("~10")


def test_texts_go_into_the_code_as_literals() -> None:
    hostile = "o[i,j] += a[i,k] * b[k,j]"
    answer = _judge(operator=hostile, extents="i=4, j=4, k=4")
    calls = [n for n in ast.walk(ast.parse(answer["code"])) if isinstance(n, ast.Call)]
    assert any(ast.literal_eval(call.args[0]) == hostile for call in calls if call.args)


def test_a_state_is_what_was_sent() -> None:
    answer = _judge(operator="gemm", assignment=[0, -1, 2])
    assert State.read(json.loads(json.dumps(answer["state"]))).assignment == (0, -1, 2)


def test_a_click_is_answered_in_a_tenth_of_a_second() -> None:
    times = []
    for n in range(20):
        assignment = [0, 1, 0, 0, 2, 2, 2]
        assignment[n % 7] = -1 if n < 10 else n % 3
        start = time.thread_time()
        assert _judge(assignment=assignment)["ok"]
        times.append(time.thread_time() - start)
    assert statistics.median(times) < 0.1


def test_too_many_loops_are_refused() -> None:
    loops = [f"i{n}" for n in range(21)]
    text = f"o[{','.join(loops)}] += a[{','.join(loops)}] * b[i0]"
    answer = _judge(operator=text, extents=", ".join(f"{n}=2" for n in loops))
    assert "takes up to 20" in answer["errors"]["operator"]


def test_a_machine_without_a_rate_is_told_and_nothing_else_changes() -> None:
    answer = _judge(machine="xeon_4110")
    assert answer["ok"]
    assert "has no rate for intrinsic" in answer["prediction"]["error"]
    assert _judge(machine="")["prediction"] is None


def test_instructions_of_a_machine_are_those_of_amos_map(
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = dict(operator="conv2d", dtype="f16", machine="a100", intrinsic="")
    answer = ENGINE.answer({"kind": "instructions", "state": state})
    assert main(["map", "conv2d", "--dtype", "f16", "--machine", "a100", "--json"]) == 0
    listed = {row["intrinsic"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert answer["rows"][0]["name"] == next(iter(listed))
    for row in answer["rows"]:
        expected_row = listed[row["name"]]
        assert row["seconds"] == expected_row["predicted_seconds"]
        assert row["mappings"] == expected_row["mappings"]
    assert answer["others"]
    picked = _judge(**state | {"intrinsic": answer["rows"][0]["name"]})
    assert picked["ok"] and picked["prediction"]


@pytest.mark.parametrize(
    ("state", "field", "message"),
    [
        (dict(machine="auto", dtype="f16"), "machine", "choose one"),
        (dict(machine="nonesuch", dtype="f16"), "machine", "unknown machine 'nonesuch'"),
        (dict(machine="a100"), "dtype", "is open"),
        (dict(machine="a100", dtype="f16", rule="none"), "rule", "unknown rule"),
        (dict(machine="a100", operator="nonesuch"), "operator", "unknown operator"),
    ],
)
def test_instructions_of_nonsense(state: dict[str, Any], field: str, message: str) -> None:
    answer = ENGINE.answer({"kind": "instructions", "state": {"intrinsic": "", **state}})
    assert not answer["ok"]
    assert message in answer["errors"][field]


def test_every_intrinsic_can_be_looked_at() -> None:
    """With the machine that suits it; where its description gives a rate, that is used."""
    for name in amos.intrinsics.names():
        answer = _judge(operator="gemm", intrinsic=name)
        if not answer["ok"]:
            assert list(answer["errors"]) == ["intrinsic"]
        elif answer["mapping"] is not None:
            prediction = answer["prediction"]
            assert prediction is None or prediction["seconds"] > 0
    predicted = _judge(operator="gemm", intrinsic="vnni_dpbusd_m16k4_u8_s8_s32")["prediction"]
    assert predicted["machine"] == "xeon_4110"


def test_a_refused_matching_names_the_nearest() -> None:
    near = _judge(assignment=[0, 0, 0, 0, 2, 2, 2])["verdict"]["nearest"]
    assert near == [{"name": "npq-k-crs", "assignment": [0, 1, 0, 0, 2, 2, 2]}]
    assert _judge()["verdict"]["nearest"] == []


def test_this_computer_is_offered_where_it_can_be_measured() -> None:
    requests: list[str] = []

    def measured(unit: amos.intrinsics.Intrinsic) -> amos.machine.Machine:
        requests.append(unit.name)
        return amos.machines.get("a100", [unit])

    assert "host" not in ENGINE.answer({"kind": "choices"})["machines"]
    engine = Engine(host=measured)
    assert "host" in engine.answer({"kind": "choices"})["machines"]
    assert not requests
    assert engine.answer({"kind": "judge", "state": {"machine": "host"}})["ok"]
    assert set(requests) == {"wmma_m16n16k16_f16_f32"}
