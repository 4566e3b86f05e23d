"""Chains of operators with epilogues: temporaries have the dtype in which they are stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amos.chains import ChainKernel, Tiling, simulate_tiling
from amos.chains.model import temporary_bytes
from amos.chains.records import candidate_from
from amos.errors import OperatorError, ScheduleError
from amos.explore.choosing import Chooser
from amos.export import export
from amos.ir import Chain, Operator
from amos.records.canonical import chain_from, operator_values
from amos.validate import evaluate, random_inputs
from tests.export.test_export import run
from tests.support.chains import best_candidate

KINDS = {
    "u8": (
        dict(x="u8", weight="s8", t="s32"),
        dict(t="u8", last="s8", o="s32"),
        "u8(relu(acc * 0.01 + bias[j]))",
        "s8(acc * 0.004)",
    ),
    "f32": (
        dict(x="f32", weight="f32", t="f32"),
        dict(t="f32", last="f32", o="f32"),
        "relu(acc + bias[j])",
        "acc * 0.5",
    ),
}


def chain_of(kind: str) -> Chain:
    """A product of rows, and a filter along padded rows of what its epilogue stores."""
    first, second, stored, finished = KINDS[kind]
    dense = Operator.parse("t[i,j] += x[i,k] * weight[k,j]", dict(i=22, j=48, k=32), first)
    text = "o[y,f] += pad(t[y+r-1,j]) * last[r,j,f]"
    rows = Operator.parse(text, dict(y=22, j=48, f=32, r=3), second, constants=["last"])
    return Chain.of([dense.with_epilogue(stored), rows.with_epilogue(finished)], "pair")


@pytest.fixture(scope="module")
def chooser() -> Chooser:
    return Chooser("host", core=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tiles", "rolling"), [(dict(y=4), "y"), (dict(f=16), ""), ({}, "")])
def test_a_kernel_computes_the_operators(
    chooser: Chooser, kind: str, tiles: dict[str, int], rolling: str, tmp_path: Path
) -> None:
    chain = chain_of(kind)
    tiling = Tiling.of(chain, tiles, rolling)
    (stored,) = chain.temporaries
    assert stored.dtype == {"u8": "uint8", "f32": "float32"}[kind]
    size = tiling.size("t")
    assert temporary_bytes(tiling) == size[0] * size[1] * (1 if kind == "u8" else 4)
    inputs = random_inputs(chain, np.random.default_rng(0))
    expected = evaluate(chain, inputs)
    assert len(np.unique(expected)) > 20
    close = dict(rtol=0, atol=0) if kind == "u8" else dict(rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(simulate_tiling(tiling, inputs), expected, **close)
    candidate = best_candidate(chooser, tiling, packs=True)
    kernel = ChainKernel(candidate)
    np.testing.assert_allclose(kernel(**inputs), expected, **close)
    again = candidate_from(chain, candidate.values())
    assert again.as_dict() == candidate.as_dict()
    if rolling:
        export(candidate, "c", tmp_path)
        done = run(tmp_path)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_read_back(kind: str) -> None:
    chain = chain_of(kind)
    again = chain_from(json.loads(json.dumps(operator_values(chain))))
    assert again == chain


def test_parts_of_a_row_behind_an_epilogue_are_refused() -> None:
    first = Operator.parse(
        "t[i,j] += x[i,k] * w[k,j]", dict(i=8, j=32, k=16), dict(x="f32", w="f32", t="f32")
    )
    second = Operator.parse(
        "o[i,f] += t[i,j] * v[j,f]", dict(i=8, j=32, f=16), dict(t="f32", v="f32", o="f32")
    )
    chain = Chain.of([first, second.with_epilogue("relu(acc)")])
    with pytest.raises(ScheduleError, match="stores what its epilogue makes of the whole row"):
        Tiling.of(chain, dict(j=16)).steps  # noqa: B018
    assert Tiling.of(Chain.of([first, second]), dict(j=16)).steps


def test_open_dtypes_are_those_of_tensors_before_else_float32() -> None:
    first = Operator.parse("t[i,j] += x[i,k] * w[k,j]", dict(i=8, j=32, k=16))
    second = Operator.parse("o[i,f] += t[i,j] * v[j,f]", dict(i=8, j=32, f=16))
    chain = Chain.of([first.with_epilogue("relu(acc)"), second])
    assert {str(t.dtype) for t in (*chain.inputs, *chain.temporaries, chain.result)} == {"float32"}
    stored = first.with_dtypes(dict(x="int8", w="int8")).with_epilogue("s8(acc * 0.1)")
    chain = Chain.of([stored, second.with_dtypes(dict(v="int8"))])
    assert [str(t.dtype) for t in (*chain.temporaries, chain.result)] == ["int8", "int32"]


@pytest.mark.parametrize("operators", [[], None, [1]])
def test_what_is_no_list_of_operators_is_refused(operators: Any) -> None:
    with pytest.raises(OperatorError, match="expected a list of operators, got"):
        Chain.of(operators)


def test_operators_that_contradict_each_other_are_refused() -> None:
    kinds = dict(x="f32", w="f32", t="f32")
    first = Operator.parse("t[i,j] += x[i,k] * w[k,j]", dict(i=8, j=32, k=16), kinds)
    kinds = dict(t="f32", v="f32", o="f32")

    def refuse(text: str, sizes: dict[str, int], message: str) -> None:
        second = Operator.parse(text, sizes, kinds, name="second")
        with pytest.raises(OperatorError) as caught:
            Chain.of([first, second])
        assert message in str(caught.value)

    refuse("o[i,f] += t[i,j] * v[j,f]", dict(i=4, j=32, f=8), "second: i is 4, and 8 before")
    refuse(
        "o[y,f] += t[y,g] * v[g,f]",
        dict(y=8, g=16, f=8),
        "second: 't' is float32 of shape (8, 16), and float32 of shape (8, 32) before",
    )
    stored = first.with_output("t[j,i]")
    with pytest.raises(OperatorError, match="expected no prologue, and results stored as summed"):
        Chain.of([stored])
