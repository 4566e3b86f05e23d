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

__all__ = ["CONTENDERS", "USUAL", "Call", "load", "metaschedule", "reference"]

#: Candidates that MetaSchedule measures, some of each kernel.
_TRIALS = 2000

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


def _openvino(
    path: Path, inputs: Arrays, threads: int, records: Path, *, precision: str = "f32"
) -> Call:
    import openvino

    core = openvino.Core()
    options: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    if precision:  # it would compute in bfloat16 where the CPU has it
        options["INFERENCE_PRECISION_HINT"] = precision
    model = core.read_model(str(path))
    model.reshape({name: list(array.shape) for name, array in inputs.items()})
    request = core.compile_model(model, "CPU", options).create_infer_request()
    return lambda: request.infer(inputs, share_inputs=True)[0]


def _openvino_default(path: Path, inputs: Arrays, threads: int, records: Path) -> Call:
    """OpenVINO in the precision that it chooses."""
    return _openvino(path, inputs, threads, records, precision="")


def _eager(path: Path, inputs: Arrays, threads: int, records: Path) -> Call:
    import onnx

    model = onnx.load(str(path))
    if any(node.op_type == "QuantizeLinear" for node in model.graph.node):
        raise NotImplementedError("PyTorch without a compiler computes quantized models in floats")
    return _pytorch_call(model, inputs, threads, lambda module: module)


def _inductor(path: Path, inputs: Arrays, threads: int, records: Path) -> Call:
    import onnx
    import torch
    from torch._inductor import config

    config.freezing = True  # weights are constants, packed ahead
    return _pytorch_call(onnx.load(str(path)), inputs, threads, torch.compile)


def _pytorch_call(
    model: Any, inputs: Arrays, threads: int, compiled: Callable[[Any], Callable[..., Any]]
) -> Call:
    import torch

    from networks.pytorch import module_of

    torch.set_num_threads(threads)
    module, tensors = compiled(module_of(model)), [torch.from_numpy(a) for a in inputs.values()]

    def call() -> np.ndarray:
        with torch.no_grad():
            result: np.ndarray = module(*tensors).numpy()
        return result

    call()  # it compiles now
    return call


def _relax(path: Path, inputs: Arrays, threads: int, records: Path) -> Call:
    """TVM's own road without tuning."""
    return _tvm_call(path, inputs, threads, lambda module, _: module)


def _metaschedule(path: Path, inputs: Arrays, threads: int, records: Path) -> Call:
    """TVM's own tuning; what it finds stays beside the records, and is taken the next time."""
    return metaschedule(path, inputs, threads, records.parent / f"metaschedule_{path.stem}")


def metaschedule(
    path: Path, inputs: Arrays, threads: int, place: Path, trials: int = _TRIALS, batch: int = 64
) -> Call:
    """Tuned by TVM's ``GradientBased`` scheduler, unless the folder holds its results.

    Args:
        path: of the model.
        inputs: to call it on.
        threads: of a kernel.
        place: folder of the results.
        trials: of all kernels.
        batch: of one kernel at a time.
    """

    def build(module: Any, target: Any, _parameters: Any) -> Any:
        # Its own also imports all tensor intrinsics, which takes each new worker 25 seconds.
        import tvm
        from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

        module = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
        return tvm.tirx.build(module, target)

    def tuned(module: Any, target: Any) -> Any:
        import tvm
        from tvm import relax
        from tvm.s_tir.meta_schedule.builder import LocalBuilder
        from tvm.s_tir.meta_schedule.relax_integration import tune_relax

        passes = relax.transform.DecomposeOpsForInference(), relax.get_pipeline("zero")
        with target:
            module = tvm.transform.Sequential(passes)(module)
        if not (place / "database_tuning_record.json").exists():
            place.mkdir(parents=True, exist_ok=True)
            tune_relax(
                *(module, {}, target, str(place), trials),
                num_trials_per_iter=batch,
                builder=LocalBuilder(f_build=build),
                seed=0,
            )
        with target:
            return relax.transform.MetaScheduleApplyDatabase(str(place))(module)

    return _tvm_call(path, inputs, threads, tuned)


def _tvm_call(path: Path, inputs: Arrays, threads: int, changed: Callable[[Any, Any], Any]) -> Call:
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    shapes = {name: list(array.shape) for name, array in inputs.items()}
    module = from_onnx(onnx.load(str(path)), shape_dict=shapes)
    names = [parameter.name for parameter in module["main"].params]
    cpu = str(tvm.target.codegen.llvm_get_system_cpu())
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": threads})
    built = tvm.compile(changed(module, target), target=target)
    machine = relax.VirtualMachine(built, tvm.cpu())
    arguments = [tvm.runtime.tensor(inputs[name]) for name in names]
    return lambda: _first(machine["main"](*arguments))


def _amos(
    path: Path,
    inputs: Arrays,
    threads: int,
    records: Path,
    *,
    measure: bool = False,
    precision: str = "f32",
) -> Call:
    import amos

    best = records if records.exists() else None
    network = amos.load_network(path, shapes={name: a.shape for name, a in inputs.items()})
    model = amos.compile(network, records=best, verify=False, measure=measure, precision=precision)
    return lambda: _first(model(**inputs))


def _amos_measured(path: Path, inputs: Arrays, threads: int, records: Path) -> Call:
    """The same whose kernels are timed while it compiles."""
    return _amos(path, inputs, threads, records, measure=True)


def _amos_auto(path: Path, inputs: Arrays, threads: int, records: Path) -> Call:
    """The same in the precision that keeps within 1 % on random inputs."""
    return _amos(path, inputs, threads, records, precision="auto")


def _first(result: Any) -> np.ndarray:
    """The first array of a result, whatever it is in."""
    while not hasattr(result, "shape"):
        result = result[0]
    return result if isinstance(result, np.ndarray) else np.asarray(result.numpy())


_LOADERS = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "pytorch": _eager,
    "inductor": _inductor,
    "relax": _relax,
    "metaschedule": _metaschedule,
    "amos": _amos,
    "amos_measured": _amos_measured,
    "amos_auto": _amos_auto,
    "openvino_default": _openvino_default,
}
CONTENDERS = tuple(_LOADERS)
#: Those that take no hours.
USUAL = tuple(
    name for name in CONTENDERS if name not in ("metaschedule", "amos_auto", "openvino_default")
)


def use_threads(count: int) -> None:
    """Every pool of this process has as many threads; before anything is loaded."""
    for name in ("OMP_NUM_THREADS", "TVM_NUM_THREADS"):
        os.environ[name] = str(count)
