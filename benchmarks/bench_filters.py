"""Image filters as chains against OpenCV, on one core, in turns.

    python benchmarks/bench_filters.py [--size 4096] [--trials 12] [--rounds 15]

Prints, for each filter, the least milliseconds of processor time of each contender. OpenCV is
optional (``pip install opencv-python-headless``).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import numpy as np

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import amos  # noqa: E402 (the core is chosen first)

Call = Callable[[], object]
TAPS = 15
SEPARABLE = "t[v,x] += a[v,x+r] * w[r]; o[y,x] += t[y+s,x] * u[s]"
SEPARABLE_BYTES = (
    "t[v,x] += a[v,x+r] * w[r]; h = s16(t); f[y,x] += h[y+s,x] * u[s]; o = u8(f * 0.000244140625)"
)
SMALLER = "t[y,z] += a[4*y+r,z] * w[r]; o[y,x] += t[y,4*x+s] * u[s]"
SMALLER_BYTES = "t[y,x] += a[4*y+r,4*x+s] * w[r,s]; o = u8(t * 0.0625)"


def _kernel(text: str, extents: dict[str, int], dtypes: dict[str, str], trials: int) -> object:
    chain = amos.Operator.parse(text, extents=extents, dtypes=dtypes)
    result = amos.explore(chain, trials=trials, machine="host")
    print("   ", result.best)
    return amos.build(result.best)


def _weights(kind: str) -> np.ndarray:
    power = np.array([1, 2, 3, 4, 5, 6, 7, 8, 7, 6, 5, 4, 3, 2, 1])
    return (power / power.sum()).astype(kind) if kind == "float32" else power.astype(kind)


def _separable(size: int, kind: str, trials: int) -> dict[str, Call]:
    extents = dict(v=size, y=size - TAPS + 1, x=size - TAPS + 1, r=TAPS, s=TAPS)
    image = (np.random.default_rng(0).random((size, size)) * 255).astype(kind)
    if kind == "float32":
        w = u = _weights(kind)
        kernel = _kernel(SEPARABLE, extents, {}, trials)
        out = np.empty((extents["y"], extents["x"]), kind)
    else:
        w, u = _weights("int8"), _weights("int16")
        kinds = dict(a="u8", w="s8", t="s32", h="s16", u="s16", f="s32", o="u8")
        kernel = _kernel(SEPARABLE_BYTES, extents, kinds, trials)
        out = np.empty((extents["y"], extents["x"]), kind)
    calls: dict[str, Call] = {"AMOS": lambda: kernel(a=image, w=w, u=u, out=out)}  # type: ignore[operator]
    try:
        import cv2
    except ImportError:
        return calls
    cv2.setNumThreads(1)
    own = _weights("float32")
    calls["OpenCV"] = lambda: cv2.sepFilter2D(image, -1, own, own)
    margin = TAPS // 2
    expected = cv2.sepFilter2D(image, -1, own, own)[margin:-margin, margin:-margin]
    calls["AMOS"]()
    print("    largest difference to OpenCV", np.abs(out.astype(float) - expected).max())
    return calls


def _smaller(size: int, kind: str, trials: int) -> dict[str, Call]:
    image = (np.random.default_rng(0).random((size, size)) * 255).astype(kind)
    rows = size // 4
    out = np.empty((rows, rows), kind)
    if kind == "float32":
        w = np.full(4, 0.25, kind)
        kernel = _kernel(SMALLER, dict(y=rows, x=rows, z=size, r=4, s=4), {}, trials)
        calls: dict[str, Call] = {"AMOS": lambda: kernel(a=image, w=w, u=w, out=out)}  # type: ignore[operator]
    else:
        w = np.ones((4, 4), np.int8)
        kinds = dict(a="u8", w="s8", t="s32", o="u8")
        kernel = _kernel(SMALLER_BYTES, dict(y=rows, x=rows, r=4, s=4), kinds, trials)
        calls = {"AMOS": lambda: kernel(a=image, w=w, out=out)}  # type: ignore[operator]
    try:
        import cv2
    except ImportError:
        return calls
    cv2.setNumThreads(1)
    calls["OpenCV"] = lambda: cv2.resize(image, (rows, rows), interpolation=cv2.INTER_AREA)
    return calls


def _least(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    times = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name] = min(times[name], time.process_time() - start)
    return times


def main() -> None:
    """Measure all filters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    for name, contenders in (("separable", _separable), ("smaller", _smaller)):
        for kind in ("float32", "uint8"):
            print(name, kind)
            calls = contenders(options.size, kind, options.trials)
            times = _least(calls, options.rounds)
            for contender, seconds in times.items():
                print(f"    {contender}: {1e3 * seconds:.2f} ms, {seconds / times['AMOS']:.2f}")


if __name__ == "__main__":
    main()
