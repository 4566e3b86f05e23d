"""TVM's MetaSchedule with its VNNI intrinsic repaired.

It is given the layout that suits it: weights packed ahead as the instruction reads
them, output channels in the last 16 lanes, padding as a stage of its own. The
intrinsic that TVM ships does not compile with its LLVM, which takes the byte operands
of ``vpdpbusd`` as vectors of bytes; only its implementation is replaced here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from contenders.workloads import Workload, chosen_dtype

LANES, DEPTH = 16, 4
SEED = 0
OPERATORS = ("conv2d", "dilated_conv2d", "gemm")


def supported(work: Workload) -> bool:
    return chosen_dtype() != "f32" and work.operator in OPERATORS


def _repair() -> None:
    from tvm.s_tir import TensorIntrin
    from tvm.s_tir.tensor_intrin.x86 import VNNI_DOT_16x4_INTRIN, dot_product_16x4_u8i8i32_desc

    from contenders.vnni import vpdpbusd

    TensorIntrin.register(
        VNNI_DOT_16x4_INTRIN, dot_product_16x4_u8i8i32_desc, vpdpbusd, override=True
    )


def _geometry(work: Workload) -> dict[str, int]:
    """Everything as a convolution: a matrix product has one row, m columns, kernel 1×1."""
    if work.operator == "gemm":
        m, n, k = (work.values[name] for name in "mnk")
        sizes = dict(n=1, p=1, q=m, k=n, c=k, r=1, s=1, h=1, w=m)
        return sizes | dict(stride=1, padding=0, dilation=1)
    names = ("n", "p", "q", "k", "c", "r", "s", "stride", "padding", "dilation")
    values = {name: int(work.op_parameter(name)) for name in names}
    shape = next(t.shape for t in work.op.inputs if t.name == "image")
    return values | dict(h=shape[1], w=shape[2])


def program(work: Workload) -> Any:
    """The computation over packed weights, unscheduled."""
    from tvm import te, tirx

    g = _geometry(work)
    steps, blocks = -(-g["c"] // DEPTH), -(-g["k"] // LANES)
    image = te.placeholder((g["n"], g["h"], g["w"], g["c"]), "uint8", name="image")
    shape = (blocks, g["r"], g["s"], steps, LANES, DEPTH)
    packed = te.placeholder(shape, "int8", name="packed")
    pad, zero = g["padding"], tirx.const(0, "uint8")
    height, width = g["h"] + 2 * pad, g["w"] + 2 * pad

    def padded(n: Any, y: Any, x: Any, c: Any) -> Any:
        inside = []
        if pad:
            inside += [y >= pad, y < g["h"] + pad, x >= pad, x < g["w"] + pad]
        if steps * DEPTH != g["c"]:
            inside.append(c < g["c"])
        value = image[n, y - pad, x - pad, c]
        return tirx.if_then_else(tirx.all(*inside), value, zero)

    source: Any = image
    if pad or steps * DEPTH != g["c"]:
        source = te.compute((g["n"], height, width, steps * DEPTH), padded, name="padded")
    r, s = te.reduce_axis((0, g["r"]), name="r"), te.reduce_axis((0, g["s"]), name="s")
    step, byte = te.reduce_axis((0, steps), name="step"), te.reduce_axis((0, DEPTH), name="byte")
    stride, dilation = g["stride"], g["dilation"]
    out = te.compute(
        (g["n"], g["p"], g["q"], blocks, LANES),
        lambda n, y, x, k, lane: te.sum(
            source[
                n, y * stride + r * dilation, x * stride + s * dilation, step * DEPTH + byte
            ].astype("int32")
            * packed[k, r, s, step, lane, byte].astype("int32"),
            axis=[r, s, step, byte],
        ),
        name="out",
    )
    return te.create_prim_func([image, packed, out])


def _target() -> Any:
    import tvm

    cpu = str(tvm.target.codegen.llvm_get_system_cpu())
    return tvm.target.Target(
        {"kind": "llvm", "mcpu": cpu, "num-cores": len(os.sched_getaffinity(0))}
    )


def tune(work: Workload, trials: int, folder: Path) -> dict[str, Any]:
    """Tune from nothing; the database stays in the folder."""
    from tvm.s_tir import meta_schedule as ms

    _repair()
    place = folder / f"metaschedule-{work.name.replace(':', '_')}-{trials}"
    start = time.monotonic()
    ms.tune_tir(
        program(work),
        _target(),
        str(place),
        max_trials_global=trials,
        num_trials_per_iter=min(64, trials),
        seed=SEED,
        num_tuning_cores=len(os.sched_getaffinity(0)),
    )
    return {"seconds": time.monotonic() - start, "folder": place.name, "tried": trials}


def load(
    work: Workload,
    tuned: dict[str, Any],
    inputs: dict[str, np.ndarray],
    expected: np.ndarray,
    folder: Path,
) -> dict[str, Callable[[int], float]]:
    """Compile the best schedule of the database and check it.

    Raises:
        ValueError: it computes something else, or there is none.
    """
    import tvm
    from tvm.s_tir import meta_schedule as ms

    _repair()
    place = folder / tuned["folder"]
    database = ms.database.JSONDatabase(
        str(place / "database_workload.json"), str(place / "database_tuning_record.json")
    )
    schedule = ms.tir_integration.compile_tir(database, program(work), _target())
    if schedule is None:
        raise ValueError("MetaSchedule found no schedule that runs")
    library = tvm.compile(schedule.mod, target=_target())
    g = _geometry(work)
    image = inputs["a" if work.operator == "gemm" else "image"]
    weight = inputs["b"].T[:, :, None, None] if work.operator == "gemm" else inputs["weight"]
    arrays = [image.reshape(g["n"], g["h"], g["w"], g["c"]), pack(weight)]
    arguments = [tvm.runtime.tensor(np.ascontiguousarray(a)) for a in arrays]
    blocks = arrays[1].shape[0]
    shape = (g["n"], g["p"], g["q"], blocks, LANES)
    arguments.append(tvm.runtime.tensor(np.zeros(shape, np.int32)))
    library["main"](*arguments)
    got = arguments[-1].numpy().reshape(*shape[:3], -1)[..., : g["k"]]
    if "vpdpbusd" not in library.mod.inspect_source("s"):
        raise ValueError("MetaSchedule's kernel does not use the instruction")
    if not np.array_equal(got.reshape(expected.shape), expected):
        raise ValueError("differs from NumPy")
    timer = library.mod.time_evaluator
    return {"kernel": lambda runs: float(timer("main", tvm.cpu(), number=runs)(*arguments).mean)}


def pack(weight: np.ndarray) -> np.ndarray:
    """Weights [K, C, R, S] as [K/16, R, S, C/4, 16, 4], zeros beyond K and C."""
    k, c, r, s = weight.shape
    full = np.zeros((-(-k // LANES) * LANES, -(-c // DEPTH) * DEPTH, r, s), np.int8)
    full[:k, :c] = weight
    split = full.reshape(-1, LANES, full.shape[1] // DEPTH, DEPTH, r, s)
    return np.ascontiguousarray(split.transpose(0, 4, 5, 2, 1, 3))
