"""Simulations, kernels of this CPU between closed pages, and CUDA programs run on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

import amos
from amos import machines
from amos.plan import Schedule
from amos.plan.device_schedule import DeviceSchedule
from amos.schedule import ScheduleSpace
from amos.validate import evaluate
from tests.fuzz.case import Case, Refused, Wrong, case, compare
from tests.fuzz.guarded import guarded, guarded_copy
from tests.support.drawing import operators
from tests.support.drawing.intrinsics import catalogue_unit, executable, joining_unit, small_unit
from tests.support.oracle.expressions import Finished

__all__ = ["cuda", "group", "kernel", "opencl", "simulation", "tail"]

About = Callable[[str], None]
#: Types below a byte, which CUDA kernels refuse by name.
_NARROW = {"int4", "uint4", "bool"}
_GPUS = ("v100", "a100", "h200")
#: Intrinsics of PoCL, which any CPU serves; it never ends compiling the widest, ``m16``.
_POCL = ("opencl_mad_m4_f32", "opencl_mad_m8_f32")


def _any_unit(rng: np.random.Generator) -> Any:
    if rng.random() < 0.3:
        return small_unit(rng)
    if rng.random() < 0.75 and executable():
        return catalogue_unit(rng, executable())
    small = [n for n in amos.intrinsics.names() if "m128n128" not in n]
    return catalogue_unit(rng, small)


def _cpu_unit(rng: np.random.Generator) -> Any:
    if rng.random() < 0.25 or not executable():
        return small_unit(rng)
    return catalogue_unit(rng, executable())


def _group_unit(rng: np.random.Generator) -> Any:
    return joining_unit(rng) if rng.random() < 0.2 else _cpu_unit(rng)


def _gpu_unit(rng: np.random.Generator) -> Any:
    units = map(amos.intrinsics.get, amos.intrinsics.names())
    names = [u.name for u in units if u.family in ("wmma", "mma") and not _NARROW & {*u.dtypes}]
    return catalogue_unit(rng, names)


def simulation(rng: np.random.Generator, about: About, *, grouped: bool = False) -> str:
    """The mapped program, call by call."""
    finished = not grouped and bool(rng.random() < 0.25)
    pick = _group_unit if grouped and rng.random() < 0.5 else _any_unit
    drawn = case(rng, about, pick, finished=finished, grouped=grouped, several=True)
    compare(drawn, evaluate(drawn.mapping.operator, drawn.inputs), "evaluate")
    compare(drawn, amos.simulate(drawn.mapping, drawn.inputs), "simulate")
    return "right"


def schedule_of(
    rng: np.random.Generator, drawn: Case, about: About, machine: Any = None
) -> Schedule:
    """A schedule of the mapping's space.

    Raises:
        Refused: there is none, and the space says so.
    """
    try:
        schedule = ScheduleSpace(drawn.mapping, machine).sample(rng)
    except amos.AmosError as error:
        raise Refused(str(error)) from None
    if isinstance(schedule, DeviceSchedule):
        schedule = replace(
            schedule,
            raster=int(rng.integers(1, 5)),
            fragments="interleaved" if rng.integers(2) else "blocked",
        )
    about(drawn.with_schedule(schedule))
    return schedule


def kernel(rng: np.random.Generator, about: About, *, finished: bool = False) -> str:
    """A kernel of this CPU, with an epilogue or without."""
    return _built(rng, about, case(rng, about, _cpu_unit, finished=finished))


def tail(rng: np.random.Generator, about: About, *, tiles: bool = False) -> str:
    """A kernel of this CPU whose rows end anywhere in a vector, with results of any width.

    Args:
        rng: where chance comes from.
        about: is told what is looked at.
        tiles: with instructions on tile registers only.
    """
    return _built(rng, about, case(rng, about, partial(_row_unit, tiles=tiles), drawing=_rows))


def _row_unit(rng: np.random.Generator, *, tiles: bool) -> Any:
    """An instruction of products of bytes whose accumulators are vectors, or rows of a tile."""
    units = [amos.intrinsics.get(name) for name in executable()]
    if tiles and not (units := [u for u in units if u.tile_registers]):
        raise Refused("this CPU has no tile registers")
    bytes_ = [u for u in units if len(u.dtypes) == 3 and u.dtypes[-1] == "int32"]
    names = [u.name for u in bytes_ if u.compute.sums_products and max(_lanes(u), default=1) > 1]
    return catalogue_unit(rng, names or ["vnni_dpbusd_m16k4_u8_s8_s32"])


def _lanes(unit: Any) -> list[int]:
    return [each.extent for each in unit.compute.spatial]


def _rows(rng: np.random.Generator, unit: Any) -> operators.Problem:
    """A matrix product with rows of one element to two vectors of the unit's lanes."""
    rows, depth, lanes = int(rng.integers(1, 20)), int(rng.integers(1, 40)), max(_lanes(unit))
    widths = ["s8({})", "u8({})", "s16({})", "{}", "f32({})"]
    columns, width = int(rng.integers(1, 2 * lanes + 1)), str(rng.choice(widths))
    wide = int(rng.integers(0, 2)) * 2 * lanes
    text = str(rng.choice(["out[i,j] += a[i,k] * b[j,k]", "out[j,i] += a[i,k] * b[j,k]"]))
    extents = {"i": rows, "j": columns + wide, "k": depth}
    kinds = dict(zip(("a", "b", "out"), unit.dtypes, strict=True))
    value = str(rng.choice(["acc", "acc * 0.5", "f32(min(acc, t[i,j]))", "relu(acc + bias[j])"]))
    extra = {"t": "int8"} if "t[" in value else {"bias": "int32"} if "bias" in value else {}
    return operators.Problem(text, extents, kinds, "out", epilogue=width.format(value), extra=extra)


def group(rng: np.random.Generator, about: About) -> str:
    """What stands before and behind a product: simulated, and as a kernel of this CPU."""
    drawn = case(rng, about, _group_unit, grouped=True, several=True)
    compare(drawn, amos.simulate(drawn.mapping, drawn.inputs), "simulate")
    return _built(rng, about, drawn)


def _built(rng: np.random.Generator, about: About, drawn: Case) -> str:
    schedule = schedule_of(rng, drawn, about)
    how = "generic" if rng.random() < 0.2 else None
    try:
        built = amos.build(drawn.mapping, schedule, implementation=how)
    except amos.AmosError as error:
        raise Wrong(f"a schedule of the space cannot be built: {error}") from error
    for last in (True, False):
        compare(drawn, call(built, drawn, last), f"kernel ({built.implementation})")
    if drawn.mapping.operator.constants:
        compare(drawn, call(built, drawn, True, packed=True), "kernel with packed constants")
    return "right"


def call(built: Any, drawn: Case, last: bool, *, packed: bool = False) -> tuple[np.ndarray, ...]:
    """Run a kernel on arrays between closed pages, perhaps with constants that are packed before.

    Raises:
        Wrong: it has written to an input.
    """
    op = drawn.mapping.operator
    arguments = {
        tensor.name: guarded_copy(encoded(drawn.inputs[tensor.name], str(tensor.dtype)), last)
        for tensor in op.inputs
    }
    before = {name: array.copy() for name, array in arguments.items()}
    outs = tuple(unwritten(each, last) for each in drawn.results)
    passed = arguments
    if packed:
        constants = {tensor.name for name in op.constants for tensor in op.inputs_of(name)}
        built.pack(**{name: arguments[name] for name in constants})
        passed = {name: arguments[name] for name in built._open}
    built(*passed.values(), out=outs if len(outs) > 1 else outs[0])
    for name, array in arguments.items():
        if array.tobytes() != before[name].tobytes():
            raise Wrong(f"the kernel wrote to its input {name!r}")
    return tuple(map(finished_output, outs, drawn.results))


def unwritten(stored: Finished, last: bool) -> np.ndarray:
    """An array for a result, filled with what no kernel stores."""
    example = encoded(stored.output, stored.kind)
    return guarded(example.shape, example.dtype, last)


def finished_output(out: np.ndarray, stored: Finished) -> np.ndarray:
    """An array that was filled before a kernel ran, with zeros where it was left as it was.

    Raises:
        Wrong: the kernel wrote to elements that it does not store.
    """
    if (np.ascontiguousarray(out[stored.unreached]).view(np.uint8) != 0x55).any():
        raise Wrong("the kernel wrote to elements that it does not store")
    out[stored.unreached] = 0
    return decoded(out, stored.kind)


def encoded(values: np.ndarray, kind: str) -> np.ndarray:
    """Values as a kernel takes them: bfloat16 as bit patterns."""
    if kind != "bfloat16":
        return values
    return np.asarray(values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def decoded(values: np.ndarray, kind: str) -> np.ndarray:
    """The inverse of :func:`encoded`."""
    if kind != "bfloat16":
        return values.copy()
    return np.asarray(values.astype(np.uint32) << np.uint32(16)).view(np.float32)


def cuda(rng: np.random.Generator, about: About, *, grouped: bool = False) -> str:
    """A CUDA program, thread by thread."""
    from amos.cuda.codegen import emulate
    from amos.cuda.plan import GpuPlan

    finished = not grouped and bool(rng.random() < 0.3)
    drawn = case(
        rng, about, _gpu_unit, finished=finished, grouped=grouped, several=grouped, most=6000
    )
    needed = max(int(name[3:]) for name in drawn.unit.requires)
    machine = next(m for m in map(machines.get, _GPUS) if m.architecture >= needed)
    schedule = schedule_of(rng, drawn, about, machine)
    about(drawn.with_schedule(schedule) + f"\nmachine = {machine.name!r}")
    try:
        program = GpuPlan.of(drawn.mapping, schedule, f"sm_{machine.architecture}")
        outputs = emulate(program, drawn.inputs).outputs
    except amos.AmosError as error:
        raise Wrong(f"a schedule of the space cannot be built: {error}") from error
    for number, out in enumerate(outputs):
        compare(drawn, out, f"CUDA, run {number}")
    return "right"


def opencl(rng: np.random.Generator, about: About, *, grouped: bool = False) -> str:
    """A kernel that PoCL compiles and runs."""
    if find_spec("pyopencl") is None:
        raise Refused("pyopencl is not installed")
    from amos.opencl.runtime.kernel import OpenClKernel

    machine, finished = machines.get("pocl"), not grouped and bool(rng.random() < 0.3)
    pick = partial(catalogue_unit, names=_POCL)
    drawn = case(rng, about, pick, finished=finished, grouped=grouped, several=grouped)
    schedule = schedule_of(rng, drawn, about, machine)
    try:
        built = OpenClKernel(amos.Candidate(drawn.mapping, schedule), machine, "")
    except amos.AmosError as error:
        raise Wrong(f"a schedule of the space cannot be built: {error}") from error
    arguments = built.prepare(drawn.inputs)
    built.run(arguments)
    compare(drawn, built.result(arguments), "OpenCL")
    return "right"
