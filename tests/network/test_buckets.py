"""Open dimensions as buckets: the smallest that holds a call, padded where that is right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import amos
from amos.cli.app import main
from amos.codegen.c.compiler import compiler_command
from amos.errors import BuildError, NetworkError
from amos.network import CompiledBuckets
from amos.network.external.race import Timing
from amos.network.sessions import open_session
from tests.network.models import Builder


def _rows_and_columns() -> Any:
    """Two inputs; rows of the batch are independent, and one output grows by two each."""
    b = Builder()
    x = b.node("MatMul", b.input("x", ("batch", 4, 16)), b.random(16, 8))
    y = b.node("Add", b.node("Relu", x), b.input("y", ("batch", 1, 8)))
    pairs = b.node("Reshape", y, b.constant([-1, 16], "int64"))
    return b.model(y, pairs)


def _mixing(kind: str, **attributes: Any) -> Any:
    """A product, behind which rows are summed, compared or otherwise mixed."""
    b = Builder()
    x = b.node("MatMul", b.input("x", ("length", 16)), b.random(16, 8))
    return b.model(b.node(kind, b.node("Relu", x), **attributes))


def _expected(model: Any, **inputs: np.ndarray) -> list[np.ndarray]:
    return list(ReferenceEvaluator(model).run(None, inputs))


@pytest.fixture(scope="module")
def compiled() -> CompiledBuckets:
    network = amos.load_network(_rows_and_columns(), buckets={"batch": [5, 1, 3]}, name="net")
    return amos.compile(network, progress=False)


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5])
def test_every_size_up_to_the_largest_bucket(compiled: CompiledBuckets, batch: int) -> None:
    rng = np.random.default_rng(batch)
    x, y = (rng.standard_normal((batch, *s)).astype(np.float32) for s in ((4, 16), (1, 8)))
    results = compiled(x, y=y)
    for result, expected in zip(results, _expected(_rows_and_columns(), x=x, y=y), strict=True):
        assert result.flags.c_contiguous
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_what_no_bucket_takes_is_refused(compiled: CompiledBuckets) -> None:
    def arrays(x: int, y: int, last: int = 16) -> list[np.ndarray]:
        return [np.zeros((x, 4, last), np.float32), np.zeros((y, 1, 8), np.float32)]

    with pytest.raises(NetworkError, match=r"^'batch' is 6, its buckets are 1, 3, 5$"):
        compiled(*arrays(6, 6))
    with pytest.raises(NetworkError, match=r"^'batch' is 0, its buckets are 1, 3, 5$"):
        compiled(*arrays(0, 0))
    with pytest.raises(NetworkError, match=r"input 'y': expected shape \(2, 1, 8\), got \(3, 1"):
        compiled(*arrays(2, 3))
    with pytest.raises(NetworkError, match=r"'x': expected shape \(2, 4, 16\), got \(2, 4, 17\)"):
        compiled(*arrays(2, 2, 17))
    with pytest.raises(NetworkError, match="missing input y"):
        compiled(*arrays(2, 2)[:1])


def test_buckets_are_checked_and_reported(compiled: CompiledBuckets) -> None:
    names = [f"net[batch={size}]" for size in (1, 3, 5)]
    assert list(dict.fromkeys(check.name for check in compiled.check())) == names
    x, y = np.ones((2, 4, 16), np.float32), np.ones((2, 1, 8), np.float32)
    assert {check.name for check in compiled.check(x, y=y)} == {names[1]}
    for report in (compiled.report(), compiled.network.report()):
        frame = report.to_frame()
        assert list(frame["bucket"]) == names and (frame["seconds"] > 0).all()
        assert str(report).count("net[batch=") == 3


@pytest.mark.parametrize(
    ("kind", "attributes", "why"),
    [
        ("Softmax", {"axis": 0}, "differs by"),
        ("ReduceMean", {"axes": [0], "keepdims": 0}, "differs by"),
        ("ReduceMax", {"axes": [0], "keepdims": 1}, "depend on the others"),
        ("Transpose", {"perm": [1, 0]}, ""),
        ("Flatten", {"axis": 0}, ""),
    ],
)
def test_rows_that_depend_on_others_are_not_padded(
    kind: str, attributes: dict[str, Any], why: str
) -> None:
    model = _mixing(kind, **attributes)
    network = amos.load_network(model, buckets={"length": [4, 6]})
    compiled = amos.compile(network, progress=False)
    (length,) = compiled.dimensions
    assert why in length.exact and bool(why) == bool(length.exact)
    for size in (4, 6) if why else (3, 4, 5, 6):
        x = np.random.default_rng(size).standard_normal((size, 16)).astype(np.float32)
        (expected,) = _expected(model, x=x)
        np.testing.assert_allclose(compiled(x), expected, rtol=1e-5, atol=1e-5)
    if why:
        message = "'length' is 5, its buckets are 4, 6 and nothing between: "
        with pytest.raises(NetworkError, match=message):
            compiled(np.zeros((5, 16), np.float32))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("Gather", "padded from 2 to 4 it differs"),
        ("ReduceMin", "padded from 2 to 4 it differs"),
        ("ReduceMax", "padded from 2 to 4 it differs"),
        ("Div", "integers are divided"),
    ],
)
def test_integers_for_which_padding_matters(kind: str, why: str) -> None:
    """Zeros among them may be the last, the least or the largest, or what is divided by."""
    b = Builder()
    x = b.node("MatMul", b.input("x", ("rows", 16)), b.random(16, 8))
    numbers = b.input("numbers", ("rows",), TensorProto.INT64)
    if kind == "Gather":
        y = b.node(kind, x, b.input("place", (1,), TensorProto.INT64))
        y = b.node("Add", x, y)
    elif kind == "Div":
        y = b.node(kind, b.constant([7], "int64"), numbers)
        y = b.node("Unsqueeze", b.node("Cast", y, to=TensorProto.FLOAT), b.constant([1], "int64"))
        y = b.node("Mul", x, y)
    else:
        y = b.node("Cast", b.node(kind, numbers), to=TensorProto.FLOAT)
        y = b.node("Mul", x, y)
    network = amos.load_network(b.model(y), buckets={"rows": [2, 4]})
    (rows,) = amos.compile(network, progress=False).dimensions
    assert rows.exact.startswith(why)


def test_buckets_of_a_model_that_is_divided(tmp_path: Path) -> None:
    """onnxruntime sorts between two products."""
    b = Builder()
    x = b.node("Relu", b.node("MatMul", b.input("x", ("rows", 16)), b.random(16, 8)))
    best = b.node("Identity", f"{x}_largest")
    order = helper.make_node(
        "TopK", [x, b.constant([4], "int64")], [f"{x}_largest", f"{x}_order"], axis=1
    )
    b.nodes.insert(-1, order)
    model = b.model(b.node("Relu", b.node("MatMul", best, b.random(4, 8))))
    network = amos.load_network(model, buckets={"rows": [2, 4]}, name="net")
    assert {name for each in network.networks.values() for name in each.networks} == {
        f"rows{size}_Region{number}" for size in (2, 4) for number in (0, 1)
    }
    compiled = amos.compile(network, progress=False)
    (rows,) = compiled.dimensions
    assert not rows.exact
    for size in (1, 2, 3, 4):
        values = np.random.default_rng(size).standard_normal((size, 16)).astype(np.float32)
        (expected,) = _expected(model, x=values)
        np.testing.assert_allclose(compiled(values), expected, rtol=1e-5, atol=1e-5)
    files = {path.name for path in compiled.export(tmp_path)}
    assert {"rows2.onnx", "rows4.onnx"} <= files


def test_buckets_that_onnxruntime_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Timing, "wins", property(lambda timing: timing.name.startswith("batch3")))
    network = amos.load_network(_rows_and_columns(), buckets={"batch": [1, 3]}, name="net")
    compiled = amos.compile(network, progress=False)
    assert [len(each.regions) for each in compiled.models.values()] == [0, 1]
    for batch in (1, 2, 3):
        x, y = (np.ones((batch, *s), np.float32) for s in ((4, 16), (1, 8)))
        for result, right in zip(
            compiled(x, y=y), _expected(_rows_and_columns(), x=x, y=y), strict=True
        ):
            np.testing.assert_allclose(result, right, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(Timing, "wins", property(lambda timing: False))
    names = {path.name for path in amos.compile(network, progress=False).export(tmp_path)}
    assert names == {"batch1.onnx", "batch3.onnx", "example.py", "example.cpp"}


@pytest.mark.long
def test_two_dimensions_make_a_network_of_each_combination(tmp_path: Path) -> None:
    """Attention over a length, which cannot be padded, and a batch, which can."""
    b = Builder()
    x = b.input("x", ("batch", "length", 8))
    scores = b.node("Softmax", b.node("MatMul", x, b.node("Transpose", x, perm=[0, 2, 1])))
    model = b.model(b.node("MatMul", scores, b.node("MatMul", x, b.random(8, 8))))
    network = amos.load_network(model, buckets={"batch": [1, 2], "length": [3, 5]}, name="net")
    assert [each.name for each in network.networks.values()] == [
        f"net[batch={batch}, length={length}]" for batch in (1, 2) for length in (3, 5)
    ]
    assert sum(task.weight for task in network.tasks) == sum(
        task.weight for each in network.networks.values() for task in each.tasks
    )
    compiled = amos.compile(network, progress=False)
    assert [bool(each.exact) for each in compiled.dimensions] == [False, True]
    x_ = np.random.default_rng(0).standard_normal((1, 5, 8)).astype(np.float32)
    np.testing.assert_allclose(compiled(x_), _expected(model, x=x_)[0], rtol=1e-4, atol=1e-5)
    assert compiled.profile(x_, repeat=1).network == "net[batch=1, length=5]"
    assert compiled.profile(repeat=1).network == "net[batch=2, length=5]"
    models = {path.stem for path in compiled.export(tmp_path) if path.suffix == ".onnx"}
    assert models == {f"batch{n}_length{m}" for n in (1, 2) for m in (3, 5)}


def test_rows_of_two_dimensions_as_one_are_not_padded() -> None:
    b = Builder()
    x = b.node("MatMul", b.input("x", ("batch", "length", 8)), b.random(8, 4))
    model = b.model(b.node("Reshape", x, b.constant([-1, 4], "int64")))
    network = amos.load_network(model, buckets={"batch": [1, 2], "length": [2, 3]})
    compiled = amos.compile(network, progress=False)
    assert all("do not grow with it" in each.exact for each in compiled.dimensions)
    values = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
    np.testing.assert_allclose(compiled(values), _expected(model, x=values)[0], atol=1e-5)


@pytest.mark.skipif(compiler_command() is None, reason="needs a C compiler")
def test_equal_weights_are_there_once(tmp_path: Path) -> None:
    """The engine's own, and those of kernels in each layout. Buckets have a Tile of their own."""
    b = Builder()
    x = b.node("Gather", b.random(4096, 64), b.input("index", ("n",), TensorProto.INT64))
    x = b.node("Tile", b.node("MatMul", x, b.random(64, 96)), b.constant([1, 2], "int64"))
    model, sizes = b.model(x), (8, 16, 32)
    network = amos.load_network(model, buckets={"n": list(sizes)})
    compiled = amos.compile(network, progress=False)
    library, *further = (each.library for each in compiled.models.values())
    assert library is not None and all(each is library for each in further)
    compiled.export(tmp_path)
    (weights,) = tmp_path.glob("constants-*.bin")
    assert 1 << 20 < weights.stat().st_size < 2 << 20
    for size in sizes:
        index = np.random.default_rng(size).integers(0, 4096, size)
        (expected,) = _expected(model, index=index)
        np.testing.assert_allclose(compiled(index), expected, rtol=1e-4, atol=1e-5)
        session = open_session(
            tmp_path / f"n{size}.onnx", replace(library, path=tmp_path / "libamos.so"), {}
        )
        np.testing.assert_allclose(session.run(None, {"index": index})[0], expected, 1e-4, 1e-5)


def test_buckets_that_are_wrong() -> None:
    model = _rows_and_columns()
    with pytest.raises(NetworkError, match="no open dimension 'rows' .*: 'batch'"):
        amos.load_network(model, buckets={"rows": [1]})
    for sizes in ([], [0], [1.5], "4", 4):
        with pytest.raises(NetworkError, match="'batch': expected a list of sizes above 0, got"):
            amos.load_network(model, buckets={"batch": sizes})  # type: ignore[dict-item]
    b = Builder()
    y = b.node("MatMul", b.input("x", ("batch", "length", 16)), b.random(16, 8))
    with pytest.raises(NetworkError, match="dimension 'length' of input 'x' is dynamic too"):
        amos.load_network(b.model(y), buckets={"batch": [1]})
    network = amos.load_network(model, buckets={"batch": [2]})
    compiled = amos.compile(network, verify=False, progress=False)
    with pytest.raises(NetworkError, match="nothing between: padding was not verified"):
        compiled(np.zeros((1, 4, 16), np.float32), np.zeros((1, 1, 8), np.float32))


@pytest.mark.long
def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(_mixing("Relu"), path)
    arguments = [str(path), "--bucket", "length=2,4"]
    assert main(["report", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "model[length=2]" in shown and "model[length=4]" in shown
    assert main(["report", *arguments, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["buckets"]) == 2
    records = ["--records", str(tmp_path / "tuning.db")]
    assert main(["tune", *arguments, *records, "--trials", "2", "--json"]) == 0
    assert [task["trials"] for task in json.loads(capsys.readouterr().out)["tasks"]] == [1, 1]
    assert main(["compile", *arguments, *records]) == 0
    shown = capsys.readouterr().out
    assert shown.count("1 from records") == 2 and "length: up to 2, 4" in shown
    assert main(["report", *arguments, "--bucket", "length=8"]) == 2
    assert "--bucket 'length=8': 'length' is given twice" in capsys.readouterr().err
    assert main(["compile", *arguments, "--output", str(path)]) == 2
    assert "expected a folder, this is a file" in capsys.readouterr().err
    assert main(["compile", str(path), "--bucket", "length=two"]) == 2
    assert "--bucket 'length=two': expected DIM=SIZES" in capsys.readouterr().err


# What PyTorch says about itself.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.long
def test_programs_of_pytorch_name_their_dimensions() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.manual_seed(0)
    module, x = torch.nn.Linear(8, 4).eval(), torch.randn(3, 8)
    batch = torch.export.Dim("batch", max=64)
    program = torch.export.export(module, (x,), dynamic_shapes=({0: batch},))
    with pytest.raises(NetworkError, match="dimension 'batch' of input 'input' is dynamic; state"):
        amos.load_network(program)
    network = amos.load_network(program, shapes={"input": (7, 8)})
    assert network.inputs[0].shape == (7, 8)
    compiled = amos.compile(amos.load_network(program, buckets={"batch": [1, 4]}), progress=False)
    with torch.no_grad():
        np.testing.assert_allclose(compiled(x), module(x).numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(compiled(x.clone().requires_grad_()), compiled(x))
    with pytest.raises(BuildError, match=r"expected float32 of shape \(3, 8\), got bfloat16"):
        compiled(x.bfloat16())


def test_float_inputs_only_grow_in_the_named_dimension() -> None:
    """An input without the dimension is passed as it is."""
    b = Builder()
    table = b.input("table", (8, 4))
    rows = b.node("Gather", table, b.input("index", ("n",), TensorProto.INT64))
    model = b.model(b.node("MatMul", rows, b.random(4, 4)))
    compiled = amos.compile(amos.load_network(model, buckets={"n": [2, 4]}), progress=False)
    values = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    index = np.array([7, 3, 5])
    expected = _expected(model, table=values, index=index)[0]
    np.testing.assert_allclose(compiled(values, index), expected, rtol=1e-5, atol=1e-5)
    # What is beyond the table is never read.
    last = compiled(values, np.array([7, 0]))
    np.testing.assert_array_equal(compiled(values, np.array([1 << 40, -(1 << 40)])), last)
