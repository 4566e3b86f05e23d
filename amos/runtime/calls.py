"""A few calls of one intrinsic as a function of their own, for its self-check."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amos._toolchain import load_tvm, tvm
from amos.codegen.amx.tiles import ask_for_tiles
from amos.codegen.scheduling import last_line
from amos.codegen.tir.arrays import from_tensor, to_tensor
from amos.codegen.tir.target import host_target
from amos.codegen.tir.tensor_intrin import call_function
from amos.errors import BuildError
from amos.intrinsics import Intrinsic
from amos.ir import dtype
from amos.ir.combining import function
from amos.plan.cpu_blocks import partial_sums


def run_calls(intrinsic: Intrinsic, kind: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Compile an intrinsic for this CPU and run it on arrays of calls × fragment, sources first."""
    if kind == "native" and intrinsic.tile_registers:
        ask_for_tiles()
    library = _compile(intrinsic, kind, len(arrays[-1]), host_target())
    *sources, out = arrays
    if (parts := partial_sums(intrinsic, kind)) > 1:
        empty = np.full_like(out, intrinsic.compute.neutral(intrinsic.dtypes[-1]))
        out = np.stack([out, *[empty] * (parts - 1)], axis=-1)
    kinds = intrinsic.staged_dtypes
    staged = zip((*sources, out), kinds, strict=True)
    tensors = [to_tensor(a.astype(dtype(kind).numpy), kind) for a, kind in staged]
    library["main"](*tensors)
    out = from_tensor(tensors[-1], kinds[-1])
    if parts == 1:
        return out
    combine = function(intrinsic.compute.combiner).ufunc
    return np.asarray(combine.reduce(out, axis=-1, dtype=out.dtype))


def compile_object(
    intrinsic: Intrinsic, calls: int, target: dict[str, Any], path: str | Path
) -> None:
    """Write an object file whose ``__tvm_ffi_main`` does ``calls`` native calls.

    Raises:
        BuildError: TVM refuses it.
    """
    library = _compile(intrinsic, "native", calls, tvm.target.Target(target))
    library.mod.write_to_file(str(path), "o")


def _compile(intrinsic: Intrinsic, kind: str, calls: int, target: Any) -> Any:
    load_tvm()
    try:
        return tvm.compile(call_function(intrinsic, kind, calls), target=target)
    except BuildError:
        raise
    except Exception as error:
        raise BuildError(
            f"{intrinsic.name}: TVM cannot compile the {kind} implementation: {last_line(error)}"
        ) from error
