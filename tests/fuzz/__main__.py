"""``python -m tests.fuzz``: attack the package for some minutes, with an oracle of its own."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.fuzz.runner import Attack

__all__: list[str] = []

#: Cases of each kind in one round: what is cheap is tried more often.
_ROUND = {
    "simulation": 20,
    "kernel": 8,
    "epilogue": 4,
    "chain": 4,
    "chain-simulation": 20,
    "chain-export": 1,
    "cuda": 1,
    "export": 1,
    "opencl": 4,
    "group-opencl": 4,
    "tail": 6,
    "tail-amx": 4,
    "tail-vnni": 4,
    "tail-avx512": 4,
    "tail-avx2": 4,
    "group": 6,
    "group-simulation": 10,
    "group-cuda": 1,
    "group-export": 1,
    "stream": 10,
    "layer-stream": 10,
    "module": 2,
    "graph": 2,
    "branches": 2,
    "text": 20,
    "toml": 12,
    "loops": 6,
    "command": 3,
    "record": 2,
    "request": 6,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long, by default 10")
    parser.add_argument(
        "--seed", type=int, default=None, help="first seed, by default by the clock"
    )
    parser.add_argument("--kinds", default=",".join(_ROUND), help="some of the kinds, with commas")
    parser.add_argument("--rounds", type=int, default=0, help="a number of rounds, not minutes")
    parser.add_argument("--case", default="", help="run the cases of KIND:SEED again")
    options = parser.parse_args()
    kinds = [options.case.partition(":")[0]] if options.case else options.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in _ROUND]:
        parser.error(f"kind {unknown[0]!r}: expected one of {', '.join(_ROUND)}")
    return options


def _say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run, print counts, and return 1 if there are findings."""
    options = _arguments()
    if options.case:
        kind, _, seed = options.case.partition(":")
        with Attack() as attack:
            search = attack.search(kind, _ROUND[kind], int(seed))
        _say(search.finding or dict(search.counts))
        return int(search.finding is not None)
    first = int(time.time()) % 10**7 * 1000 if options.seed is None else options.seed
    _say(f"first seed {first}")
    counts: Counter[tuple[str, str]] = Counter()
    refusals: Counter[tuple[str, str]] = Counter()
    end, number, findings = time.monotonic() + 60 * options.minutes, 0, 0
    kinds = options.kinds.split(",")
    with Attack() as attack:
        while number < options.rounds if options.rounds else time.monotonic() < end:
            for kind in kinds:
                search = attack.search(kind, _ROUND[kind], first + number)
                counts.update({(kind, what): n for what, n in search.counts.items()})
                refusals.update({(kind, why): n for why, n in search.refusals.items()})
                if search.finding is not None:
                    findings += 1
                    again = f"python -m tests.fuzz --case {kind}:{first + number}"
                    _say(f"\n{search.finding}\nagain: {again}\n")
            number += 1
    for kind in kinds:
        outcomes = ", ".join(f"{n} {what}" for (k, what), n in sorted(counts.items()) if k == kind)
        _say(f"{kind:17}{outcomes}")
        for why, n in Counter(
            {why: n for (k, why), n in refusals.items() if k == kind}
        ).most_common():
            _say(f"    {n} refused: {why}")
    _say(f"{findings} findings in {sum(counts.values())} cases")
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
