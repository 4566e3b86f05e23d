"""Arrays of NumPy and of others: taken where they are, or refused before anything runs."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import amos
from amos.errors import BuildError, OperatorError
from amos.ir import Operator, Tensor
from amos.ir.floats import pack, quantize
from amos.machine.cpu import cpu
from amos.plan import Candidate
from amos.records import Measurement
from amos.runtime import Kernel
from amos.runtime.borrow import ArgumentAdapter
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs

pytestmark = pytest.mark.features

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
OP = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=8, j=32, k=16))
MAPPING = amos.enumerate_mappings(OP, VNNI)[0]
INPUTS = random_inputs(MAPPING.operator, np.random.default_rng(0))
A, W = INPUTS["a"], INPUTS["weight"]
EXPECTED: np.ndarray = evaluate(MAPPING.operator, INPUTS)
BF16 = amos.intrinsics.get("avx512bf16_dpbf16ps_m16k2_bf16_f32")


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return amos.build(MAPPING).pack(weight=W)


def place(array: np.ndarray, offset: int) -> np.ndarray:
    """A copy that starts ``offset`` bytes after a 64-byte border."""
    room = np.zeros(array.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + offset
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def test_inputs_are_read_where_they_are(kernel: Kernel) -> None:
    a = A.copy()
    arguments = kernel.prepare({"a": a})
    assert arguments[0].data_ptr() == a.ctypes.data
    kernel.run(arguments)
    a[...] = A[::-1]
    kernel.run(arguments)
    np.testing.assert_array_equal(arguments[-1].numpy().reshape(EXPECTED.shape), EXPECTED[::-1])


@pytest.mark.parametrize("offset", [0, 4, 16, 36])
def test_arrays_may_start_anywhere(kernel: Kernel, offset: int) -> None:
    out = place(np.zeros_like(EXPECTED), offset)
    assert kernel(place(A, offset + 1), out=out) is out
    np.testing.assert_array_equal(out, EXPECTED)


def test_read_only_inputs_are_read_where_they_are(kernel: Kernel) -> None:
    a = A.copy()
    a.flags.writeable = False
    assert kernel.prepare({"a": a})[0].data_ptr() == a.ctypes.data
    np.testing.assert_array_equal(kernel(a), EXPECTED)


def _read_only() -> np.ndarray:
    out = np.zeros_like(EXPECTED)
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    ("a", "out", "message"),
    [
        (np.asfortranarray(A), None, "input 'a': expected a contiguous array, its last index"),
        (np.repeat(A, 2, axis=1)[:, ::2], None, "got strides (32, 2) of shape (8, 16)"),
        (A[:0], None, "input 'a': expected uint8 of shape (8, 16), got uint8 of shape (0, 16)"),
        (A.astype(">u2"), None, "expected uint8 of shape (8, 16), got >u2 of shape (8, 16)"),
        (A.tolist(), None, "expected uint8 of shape (8, 16), got int64 of shape (8, 16)"),
        (A, _read_only(), "output 'out': expected an array to write to, got a read-only one"),
        (A, np.zeros((8, 32), np.uint32), "output 'out': expected int32 of shape (8, 32), got"),
        (A, np.zeros((32, 8), np.int32).T, "output 'out': expected a contiguous array"),
        (A, np.zeros(256, np.int32), "output 'out': expected int32 of shape (8, 32), got int32"),
    ],
)
def test_what_is_refused(kernel: Kernel, a: Any, out: Any, message: str) -> None:
    before = None if out is None else out.copy()
    with pytest.raises(BuildError, match=re.escape(message)):
        kernel(a, out=out)
    if out is not None:
        np.testing.assert_array_equal(out, before)


def test_libraries_check_arguments_themselves(kernel: Kernel) -> None:
    """An exported one is called by programs without AMOS."""
    *sources, out = kernel.prepare({"a": A})
    with pytest.raises(TypeError, match="expected int32"):
        kernel.run([*sources, out._create_view(out.shape, "float32")])


def test_the_output_may_not_overlap_an_input(kernel: Kernel) -> None:
    room = np.zeros(EXPECTED.nbytes, np.uint8)
    out = room.view(np.int32).reshape(EXPECTED.shape)
    with pytest.raises(BuildError, match="output 'out': shares memory with input 'a'"):
        kernel(room[: A.size].reshape(A.shape), out=out)


def test_other_devices_are_refused() -> None:
    far = SimpleNamespace(__dlpack__=lambda **_: None, __dlpack_device__=lambda: (2, 0))
    with pytest.raises(BuildError, match=r"input 'a': expected an array in the CPU's memory"):
        ArgumentAdapter(Tensor("a", (2,), "int32"), (2,))(far)

    def fail() -> None:
        raise ValueError("no device type\nmore")

    nowhere = SimpleNamespace(__dlpack__=lambda **_: None, __dlpack_device__=fail)
    with pytest.raises(BuildError, match="^input 'a': no device type$"):
        ArgumentAdapter(Tensor("a", (2,), "int32"), (2,))(nowhere)


def test_tensors_without_a_shape_of_their_own_are_refused_by_what_they_share() -> None:
    half = np.zeros((4, 16), np.uint8)
    bare = SimpleNamespace(
        __dlpack__=lambda **_: half.__dlpack__(), __dlpack_device__=half.__dlpack_device__
    )
    message = "input 'a': expected uint8 of shape (8, 16), got uint8 of shape (4, 16)"
    with pytest.raises(BuildError, match=re.escape(message)):
        ArgumentAdapter(Tensor("a", (8, 16), "uint8"), (8, 16))(bare)


def test_bfloat16_as_values_and_as_bits() -> None:
    op = replace_dtypes("bf16")
    mapping = amos.enumerate_mappings(op, BF16)[0]
    inputs = {
        name: quantize(np.random.default_rng(1).normal(size=array.shape), "bf16")
        for name, array in INPUTS.items()
    }
    built = amos.build(mapping)
    expected = evaluate(mapping.operator, inputs)
    bits = {name: pack(v, "bf16").view(np.uint16).reshape(v.shape) for name, v in inputs.items()}
    for arrays in (inputs, bits):
        np.testing.assert_allclose(built(**arrays), expected, rtol=1e-5, atol=1e-5)
    assert built.prepare(bits)[0].data_ptr() == bits["a"].ctypes.data


def replace_dtypes(kind: str) -> Operator:
    return Operator.parse(
        str(OP.compute), OP.extents, dict(a=kind, weight=kind, out="f32"), name="gemm"
    )


def test_tensors_of_pytorch(kernel: Kernel) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    a, out = torch.from_numpy(A.copy()), torch.zeros(8, 32, dtype=torch.int32)
    assert kernel.prepare({"a": a})[0].data_ptr() == a.data_ptr()
    assert kernel(a, out=out) is out
    np.testing.assert_array_equal(out.numpy(), EXPECTED)
    weight = torch.from_numpy(np.ascontiguousarray(W.T)).T
    np.testing.assert_array_equal(kernel(a, weight=weight), EXPECTED)
    for wrong, message in [
        (a.T, "input 'a': expected uint8 of shape (8, 16), got uint8 of shape (16, 8)"),
        (torch.from_numpy(np.ascontiguousarray(A.T)).T, "expected a contiguous tensor"),
        (a.to(torch.int8), "input 'a': expected uint8 of shape (8, 16), got int8"),
    ]:
        with pytest.raises(BuildError, match=re.escape(message)):
            kernel(wrong)


def test_bfloat16_of_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    mapping = amos.enumerate_mappings(replace_dtypes("bf16"), BF16)[0]
    built = amos.build(mapping)
    generator = torch.Generator().manual_seed(0)
    a, weight = (
        torch.randn(shape, generator=generator).to(torch.bfloat16) for shape in ((8, 16), (32, 16))
    )
    expected = (a.float() @ weight.float().T).numpy()
    np.testing.assert_allclose(built(a, weight), expected, rtol=1e-5, atol=1e-5)
    assert built.pack(weight=weight).prepare({"a": a})[0].data_ptr() == a.data_ptr()
    with pytest.raises(BuildError, match="input 'a': expected bfloat16 of shape"):
        built(a.float())


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(OperatorError, match="extent"):
        Operator.parse(str(OP.compute), extents=dict(i=0, j=32, k=16))


def test_a_cpu_without_the_instruction_of_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    features = cpu()
    monkeypatch.setattr("amos.runtime.kernel.cpu", lambda: replace(features, features=frozenset()))
    candidate = Candidate(MAPPING, ScheduleSpace(MAPPING).smallest())
    trial = SimpleNamespace(candidate=candidate, measurement=Measurement(implementation="native"))
    with pytest.raises(BuildError, match="no native implementation here; it needs avx512_vnni"):
        amos.build(trial)
    assert amos.build(trial, implementation="generic").implementation == "generic"


def test_a_call_does_not_look_at_the_toolchain_again(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads files, which takes longer than most kernels."""

    def refuse() -> None:
        raise AssertionError("asked again")

    monkeypatch.setattr("amos._toolchain.check_toolchain", refuse)
    np.testing.assert_array_equal(kernel(A.copy()), EXPECTED)
    np.testing.assert_array_equal(kernel(A.copy(), out=np.empty_like(EXPECTED)), EXPECTED)
