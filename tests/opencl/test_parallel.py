"""Chains whose loops run on work-groups and work-items compute what they say."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import amos
from amos.chains import LoopNest, ParallelSpace, Tiling
from amos.chains.group_limits import GroupLimits
from amos.errors import BuildError, ScheduleError, UnknownNameError
from amos.ir import Chain, dtype
from amos.opencl.chains.candidate import ParallelCandidate, candidate_from
from amos.opencl.chains.product import list_products, product_from
from amos.opencl.codegen.parallel import ParallelKernel
from amos.opencl.runtime.loader import Kernel
from amos.validate.chain import evaluate_chain
from tests.support.opencl_host import HostKernel, run_on_host

#: Listing 1 of Lift, and a convolution with a bias.
LISTING1 = "t[i,j,k] = relu(x[i,j,k]); out[i,k,j] = relu(t[i,j,k])"
CONV = "t[p,q,k] += x[p+r,q+s,c] * w[k,r,s,c]; out[p,q,k] = relu(t[p,q,k] + bias[k])"
ROWS = "m[i] max= x[i,k]; out[i,k] = x[i,k] - m[i]"
#: Sums of rows are put off: some statements stand before or behind those that have rows.
DIVIDED = "p = softmax(x[i,k], axis=k); out[i,j] += p[i,k] * v[k,j]"
AVERAGE = "p = softmax(x[i,k], axis=k); out[i] += p[i,k]"
FILTERED = "t[k] = relu(x[k]); u[j] += t[k] * w[k,j]; out[q] += u[q+r] * v[r]"
LOCAL = {"x": "local", "w": "local"}
#: Products on bytes, whose sums become bytes.
BYTES = "t[i,j] += x[i,k] * w[j,k]; u = s8(min(t, 100)); out[i,l] += u[i,j] * v[l,j]"
MACHINES = {"opencl": amos.machines.get("pocl"), "mali": amos.machines.get("mali_g76")}


def _kernels(
    text: str,
    sizes: Mapping[str, int],
    tiles: Mapping[str, int],
    count: int,
    memory: Mapping[str, str] | None = None,
    copies: Mapping[str, str] | None = None,
    dimensions: int = 2,
    dtypes: Mapping[str, str] | None = None,
) -> Iterator[ParallelKernel]:
    """Kernels of valid mappings that are drawn."""
    tiling = Tiling.of(Chain.parse(text, dict(sizes), dtypes), tiles)
    nest = LoopNest.of(tiling, memory, copies)
    space = ParallelSpace(nest, dimensions, GroupLimits())
    for choices in space.draw(count, np.random.default_rng(0)):
        candidate = ParallelCandidate(tiling, choices, memory or {}, copies or {})
        yield ParallelKernel(candidate, "kernel_under_test")


def _cases() -> list[ParallelKernel]:
    # Sizes that neither tiles nor work-items divide.
    sizes = dict(p=6, q=5, k=7, r=3, s=2, c=3)
    return [
        *_kernels(LISTING1, dict(i=8, j=4, k=4), {"i": 1}, 30),
        *_kernels(LISTING1, dict(i=7, j=5, k=3), {"i": 2}, 8, copies={"x": "local"}),
        *_kernels(CONV, sizes, {"p": 4, "q": 3, "k": 4}, 12, copies=LOCAL, dimensions=3),
        *_kernels(CONV, sizes, {"p": 1, "q": 1}, 6, {"t": "private"}, {"x": "local"}),
        *_kernels(ROWS, dict(i=7, k=5), {"i": 2}, 6),
        *_kernels(ROWS, dict(i=7, k=5), {"i": 2}, 2, dtypes={"x": "int8"}),
        *_kernels(DIVIDED, dict(i=5, k=6, j=3), {"i": 2}, 4),
        *_kernels(AVERAGE, dict(i=5, k=6), {"i": 2}, 3),
        *_kernels(FILTERED, dict(k=4, j=6, q=5, r=2), {"q": 2}, 3),
    ]


def _products(
    text: str,
    sizes: Mapping[str, int],
    tiles: Mapping[str, int],
    count: int,
    family: str = "opencl",
    dtypes: Mapping[str, str] | None = None,
    copies: Mapping[str, str] | None = None,
    memory: Mapping[str, str] | None = None,
) -> Iterator[ParallelKernel]:
    """Kernels whose products instructions on vectors compute, in fragments that are drawn."""
    rng, machine = np.random.default_rng(2), MACHINES[family]
    tiling = Tiling.of(Chain.parse(text, dict(sizes), dtypes), tiles)
    units = [amos.intrinsics.get(x) for x in amos.intrinsics.names() if x in machine.peaks]
    units = [unit for unit in units if unit.family == family]
    listed = {x.step.output.tensor.name: x for x in tiling.steps}
    options = {n: [*list_products(tiling, x, machine, units)] for n, x in listed.items()}
    for _ in range(count):
        drawn = {n: x[int(rng.integers(len(x)))] for n, x in options.items() if x}
        frame = ParallelCandidate(tiling, {}, memory or {}, copies or {}, 4, drawn)
        for choices in ParallelSpace(frame.nest, 2, GroupLimits()).draw(2, rng):
            candidate = replace(frame, choices=choices)
            assert candidate_from(tiling.chain, candidate.values()) == candidate
            yield ParallelKernel(candidate, "kernel_under_test")


def _product_cases() -> list[ParallelKernel]:
    odd, kinds = dict(i=7, j=21, k=5, l=13), dict(x="int8", w="int8", v="int8")
    two = "t[i,j] += x[i,k] * w[k,j]; u = relu(t); out[i,l] += u[i,j] * v[j,l]"
    return [
        *_products(two, odd, {"i": 3}, 4),
        *_products(two, odd, {"l": 12}, 2, copies=LOCAL),
        *_products(two, odd, {"i": 1, "l": 9}, 2, memory={"t": "private", "u": "private"}),
        *_products(CONV, dict(p=6, q=5, k=11, r=3, s=2, c=3), {"p": 4}, 3),
        *_products(DIVIDED, dict(i=5, k=9, j=10), {"i": 4}, 3),
        *_products(BYTES, dict(i=5, j=8, k=12, l=6), {"i": 2}, 3, "mali", kinds),
    ]


def test_products_on_vectors_compute_the_chain(tmp_path: Path) -> None:
    """In whichever order work-items run; fragments need not divide a loop."""
    kernels = _product_cases()
    assert all(kernel.candidate.products for kernel in kernels)
    assert sum("loose_float" in kernel.source for kernel in kernels) > 5
    _compare(kernels, tmp_path)


def test_products_that_no_work_item_can_compute_are_refused() -> None:
    tiling = Tiling.of(Chain.parse(CONV, dict(p=6, q=5, k=11, r=3, s=2, c=3)), {"p": 2})
    mad = "opencl_mad_m8_f32"
    wide = product_from(tiling, "t", mad, "k", {"k": 2})
    problem = f"t on {mad}: expected 1 to 11 values of k at once, got 16"
    candidate = ParallelCandidate(tiling, {}, products={"t": wide})
    assert candidate.violations() == (problem,)
    with pytest.raises(BuildError, match="values of k at once, got 16"):
        ParallelKernel(candidate)
    with pytest.raises(UnknownNameError, match="unknown product 'out'"):
        product_from(tiling, "out", mad, "k", {})


def _inputs(kernel: ParallelKernel) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    values = {
        x.name: rng.integers(-4, 5, x.shape).astype(dtype(str(x.dtype)).numpy)
        for x in kernel.candidate.chain.inputs
    }
    x = values["x"]
    if x.ndim == 2 and x.dtype == np.float32 and "w" not in values:
        x[1, 0] = x[2, -1] = np.nan  # at both ends of rows
    return values


@pytest.mark.long
def test_valid_mappings_compute_the_chain(tmp_path: Path) -> None:
    """On the host, in whichever order work-items run; all 21 mappings of Listing 1."""
    kernels = _cases()
    assert len(kernels) > 21 + 15
    assert sum("barrier(" in kernel.source for kernel in kernels) > 20
    _compare(kernels, tmp_path)


def _compare(kernels: Sequence[ParallelKernel], folder: Path) -> None:
    """Run kernels on the host, in two orders, and compare their results."""
    inputs = [_inputs(kernel) for kernel in kernels]
    tested = [
        HostKernel(
            kernel.source,
            kernel.candidate.chain.inputs,
            [kernel.candidate.chain.result],
            kernel.candidate.groups,
            kernel.candidate.group_items,
        )
        for kernel in kernels
    ]
    runs = run_on_host(tested, inputs, folder)
    for kernel, values, orders in zip(kernels, inputs, runs, strict=True):
        expected = evaluate_chain(kernel.candidate.chain, values)
        for (result,) in orders:
            np.testing.assert_allclose(result, expected, 1e-5, 1e-6, err_msg=str(kernel.candidate))


def test_what_has_no_kernel_is_refused() -> None:
    tiling = Tiling.of(Chain.parse(LISTING1, dict(i=8, j=4, k=4)), {"i": 1})
    nest = LoopNest.of(tiling)
    sequential = dict.fromkeys([loop.name for loop in nest.loops], "sequential")
    with pytest.raises(BuildError, match=r"rule 5 group dimensions: group 0 is used without"):
        ParallelKernel(ParallelCandidate(tiling, sequential | {"i": "group 0"}))
    (choices,) = ParallelSpace(nest, 1).draw(1, np.random.default_rng(0))
    shared = sequential | {"i": "group 0", "t.j": "local 0", "out.k": "local 0"}
    kernel = ParallelKernel(ParallelCandidate(tiling, shared))
    assert kernel.launch["local_bytes"] == 4 * 4 * 4
    with pytest.raises(BuildError, match="name: expected an identifier .*, got 'main'"):
        ParallelKernel(ParallelCandidate(tiling, choices), "main")
    with pytest.raises(ScheduleError, match=r"map\.t\.k = None is not one of"):
        ParallelKernel(ParallelCandidate(tiling, {"i": "sequential", "t.j": "sequential"}))
    parts = Tiling.of(Chain.parse(DIVIDED, dict(i=4, k=8, j=4)), {"i": 2, "k": 4})
    (choices,) = ParallelSpace(LoopNest.of(parts), 1).draw(1, np.random.default_rng(0))
    with pytest.raises(BuildError, match="keep rows whole, got parts of k"):
        ParallelKernel(ParallelCandidate(parts, choices))


@pytest.mark.skipif(importlib.util.find_spec("pyopencl") is None, reason="pyopencl is not here")
def test_kernels_on_a_device() -> None:
    for kernel in _kernels(LISTING1, dict(i=8, j=4, k=4), {"i": 1}, 30):
        values = _inputs(kernel)
        run = Kernel("chain", launch=kernel.launch, source=kernel.source)
        (data,) = run.compute([values["x"]])
        expected = evaluate_chain(kernel.candidate.chain, values)
        np.testing.assert_array_equal(data.view(np.float32).reshape(expected.shape), expected)


@pytest.mark.skipif(importlib.util.find_spec("pyopencl") is None, reason="pyopencl is not here")
@pytest.mark.parametrize("cast", ["f16", "bf16"])
def test_floats_of_16_bits_between_statements_on_a_device(cast: str) -> None:
    from amos.opencl.runtime.kernel import OpenClKernel

    text = (
        f"t[i,j] += a[i,k] * b[k,j]; u[i,j] = {cast}(t[i,j] / 3); out[i,j] = {cast}(u[i,j] + x[j])"
    )
    kinds = dict(a="float32", b="float32", x=cast)
    for kernel in _kernels(
        text, dict(i=7, j=11, k=9), {"i": 2}, 3, copies={"x": "local"}, dtypes=kinds
    ):
        values = _inputs(kernel)
        run = OpenClKernel(kernel.candidate, amos.machines.get("pocl"), "")
        arguments = run.prepare(values)
        run.run(arguments)
        expected = evaluate_chain(kernel.candidate.chain, values)
        np.testing.assert_array_equal(run.result(arguments), expected)
