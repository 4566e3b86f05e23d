"""How many threads the operators of a library use: the C code that decides it, on two cores."""

from __future__ import annotations

import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from amos.codegen.c.compiler import compiler_command

#: Prints a letter for each call: wide (w), wide with a late helper (l), or narrow (n).
_PROGRAM = """
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
enum {{ CORE_COUNT = 2 }};
{crew}
int main(void) {{
  Crew crew = {{.width = CORE_COUNT}};
  for (int call = 0; call < {calls}; ++call) {{
    int is_narrow = 0, is_wide = choose_width(&crew, &is_narrow) > 1, is_late = is_wide && ({late});
    count_call(&crew, is_late ? {late_seconds} : is_wide ? 1e-3 : 2e-3, is_narrow, is_late);
    putchar(is_late ? 'l' : is_wide ? 'w' : 'n');
  }}
}}
"""


def _run_calls(folder: Path, calls: int, late: str, late_seconds: float) -> str:
    """Return the letters of calls of 1 ms, of narrow ones of 2 ms; ``late`` selects late ones."""
    command = compiler_command()
    if command is None:
        pytest.skip("needs a C compiler")
    source = files("amos.network").joinpath("templates", "libamos.c").read_text()
    begin, end = source.index("/* The number of threads"), source.index("/* Parallel loops.")
    text = _PROGRAM.format(
        crew=source[begin:end], calls=calls, late=late, late_seconds=late_seconds
    )
    (folder / "crew.c").write_text(text)
    subprocess.run([*command, "-o", "crew", "crew.c"], cwd=folder, check=True)
    return subprocess.run(["./crew"], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_a_lone_disturbance_costs_one_narrow_call(tmp_path: Path) -> None:
    assert _run_calls(tmp_path, 12, "call == 3", 1.5e-3) == "wwwlnwwwwwww"


def test_rare_disturbances_cost_few_narrow_calls(tmp_path: Path) -> None:
    calls = _run_calls(tmp_path, 100, "call % 10 == 3", 1.5e-3)
    assert calls.count("l") >= 9 and calls.count("n") <= 4


def test_beside_spinning_threads_most_calls_are_narrow(tmp_path: Path) -> None:
    assert _run_calls(tmp_path, 400, "1", 4e-3).count("n") > 300
