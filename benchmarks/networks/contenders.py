"""Who runs a network: each loads an ONNX file and gives a call on arrays.

What a contender lacks on this machine is an error that says so; the benchmark prints it
and leaves the contender out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["CONTENDERS", "Call", "load", "reference"]

Arrays = dict[str, np.ndarray]
#: The first output of the network, of inputs that are given ahead.
Call = Callable[[], np.ndarray]


def load(contender: str, path: Path, inputs: Arrays, threads: int, records: Path) -> Call:
    """A contender's call.

    Raises:
        Exception: whatever it says when it is not installed or does not take the network.
    """
    return _LOADERS[contender](path, inputs, threads, records)


def reference(path: Path, inputs: Arrays) -> np.ndarray:
    """What the model says, node by node, by onnxruntime without any of its rewriting."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, inputs)[0])


def _onnxruntime(path: Path, inputs: Arrays, threads: int, records: Path) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Its threads would spin for a while after each call, while others are timed.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs)[0]


def _openvino(path: Path, inputs: Arrays, threads: int, records: Path) -> Call:
    import openvino

    core = openvino.Core()
    options: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    # It would compute in bfloat16 where the CPU has it.
    options["INFERENCE_PRECISION_HINT"] = "f32"
    request = core.compile_model(core.read_model(str(path)), "CPU", options).create_infer_request()
    return lambda: request.infer(inputs, share_inputs=True)[0]


def _relax(path: Path, inputs: Arrays, threads: int, records: Path) -> Call:
    """TVM's own road without tuning."""
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    shapes = {name: list(array.shape) for name, array in inputs.items()}
    module = from_onnx(onnx.load(str(path)), shape_dict=shapes)
    cpu = str(tvm.target.codegen.llvm_get_system_cpu())
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": threads})
    machine = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())
    names = [parameter.name for parameter in module["main"].params]
    arguments = [tvm.runtime.tensor(inputs[name]) for name in names]
    return lambda: _first(machine["main"](*arguments))


def _amos(path: Path, inputs: Arrays, threads: int, records: Path) -> Call:
    import amos

    best = records if records.exists() else None
    model = amos.compile(amos.load_network(path), records=best, verify=False)
    return lambda: _first(model(*inputs.values()))


def _first(result: Any) -> np.ndarray:
    """The first array of a result, whatever it is in."""
    while not hasattr(result, "shape"):
        result = result[0]
    return result if isinstance(result, np.ndarray) else np.asarray(result.numpy())


_LOADERS = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "relax": _relax,
    "amos": _amos,
}
CONTENDERS = tuple(_LOADERS)


def use_threads(count: int) -> None:
    """Every pool of this process has as many threads; before anything is loaded."""
    for name in ("OMP_NUM_THREADS", "TVM_NUM_THREADS"):
        os.environ[name] = str(count)
