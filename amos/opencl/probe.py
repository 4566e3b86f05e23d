"""Measuring an OpenCL device: rates of vectors, bandwidths, launch, registers.

Kernels run in a process of their own, as a driver may crash.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from amos._processes import python
from amos.errors import MeasureError
from amos.machine import Level, Machine, Peak
from amos.machine.opencl_unit import OpenClUnit
from amos.opencl.executor import OpenClDevice, find_device
from amos.opencl.runtime.loader import Device, KernelError

_LOGGER = logging.getLogger(__name__)
#: Widths of vectors, and accumulators that are tried.
_WIDTHS, _ACCUMULATORS = (4, 8, 16), (1, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32)
#: Rates within this share of the best count as the best, as others may disturb a timing.
_BEST = 0.85
#: Bytes of a unit's first cache, which OpenCL does not report.
_FIRST_CACHE = 32 << 10
_SECONDS, _REPEATS = 60.0, 5
#: Accumulators that fill the latency of multiply-adds, and how often and how much longer than in a
#: probe they are timed for a peak: neighbours disturb for some milliseconds.
_FILLING, _TIMINGS, _LONGER = (8, 12), 50, 10
#: Work-items of a group where a core is a lane, and of one where it is not.
_CPU_ITEMS, _GPU_ITEMS = 1, 64
_MAD = """__kernel void probe(__global float *out, int count) {{
  float{width} b = (float{width})(get_global_id(0) + 1.0f), c[{accumulators}];
  const float a = out[0];
  #pragma unroll
  for (int e = 0; e < {accumulators}; ++e) c[e] = (float{width})(e);
  for (int i = 0; i < count; ++i) {{
    #pragma unroll
    for (int e = 0; e < {accumulators}; ++e) c[e] = a * b + c[e];
  }}
  for (int e = 0; e < {accumulators}; ++e) out[get_global_id(0) * {accumulators} + e] = c[e].s0;
}}
"""
_READ = """__kernel void
probe(__global const float16 *in, __global float *out, int size, int count) {
  float16 a = (float16)(0), b = (float16)(0);
  const int first = get_group_id(0) * size, items = get_local_size(0);
  for (int turn = 0; turn < count; ++turn)
    for (int i = get_local_id(0); i + items < size; i += 2 * items) {
      a += in[first + i];
      b += in[first + i + items];
    }
  out[get_global_id(0)] = (a + b).s0;
}
"""
_EMPTY = "__kernel void probe(__global float *out) { out[0] = 0; }"


def probe_device(words: str = "") -> Machine:
    """Measure the first device whose name has a word, or raise MeasureError."""
    device = find_device(words)
    figures, rates = _ask(device, words, "levels"), {}
    for width in _WIDTHS:
        try:
            rates[width] = {int(n): x for n, x in _ask(device, words, str(width)).items()}
        except MeasureError as error:
            _LOGGER.warning("%s: no rate of vectors of %d: %s", device.name, width, error)
    if not rates:
        raise MeasureError(f"{device.name}: no vectors could be measured")
    return _machine(device, figures | _peaks(rates))


def _ask(device: OpenClDevice, words: str, what: str) -> dict[str, Any]:
    """Measure figures in a child process: compilers may hang or crash."""
    try:
        command = [*python(__name__), words, what]
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, text=True)
    except subprocess.TimeoutExpired:
        raise MeasureError(f"{device.name}: no answer within {_SECONDS:g} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise MeasureError(f"{device.name} could not be probed: {lines[-1]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _peaks(rates: Mapping[int, Mapping[int, float]]) -> dict[str, Any]:
    """Return rates of intrinsics and registers, from seconds of a call by vector width."""
    peaks, item_bytes = {}, 0
    for width, seconds in rates.items():
        interval = min(seconds.values())
        latency = max(seconds[1], interval)
        peaks[f"opencl_mad_m{width}_f32"] = {"latency": latency, "interval": interval}
        fast = [n for n, x in seconds.items() if interval >= _BEST * x]
        # Accumulators, the shared vector and the scalar that is replicated.
        item_bytes = max(item_bytes, (max(fast) + 2) * width * 4)
    floats = {width: width / min(seconds.values()) for width, seconds in rates.items()}
    # Wider vectors are several registers, and no faster.
    lanes = min(width for width, rate in floats.items() if rate >= _BEST * max(floats.values()))
    return {"peaks": peaks, "item_bytes": item_bytes, "copy_lanes": lanes}


def _machine(device: OpenClDevice, figures: dict[str, Any]) -> Machine:
    unit = OpenClUnit(
        platform=device.name.partition(":")[0],
        units=device.units,
        group_items=device.group_items,
        local_bytes=device.local_bytes,
        item_bytes=figures["item_bytes"],
        copy_lanes=figures["copy_lanes"],
        serial=device.is_cpu,
    )
    sizes = {"L1": _FIRST_CACHE, "cache": max(device.cache, 2 * _FIRST_CACHE), "memory": 0}
    levels = tuple(
        Level(
            name=name,
            capacity=size,
            read_bandwidth=figures["bandwidths"][name],
            write_bandwidth=figures["bandwidths"][name] / 2,
            units=device.units if name == "L1" else 1,
        )
        for name, size in sizes.items()
    )
    extensions = [x for x in device.extensions if "integer_dot_product" in x]
    return Machine(
        name="opencl_here",
        cores=device.units,
        clock=device.clock or 1e9,
        levels=levels,
        peaks={name: Peak(**peak) for name, peak in figures["peaks"].items()},
        launch=figures["launch"],
        features=("opencl", *extensions),
        source=f"{device.name}, driver {device.driver}, measured; writes as half of reads",
        opencl=unit,
    )


def write_toml(machine: Machine) -> str:
    """Write the description of a probed machine as a file that ``--machine`` takes."""
    assert machine.opencl is not None
    head = {
        "name": machine.name,
        "source": machine.source,
        "cores": machine.cores,
        "clock": machine.clock,
        "launch": machine.launch,
        "features": list(machine.features),
    }
    keys = ("name", "capacity", "units", "read_bandwidth", "write_bandwidth")
    tables = [("[opencl]", asdict(machine.opencl))]
    tables += [
        ("[[level]]", {key: getattr(level, key) for key in keys}) for level in machine.levels
    ]
    tables += [
        (f"[peak.{name}]", {"latency": peak.latency, "interval": peak.interval})
        for name, peak in machine.peaks.items()
    ]
    lines = [f"{key} = {json.dumps(value)}" for key, value in head.items()]
    for title, values in tables:
        lines += ["", title, *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines)


class DeviceProbe:
    """Kernels that measure one device."""

    def __init__(self, words: str) -> None:
        self.device = Device(words)
        cl, device = self.device.cl, self.device.device
        self.units = device.max_compute_units
        self.items = _CPU_ITEMS if device.type & cl.device_type.CPU else _GPU_ITEMS
        # A float of each accumulator of each work-item.
        size = self.units * self.items * max(_ACCUMULATORS) * 4
        self.out = cl.Buffer(self.device.context, cl.mem_flags.READ_WRITE, size)

    def figures(self, what: str) -> dict[str, Any]:
        """Measure bandwidths and launch, or seconds of a call by accumulators for a width."""
        if what != "levels":
            return {str(n): self._seconds_per_call(int(what), n) for n in _ACCUMULATORS}
        cache = max(self.device.device.global_mem_cache_size, 2 * _FIRST_CACHE)
        sizes = {"L1": _FIRST_CACHE // 2, "cache": cache // 2 // self.units, "memory": 2 * cache}
        bandwidths = {name: self._bandwidth(size, name == "L1") for name, size in sizes.items()}
        return {"bandwidths": bandwidths, "launch": max(self._run(_EMPTY, self.out), 1e-7)}

    def measure_interval(self, width: int) -> float:
        """Measure the least seconds between two calls of one core, while all are at work."""
        return min(self._seconds_per_call(width, n, _TIMINGS, _LONGER) for n in _FILLING)

    def _seconds_per_call(
        self, width: int, accumulators: int, repeats: int = _REPEATS, longer: int = 1
    ) -> float:
        """Measure seconds between two calls of one core, with several accumulators."""
        text = _MAD.format(width=width, accumulators=accumulators)
        count = 2_000_000 // accumulators * longer
        seconds = self._run(text, self.out, np.int32(count), repeats=repeats)
        return seconds / (count * accumulators * self.items)

    def _bandwidth(self, size: int, unit: bool) -> float:
        """Measure bytes a second that all units read, each its own; of one unit with ``unit``."""
        cl, vectors = self.device.cl, size // 64
        flags = cl.mem_flags.READ_ONLY
        source = cl.Buffer(self.device.context, flags, vectors * 64 * self.units)
        self.device.call(
            cl.enqueue_fill_buffer, self.device.queue, source, b"\0", 0, vectors * 64 * self.units
        )
        count = max(1, (64 << 20) // size)
        seconds = self._run(_READ, source, self.out, np.int32(vectors), np.int32(count))
        return count * vectors * 64 * (1 if unit else self.units) / seconds

    def _run(self, text: str, *arguments: Any, repeats: int = _REPEATS) -> float:
        """Measure seconds of a kernel of a group on each unit, the best of some."""
        cl, call = self.device.cl, self.device.call
        program = self.device.build(text)
        kernel = cl.Kernel(program, "probe")
        call(kernel.set_args, *arguments)
        sizes = (self.units * self.items,), (self.items,)
        spans = []
        for _ in range(repeats):
            event = call(cl.enqueue_nd_range_kernel, self.device.queue, kernel, *sizes)
            call(event.wait)
            spans.append(float(event.profile.end - event.profile.start) * 1e-9)
        return max(min(spans), 1e-9)


if __name__ == "__main__":
    try:
        sys.stdout.write(json.dumps(DeviceProbe(sys.argv[1]).figures(sys.argv[2])) + "\n")
    except KernelError as error:
        raise SystemExit(str(error)) from None
