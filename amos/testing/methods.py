"""Contract of search methods; a method joins by naming itself.

>>> class TestMyMethod(MethodContract):
...     method = "random"
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import ClassVar

import numpy as np

from amos import enumerate_mappings, intrinsics, machines
from amos.explore.guided import Guided
from amos.explore.method import Search
from amos.explore.methods import method as find_method
from amos.explore.objective import Problem
from amos.ir import Operator
from amos.records import Trial

_CONV = Operator.parse(
    "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
    extents=dict(n=1, p=7, q=5, k=32, c=8, r=3, s=3),
    shapes=dict(image=(1, 7, 5, 8)),
)
_SMALL = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=3, j=32, k=8))
_ONE = Operator.parse("out[i] += a[k] * weight[i,k]", extents=dict(i=16, k=4))
_INTRINSIC, _MACHINE = "vnni_dpbusd_m16k4_u8_s8_s32", "xeon_6240"


def problem(operator: Operator) -> Problem:
    """Create the problem of an operator on a CPU, scored by the model."""
    mappings = enumerate_mappings(operator, intrinsics.get(_INTRINSIC), rule="gather")
    return Problem(list(mappings), machines.get(_MACHINE))


def proposals(method: str, seed: int, count: int, operator: Operator) -> list[str]:
    """List candidates that a method proposes when told the model's seconds, batch by batch."""
    joint = problem(operator)
    search = find_method(method)(joint, np.random.default_rng(seed))
    names: list[str] = []
    while len(names) < count and (batch := search.ask(min(5, count - len(names)))):
        search.tell(list(zip(batch, joint.seconds(batch).tolist(), strict=True)))
        names += [f"{c.mapping.name} {c.schedule}" for c in batch]
    return names


class MethodContract:
    """Subclass it in a test module and set ``method``."""

    method: ClassVar[str]
    #: The operator that the tests search; small enough for every method.
    operator: ClassVar[Operator] = _CONV

    def _search(self, joint: Problem, seed: int = 0) -> Search:
        return find_method(self.method)(joint, np.random.default_rng(seed))

    def test_proposes_feasible_and_new_candidates(self) -> None:
        """Also after it was told scores, some of failures."""
        joint = problem(self.operator)
        search, seen = self._search(joint), set()
        for number in range(8):
            batch = search.ask(5)
            assert len(batch) == 5
            for candidate in batch:
                space = joint.space(candidate.mapping)
                assert space.violations(candidate.schedule) == ()
                assert candidate.key not in seen
                seen.add(candidate.key)
            scores = joint.seconds(batch).tolist()
            scores[number % 5] = float("inf")
            search.tell(list(zip(batch, scores, strict=True)))

    def test_never_proposes_what_it_was_told(self) -> None:
        """Also of candidates that it did not propose."""
        joint = problem(_SMALL)
        search = self._search(joint)
        measured = [joint.sample(joint.mappings[0], np.random.default_rng(n)) for n in range(20)]
        search.tell([(candidate, 1.0) for candidate in measured])
        proposed = {candidate.key for _ in range(4) for candidate in search.ask(5)}
        assert not proposed & {candidate.key for candidate in measured}

    def test_the_same_seed_proposes_the_same_in_another_process(self) -> None:
        """Nothing depends on the order of sets or on a clock."""
        code = (
            "import json, pickle, sys; from amos.testing.methods import proposals; "
            "operator = pickle.load(sys.stdin.buffer); "
            f"print(json.dumps(proposals({self.method!r}, 3, 30, operator)))"
        )
        command = [sys.executable, "-P", "-c", code]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            process.stdin.write(pickle.dumps(self.operator))
            process.stdin.close()
            here = proposals(self.method, 3, 30, self.operator)
            assert process.stdout is not None
            assert json.loads(process.stdout.read()) == here

    def test_a_space_of_one_candidate(self) -> None:
        """Its candidate is proposed once."""
        joint = problem(_ONE)
        assert joint.size == 1
        search = self._search(joint)
        (only,) = search.ask(4)
        search.tell([(only, 1.0)])
        assert search.ask(4) == []

    def test_a_space_is_used_up(self) -> None:
        """Each feasible candidate of a small space is proposed once."""
        fixes: dict[str, int | str] = {
            "vector": 64,
            "order": "i i1.tile",
            "parallel": 1,
            "unroll": 1,
        }
        mappings = list(problem(_SMALL).mappings)[:1]
        names = problem(_SMALL).spaces[mappings[0].name].variables
        joint = Problem(
            mappings,
            machines.get(_MACHINE),
            fixes=[(name, value) for name, value in fixes.items() if name in names],
        )
        search, proposed = self._search(joint), set()
        while batch := search.ask(7):
            search.tell(list(zip(batch, joint.seconds(batch).tolist(), strict=True)))
            proposed |= {candidate.key for candidate in batch}
        assert len(proposed) == sum(len(_all(joint, name)) for name in joint.spaces)

    def test_honours_a_budget(self) -> None:
        """Neither the method nor its guide proposes more than the requested count."""
        joint = problem(_SMALL)
        search = self._search(joint)
        guide = Guided(joint, np.random.default_rng(0), find_method(self.method))
        for count in (0, 1, 3):
            assert len(search.ask(count)) <= count
            batch = guide.ask(count)
            assert len(batch) <= count
            for candidate in batch:
                assert candidate.key not in joint.trial_keys()
                seconds = float(joint.seconds([candidate])[0])
                joint.tell(Trial(len(joint.trials), candidate, seconds))


def _all(joint: Problem, name: str) -> list[dict[str, int]]:
    from amos.schedule.sampler import enumerate_assignments

    assignments = enumerate_assignments(joint.spaces[name].csp, 100_000)
    assert assignments is not None
    return assignments
