"""Operators, intrinsics and machines survive being written down."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import amos
from amos.errors import RecordError
from amos.ir import Affine, BufferLoad, Compute, Iteration, Operator, Tensor
from amos.records.canonical import (
    fingerprint,
    machine_from,
    machine_values,
    operator_from,
    operator_values,
)
from amos.records.record import candidate_key

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
STRIDED = Operator.parse(
    "out[n,p,q,k] += pad(image[n,p*2+r-1,q*2+s-1,c]) * weight[k,c,r,s]",
    extents=dict(n=1, p=14, q=14, k=32, c=16, r=3, s=3),
    shapes=dict(image=(1, 29, 30, 16)),
    dtypes=dict(image="u8"),
    name="a name, with 'quotes' and ü",
    constants=["image"],
)
SCALAR = Operator.parse("out[] += a[i] * b[i]", extents=dict(i=7))


def _through_json(operator: Operator) -> Operator:
    return operator_from(json.loads(json.dumps(operator_values(operator))))


@pytest.mark.parametrize(
    "operator",
    [STRIDED, SCALAR, *(amos.operators.resolve(n) for n in ("gemm", "conv2d", "resnet18:C5"))],
    ids=lambda operator: operator.name,
)
def test_an_operator_comes_back(operator: Operator) -> None:
    assert _through_json(operator) == operator


def _unspeakable() -> Operator:
    """Names that the language cannot spell, some of which look like aliases."""

    def load(name: str, size: int, *indices: str) -> BufferLoad:
        tensor = Tensor(name, (size,) * len(indices), "int8")
        return BufferLoad(tensor, tuple(Affine(((n, 1),)) for n in indices))

    iterations = (
        Iteration("ω", 4, "spatial"),
        Iteration("k.outer", 4, "reduce"),
        Iteration("x0", 4, "spatial"),
    )
    sources = (load("a b", 4, "x0", "k.outer"), load("t0", 4, "k.outer", "ω"))
    return Operator(Compute(load("out[0]", 4, "x0", "ω"), sources, iterations), "", ("a b",))


def test_names_that_are_no_words_come_back() -> None:
    operator = _unspeakable()
    values = operator_values(operator)
    assert "ω" not in values["text"]
    assert _through_json(operator) == operator
    assert [it.name for it in _through_json(operator).iterations] == ["ω", "k.outer", "x0"]


@pytest.mark.parametrize(
    "change",
    [
        {"text": "__import__('os').system('true')"},
        {"text": 3},
        {"iterations": [["i", "j", "k"]]},
        {"iterations": []},
        {"dtypes": {"c": "int8"}},
        {"shapes": {"a": [-1]}},
        {"names": 5},
    ],
)
def test_what_is_no_operator_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(RecordError, match="describes no operator") as caught:
        operator_from(operator_values(SCALAR) | change)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(RecordError, match="describes no operator"):
        operator_from({})


def test_a_fingerprint_stands_for_the_meaning() -> None:
    same = replace(VNNI, description="other words", source="another manual", name="vnni2")
    assert fingerprint(same) == fingerprint(VNNI)
    assert fingerprint(replace(VNNI, registers=16)) != fingerprint(VNNI)
    fewer = replace(VNNI.memory[0], strides=("stride",))
    assert fingerprint(replace(VNNI, memory=(fewer, *VNNI.memory[1:]))) != fingerprint(VNNI)
    saturating = amos.intrinsics.get("vnni_dpbusds_m16k4_u8_s8_s32")
    assert fingerprint(saturating) != fingerprint(VNNI)


@pytest.mark.parametrize("name", ["a100", "xeon_6240"])
def test_a_machine_comes_back(name: str) -> None:
    machine = amos.machines.get(name)
    values = json.loads(json.dumps(machine_values(machine)))
    assert machine_from(values) == machine
    peaks = {unit: peak | {"fed": 1e-9} for unit, peak in values["peaks"].items()}
    earlier = {key: value for key, value in values.items() if key != "gpu"} | {"peaks": peaks}
    assert replace(machine_from(earlier), gpu=machine.gpu) == machine
    wrong = [{"cores": 0}, {"colour": 1}, {"peaks": [1]}, {"levels": [{"name": "L1"}]}]
    for broken in (*(values | change for change in wrong), {"name": "x"}):
        with pytest.raises(RecordError, match="describes no machine"):
            machine_from(broken)


@pytest.mark.parametrize(
    ("operator", "unit", "mapping", "schedule", "expected"),
    [
        (
            "resnet18:C1",
            "vnni_dpbusd_m16k4_u8_s8_s32",
            "k-rs",
            "block.i1.tile=2, block.p=16, block.q=2, order=i1.tile q p, parallel=2, "
            "reduce=r1.tile c, stage.Src1=tile, tile.i1.tile=2, tile.p=1, tile.q=6, unroll=1, "
            "vector=32",
            "7e5ff653c0d8e2c56c36b352b6022de2",
        ),
        (
            "resnet18:C5",
            "wmma_m16n16k16_f16_f32",
            "nq-k-sc",
            "align.Src1=16, bind=warps, block.i2.tile=4, block.p=2, order=i2.tile p i1.tile, "
            "parallel=3, pipeline=4, reduce=s r1.tile r, split=2, stage.Src1=tile, "
            "tile.i1.tile=1, tile.i2.tile=1, tile.p=4, unroll=1",
            "74540311c0ed757d68a20202c784682e",
        ),
    ],
)
def test_candidates_keep_their_digests(
    operator: str, unit: str, mapping: str, schedule: str, expected: str
) -> None:
    """Records of earlier versions are found by them."""
    pairs = [entry.split("=") for entry in schedule.split(", ")]
    values = {key: int(word) if word.isdecimal() else word for key, word in pairs}
    op = amos.operators.resolve(operator)
    space = amos.enumerate_mappings(op, amos.intrinsics.get(unit), rule="access")
    (matched,) = (each for each in space if each.name == mapping)
    candidate = amos.Candidate(matched, amos.Schedule.of(values))
    assert candidate_key(candidate) == expected
    assert candidate.schedule.as_recorded() == values


def test_a_tensor_and_an_iteration_of_one_name() -> None:
    op = Operator.parse(
        "out[p,k] += image[p+s] * weight[k,s]",
        dict(p=4, k=5, s=3),
        dict(image="uint8", weight="int8", out="int32"),
    )
    op = op.with_prologue("image[s]", "u8(x[s] * p[])").with_epilogue("u8(acc * s[k])")
    op = op.with_output("k[k,p]").with_result("q[p] max= acc * s[k]")
    for variant in (op, op.rename(lambda name: f"{name}.1", lambda name: f"{name}.1")):
        assert operator_from(operator_values(variant)) == variant
