"""Public functions take the same things, with the same defaults as the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amos
from amos.cli.explore import explore_command
from amos.cli.map_ import map_command
from amos.cli.predict import predict_command
from amos.cli.serve import serve_command
from amos.explorer import State

NAME = "vnni_dpbusd_m16k4_u8_s8_s32"
UNIT = amos.intrinsics.get(NAME)
OP = amos.Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=6, j=32, k=8))
MAPPING = amos.enumerate_mappings(OP, UNIT)[0]
MACHINE = amos.machines.get("xeon_6240", [UNIT])


def _default(function: Callable[..., Any], name: str) -> Any:
    return inspect.signature(function).parameters[name].default


def test_an_intrinsic_by_name_or_object() -> None:
    assert amos.enumerate_mappings(OP, NAME)[:] == amos.enumerate_mappings(OP, UNIT)[:]
    matrix = np.zeros((2, 3))
    assert amos.check_matching(OP, NAME, matrix) == amos.check_matching(OP, UNIT, matrix)
    assert amos.intrinsics.get(UNIT) is UNIT
    assert amos.machines.get("xeon_6240", [NAME]) == MACHINE
    assert amos.machines.get(MACHINE) == MACHINE


def test_a_machine_and_a_kernel_by_name_or_object() -> None:
    result = amos.explore(OP, UNIT, machine=MACHINE, trials=2, progress=False)
    trial = result.best
    seconds = amos.predict(MAPPING, "xeon_6240", trial.schedule).seconds
    for kernel in (trial, trial.candidate):
        for machine in ("xeon_6240", MACHINE):
            assert amos.predict(kernel, machine) == amos.predict(kernel, MACHINE)
    assert amos.predict(MAPPING, MACHINE, trial.schedule).seconds == seconds
    with pytest.raises(amos.AmosError, match="expected a mapping, a candidate or a trial, got str"):
        amos.predict("k-c", MACHINE)  # type: ignore[arg-type]


def test_a_candidate_is_exported_as_the_command_does(tmp_path: Path) -> None:
    file = tmp_path / "r.db"
    explored = amos.explore(
        OP, NAME, machine="xeon_6240", trials=1, records=file, progress=False
    ).best
    texts = []
    kernels: tuple[Any, ...] = (explored, explored.candidate, file, f"{file}:1")
    for number, kernel in enumerate(kernels):
        paths = amos.export(kernel, format="c", out=tmp_path / str(number), name="it")
        texts.append({path.name: path.read_text() for path in paths})
    assert all(text == texts[0] for text in texts)


def test_one_default_rule() -> None:
    assert State().rule == "access"
    functions: list[Callable[..., Any]] = [
        amos.enumerate_mappings,
        amos.check_matching,
        amos.explorer.widget,
    ]
    functions += [amos.explore, map_command, predict_command, serve_command, explore_command]
    assert {str(_default(function, "rule")) for function in functions} == {"access"}


def test_explore_has_the_same_defaults_in_python_and_on_the_command_line() -> None:
    for name in ("trials", "seed", "method", "machine", "records"):
        assert _default(explore_command, name) == _default(amos.explore, name)
    for group in (amos.SearchOptions(), amos.MeasureOptions()):
        command = inspect.signature(explore_command).parameters
        for field in fields(group):
            if field.name in command and field.name != "fix":
                assert command[field.name].default == getattr(group, field.name), field.name
