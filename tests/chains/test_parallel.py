"""Loops of chains on work-groups and work-items, against predicates written separately."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import amos
from amos.chains import Loop, LoopNest, ParallelSpace, Tiling
from amos.chains.loop_nest import Access, Allocation, Node
from amos.cli import main
from amos.errors import ScheduleError, UnknownNameError
from amos.ir import Chain
from amos.reproduce.lift import LISTING1, accepts, layer_space, lift

SIZES = ["--extent", "i=8,j=4,k=4", "--fix", "tile.i=1"]


def nests() -> st.SearchStrategy[LoopNest]:
    """Up to two accesses to a buffer in an outer loop, each in up to two loops."""

    def build(depths: list[int], memory: str, reduces: bool, place: int) -> LoopNest:
        nodes: list[Node] = []
        for number, depth in enumerate(depths):
            node: Node = Access(f"s{number}", ("b",))
            for level in range(depth):
                node = Loop(f"l{number}{level}", 2, (node,), is_reduce=reduces and level == 0)
            nodes.append(node)
        buffer = Allocation("b", memory)
        if place == 0:
            return LoopNest((buffer, Loop("outer", 2, tuple(nodes))))
        return LoopNest((Loop("outer", 2, (buffer, *nodes)),))

    depths = st.lists(st.integers(0, 2), min_size=1, max_size=2)
    return st.builds(
        build, depths, st.sampled_from(["local", "private"]), st.booleans(), st.integers(0, 1)
    )


@settings(max_examples=8, deadline=None, phases=[Phase.generate])
@given(nests(), st.integers(1, 2))
def test_the_solver_accepts_what_predicates_accept(nest: LoopNest, dimensions: int) -> None:
    space = ParallelSpace(nest, 1 if len(nest.loops) > 3 else dimensions)
    names = [loop.name for loop in nest.loops]
    choices = [dict(zip(names, c, strict=True)) for c in product(space.choices, repeat=len(names))]
    valid = [each for each in choices if accepts(nest, each)]
    assert space.count == len(valid)
    drawn = space.draw(len(valid) + 1, np.random.default_rng(0))
    assert {tuple(each.values()) for each in drawn} == {tuple(each.values()) for each in valid}
    for choice in choices[:: 1 + len(choices) // 200]:
        assert bool(space.violations(choice)) == (choice not in valid)
    for choice in choices[:: 1 + len(choices) // 4]:
        assert bool(space.explain(choice)) == (choice not in valid)


def test_an_access_in_no_loop_lacks_levels_that_others_have() -> None:
    scalar, row = Access("scalar", ()), Loop("i", 4, (Access("row", ()),))
    space = ParallelSpace(LoopNest((scalar, row)), 1)
    assert space.count == 1
    text = space.violations({"i": "global 0"})[0]
    assert text == "rule 7 exhaustive: scalar lacks global 0, which others have"
    assert ParallelSpace(LoopNest((scalar,))).count == 1


def test_listing_1_and_the_layers_of_vgg16(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "lift", "--candidates", "4", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    listing = result["listing1"]
    assert (listing["assignments"], listing["valid"], listing["brute_force"]) == (32768, 21, 21)
    assert {row["name"]: row["valid"] for row in listing["mappings"]} == {
        "M1": True,
        "M2": False,
        "M3": False,
        "M4": True,
        "M6": True,
    }
    for row in listing["mappings"]:
        assert row["valid"] or row["broken"] == ["rule 2 local memory"]
    assert sum(result["paper_constraints"].values()) == 123
    assert [row["drawn"] for row in result["layers"]] == [4] * 9


def test_layers_of_vgg16_are_searched_where_trials_are_asked_for() -> None:
    model = amos.MeasureOptions(executor="model")
    result = lift(1, trials=12, only=["V9"], measure=model)
    assert [space.layer for space in result.layers] == ["vgg16:V9"]
    (rate,) = result.rates
    assert (rate.trials, rate.memory) == (12, 0)
    assert rate.gflops_after[1] <= rate.gflops_after[10] <= rate.gflops
    with pytest.raises(UnknownNameError, match="unknown layer of VGG-16 'V0'"):
        lift(only=["V0"])


def test_rule_2_on_innermost_loops_alone_accepts_what_the_paper_refuses() -> None:
    nest = LoopNest.of(Tiling.of(Chain.parse(LISTING1, dict(i=8, j=4, k=4)), {"i": 1}))
    words = ["global 1", "global 0", "sequential", "global 0", "sequential"]
    second = dict(zip([loop.name for loop in nest.loops], words, strict=True))
    assert accepts(nest, second, innermost_only=True)
    assert not accepts(nest, second)


def test_drawn_mappings_of_a_convolution_are_valid_and_differ() -> None:
    space = layer_space("vgg16:V8")
    drawn = space.draw(300, np.random.default_rng(0))
    assert len({tuple(each.values()) for each in drawn}) == 300
    assert all(accepts(space.nest, each) for each in drawn)
    assert drawn == space.draw(300, np.random.default_rng(0))
    used = {value for each in drawn for value in each.values()}
    assert used == {*space.choices}


def test_explanations_name_the_rule() -> None:
    chain = Chain.parse(LISTING1, dict(i=8, j=4, k=4))
    space = ParallelSpace(LoopNest.of(Tiling.of(chain, {"i": 1})), 2)
    for partial, rule in (
        ({"local_buf.j": "global 0"}, "2 local memory"),
        ({"local_buf.j": "local 0", "local_buf.k": "local 0"}, "3 duplicate"),
        ({"local_buf.j": "local 0", "i": "group 1"}, "6 hierarchy"),
        ({"local_buf.k": "local 0", "output.k": "sequential", "output.j": "fused"}, "7 exh"),
        ({"local_buf.j": "sequential", "local_buf.k": "sequential"}, "8 sequential fusion"),
        ({"i": "fused"}, "fused loops"),
    ):
        texts = space.explain(partial)
        assert any(text.startswith(f"rule {rule}") for text in texts), (partial, texts)
    private = ParallelSpace(LoopNest.of(Tiling.of(chain, {"i": 1}), {"local_buf": "private"}))
    (text,) = private.explain({"output.j": "local 0"})
    assert text == (
        "rule 1 private memory: output.j must be sequential or fused: it stands between "
        "'local_buf' in private memory and its access"
    )


def test_names_that_there_are_not() -> None:
    chain = Chain.parse(LISTING1, dict(i=8, j=4, k=4))
    tiling = Tiling.of(chain, {"i": 1})
    with pytest.raises(UnknownNameError, match="unknown temporary 'output'"):
        LoopNest.of(tiling, {"output": "local"})
    with pytest.raises(UnknownNameError, match="unknown input 'local_buf'"):
        LoopNest.of(tiling, copies={"local_buf": "local"})
    with pytest.raises(ScheduleError, match="expected local or private, got 'global'"):
        LoopNest.of(tiling, {"local_buf": "global"})
    blurred = "t[y,x] = a[y,x] + a[y+1,x]; out[v,x] = t[v,x] + t[v+1,x]"
    rows = Tiling.of(Chain.parse(blurred, dict(y=7, v=6, x=4)), {"v": 3}, "v")
    with pytest.raises(ScheduleError, match="tiles in any order, got rows rolling along v"):
        LoopNest.of(rows)
    with pytest.raises(ScheduleError, match="expected 1, 2 or 3, got 4"):
        ParallelSpace(LoopNest.of(tiling), 4)
    with pytest.raises(UnknownNameError, match=r"map\.z"):
        ParallelSpace(LoopNest.of(tiling)).explain({"z": "local 0"})
    with pytest.raises(UnknownNameError, match="unknown loop 'z'"):
        ParallelSpace(LoopNest.of(tiling)).violations({"z": "local 0"})
    with pytest.raises(ScheduleError, match="'warp 0' is not one of"):
        space = ParallelSpace(LoopNest.of(tiling))
        space.violations(dict.fromkeys([loop.name for loop in space.nest.loops], "warp 0"))


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--dimensions", "2", "--memory", "input=local"]
    assert main(["space", LISTING1, *SIZES, *options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["loops"][:3] == ["i", "input.copy.1", "input.copy.2"]
    assert report["conflict"] == []
    assert main(["space", LISTING1, *SIZES, "--fix", "map.output.j=group 0"]) == 0
    printed = capsys.readouterr().out
    assert "impossible rule 2 local memory: output.j must be" in printed
    assert "for example" not in printed
    assert main(["space", LISTING1, *SIZES, "--fix", "map.output.j=local 0", "--json"]) == 0
    drawn = json.loads(capsys.readouterr().out)["drawn"]
    assert {each["output.j"] for each in drawn} == {"local 0"}
    assert main(["space", LISTING1, "--extent", "i=8,j=4,k=4", "--fix", "tile.i=8"]) == 0
    assert capsys.readouterr().out.endswith("for example no loop in parallel\n")
    assert main(["space", LISTING1, *SIZES, "--fix", "warp=3"]) == 2
    assert "warp" in capsys.readouterr().err
    assert main(["space", LISTING1, *SIZES, "--fix", "map.output.j=warp"]) == 2
    assert "'warp' is not one of sequential, fused, local 0" in capsys.readouterr().err
    assert main(["reproduce", "lift", "--candidates", "1"]) == 0
    assert main(["reproduce", "lift", "--seed", "-1"]) == 2
    assert "21 of 32,768 assignments" in capsys.readouterr().out
