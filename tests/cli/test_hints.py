"""What the command line suggests, and forms of options that lists share."""

from __future__ import annotations

from pathlib import Path

import pytest

from amos.cli import main

pytestmark = pytest.mark.usefixtures("short_search", "one_guard")

_MULTIPLY = "avx2_vmulps_m8_f32_f32"


@pytest.mark.parametrize("named", [[_MULTIPLY], []])
def test_the_rule_that_has_mappings_is_suggested(
    named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = "o[i,j] = x[i] * y[j]"
    options = ["--extent", "i=64,j=64", "--dtype", "f32", "--machine", "xeon_6240"]
    assert main(["explore", text, *named, *options, "--trials", "1"]) == 2
    assert "only --rule gather has mappings" in capsys.readouterr().err or not named
    assert main(["map", text, _MULTIPLY, *options[:4]]) == 0
    printed = capsys.readouterr().out
    assert "(--rule gather); rule 'access' refuses the first, " in printed


@pytest.mark.parametrize("text", ["y[i] = y[i-1] + x[i]", "y[i] = y[i] * x[i]"])
def test_a_recurrence_is_called_so(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", text, "--extent", "i=16", "--trials", "1"]) == 2
    assert "a recurrence: 'y' is both read and written" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["abs(a[i,k] - b[k])", "|a[i,k] - b[k]|", "abs(a[i,k])"])
def test_functions_of_sources_are_prologues(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error says so, and the form that it names works."""
    unit, shared = "avx2_vaddps_acc_m8_f32_f32", ["--extent", "i=16,k=4", "--dtype", "f32"]
    assert main(["map", f"o[i] += {value}", unit, *shared]) == 2
    error = capsys.readouterr().err
    assert "--prologue 'd[i,k] = abs(...)'" in error
    prologue = f"d[i,k] = {value}" if value.startswith("abs") else "d[i,k] = abs(a[i,k] - b[k])"
    assert main(["map", "o[i] += d[i,k]", unit, *shared, "--prologue", prologue]) == 0
    assert "mapping" in capsys.readouterr().out


@pytest.mark.parametrize(
    "dtypes",
    [
        ["image=u8,weight=s8"],
        ["image=u8", "weight=s8"],
        ["u8, weight=s8"],
        ["image=u8,weight=s8 in [-64, 64]"],
    ],
)
def test_dtypes_are_lists(dtypes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    options = [word for each in dtypes for word in ("--dtype", each)]
    text, unit = "o[i,j] += image[i,k] * weight[k,j]", "vnni_dpbusd_m16k4_u8_s8_s32"
    assert main(["map", text, unit, "--extent", "i=16,j=16,k=4", *options]) == 0
    assert "(image: u8, weight: s8" in capsys.readouterr().out


def test_explore_says_what_a_constant_would_save(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*words: str) -> str:
        options = ["--extent", "i=256,j=256,k=256", "--dtype", "u8s8", "--machine", "xeon_6240"]
        text = "o[i,j] += a[i,k] * b[k,j]"
        command = ["explore", text, "vnni_dpbusd_m16k4_u8_s8_s32", *options, "--trials", "1"]
        assert main([*command, *words]) == 0
        return " ".join(capsys.readouterr().out.split())

    hints = printed()
    assert hints.count("with --constant b, for values that stay the same between calls: ") == 1
    assert " ms predicted instead of " in hints
    assert "--constant b" not in printed("--constant", "b")


def test_the_shell_completes_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def printed(*words: str) -> str:
        try:
            code = main(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
        assert code == 0
        return capsys.readouterr().out

    monkeypatch.setenv("HOME", str(tmp_path))
    for module in ("typer.completion", "typer._completion_shared"):
        monkeypatch.setattr(f"{module}._get_shell_name", lambda: "bash")
    assert "complete -o default -F _amos_completion amos" in printed("--show-completion")
    assert "bash completion installed" in printed("--install-completion")
    assert "amos.sh" in (tmp_path / ".bashrc").read_text()
    monkeypatch.setenv("_AMOS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "amos exp")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert printed().split() == ["explore", "export"]
