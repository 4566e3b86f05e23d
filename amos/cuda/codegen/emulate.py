"""Run a kernel's own source on the host, and compare what it writes with the operator.

The text that nvcc compiles is compiled by a C++ compiler against
``emulation/amos_emulation.h``, where every CUDA thread is a fiber. Everything that is
generated is executed: staging, gathers, predicates, the pipeline, fragments, the way
out. Only the instructions themselves are emulated: WMMA, ``mma.sync``,
``ldmatrix``, ``cp.async``, barriers.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path

import numpy as np

from amos.codegen.c.compiler import complaint
from amos.cuda.codegen.kernel import KernelText
from amos.cuda.codegen.reductions import element_blocks
from amos.cuda.codegen.text import ELEMENT_THREADS, cuda_type
from amos.cuda.plan import GpuPlan
from amos.errors import BuildError
from amos.ir import Tensor, dtype
from amos.ir.floats import pack, quantize, unpack
from amos.validate import evaluate, random_inputs

#: Folder of the headers that stand for CUDA.
HEADERS = Path(__file__).parent / "emulation"
#: A shift, an overflow or an address that is not aligned ends the program; registers that
#: were never written hold nonsense.
_FLAGS = (
    "-std=c++17",
    "-O1",
    "-w",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fsanitize=undefined",
    "-fno-sanitize=vptr",
    "-fsanitize-undefined-trap-on-error",
)
_UNWRITTEN = "-ftrivial-auto-var-init=pattern"
#: How a kernel declares its shared memory: as large as it is, or as the launch says. On the
#: host it ends where its memory does.
_SHARED = re.compile(r"^(extern )?__shared__ .*shared_memory\[(.*)\];$", re.MULTILINE)
#: Seconds that a compiler or a kernel may take.
_TIMEOUT = 300
#: Order of threads and arrival of copies, in the two runs.
_RUNS = (("0", "1"), ("1", "0"))


def compiler() -> str | None:
    """Return a C++ compiler for the host, if there is one."""
    return shutil.which("g++") or shutil.which("clang++")


@cache
def _flags(tool: str) -> tuple[str, ...]:
    """Return a compiler's options; those for registers began with GCC 12 and Clang 8."""
    command = [tool, _UNWRITTEN, "-x", "c++", "-fsyntax-only", "-"]
    return (*_FLAGS, _UNWRITTEN) if not _run(command, b"").returncode else _FLAGS


@dataclass(frozen=True)
class Emulation:
    """Results of a kernel on the host.

    Attributes:
        outputs: the results of each run: threads in ascending order with copies as late
            as they may come, then in descending order with copies at once.
        expected: what the operator says.
        allowed: by how much each may differ: where floats are added up in any order.
    """

    outputs: tuple[tuple[np.ndarray, ...], ...]
    expected: tuple[np.ndarray, ...]
    allowed: tuple[float, ...]

    @property
    def equal(self) -> bool:
        """Whether each run wrote what the operator says."""
        return not self.problem

    @property
    def problem(self) -> str:
        """The first difference, in one line; empty if there is none."""
        for number, outputs in enumerate(self.outputs):
            triples = zip(outputs, self.expected, self.allowed, strict=True)
            for which, (out, expected, allowed) in enumerate(triples):
                both_nan = (out != out) & (expected != expected)
                wrong = ~((out == expected) | both_nan)
                if allowed:
                    wrong &= ~(np.abs(out - expected) <= allowed)
                if wrong.any():
                    at = tuple(int(i) for i in np.argwhere(wrong)[0])
                    return (
                        f"run {number}{f', result {which}' * (which > 0)}: {int(wrong.sum())} of "
                        f"{wrong.size} elements differ; at {at} expected {expected[at]}, "
                        f"got {out[at]}"
                    )
        return ""


def draw_inputs(plan: GpuPlan, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw generic data whose sums are exact in the accumulator, in any order.

    Half-precision accumulators hold integers up to 2048 only, so that they get small
    ones, and few that are not zero if the reduction is long.
    """
    op = plan.mapping.operator
    if plan.accumulator != "float16":
        return random_inputs(op, rng)
    length = max(1, int(np.prod([it.extent for it in op.reduce])))
    share = min(1.0, 400 / length)
    drawn = {}
    for tensor in op.inputs:
        values = rng.integers(-2, 2, tensor.shape, endpoint=True)
        values = values * (rng.random(tensor.shape) < share)
        drawn[tensor.name] = values.astype(dtype(tensor.dtype or "float16").numpy)
    return drawn


def emulate(
    plan: GpuPlan, inputs: Mapping[str, np.ndarray], source: str | None = None
) -> Emulation:
    """Compile a kernel for the host and run it twice.

    Raises:
        BuildError: there is no C++ compiler, it refuses the kernel, or the kernel
            leaves a tensor, waits at different barriers, or breaks a rule of hardware.
    """
    tool, name = compiler(), KernelText.name_of(plan)
    if tool is None:
        raise BuildError(f"{name}: a kernel runs on the host with g++ or clang++; there is none")
    op = plan.mapping.operator
    with tempfile.TemporaryDirectory(prefix="amos-") as folder:
        text, binary = Path(folder, "main.cpp"), Path(folder, "main")
        text.write_text(_main(plan, source or KernelText(plan).source), encoding="utf-8")
        if problem := complaint([tool, *_flags(tool), f"-I{HEADERS}", text, "-o", binary]):
            raise BuildError(f"{name}: {tool} refuses it: {problem}")
        kinds = {tensor.name: tensor.dtype or "float32" for tensor in op.inputs}
        patterns = [pack(quantize(inputs[name], kind), kind) for name, kind in kinds.items()]
        data = b"".join(pattern.tobytes() for pattern in patterns)
        outputs = []
        for order in _RUNS:
            ended = _run([str(binary), *order], data)
            if ended.returncode:
                reason = ended.stderr.decode(errors="replace").strip()
                raise BuildError(f"{name}: on the host: {reason or f'signal {-ended.returncode}'}")
            outputs.append(_results(plan, np.frombuffer(ended.stdout, np.uint8)))
    expected = evaluate(op, inputs)
    several = expected if isinstance(expected, tuple) else (expected,)
    return Emulation(tuple(outputs), several, tuple(_yield_tolerances(plan, inputs)))


def _results(plan: GpuPlan, data: np.ndarray) -> tuple[np.ndarray, ...]:
    """Split the bytes of results into arrays."""
    sizes = [_bytes(tensor) for tensor in plan.results]
    pieces = np.split(data, np.cumsum(sizes)[:-1])
    return tuple(
        unpack(x, str(t.dtype), t.shape) for x, t in zip(pieces, plan.results, strict=True)
    )


def _yield_tolerances(plan: GpuPlan, inputs: Mapping[str, np.ndarray]) -> Iterator[float]:
    """Yield the tolerance of each result: floats are added up in any order."""
    op = plan.mapping.operator
    yield 0.0
    for result, tensor in zip(op.further, plan.results[1:], strict=True):
        if result.combination != "+=" or result.combination_dtype(plan.accumulator) == "int32":
            yield 0.0
            continue
        alone = op.with_only(result)
        read = {tensor.name: inputs[tensor.name] for tensor in alone.inputs}
        largest = np.abs(evaluate(alone, read)).max(initial=0)
        count = prod(it.extent for it in op.spatial if it.name not in result.store.names)
        # Higham, Accuracy and Stability of Numerical Algorithms, section 4.2.
        bound = float(np.finfo(np.float32).eps * count**2 * largest)
        yield bound if tensor.dtype == "float32" else max(bound, 1.0)


def _bytes(tensor: Tensor) -> int:
    return tensor.elements * dtype(str(tensor.dtype)).bits // 8


def _main(plan: GpuPlan, text: str) -> str:
    op, kernel = plan.mapping.operator, KernelText(plan)
    read = [replace(tensor, dtype=plan.arguments[tensor.name]) for tensor in op.inputs]
    arguments = [f"static_cast<const {_type(x)} *>(in[{n}])" for n, x in enumerate(read)]
    arguments += [f"static_cast<{_type(x)} *>(out[{n}])" for n, x in enumerate(plan.results)]
    passed = ", ".join(arguments)
    sizes = [_bytes(tensor) for tensor in plan.results]
    cleared = [
        plan.zeroed or plan.keeps_elements,
        *(not op.fills(each.store) for each in op.further),
    ]
    zeros = (f"std::memset(out[{n}], 0, {s});" for n, s in enumerate(sizes) if cleared[n])
    written = (f"std::fwrite(out[{n}], 1, {s}, stdout) == {s}" for n, s in enumerate(sizes))
    declared = _SHARED.search(text)
    size = (declared and declared.group(2)) or plan.shared_bytes
    launches = [(KernelText.name_of(plan), plan.grid, plan.threads)]
    if kernel.start:
        launches.insert(0, (kernel.start, (element_blocks(plan), 1, 1), ELEMENT_THREADS))
    if kernel.end:
        blocks = element_blocks(plan, ends=True)
        launches.append((kernel.end, (blocks, 1, 1), ELEMENT_THREADS))
    calls = "".join(
        f"  amos_emulation::launch({{{', '.join(f'{n}u' for n in grid)}}}, {threads}, "
        f"shared_memory, {size},\n                         order[1][0] == '1', "
        f"order[2][0] == '1',\n                         [] {{ {name}({passed}); }});\n"
        for name, grid, threads in launches
    )
    shared = f"static unsigned char *const shared_memory = amos_emulation::guarded({size}, 128);"
    text = _SHARED.sub(shared, text)
    return f"""{text}
#include "main.h"
int main(int, char **order) {{
  static const void *in[] = {{{", ".join(f"read_tensor({_bytes(x)})" for x in read)}}};
  static void *out[] = {{{", ".join(f"tensor({size})" for size in sizes)}}};
  {" ".join(zeros)}
{calls}  return {" && ".join(written)} ? 0 : 4;
}}
"""


def _type(tensor: Tensor) -> str:
    return cuda_type(str(tensor.dtype))


def _run(command: list[str], data: bytes | None) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, input=data, capture_output=True, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise BuildError(f"{Path(command[0]).name} took more than {_TIMEOUT} seconds") from None
