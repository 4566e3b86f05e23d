"""Machines beside one another on whole networks."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import amos
from amos.cli.app import main
from amos.errors import MachineError, NetworkError
from amos.explore.sweep import sweep
from amos.machine.catalogue import with_timings
from amos.network.designs import compare_designs
from tests.network.models import Builder
from tests.network.quantized_models import Model, convolution
from tests.support.architects import BOARD, ENERGETIC, ENERGIES, UNIT, energetic, files

pytestmark = pytest.mark.usefixtures("short_search", "one_guard")

TARGET = with_timings(ENERGETIC, [UNIT])


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    small = Model(0)
    return small.model(convolution(small))


def test_the_front_is_that_of_time_and_energy(model: onnx.ModelProto) -> None:
    network = amos.load_network(model)
    dear = replace(TARGET, name="dear", operation_pj=9.0)
    fast = replace(dear, name="fast", clock=1e9)
    rows = compare_designs([TARGET, dear, fast], {"small": network}, [UNIT])
    assert [(row.report.machine, row.pareto) for row in rows] == [
        ("acme_board", True),
        ("dear", False),
        ("fast", True),
    ]
    report = network.report(TARGET, [UNIT])
    assert rows[0].seconds == report.kernel_seconds
    values = rows[0].to_dict()
    assert values["energy_joules"] == report.energy_joules
    assert [x["traffic_bytes"] for x in values["layers"]] == [report.tasks[0].traffic_bytes]
    silent = replace(with_timings(BOARD, [UNIT]), name="silent", clock=1e9)
    rows = compare_designs([TARGET, silent], {"small": network}, [UNIT])
    assert [row.pareto for row in rows] == [False, True]


def test_what_cannot_be_compared(model: onnx.ModelProto) -> None:
    network = amos.load_network(model)
    with pytest.raises(MachineError, match="got 'acme_board' twice"):
        compare_designs([TARGET, ENERGETIC], {"small": network}, [UNIT])
    with pytest.raises(MachineError, match="expected a rate of one of acme_matmul"):
        elsewhere = replace(UNIT, timing=(replace(UNIT.timing[0], machine="gemmini"),))
        compare_designs([BOARD], {"small": network}, [elsewhere])
    with pytest.raises(NetworkError, match="at least one machine and one model"):
        compare_designs([TARGET], {}, [UNIT])


def _model_of(node: onnx.NodeProto, *weights: onnx.TensorProto) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 8]) for name in "xy")
    graph = helper.make_graph([node], "graph", [x], [y], [*weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def _recurrent_model() -> onnx.ModelProto:
    """A layer that onnxruntime runs as a whole."""
    b = Builder()
    x, w, r = b.input("x", (5, 1, 3)), b.random(1, 16, 3), b.random(1, 16, 4)
    return b.model(b.node("LSTM", x, w, r, hidden_size=4))


def test_a_network_without_a_product_that_the_unit_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has no time, is on no front, and the command says why."""
    weight = numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    models = {
        "none": _model_of(helper.make_node("Relu", ["x"], ["y"])),
        "floats": _model_of(helper.make_node("MatMul", ["x", "w"], ["y"]), weight),
        "recurrent": _recurrent_model(),
    }
    networks = {name: amos.load_network(model) for name, model in models.items()}
    rows = compare_designs([TARGET], networks, [UNIT])
    assert [(row.seconds, row.pareto) for row in rows] == [(None, False)] * 3
    assert rows[0].report.problem == "the network has no products"
    assert rows[1].report.problem.startswith(
        "1 of 1 layers not modelled: no instruction can be used"
    )
    assert rows[2].report.problem.startswith("1 of 1 layers not modelled: recurrent layer")
    for row, network in zip(rows, networks.values(), strict=True):
        (point,) = sweep(UNIT, TARGET, {"extents.i1": [8]}, [network], trials=1)
        assert point.predicted is None
        assert point.reason.startswith(row.report.problem[:50])  # behind it stands the unit's name
    onnx.save(models["floats"], tmp_path / "floats.onnx")
    board, unit = files(tmp_path)
    assert main(["compare", board, str(tmp_path / "floats.onnx"), "--intrinsic", unit]) == 0
    assert "floats on acme_board: 1 of 1 layers not modelled" in capsys.readouterr().out


def _map_pickled(function: Callable[[Any], Any], requests: Iterable[Any]) -> Iterator[Any]:
    return map(function, pickle.loads(pickle.dumps([*requests])))


def test_a_sweep_takes_networks_and_formulas(
    model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amos.explore.sweep.map_in_processes", _map_pickled)
    network = amos.load_network(model)
    axes: dict[str, list[Any]] = {"extents.i1": [8, 16], "timing.interval": ["i1*2"]}
    small, large = sweep(UNIT, TARGET, axes, [network], trials=1)
    assert small.predicted is not None
    slower = replace(UNIT, timing=(replace(UNIT.timing[0], interval=32.0, latency=32.0),))
    there = network.report(with_timings(ENERGETIC, [slower]), [slower])
    assert large.predicted == pytest.approx(there.kernel_seconds)
    assert large.energy == pytest.approx(there.energy_joules)
    assert large.settings == {"extents.i1": 16, "timing.interval": "i1*2"}
    turned = sweep(UNIT, TARGET, dict(reversed(axes.items())), [network], trials=1)
    assert sorted(point.predicted or 0.0 for point in turned) == [small.predicted, large.predicted]


def test_the_command(
    model: onnx.ModelProto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "small.onnx"
    onnx.save(model, path)
    board, unit = files(tmp_path, ENERGIES)
    slow = tmp_path / "slow.toml"
    slow.write_text(energetic().replace("acme_board", "slow").replace("5e8", "1e8"))
    command = ["compare", board, str(slow), str(path)]
    assert main([*command, "--intrinsic", unit, "--json"]) == 0
    fast, generic = json.loads(capsys.readouterr().out)
    assert (fast["machine"], generic["machine"]) == ("acme_board", "slow")
    assert fast["seconds"] < generic["seconds"]
    assert (fast["modelled_share"], fast["pareto"]) == (1.0, True)
    picture = tmp_path / "front.html"
    board, unit = files(tmp_path, ENERGIES)
    command += ["--intrinsic", unit, "--plot", str(picture), "--layers"]
    assert main(command) == 0
    assert "acme_board" in picture.read_text()
    assert "small on slow" in capsys.readouterr().out
