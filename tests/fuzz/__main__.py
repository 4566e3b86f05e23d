"""``python -m tests.fuzz``: attack the package for some minutes, with an oracle of its own."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.fuzz.runner import DEFECTS, Attack

__all__: list[str] = []

#: Cases of each kind in one round: what is cheap is tried more often.
_ROUND = {
    "simulation": 20,
    "kernel": 8,
    "epilogue": 4,
    "chain": 4,
    "chain-simulation": 20,
    "cuda": 1,
    "export": 1,
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
    parser.add_argument("--case", default="", help="run one case again: KIND:SEED")
    return parser.parse_args()


def _say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run, print counts, and return 1 if there are findings."""
    asked = _arguments()
    if asked.case:
        kind, _, seed = asked.case.partition(":")
        with Attack() as attack:
            result = attack.case(kind, int(seed))
        _say(result)
        return int(result.outcome in DEFECTS)
    first = int(time.time()) % 10**7 * 1000 if asked.seed is None else asked.seed
    _say(f"first seed {first}")
    counts: Counter[tuple[str, str]] = Counter()
    end, number = time.monotonic() + 60 * asked.minutes, 0
    next_seed = dict.fromkeys(asked.kinds.split(","), first)
    with Attack() as attack:
        while number < asked.rounds if asked.rounds else time.monotonic() < end:
            number += 1
            for kind in next_seed:
                for _ in range(_ROUND[kind]):
                    result = attack.case(kind, next_seed[kind])
                    next_seed[kind] += 1
                    counts[kind, result.outcome] += 1
                    if result.outcome in DEFECTS:
                        _say(f"\n{result}\n")
    for kind in next_seed:
        told = ", ".join(f"{n} {what}" for (k, what), n in sorted(counts.items()) if k == kind)
        _say(f"{kind:12}{told}")
    defects = sum(n for (_, what), n in counts.items() if what in DEFECTS)
    _say(f"{defects} findings in {sum(counts.values())} cases")
    return int(defects > 0)


if __name__ == "__main__":
    sys.exit(main())
