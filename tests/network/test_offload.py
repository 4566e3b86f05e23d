"""Parts of tasks on a unit, and what its host does of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import amos
from amos.cli.app import main
from amos.errors import BuildError
from amos.explore.choosing import Chooser
from amos.ir import Operator
from amos.machine.catalogue import from_toml
from amos.network.offload import offloads, predict_offload, refuse_shift
from amos.validate import evaluate
from tests.network.quantized_models import Model, convolution
from tests.support.architects import BOARD, ENERGIES, UNIT, files

CONV = Operator.parse(
    "out[n,p,q,k] += pad(image[n,p*2+r-1,q*2+s-1,c], 7) * weight[k,c,r,s]",
    extents=dict(n=1, p=4, q=5, k=6, c=3, r=3, s=3),
    dtypes=dict(image="u8", weight="s8", out="s32"),
    name="conv2d",
)
CONV = replace(CONV, constants=("weight",))
EPILOGUE = "u8(round(f32(acc + bias[k]) * 0.01) + 9)"


def test_a_shift_is_a_constant_of_each_channel() -> None:
    """Also where a window reads padding, whose value is shifted with the others."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (1, 9, 11, 3)).astype(np.uint8)
    weight = rng.integers(-128, 128, (6, 3, 3, 3)).astype(np.int8)
    shape = CONV.inputs[0].shape
    image = image[tuple(slice(0, size) for size in shape)]
    *_, shifted = offloads(CONV)
    assert [str(x.dtype) for x in shifted.operator.inputs] == ["int8", "int8"]
    there = (image.astype(np.int16) - 128).astype(np.int8)
    sums = evaluate(shifted.operator, {"image": there, "weight": weight})
    more = 128 * weight.astype(np.int32).sum(axis=(1, 2, 3))
    expected = evaluate(CONV, {"image": image, "weight": weight})
    np.testing.assert_array_equal(np.asarray(sums) + more, np.asarray(expected))


def test_a_factor_that_is_no_constant_has_no_shift() -> None:
    product = Operator.parse(
        "out[i,j] += x[i,k] * y[k,j]",
        extents=dict(i=8, j=8, k=8),
        dtypes=dict(x="u8", y="s8", out="s32"),
    )
    assert "needs the sums of `y`" in refuse_shift(product)
    assert [each.operator for each in offloads(product)] == [product]


def test_a_host_takes_what_stores_of_a_unit_do_not_compute() -> None:
    op = CONV.with_epilogue(EPILOGUE, {"bias": "s32"})
    chooser = Chooser(BOARD, intrinsics=[UNIT])
    offload, product = predict_offload(op, chooser)
    assert product.mapping.intrinsic.name == UNIT.name
    assert offload.operator.epilogue is None
    assert offload.host_steps == (
        "image less 128, a constant more in the bias",
        f"epilogue {op.epilogue}",
    )


def test_predict_and_explore_refuse_the_same_epilogue() -> None:
    unit = amos.intrinsics.get("gemmini_matmul_m16n16k16_s8_s32")
    op = Operator.parse(
        "out[i,j] += a[i,k] * b[k,j]",
        extents=dict(i=16, j=16, k=16),
        dtypes=dict(a="s8", b="s8", out="s32"),
    ).with_epilogue("s8(relu((acc + bias[j]) * scale[j]))")
    with pytest.raises(BuildError) as explored:
        amos.explore(op, unit, machine="gemmini", trials=1, progress=False)
    with pytest.raises(BuildError) as predicted:
        amos.predict(amos.enumerate_mappings(op, unit)[0], "gemmini")
    assert str(predicted.value) == str(explored.value)


def test_a_report_has_a_total_once_the_host_is_named(tmp_path: Path) -> None:
    model = Model(0)
    network = amos.load_network(model.model(convolution(model)))
    alone = network.report(BOARD, [UNIT])
    assert (alone.modelled_share, alone.unmapped, alone.seconds) == (1.0, (), None)
    assert "as the machine names no host" in alone.summary
    assert {row.operation for row in alone.engine} > {"epilogue of conv2d", "copy of conv2d"}
    hosted = network.report(replace(BOARD, host="xeon_6240"), [UNIT])
    assert hosted.seconds == pytest.approx(
        hosted.kernel_seconds + sum(row.seconds or 0.0 for row in hosted.engine)
    )
    assert hosted.kernel_seconds == alone.kernel_seconds


def test_what_follows_from_a_description_needs_no_key() -> None:
    assert BOARD.cores == BOARD.levels[0].units == 1
    assert BOARD.levels[0].write_bandwidth == BOARD.levels[0].read_bandwidth
    assert not BOARD.peaks
    text = 'name = "x"\nsource = "y"\nclock = 1e9\ncores = 2\n[[level]]\nname = "DRAM"\n'
    with pytest.raises(amos.AmosError, match=r"level\[0\]\.units: expected this key"):
        from_toml(f"{text}capacity = 0\nread_bandwidth = 1e9\n")


def test_a_report_sums_energy_and_traffic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Model(0)
    onnx.save(model.model(convolution(model)), tmp_path / "model.onnx")
    board, unit = files(tmp_path, ENERGIES)
    command = ["report", str(tmp_path / "model.onnx"), "--machine", board, "--intrinsic", unit]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (task,) = report["tasks"]
    assert (report["modelled_share"], report["unmapped"]) == (1.0, [])
    assert report["energy_joules"] == pytest.approx(sum(row["joules"] for row in task["energy"]))
    moved = [row for row in task["energy"] if row["level"] == "DRAM"]
    assert report["traffic_bytes"] == sum(row["read_bytes"] + row["written_bytes"] for row in moved)
    assert report["utilization"] == pytest.approx(task["utilization"])
    assert 0 < task["utilization"] <= 1
    assert (report["bound_seconds"], task["bound_seconds"]) == (None, None)
    board, unit = files(tmp_path, ENERGIES)
    bounded = ["report", str(tmp_path / "model.onnx"), "--machine", board, "--intrinsic", unit]
    assert main([*bounded, "--bounds", "--json"]) == 0
    least = json.loads(capsys.readouterr().out)["bound_seconds"]
    assert 0 < least <= report["kernel_seconds"]
    board, unit = files(tmp_path, ENERGIES)
    command = ["report", str(tmp_path / "model.onnx"), "--machine", board, "--intrinsic", unit]
    command.append("--bounds")
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "mJ of all kernels" in printed
    assert "of the bound" in printed
