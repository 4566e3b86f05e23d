"""The explorer in a notebook, without a notebook: messages in, answers out."""

from __future__ import annotations

import re
from typing import Any

import pytest

import amos
from amos.errors import AmosError, ToolchainError
from amos.explorer import widget
from amos.explorer.assets import SCRIPTS, read
from amos.viz.palette import COLOURS, MARK


@pytest.fixture(autouse=True)
def _needs_anywidget() -> None:
    pytest.importorskip("anywidget", reason="anywidget is not installed")


def _sent(shown: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    sent: list[Any] = []
    monkeypatch.setattr(shown, "send", sent.append)
    return sent


def test_messages_are_answered_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = widget("gemm")
    sent = _sent(shown, monkeypatch)
    shown._handle_custom_msg({"number": 7, "message": {"kind": "judge", "state": {}}}, [])
    shown._handle_custom_msg({"number": 8, "message": {"kind": "run", "code": "1"}}, [])
    shown._handle_custom_msg("import os", [])
    shown._handle_custom_msg({"number": "x"}, [])
    assert [message["number"] for message in sent] == [7, 8]
    assert [message["answer"]["ok"] for message in sent] == [True, False]


def test_what_was_chosen_is_there_in_python() -> None:
    op = amos.operators.resolve("resnet18:C5")
    shown = widget(op, amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32"), rule="access")
    assert shown.verdict
    first = amos.enumerate_mappings(op, shown.mapping.intrinsic, "access")[0]
    assert shown.mapping.matching.tolist() == first.matching.tolist()
    assert shown.mapping.operator.compute == first.operator.compute
    shown.state = {**shown.state, "assignment": [-1] * len(op.iterations)}
    assert not shown.verdict
    assert shown.mapping is None
    assert "check_matching" in shown.code


def test_both_front_ends_draw_with_the_same_code() -> None:
    shown = widget()
    assert "export async function explorer" in shown._esm
    assert "export default" in shown._esm
    # One text, in which each script comes after those that it imports.
    assert "import" not in re.findall(r"^\w+", shown._esm, re.MULTILINE)
    for front in ("widget.js", "page.js"):
        before: list[str] = []
        for name in (*SCRIPTS, front):
            text = read(name).decode()
            imports = re.findall(r'^import \{[^}]*\} from "\./([\w.]+)";$', text, re.MULTILINE)
            assert set(imports) <= set(before)
            assert len(imports) == len(re.findall(r"^import\b", text, re.MULTILINE))
            before.append(name)
    assert ".amos-explorer" in shown._css


def test_groups_have_the_colours_of_pictures() -> None:
    style = read("explorer.css").decode()
    assert tuple(re.findall(r"--g\d: (#\w+);", style)) == COLOURS
    assert f"--mark: {MARK};" in style


def test_nonsense_is_refused_at_once() -> None:
    with pytest.raises(AmosError, match="did you mean 'conv2d'"):
        widget("conv2")


def test_without_anywidget_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from amos.explorer import widget as function

    module = sys.modules["amos.explorer.widget"]
    module._widget.cache_clear()
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(ToolchainError, match="pip install"):
        function()
