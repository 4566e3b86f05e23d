"""What ONNX's own examples of its operators say, of all that are read into graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from amos.errors import NetworkError
from amos.network.graph import Graph
from amos.network.network import network_of
from amos.network.reading.validity import inline_functions
from tests.network.graphs import evaluate_graph
from tests.network.lines import run_graph
from tests.network.models import read_whole

pytest.importorskip("onnx")
#: Examples that are read at least; others are of strings, of sequences, of training.
_LEAST_READ = 950


@cache
def cases() -> list[Any]:
    """Examples of single operators, with inputs and results."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [case for case in collect_testcases(None) if case.kind == "node"]


def _bound(model: Any, arrays: list[Any]) -> tuple[Any, list[np.ndarray]]:
    """The model with integers of shapes and axes as constants, and the other inputs."""
    import onnx

    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    inputs, unbound = list[Any](), list[np.ndarray]()
    for port, array in zip(model.graph.input, arrays, strict=True):
        parameter = isinstance(array, np.ndarray) and array.ndim <= 1 and array.size <= 8
        if parameter and (len(inputs) or port.name in ("shape", "start")):
            bound.graph.initializer.append(onnx.numpy_helper.from_array(array, port.name))
        else:
            unbound.append(array)
            inputs.append(port)
    return bound, unbound


def check_case(case: Any, compute: Callable[..., list[np.ndarray]]) -> bool:
    """Whether an example was read; its results have to be right then.

    Args:
        case: the example.
        compute: returns the results of a graph for inputs in order.
    """
    ((arrays, expected),) = case.data_sets
    if not all(isinstance(each, np.ndarray) for each in (*arrays, *expected)):
        return False
    model, unbound = _bound(case.model, list(arrays))
    shapes = {
        port.name: array.shape for port, array in zip(case.model.graph.input, arrays, strict=True)
    }
    try:
        graph = read_whole(inline_functions(model, case.name), shapes)
    except NetworkError:
        return False
    for result, right in zip(compute(graph, unbound), expected, strict=True):
        assert result.dtype == right.dtype, case.name
        np.testing.assert_allclose(
            result.astype(np.float64),
            right.astype(np.float64),
            rtol=max(case.rtol, 2e-2 if right.dtype.itemsize < 4 else 0),
            atol=max(case.atol, 1e-6),
            err_msg=case.name,
        )
    return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.long
def test_examples_of_onnx_are_read_right() -> None:
    names = [case.name for case in cases() if check_case(case, evaluate_graph)]
    assert len(names) >= _LEAST_READ


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_loops_compute_examples_of_onnx_right() -> None:
    """After all passes, without kernels."""

    def compute(graph: Graph, arrays: list[np.ndarray]) -> list[np.ndarray]:
        return run_graph(network_of(graph, "example").graph, *arrays)

    names = [case.name for case in cases() if check_case(case, compute)]
    assert len(names) >= _LEAST_READ
