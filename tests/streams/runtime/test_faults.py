"""Streams with one token, address, size or micro-operation changed: what does harm is told."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amos.errors import StreamError
from amos.streams.codegen import Load, Store, Stream
from amos.streams.runtime import StreamKernel, simulate
from amos.streams.vta import Finish, Gemm
from tests.support.streams import OPERATORS, Stuck, drawn, inputs_of, interpret

TOKENS = ("pop_prev", "pop_next", "push_prev", "push_next")


def _fault(stream: Stream, rng: np.random.Generator) -> tuple[str, Stream]:
    """A stream with one thing changed, and the kind of change."""
    kind = ("token", "address", "size", "uop")[int(rng.integers(4))]
    if kind == "uop":
        uops = stream.constants["uops"].copy()
        row, column = int(rng.integers(len(uops))), int(rng.integers(3))
        uops[row, column] = max(0, uops[row, column] + int(rng.choice([-1, 1, 7])))
        return kind, replace(stream, constants={"uops": uops})
    number = int(rng.integers(len(stream.instructions)))
    instruction: Any = stream.instructions[number]
    step = int(rng.choice([-1, 1, 3]))
    if kind == "token" or isinstance(instruction, Finish):
        kind, name = "token", TOKENS[int(rng.integers(4))]
        changed: dict[str, Any] = {name: not getattr(instruction, name)}
    elif isinstance(instruction, Load | Store):
        names = ["sram", "dram", "stride"] if kind == "address" else ["rows", "columns"]
        name = names[int(rng.integers(len(names)))]
        changed = {name: max(0, getattr(instruction, name) + step)}
    elif kind == "address":
        names = ["dst", "src"] + ["wgt"] * isinstance(instruction, Gemm)
        name = names[int(rng.integers(len(names)))]
        outer, inner = getattr(instruction, name)
        changed = {name: (max(0, outer + step), inner)}
    else:
        name = ("outer", "inner", "begin", "end")[int(rng.integers(4))]
        changed = {name: max(0, getattr(instruction, name) + step)}
    instructions = list(stream.instructions)
    instructions[number] = replace(instruction, **changed)
    return kind, replace(stream, instructions=tuple(instructions))


def _harmless(stream: Stream, arguments: dict[str, np.ndarray], expected: np.ndarray) -> bool:
    """Whether orders drawn by chance, fast and slow queues, all end with the right result."""
    for seed in range(3):
        try:
            result = interpret(stream, arguments, np.random.default_rng(seed))
        except Stuck:
            return False
        if not (result["out"] == expected).all():
            return False
    return True


def _inject(kernels: list[StreamKernel], count: int, seed: int) -> Counter[str]:
    """Faults in turn; counts what became of them. What is accepted must do no harm."""
    rng, outcomes = np.random.default_rng(seed), Counter[str]()
    for n in range(count):
        kernel = kernels[n % len(kernels)]
        arguments = kernel.prepare(inputs_of(kernel.plan.mapping.operator))
        kernel.run(arguments)
        assert kernel.last is not None
        expected = kernel.last.dram["out"]
        kind, broken = _fault(kernel.stream, rng)
        try:
            result = simulate(broken, arguments, kernel.plan.unit, 8.0).dram["out"]
        except StreamError:
            outcomes[f"{kind} refused"] += 1
            continue
        if (result == expected).all():
            assert _harmless(broken, arguments, expected), f"{kind} in {kernel.plan}"
            outcomes[f"{kind} harmless"] += 1
        else:
            outcomes[f"{kind} wrong"] += 1
    return outcomes


def _small(count: int) -> list[StreamKernel]:
    kernels = [k for name in ("conv", "gemm") for k in drawn(OPERATORS[name], 4 * count, seed=7)]
    return sorted(kernels, key=lambda k: len(k.stream.instructions) * len(k.binary))[:count]


def test_faults_are_told() -> None:
    outcomes = _inject(_small(3), 40, seed=0)
    assert sum(n for what, n in outcomes.items() if "harmless" not in what) >= 25
    assert not [what for what in outcomes if what == "token wrong"]


@pytest.mark.slow
def test_many_faults_are_told() -> None:
    outcomes = _inject(_small(8), 200, seed=1)
    assert {what.split()[0] for what in outcomes} == {"token", "address", "size", "uop"}
    assert sum(n for what, n in outcomes.items() if "harmless" not in what) >= 120
