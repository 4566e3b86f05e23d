"""Regions of a model beside the operators of onnxruntime that they replace."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from amos.codegen.scheduled import last_line
from amos.errors import NetworkError
from amos.machine.cpu import cpu
from amos.measure.reference import compared
from amos.network.external.library import Library
from amos.network.external.regions import Region
from amos.network.model import Check, random_arrays, values_of
from amos.network.network import Network, Port
from amos.network.tolerances import allowed, rounds

#: Name of the model in a folder.
MODEL = "model.onnx"
#: What results are compared with.
REFERENCE = "onnxruntime"
#: Threads stop spinning when a call ends, and leave the cores to others of the process.
QUIET = {"session.force_spinning_stop": "1"}
#: By default onnxruntime rounds inputs to 8 bits where weights are quantized in blocks.
_EXACT = {"session.qdq_matmulnbits_accuracy_level": "1"}
#: Calls of each contender, in turns, and the share of onnxruntime's time that has to be saved.
_ROUNDS, _MARGIN = 9, 0.02
#: A model of more bytes has its weights in a file of its own.
_LARGEST = 1 << 30


@dataclass(frozen=True)
class Timing:
    """A region beside onnxruntime's own operators, in seconds.

    Attributes:
        name: of its operator.
        own: AMOS's.
        engine: onnxruntime's.
        fault: what is wrong with AMOS's results; empty if nothing is.
    """

    name: str
    own: float
    engine: float
    fault: str = ""

    @property
    def wins(self) -> bool:
        """Whether AMOS runs the region."""
        return not self.fault and self.own <= self.engine * (1 - _MARGIN)

    def __str__(self) -> str:
        if self.fault:
            return f"{self.name}: {self.fault}: stays with onnxruntime"
        where = "AMOS" if self.wins else "onnxruntime"
        return (
            f"{self.name}: {self.own * 1e3:.4g} ms, by onnxruntime's operators "
            f"{self.engine * 1e3:.4g} ms: stays with {where}"
        )


def race(name: str, region: Region, library: Library, folder: Path, verify: bool) -> Timing:
    """A region timed in turns with the operators that it replaces, and held against them."""
    from onnx import helper

    network = region.network
    arrays = dict(zip(region.inputs, random_arrays(network), strict=True))
    arrays = {port.name: array_of(port, arrays[port.name]) for port in network.inputs}
    graph = region.model.graph
    node = helper.make_node(name, region.inputs, region.outputs, domain=library.domain)
    own = helper.make_model(
        helper.make_graph([node], "region", graph.input, graph.output),
        opset_imports=[*region.model.opset_import, helper.make_opsetid(library.domain, 1)],
        ir_version=region.model.ir_version,
    )
    sessions = []
    for model, used in ((own, library), (region.model, None)):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            save_model(model, Path(place))
            sessions.append(open_session(Path(place, MODEL), used, QUIET))
    own, right = (session.run(None, arrays) for session in sessions)
    fault = _fault(network, own, right) if verify else ""
    times: list[list[float]] = [[], []]
    for _ in range(_ROUNDS):
        for session, row in zip(sessions, times, strict=True):
            session.run(None, arrays)  # the caches are another session's
            start = time.perf_counter()
            session.run(None, arrays)
            row.append(time.perf_counter() - start)
    own_seconds, engine_seconds = map(median, times)
    return Timing(name, own_seconds, engine_seconds, fault)


def _fault(network: Network, results: Sequence[Any], expected: Sequence[Any]) -> str:
    """What is wrong with results; where levels of 8 bits are rounded apart nothing is."""
    if network.quantized:
        return ""
    pairs = zip(results, expected, strict=True)
    checks = [check_result(network.name, rounds(network), *map(np.asarray, each)) for each in pairs]
    worst = max(checks, key=lambda check: check.excess)
    return "" if worst.passed else str(worst)


def save_model(model: Any, folder: Path, name: str = MODEL) -> Path:
    """Write a model, with its weights in a file of their own where it is large."""
    import onnx

    large = model.ByteSize() > _LARGEST
    weights = f"{name.removesuffix('.onnx')}.data"
    onnx.save(model, folder / name, save_as_external_data=large, location=weights)
    return folder / name


def open_session(path: Path, library: Library | None, settings: Mapping[str, str]) -> Any:
    """Open a session of onnxruntime on a model.

    Args:
        path: of the model.
        library: of its operators.
        settings: of the session, by onnxruntime's names, such as ``QUIET``.

    Raises:
        NetworkError: onnxruntime is missing or does not take the model.
    """
    try:
        import onnxruntime
    except ImportError:
        raise NetworkError(
            "running this model needs onnxruntime: pip install 'amos-mapper[onnx]'"
        ) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = cpu().cores
    try:
        for name, value in {**_EXACT, **settings}.items():
            options.add_session_config_entry(name, value)
        if library is not None:
            options.register_custom_ops_library(str(library.path))
        return onnxruntime.InferenceSession(
            os.fspath(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime raises types of its own
        raise NetworkError(f"onnxruntime refuses the model: {last_line(error)}") from error


def array_of(port: Port, value: Any) -> np.ndarray:
    """An input as onnxruntime takes it."""
    array = values_of(port, value)
    return array.astype(bool) if port.dtype == "bool" else array


def check_result(name: str, rounded: bool, result: np.ndarray, expected: np.ndarray) -> Check:
    """A result held against onnxruntime's."""
    kind = str(expected.dtype)
    if result.shape != expected.shape:
        return Check(name, REFERENCE, np.inf, 0.0)
    if expected.dtype.kind not in "fiub":
        wrong = float(not np.array_equal(result, expected))
        return Check(name, REFERENCE, wrong, 0.0)
    difference, strange = compared(result, expected)
    limit = allowed(kind, expected, rounded)
    return Check(name, REFERENCE, np.inf if strange else difference, limit)
