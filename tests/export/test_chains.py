"""Kernels of chains in C: compiled by this machine's compiler, run without Python, and right."""

from __future__ import annotations

from pathlib import Path

import pytest

from amos.chains import ChainCandidate, Tiling
from amos.errors import ExportError
from amos.explore.choosing import Chooser
from amos.export import export
from amos.ir import Chain
from tests.chains.test_kernel import HALF, STENCIL
from tests.export.test_export import run
from tests.ir.test_chain import ATTENTION
from tests.support.chains import best_candidate

CASES = [
    (ATTENTION, dict(b=2, q=21, k=32, d=16), dict(b=1, q=16, k=16), HALF),
    (STENCIL, dict(v=62, y=59, x=70, r=3, s=4), dict(y=20), dict(a="u8", w="s8", t="s32")),
    ("t[i,j] += x[i,k] * weight[k,j]; o[i,f] += t[i,j] * weight_2[j,f]",
     dict(i=20, j=48, k=32, f=32), dict(i=8), {}),
    # Names of C, and of the text of the kernel.
    ("int[if] = pow[if] * 2; main[if] = int + core[if]", {"if": 40}, {"if": 8}, {}),
]  # fmt: skip


@pytest.fixture(scope="module")
def chooser() -> Chooser:
    return Chooser("host", core=True)


@pytest.mark.parametrize(("text", "sizes", "tiles", "dtypes"), CASES)
@pytest.mark.long
def test_the_test_program_agrees(
    chooser: Chooser,
    text: str,
    sizes: dict[str, int],
    tiles: dict[str, int],
    dtypes: dict[str, str],
    tmp_path: Path,
) -> None:
    chain = Chain.parse(text, sizes, dtypes, name="fused")
    candidate = best_candidate(chooser, Tiling.of(chain, tiles), packs=True)
    export(candidate, "c", tmp_path)
    done = run(tmp_path, "3")
    assert done.returncode == 0, done.stdout
    assert f"{chain.result.elements} elements" in done.stdout and "median of 3" in done.stdout
    source = (tmp_path / "fused.c").read_text()
    assert "#pragma omp parallel" in source and f"tiles      {candidate.tiling}" in source
    assert all(f"void fused_pack_{name}(" in source for name in chain.constants)


def test_the_test_program_finds_a_wrong_element(tmp_path: Path) -> None:
    chain = Chain.parse("t[i] = x[i] * 2; o[i] = t + y[i]", dict(i=40), name="fused")
    export(ChainCandidate(Tiling.of(chain, dict(i=8)), {}), "c", tmp_path)
    source = tmp_path / "fused.c"
    source.write_text(source.read_text().replace("2.0f", "2.5f"))
    done = run(tmp_path)
    assert done.returncode == 1 and "of o are not what NumPy had" in done.stdout


def test_other_formats_refuse_chains(tmp_path: Path) -> None:
    chain = Chain.parse("t[i] = x[i] * 2; o[i] = t + y[i]", dict(i=40), name="fused")
    candidate = ChainCandidate(Tiling.of(chain, {}), {})
    with pytest.raises(ExportError, match="fused: chains are exported as c, so or opencl only"):
        export(candidate, "cuda", tmp_path)
