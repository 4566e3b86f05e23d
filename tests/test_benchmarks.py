"""The benchmarks' workloads and report; what they time is not run here."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import amos
from amos.machine.catalogue import with_timings
from amos.operators.tables import TABLE_6
from amos.streams.plan import StreamPlan
from tests.support.architects import ENERGETIC, UNIT

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def _modules(monkeypatch: pytest.MonkeyPatch, *names: str) -> tuple[ModuleType, ...]:
    """Modules of the benchmarks, which nobody else can import afterwards."""
    if not BENCHMARKS.is_dir():
        pytest.skip("not a checkout of the repository")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    imported = tuple(map(import_module, names))
    for name in [name for name in sys.modules if name.startswith(("contenders", "networks"))]:
        monkeypatch.delitem(sys.modules, name)
    return imported


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ...]:
    return _modules(monkeypatch, "contenders.workloads", "contenders.report")


def test_every_operator_of_table_6_has_six_shapes(modules: tuple[ModuleType, ...]) -> None:
    workloads, _ = modules
    assert set(workloads.SHAPES) == set(TABLE_6) | {"bmm", "dense"}
    assert all(len(rows) >= 6 for rows in workloads.SHAPES.values())


def test_every_workload_is_an_operator(modules: tuple[ModuleType, ...]) -> None:
    workloads, _ = modules
    for name in workloads.names("all"):
        op = workloads.find(name).op
        assert sorted(str(t.dtype) for t in op.inputs) == ["int8", "uint8"], name
        # Both sources of a batched product are activations.
        assert len(op.constants) == (not name.startswith("bmm")), name
    assert workloads.find("resnet18:C5@16").op.extents["n"] == 16
    assert workloads.names("heron:G1,heron:G1,gemv:bert.up") == ["heron:G1", "gemv:bert.up"]
    with pytest.raises(KeyError):
        workloads.names("resnet18:C99")


def test_the_report(modules: tuple[ModuleType, ...]) -> None:
    _, report = modules

    def row(contender: str, trials: int, seconds: float) -> dict[str, object]:
        return {
            "workload": "resnet18:C5",
            "contender": contender,
            "trials": trials,
            "median_seconds": seconds,
            "spread": 0.01,
            "tops": 1e-4 / seconds,
        }

    rows = [row("amos", 16, 1e-4), row("onednn_f32_call", 0, 2e-4), row("fixM1", 16, 5e-5)]
    rows += [row("peak_registers", 0, 4e-5), row("peak_fed", 0, 5e-5)]
    machine = {"cpu": "A", "cores": 2, "peak_tops": 2.5, "peaks": {"peak_fed": 2.0}}
    lines = report.table(rows, machine)
    text = "\n".join(lines)
    assert "peak_fed 2.00" in lines[0]
    assert [line.split()[-2:] for line in lines[3:6]] == [
        ["40.0%", "50.0%"],
        ["20.0%", "25.0%"],
        ["80.0%", "100.0%"],
    ]
    amx = [*rows, row("peak-amx_registers", 0, 1e-5), row("peak-amx_fed", 0, 2e-5)]
    assert report.table(amx, machine)[4].split()[-2:] == ["5.0%", "10.0%"]
    assert "fixM1 16 0.50 (worst 0.50, 1), onednn_f32_call 2.00 (worst 2.00, 1)" in text
    assert "resnet18: fastest call / amos 16 2.00 (worst 2.00, resnet18:C5; 1)" in text
    all_rows = [*rows, row("pytorch-vnni_f32", 0, 3e-4), row("onednn-vnni_u8_primitive", 0, 1e-5)]
    all_rows += [row("amos-amx", 16, 1e-5)]
    printed = report.table(all_rows, machine)[-2:]
    assert "fastest call / amos 16 3.00 (" in printed[0]
    assert "fastest call / amos-amx 16 20.00 (" in printed[1]
    drawn = ElementTree.fromstring(report.picture("resnet18", rows, machine))
    titles = [node.text for node in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[0] == "resnet18:C5 amos 16: 0.1000 ms, 1.000 Top/s"
    assert len(titles) == 3


#: Convolutions and matrix products of each network, from the papers' tables, and its result.
NETWORKS = {
    "resnet18": (20, 1, (2, 1000)),
    "resnet50": (53, 1, (2, 1000)),
    "mobilenet_v1": (27, 1, (2, 1000)),
    "mobilenet_v2": (52, 1, (2, 1000)),
    "shufflenet_v2": (56, 1, (2, 1000)),
    "inception_v3": (94, 1, (2, 1000)),
    "dcgan": (0, 1, (2, 3, 64, 64)),
    "mi_lstm": (0, 9, (2, 1024)),
    "mlp": (0, 4, (2, 10)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_the_layers_of_their_papers(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pytest.importorskip("onnx")
    graph, zoo = _modules(monkeypatch, "networks.graph", "networks.zoo")

    def unnormalized(self: Any, x: str, dimensions: int = 2) -> str:
        """Statistics would need the network to run."""
        return x

    def zeros(self: Any, *shape: int, deviation: float) -> Any:
        """Quicker than random numbers."""
        return self.constant(np.zeros(shape, np.float32))

    monkeypatch.setattr(graph.Graph, "normalize", unnormalized)
    monkeypatch.setattr(graph.Graph, "random", zeros)
    g = graph.Graph(2, None)
    model = g.model(name, zoo.NETWORKS[name](g))
    kinds = [node.op_type for node in model.graph.node]
    products = kinds.count("Gemm") + kinds.count("MatMul")
    shape = tuple(size.dim_value for size in model.graph.output[0].type.tensor_type.shape.dim)
    assert (kinds.count("Conv"), products, shape) == NETWORKS[name]


def test_normalizations_get_the_statistics_of_what_they_normalize(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    (graph,) = _modules(monkeypatch, "networks.graph")

    def define(g: Any) -> str:
        x = g.image(3, 8, 8)
        for _ in range(6):
            x = g.normalize(g.conv(g.add("Relu", x), 16, 3))
        return str(x)

    model = graph.build("deep", define, 2)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    result = session.run(None, graph.feeds(model, seed=7))[0]
    assert 0.5 < result.std() < 1.5


def test_a_stream_in_the_words_of_zigzag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows enter one after the other; weights, which a call reads anew, come next."""
    (dataflow,) = _modules(monkeypatch, "contenders.dataflow")
    machine = with_timings(ENERGETIC, [UNIT])
    array = dataflow.Array.of(UNIT, machine)
    op = amos.operators.get("gemm", dtype="s8", m=64, n=128, k=32)
    (mapping,) = amos.enumerate_mappings(op, UNIT)
    schedule = amos.StreamSchedule(tile={"i1.tile": 2, "i2.tile": 2}, steps={"r1.tile": 4})
    loops = dataflow.describe_stream(StreamPlan.of(mapping, schedule, machine), array)
    layer = loops.layer
    assert layer["equation"] == "O[l0][l1][rows][cols]+=W[l2][l1][sums][cols]*I[l0][l2][rows][sums]"
    sizes = dict(zip(layer["loop_dims"], layer["loop_sizes"], strict=True))
    assert sizes == {"L0": 4, "L1": 4, "L2": 4, "ROWS": 16, "COLS": 32, "SUMS": 8}
    assert loops.mapping["spatial_mapping"] == {"D1": ["COLS, 32"], "D2": ["SUMS, 8"]}
    order = [["ROWS", 16], ["L2", 4], ["L1", 2], ["L0", 2], ["L2", 1], ["L1", 2], ["L0", 2]]
    assert loops.mapping["temporal_ordering"] == order
    assert loops.sizes == {"Src1": 2 * 4 * 128, "Src2": 2 * 4 * 256, "Dst": 4 * 2048}
    hardware = dataflow.describe_hardware(array, machine, loops.sizes)
    assert hardware["memories"]["acc"]["size"] == 8 * loops.sizes["Dst"]
    assert hardware["operational_array"]["sizes"] == [32, 8]
    with pytest.raises(amos.AmosError, match="tiles of 3 do not divide i1.tile"):
        odd = amos.StreamSchedule(tile={"i1.tile": 3})
        dataflow.describe_stream(StreamPlan.of(mapping, odd, machine), array)
    slow = replace(UNIT, timing=(replace(UNIT.timing[0], interval=17),))
    with pytest.raises(amos.AmosError, match="expected a cycle a row, got 17 cycles a call"):
        dataflow.Array.of(slow, with_timings(ENERGETIC, [slow]))
    conv = dataflow.describe_layer(amos.operators.resolve("resnet18:C3", dtype="s8"), array)
    assert conv["dimension_relations"] == ["iy=2*oy+1*fy", "ix=2*ox+1*fx"]
    with pytest.raises(amos.AmosError, match="gemm: expected a convolution"):
        dataflow.describe_layer(op, array)


def test_a_slow_core_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    (disturbance,) = _modules(monkeypatch, "contenders.disturbance")
    seconds = iter([1.0, 1.1, 1.9, 1.0])
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})
    noticed = disturbance.Disturbance(lambda core: next(seconds))
    assert [noticed.is_present() for _ in range(4)] == [False, False, True, False]


def test_measuring_a_core_leaves_the_process_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    (disturbance,) = _modules(monkeypatch, "contenders.disturbance")
    cores = os.sched_getaffinity(0)
    assert disturbance.seconds_on(min(cores)) > 0
    assert os.sched_getaffinity(0) == cores
