"""What is no model, or a model that cannot be taken: one clear line, and nothing else."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import amos
from amos.errors import AmosError, ExploreError, NetworkError
from amos.network import CompiledNetwork
from amos.network.checks import check_results
from amos.network.external.partition import PartitionedNetwork
from tests.network.models import Builder, compile_whole, load_whole


def _product() -> tuple[Builder, str]:
    b = Builder()
    return b, b.node("MatMul", b.input("x", (4, 16)), b.random(16, 8))


def _unchecked(b: Builder, result: Any, inputs: list[Any] | None = None) -> Any:
    graph = helper.make_graph(b.nodes, "g", inputs or b.inputs, [result], b.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_result_may_be_a_constant() -> None:
    b, y = _product()
    model = b.model(y, b.node("Identity", b.constant([1.0, 2.0])))
    network = load_whole(model)
    compiled = compile_whole(network, progress=False)
    values = np.ones((4, 16), np.float32)
    product, constant = compiled(values)
    np.testing.assert_array_equal(constant, np.array([1, 2], np.float32))
    np.testing.assert_array_equal(product, compiled(values)[0])
    assert [(port.shape, port.dtype) for port in network.outputs] == [
        ((4, 8), "float32"),
        ((2,), "float32"),
    ]


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, None])
def test_a_file_need_not_say_what_shape_results_have(tmp_path: Path, kind: int | None) -> None:
    b, y = _product()
    value = helper.make_empty_tensor_value_info(y)
    if kind is not None:
        value = helper.make_tensor_value_info(y, kind, None)
    onnx.save(_unchecked(b, value), tmp_path / "model.onnx")
    (output,) = load_whole(tmp_path / "model.onnx").outputs
    assert output.shape == (4, 8)


def test_weights_beside_the_file(tmp_path: Path) -> None:
    b, y = _product()
    path, weights = tmp_path / "model.onnx", tmp_path / "weights.bin"
    onnx.save_model(
        b.model(y), path, save_as_external_data=True, location=weights.name, size_threshold=0
    )
    assert len(load_whole(path).tasks) == 1
    os.truncate(weights, 100)
    with pytest.raises(NetworkError, match=r"model.onnx' is no valid ONNX file: .*exceeds"):
        load_whole(path)
    weights.unlink()
    with pytest.raises(NetworkError, match=r"model.onnx' is no valid ONNX file: .*weights.bin"):
        load_whole(path)


def test_shapes_that_are_missing_or_wrong() -> None:
    b = Builder()
    weights = b.random(16, 8)
    floats, bare = TensorProto.FLOAT, helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    model = b.model(b.node("MatMul", b.input("x", ("batch", 16)), weights))
    with pytest.raises(NetworkError, match="'batch' of input 'x' is dynamic; state.*bucket batch"):
        load_whole(model)
    for wrong in ((4, 17), (4,), (-1, 16), 3):
        with pytest.raises(NetworkError, match=r"input 'x' has shape \(batch, 16\), got"):
            load_whole(model, shapes={"x": wrong})
    result = helper.make_tensor_value_info(b.nodes[-1].output[0], floats, None)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1  # as some exporters write
    with pytest.raises(NetworkError, match="dimension 0 of input 'x' is dynamic; state it"):
        load_whole(model)
    assert load_whole(model, shapes={"x": (4, 16)}).outputs[0].shape == (4, 8)
    shapeless = _unchecked(b, result, [bare])
    with pytest.raises(NetworkError, match="input 'x' has no shape; state it"):
        load_whole(shapeless)
    assert load_whole(shapeless, shapes={"x": (4, 16)}).outputs[0].shape == (4, 8)
    shapeless.graph.input[0].type.tensor_type.elem_type = TensorProto.UNDEFINED
    with pytest.raises(NetworkError, match="input 'x' is no tensor with a dtype"):
        load_whole(shapeless)


def test_what_reads_an_empty_tensor_stays_with_onnxruntime() -> None:
    """The cache of a decoder's first step has no rows."""
    b = Builder()
    past, x = b.input("past", (1, 0, 16)), b.input("x", (1, 4, 16))
    model = b.model(b.node("Concat", past, x, axis=1), b.node("Relu", past))
    compiled = amos.compile(amos.load_network(model), progress=False)
    rows = np.ones((1, 4, 16), np.float32)
    whole, nothing = compiled(past=rows[:, :0], x=rows)
    np.testing.assert_array_equal(whole, rows)
    assert nothing.shape == (1, 0, 16)
    with pytest.raises(AmosError, match=r"'past': expected float32 of shape \(1, 0, 16\), got"):
        compiled(past=rows, x=rows)
    with pytest.raises(AmosError, match=r"'past': .* got a _Remote that is no array"):
        compiled(past=_Remote(), x=rows)


def test_bytes_may_stand_for_truth_values_also_for_none() -> None:
    b = Builder()
    empty, some = (b.input(f"x{n}", (n, 4), TensorProto.BOOL) for n in (0, 2))
    b.node("Not", empty), b.node("Not", some)
    results = [helper.make_tensor_value_info(n.output[0], TensorProto.BOOL, None) for n in b.nodes]
    graph = helper.make_graph(b.nodes, "g", b.inputs, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    values = np.eye(2, 4, dtype=np.uint8)
    none, result = amos.compile(amos.load_network(model), progress=False)(values[:0], values)
    assert none.shape == (0, 4)
    np.testing.assert_array_equal(result, values == 0)


class _Remote:
    """An array on a device that NumPy cannot read."""

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise TypeError("not in memory")


def test_a_dynamic_dimension_may_be_empty() -> None:
    b = Builder()
    past, x = b.input("past", (1, "past", 16)), b.input("x", (1, 4, 16))
    model = b.model(b.node("Relu", b.node("Concat", past, x, axis=1)))
    network = amos.load_network(model, shapes={"past": (1, 0, 16)})
    assert [port.shape for port in network.inputs] == [(1, 0, 16), (1, 4, 16)]
    with pytest.raises(NetworkError, match=r"has shape \(1, past, 16\), got \(1, -1, 16\)"):
        load_whole(model, shapes={"past": (1, -1, 16)})
    with pytest.raises(NetworkError, match=r"sizes above 0, got \(0, 4\)"):
        amos.load_network(model, buckets={"past": (0, 4)})
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 0
    with pytest.raises(NetworkError, match=r"has shape \(1, 0, 16\), got \(1, 4, 16\)"):
        load_whole(model, shapes={"past": (1, 4, 16)})


def test_a_size_is_stated_once_for_all_dimensions_of_its_name() -> None:
    b = Builder()
    x = b.node("Add", b.input("x", ("batch", "length")), b.input("y", ("batch", "length")))
    model = b.model(b.node("Mul", x, b.input("z", ("batch", "other"))))
    with pytest.raises(NetworkError, match="dimension 'other' of input 'z' is dynamic"):
        load_whole(model, shapes={"x": (2, 8)})
    network = load_whole(model, shapes={"x": (2, 8), "z": (2, 1)})
    assert [port.shape for port in network.inputs] == [(2, 8), (2, 8), (2, 1)]
    with pytest.raises(NetworkError, match="dimension 'batch' of input 'y' is dynamic"):
        load_whole(model, shapes={"x": (2, 8), "z": (1, 1)})


def test_matrices_that_do_not_fit_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    b = Builder()
    x = b.node("Relu", b.input("x", (4, 16)))
    y = b.node("MatMul", x, b.random(17, 8))
    model = _unchecked(b, helper.make_tensor_value_info(y, TensorProto.FLOAT, None))
    with pytest.raises(NetworkError, match=r"matrices \(4, 16\) and \(17, 8\) do not go"):
        load_whole(model)
    b = Builder()
    assert not amos.load_network(b.model(b.node("Det", b.input("x", (4, 4))))).tasks
    assert capfd.readouterr() == ("", "")


def _result(name: str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def test_a_value_has_one_definition() -> None:
    b, y = _product()
    b.weights.append(b.weights[0])
    message = "value 'constant0' is defined more than once"
    with pytest.raises(NetworkError, match=message):
        load_whole(_unchecked(b, _result(y)))
    b, y = _product()
    b.nodes[0].output[0] = "x"
    with pytest.raises(NetworkError, match="value 'x' is defined more than once"):
        load_whole(_unchecked(b, _result("x")))


def test_files_that_onnxruntime_takes_need_not_pass_the_checker(tmp_path: Path) -> None:
    """Nodes out of order, a graph without a name, a domain that is not imported, no shape."""
    b, y = _product()
    chosen = helper.make_graph([helper.make_node("Relu", [y], ["r"])], "b", [], [_result("r")])
    branch = b.node("If", b.constant(True, "bool"), then_branch=chosen, else_branch=chosen)
    late = b.node("Relu", b.node("FastGelu", branch, domain="com.microsoft"))
    b.nodes.reverse()
    bare = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    shaped = helper.make_tensor_value_info(late, TensorProto.FLOAT, ("n", 8))
    model = _unchecked(b, shaped, [bare])
    model.graph.name = ""
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(model)
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(NetworkError, match="input 'x' has no shape; state it"):
        amos.load_network(tmp_path / "model.onnx")
    network = amos.load_network(tmp_path / "model.onnx", shapes={"x": (4, 16)})
    assert network.is_single_region
    assert [task.weight for task in network.tasks] == [1]


@pytest.mark.parametrize("kind", ["Add", "Where", "Relu"])
def test_operands_that_are_missing_are_named(kind: str) -> None:
    b = Builder()
    node = helper.make_node(kind, [b.input("x", (4,), TensorProto.BOOL)][: kind != "Relu"], ["y"])
    b.nodes.append(node)
    result = helper.make_tensor_value_info("y", TensorProto.BOOL, None)
    message = f"{kind}: input {int(kind != 'Relu')} is missing"
    with pytest.raises(NetworkError, match=message):
        load_whole(_unchecked(b, result))


def test_what_is_read_is_defined() -> None:
    b, y = _product()
    b.nodes[0].input[1] = "nothing"
    with pytest.raises(NetworkError, match="value 'nothing' is read and defined nowhere"):
        load_whole(_unchecked(b, _result(y)))
    b, y = _product()
    late = b.node("Relu", y)
    b.nodes[0].input[0] = late
    with pytest.raises(NetworkError, match="value '(matmul0|relu1)' depends on itself"):
        load_whole(_unchecked(b, _result(late)))
    b, y = _product()
    with pytest.raises(NetworkError, match="value 'z' is read and defined nowhere"):
        load_whole(_unchecked(b, _result("z")))
    model = _unchecked(b, _result(y))
    model.opset_import[0].version = 99
    with pytest.raises(NetworkError, match="opset 99; onnx knows up to"):
        load_whole(model)
    del model.graph.output[:]
    with pytest.raises(NetworkError, match="model 'g' has no output"):
        load_whole(model)


def test_weights_of_four_bits_stay_with_onnxruntime() -> None:
    b, y = _product()
    b.weights.append(helper.make_tensor("w", TensorProto.INT4, (2,), [1, 2]))
    assert len(amos.load_network(_unchecked(b, _result(y))).tasks) == 1


def test_functions_of_a_model_are_written_out() -> None:
    b, y = _product()
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    nodes = [
        helper.make_node("MatMul", ["a", "b"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["positive"]),
    ]
    layer = helper.make_function("own", "Layer", ["a", "b"], ["positive"], nodes, opsets[:1])
    call = helper.make_node("Layer", list(b.nodes[0].input), [y], domain="own")
    graph = helper.make_graph([call], "g", b.inputs, [_result(y)], b.weights)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=[layer])
    (task,) = load_whole(model).tasks
    assert str(task.operator.epilogue) == "relu(acc)"


def test_what_depends_on_values_stays_with_onnxruntime() -> None:
    b = Builder()
    y = b.node("Cast", b.node("NonZero", b.input("x", (4, 16))), to=TensorProto.FLOAT)
    network = amos.load_network(_unchecked(b, _result(y)))
    assert isinstance(network, PartitionedNetwork)
    assert network.external["NonZero", "shape by values"] == 1
    b = Builder()
    branches = {
        name: helper.make_graph([helper.make_node(kind, ["x"], [name])], name, [], [_result(name)])
        for name, kind in (("then", "Relu"), ("else", "Neg"))
    }
    condition = b.input("condition", (), TensorProto.BOOL)
    b.input("x", (4, 16))
    y = b.node("If", condition, **{f"{name}_branch": each for name, each in branches.items()})
    network = amos.load_network(_unchecked(b, _result(y)))
    assert isinstance(network, PartitionedNetwork)
    assert network.external["If", "control flow"] == 1


def test_shapes_as_results_stay_with_onnxruntime() -> None:
    values = np.ones((4, 16), np.float32)
    for kinds, right in ((["Shape"], [4, 8]), (["Shape", "Gather"], 4)):
        b, y = _product()
        for kind in kinds:
            y = b.node(kind, y, *([b.constant(0, "int64")] if kind == "Gather" else []))
        model = _unchecked(b, helper.make_empty_tensor_value_info(y))
        network = amos.load_network(model)
        assert isinstance(network, PartitionedNetwork)
        np.testing.assert_array_equal(amos.compile(network, progress=False)(values), right)


@pytest.fixture(scope="module")
def compiled() -> CompiledNetwork:
    b, y = _product()
    return compile_whole(load_whole(b.model(y)), verify=False, progress=False)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("compile", {"records": 7}, "records: expected a path, got 7"),
        ("compile", {"records": "a\0b"}, "records: expected a path, got 'a"),
        ("compile", {"measure": amos.MeasureOptions()}, "measure: expected True or False, got"),
        ("tune", {"trials": 1, "measure": True}, "measure: expected amos.MeasureOptions, got True"),
        ("tune", {"trials": "5"}, "trials: expected a whole number from 1 on, got '5'"),
        ("load_network", {"inputs": ()}, "inputs are for a torch.nn.Module"),
    ],
)
def test_arguments_of_a_wrong_kind(
    compiled: CompiledNetwork, tmp_path: Path, function: str, options: dict[str, Any], message: str
) -> None:
    if function == "tune":
        options = {"records": tmp_path / "r.db", **options}
    b, y = _product()
    what = _unchecked(b, _result(y)) if function == "load_network" else compiled.network
    with pytest.raises(AmosError, match=message):
        getattr(amos, function)(what, **options)


def test_objects_of_a_wrong_kind(compiled: CompiledNetwork) -> None:
    calls: list[tuple[Callable[[Any], object], str]] = [
        (amos.compile, "expected what amos.load_network returns, got [^\n]*$"),
        (amos.viz.allocation, "expected what amos.tune returns, got"),
        (amos.viz.report, r"expected what network.report\(\) returns, got"),
        (
            amos.load_network,
            "expected the path of an ONNX file, a torch.nn.Module or an Exp.*, got",
        ),
    ]
    for call, message in calls:
        with pytest.raises(AmosError, match=message):
            call(compiled)
    with pytest.raises(NetworkError, match="expected the path of .*, got <class 'int'>"):
        load_whole(int)
    with pytest.raises(NetworkError, match="model '/': this is a folder"):
        load_whole("/")
    with pytest.raises(NetworkError, match="export: expected a path, got 3"):
        compiled.export(3)  # type: ignore[arg-type]


def test_only_networks_are_compiled_and_tuned(tmp_path: Path) -> None:
    message = "expected what amos.load_network returns, got 'model.onnx'"
    with pytest.raises(NetworkError, match=message):
        amos.compile("model.onnx")  # type: ignore[call-overload]
    with pytest.raises(NetworkError, match=message):
        amos.tune("model.onnx", trials=1, records=tmp_path / "r.db")  # type: ignore[arg-type]
    assert not (tmp_path / "r.db").exists()


def test_sizes_go_by_name() -> None:
    b, y = _product()
    model = b.model(y)
    with pytest.raises(NetworkError, match=r"shapes: expected extents by input, got \[\(4, 16\)\]"):
        load_whole(model, shapes=[(4, 16)])
    with pytest.raises(NetworkError, match="buckets: expected sizes by name, got {}"):
        amos.load_network(model, buckets={})
    with pytest.raises(NetworkError, match="shapes: expected extents by input, got 3"):
        amos.load_network(model, buckets={"x": [1]}, shapes=3)  # type: ignore[call-overload]
    with pytest.raises(NetworkError, match=r"buckets: expected sizes by name, got \[1, 4\]"):
        amos.load_network(model, buckets=[1, 4])  # type: ignore[call-overload]
    compiled = compile_whole(load_whole(model), verify=False, progress=False)
    with pytest.raises(ExploreError, match="repeat: expected a whole number from 1 on, got 0"):
        compiled.profile(repeat=0)


def test_each_result_is_judged_by_its_own_size() -> None:
    """A small one beside a large one, a precise one beside a narrow one."""
    ones = np.ones((4, 8), np.float32)
    right: list[np.ndarray] = [ones * 1000, ones / 10, ones.astype(np.float16)]
    assert check_results("", "", right, right, rounded=False).passed
    for place, factor, passed in ((0, 1.01, False), (1, 1.01, False), (2, 1.01, True)):
        got = list(right)
        got[place] = (right[place] * factor).astype(right[place].dtype)
        assert check_results("", "", got, right, rounded=False).passed == passed
    infinite: list[np.ndarray] = [np.full((4, 8), np.inf, np.float32), *right[1:]]
    assert not check_results("", "", right, infinite, rounded=False).passed
    assert not check_results("", "", right, [ones[:2], *right[1:]], rounded=False).passed


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        FileNotFoundError(errno.ENOENT, "No usable temporary directory found"),  # a full one, too
    ],
)
def test_a_full_disk_is_said_in_a_line(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    b, y = _product()
    network = amos.load_network(b.model(y))
    monkeypatch.setattr("amos.network.external.source.Constants.write", Mock(side_effect=error))
    with pytest.raises(NetworkError, match=f"temporary files .* {error.strerror}; TMPDIR"):
        amos.compile(network, progress=False)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOMEM, "Out of memory"), FileNotFoundError(errno.ENOENT, "No", "x")]
)
def test_an_error_that_is_not_of_the_disk_stays(
    error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    b, y = _product()
    network = amos.load_network(b.model(y))
    monkeypatch.setattr("amos.network.external.source.Constants.write", Mock(side_effect=error))
    with pytest.raises(OSError, match=error.strerror):
        amos.compile(network, progress=False)
