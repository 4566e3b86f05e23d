"""Streams of small operators, and an interpreter that shares no code with the simulator.

The interpreter takes the next instruction from a queue that is drawn by chance, as far as
tokens allow: what a stream computes must not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import amos
from amos import validate
from amos.ir import Operator
from amos.plan import Candidate
from amos.schedule import ScheduleSpace
from amos.streams.codegen import Stream
from amos.streams.runtime import StreamKernel

VTA, PYNQ = amos.intrinsics.get("vta_gemm_m1n16k16_s8_s32"), amos.machines.get("vta_pynq")
S8 = {"image": "s8", "weight": "s8", "out": "s32"}
#: Windows, strides, padding at both ends, fused indices that no fragment divides.
OPERATORS = {
    "conv": Operator.parse(
        "out[n,p,q,k] += pad(image[n,p*2+r-1,q*2+s-1,c]) * weight[k,c,r,s]",
        extents=dict(n=1, p=6, q=5, k=32, c=32, r=3, s=3),
        dtypes=S8,
        name="conv",
    ),
    "wide": Operator.parse(
        "out[n,k,p] += pad(image[n,c,p+r-2]) * weight[k,c,r]",
        extents=dict(n=2, p=19, k=24, c=20, r=5),
        dtypes=S8,
        name="wide",
    ),
    "gemm": Operator.parse(
        "out[i,j] += image[i,k] * weight[k,j]",
        extents=dict(i=21, j=40, k=70),
        dtypes=S8,
        name="gemm",
    ),
    "threes": Operator.parse(
        "out[p,q,k] += pad(image[p+r-1,q+s-1,c], 3) * weight[k,c,r,s]",
        extents=dict(p=4, q=5, k=16, c=24, r=3, s=2),
        dtypes=S8,
        name="threes",
    ),
    "back": Operator.parse(
        "out[p,k] += image[10 - p*2 + r, c] * weight[k,c,r]",
        extents=dict(p=6, k=16, c=48, r=4),
        dtypes=S8,
        name="back",
    ),
    "down": Operator.parse(
        "out[p,k] += image[p + r, c] * weight[k, 6 - r, c]",
        extents=dict(p=9, k=20, c=16, r=7),
        dtypes=S8,
        name="down",
    ),
    "one tensor twice": Operator.parse(
        "out[i,j] += uops[i,k] * uops[j,k]",
        extents=dict(i=20, j=35, k=33),
        dtypes={"uops": "s8", "out": "s32"},
        name="twice",
    ),
    "one call": Operator.parse(
        "out[] += image[c] * weight[c]", extents=dict(c=9), dtypes=S8, name="one"
    ),
    "all padding": Operator.parse(
        "out[p,k] += pad(image[p + r - 3, c]) * weight[k,r,c]",
        extents=dict(p=2, k=20, c=16, r=2),
        dtypes=S8,
        shapes={"image": (1, 16)},
        name="nothing",
    ),
}


def inputs_of(op: Operator, seed: int = 0) -> dict[str, np.ndarray]:
    return validate.random_inputs(op, np.random.default_rng(seed))


def drawn(op: Operator, count: int, seed: int = 0) -> Iterator[StreamKernel]:
    """Kernels of candidates that are drawn from all mappings."""
    rng = np.random.default_rng(seed)
    mappings = list(amos.enumerate_mappings(op, VTA))
    for _ in range(count):
        mapping = mappings[int(rng.integers(len(mappings)))]
        yield StreamKernel(Candidate(mapping, ScheduleSpace(mapping, PYNQ).sample(rng)), PYNQ)


class Stuck(Exception):
    """No queue can go on, or tokens are left."""


def interpret(
    stream: Stream, dram: Mapping[str, np.ndarray], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """What is in DRAM after one of the orders that tokens allow; bytes as they come."""
    kinds = {b.name: b for b in stream.buffers}
    chip = {b.name: np.full((b.depth, *b.shape), 77, np.int64) for b in stream.buffers if not b.of}
    tensors = {r.name: np.zeros((r.rows, *kinds[r.buffer].shape), np.int64) for r in stream.regions}
    for name, values in {**dram, **stream.constants}.items():
        tensors[name][:] = values.reshape(tensors[name].shape)
    queues: dict[str, list[Any]] = {"load": [], "compute": [], "store": []}
    for instruction in stream.instructions:
        queues[instruction.queue(kinds)].append(instruction)
    names, tokens = list(queues), dict[Any, int]()
    while any(queues.values()):
        ready = [n for n in names if queues[n] and not _lacking(queues[n][0], n, names, tokens)]
        if not ready:
            raise Stuck
        name = ready[int(rng.integers(len(ready)))]
        instruction = queues[name].pop(0)
        for side, queue in _sides(name, names):
            if getattr(instruction, f"pop_{side}"):
                tokens[queue, name] -= 1
        _do(instruction, chip, tensors, stream, kinds)
        for side, queue in _sides(name, names):
            if getattr(instruction, f"push_{side}"):
                tokens[name, queue] = tokens.get((name, queue), 0) + 1
    if any(tokens.values()):
        raise Stuck
    return tensors


def _sides(name: str, names: list[str]) -> list[tuple[str, str]]:
    at = names.index(name)
    return [
        (side, names[at + d] if 0 <= at + d < 3 else "") for side, d in (("prev", -1), ("next", 1))
    ]


def _lacking(instruction: Any, name: str, names: list[str], tokens: dict[Any, int]) -> bool:
    return any(
        getattr(instruction, f"pop_{side}") and not tokens.get((queue, name), 0)
        for side, queue in _sides(name, names)
    )


def _do(instruction: Any, chip: Any, tensors: Any, stream: Stream, kinds: Any) -> None:
    kind = type(instruction).__name__
    if kind in ("Load", "Store"):
        (region,) = [
            r
            for r in stream.regions
            if r.buffer == instruction.buffer
            and r.base <= instruction.dram < r.base + max(r.rows, 1)
        ]
        flat, at = tensors[region.name], instruction.sram
        width = instruction.before[1] + instruction.columns + instruction.after[1]
        for y in range(-instruction.before[0], instruction.rows + instruction.after[0]):
            for x in range(-instruction.before[1], instruction.columns + instruction.after[1]):
                in_bounds = 0 <= y < instruction.rows and 0 <= x < instruction.columns
                where = instruction.dram - region.base + y * instruction.stride + x
                if kind == "Load":
                    chip[instruction.buffer][at] = flat[where] if in_bounds else 0
                else:
                    bits = 8 * kinds["out"].bytes // 16
                    value = chip["acc"][at] & ((1 << bits) - 1)
                    flat[where] = value - ((value >> (bits - 1)) << bits)
                at += 1
        assert width >= instruction.columns
    elif kind in ("Gemm", "Alu"):
        for i in range(instruction.outer):
            for j in range(instruction.inner):
                for uop in chip["uop"][instruction.begin : instruction.end]:
                    dst = uop[0] + i * instruction.dst[0] + j * instruction.dst[1]
                    src = uop[1] + i * instruction.src[0] + j * instruction.src[1]
                    if kind == "Alu":
                        right = (
                            chip["acc"][src]
                            if instruction.immediate is None
                            else instruction.immediate
                        )
                        chip["acc"][dst] = _alu(instruction.opcode, chip["acc"][dst], right)
                    elif instruction.reset:
                        chip["acc"][dst] = 0
                    else:
                        wgt = uop[2] + i * instruction.wgt[0] + j * instruction.wgt[1]
                        chip["acc"][dst] += chip["inp"][src] @ chip["wgt"][wgt].T


def _alu(opcode: str, lhs: Any, right: Any) -> Any:
    if opcode == "shr":
        return lhs >> right if np.all(np.asarray(right) >= 0) else lhs << -right
    named = {"min": np.minimum, "max": np.maximum, "add": np.add, "mul": np.multiply}
    return named[opcode](lhs, right)
