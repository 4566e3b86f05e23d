"""Broken inputs: texts, TOML, command lines, record files, requests; errors must be AmosErrors."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import amos
from amos.explore.sampled import best_sampled
from amos.intrinsics import from_toml
from tests.fuzz.case import RULES, Refused, Wrong
from tests.intrinsics.test_toml import GOOD
from tests.support.drawing import groups, operators
from tests.support.drawing.operators import chance

__all__ = ["command", "loops", "record", "request", "text", "toml"]

About = Callable[[str], None]
_UNITS = ("vnni_dpbusd_m16k4_u8_s8_s32", "wmma_m16n16k16_f16_f32", "avx2_fmadd_m8_f32_f32")
#: A space ends a word, nothing else does.
_WORDS = """[ ] ( ) + - * / // % = += , . .. 0 1 -1 65536 2147483648 1e400 nan inf \
0x10 1_0 pad( acc \
u8( relu( i k out a[ ] [] [[ ]] " ' \\ \n \t \0 é ∑ 😀 # ; : @ ! ~ ^ | & < > ? ` $ lambda None \
True __import__( {0} %s i[ pad(pad( * - ** true false {} {a=1} [[implementation]] null"""
_TOKENS = [word for word in _WORDS.split(" ") if word]
_STORED = "global.Dst[addr_c + i1 * stride_c + i2] = acc.Dst[i1, i2]"
_LAYOUT = 'layout = { lanes = 32, elements = 2, i1 = "lane // 4", i2 = "lane % 4 * 2 + e" }'
_TOML = GOOD.replace(f'"{_STORED}"', f'{{ statement = "{_STORED}", {_LAYOUT} }}')


def _number(rng: np.random.Generator) -> str:
    """A number that is large, long, or neither."""
    draw_ = rng.random()
    if draw_ < 0.3:
        return str(int(rng.integers(0, 100)))
    if draw_ < 0.6:
        return "1" + "0" * int(rng.integers(1, 25))
    if draw_ < 0.8:
        return str(2 ** int(rng.integers(7, 130)) + int(rng.integers(-1, 2)))
    return "9" * int(rng.choice([400, 4400, 6000]))


def mutated(rng: np.random.Generator, text: str, words: Sequence[str] = _TOKENS) -> str:
    """The text with a few parts removed, repeated, exchanged or added."""
    for _ in range(int(rng.choice([1, 1, 2, 3, 5]))):
        first = int(rng.integers(len(text) + 1))
        last = min(len(text), first + int(rng.integers(0, 12)))
        piece, edit = text[first:last], rng.random()
        if edit < 0.2:
            piece = ""
        elif edit < 0.5:
            piece += str(rng.choice(words))
        elif edit < 0.6:
            piece = _number(rng)
        elif edit < 0.68:
            piece *= int(rng.choice([2, 40, 600]))
        elif edit < 0.74:
            piece += str(rng.choice(words)) * int(rng.choice([3, 70, 3000]))
        elif edit < 0.8:
            digits = [n for n, c in enumerate(text) if c.isdigit()]
            first = int(rng.choice(digits)) if digits else first
            last, piece = first + 1, _number(rng)
        elif edit < 0.9:
            piece = piece[::-1]
        else:
            piece += chr(int(rng.integers(1, 0x2FFF)))
        text = text[:first] + piece + text[last:]
    return text


def _tried(run: Callable[[], object]) -> str:
    """Run what may only end in an AmosError.

    Raises:
        Wrong: the error's message is no message.
    """
    try:
        run()
    except amos.AmosError as error:
        message = str(error)
        if not message.strip():
            raise Wrong("an error without a message") from error
        return "refused"
    return "right"


def text(rng: np.random.Generator, about: About) -> str:
    """Operators and epilogues."""
    start = groups.epilogue(rng, operators.problem(rng, ("uint8", "int8", "int32"), odd=0.3))
    statement, finish, extents = start.text, start.epilogue, dict(start.extents)
    which = rng.random()
    if which < 0.3:
        statement = mutated(rng, statement)
    elif which < 0.6:
        finish = mutated(rng, finish)
    if 0.5 < which < 0.8:
        extents[str(rng.choice([*extents]))] = int(_number(rng)[:4000])
    name, rule = str(rng.choice(_UNITS)), str(rng.choice(RULES))
    dtypes = start.dtypes if rng.random() < 0.4 else {}
    about(f"{statement!r}\n{extents!r}\n{start.extra!r}\n{finish!r}\n{name} {rule}")

    def run() -> None:
        op = amos.Operator.parse(statement, extents, dtypes)
        str(op)
        space = amos.enumerate_mappings(op, amos.intrinsics.get(name), rule=rule)
        if len(space):
            str(space[len(space) - 1].physical())
            machine = amos.machines.get("a100" if name == _UNITS[1] else "xeon_6240")
            best_sampled(space[0], machine, 4, rng)
        str(op.with_epilogue(finish, start.extra))

    return _tried(run)


def loops(rng: np.random.Generator, about: About) -> str:
    """Operators of many loops that share a few indices: what is hard to count."""
    names = [f"l{n}" for n in range(int(rng.integers(1, 34)))]

    def access(tensor: str, among: Sequence[str], most: int) -> str:
        indices: list[list[str]] = [[] for _ in range(int(rng.integers(1, most + 1)))]
        for name in among:
            for _ in range(int(rng.choice([1, 1, 1, 2]))):
                indices[int(rng.integers(len(indices)))].append(name)
        return f"{tensor}[{', '.join('+'.join(i) or '0' for i in indices)}]"

    spatial = [name for name in names if rng.random() < 0.5]
    reduce = [name for name in names if name not in spatial]
    first = [name for name in spatial if rng.random() < 0.6]
    second = [name for name in spatial if name not in first]
    few = int(rng.choice([1, 3, 30]))
    statement = (
        f"out[{', '.join(spatial)}] += {access('a', first + reduce, few)}"
        f" * {access('b', second + reduce, few)}"
    )
    extents = dict.fromkeys(names, int(rng.choice([1, 2, 3, 7])))
    about(f"{statement!r} {extents!r}")

    def run() -> None:
        op = amos.Operator.parse(statement, extents)
        unit = amos.intrinsics.get(_UNITS[1])
        for rule in RULES:
            space = amos.enumerate_mappings(op, unit, rule, commute=bool(rng.random() < 0.5))
            verdict = amos.check_matching(op, unit, rng.integers(0, 2, (3, len(names))), rule)
            str(verdict)
            if space.count:
                str(space[space.count - 1].physical())
                space.find(space[space.count // 2].name)

    return _tried(run)


def toml(rng: np.random.Generator, about: About) -> str:
    """Descriptions of intrinsics."""
    source = mutated(rng, _TOML)
    about(repr(source))
    op = amos.operators.get("gemm", m=9, n=9, k=9)

    def run() -> None:
        if "=" in source:
            unit = from_toml(source)
            str(unit)
            list(amos.enumerate_mappings(op, unit)[:3])

    return _tried(run)


def _main(arguments: Sequence[str]) -> str:
    """Run the command line.

    Raises:
        Wrong: it ends in another way than 0, or 2 with a message.
    """
    from amos.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([*arguments])
    if status not in (0, 1, 2) or (status and not (out.getvalue() + err.getvalue()).strip()):
        raise Wrong(f"exit status {status}: {err.getvalue()[-300:]!r}")
    return "right" if status == 0 else "refused"


_COMMANDS = (
    "map conv2d wmma_m16n16k16_f16_f32 --rule access --limit 3",
    "map conv2d vnni_dpbusd_m16k4_u8_s8_s32 --explain q-k-cs",
    "map gemm vnni_dpbusd_m16k4_u8_s8_s32 --extent m=8 --dtype u8s8 --json",
    "predict gemm wmma_m16n16k16_f16_f32 --machine a100 --limit 2",
    "operators conv2d",
    "intrinsics show vnni_dpbusd_m16k4_u8_s8_s32",
    "intrinsics list --family wmma",
    "machines show a100",
    "records list FILE",
    "records best FILE",
    "records prune FILE --older-than 10",
    "records export FILE --out OUT",
    "export FILE:1 --format c --out OUT",
)


def command(rng: np.random.Generator, about: About) -> str:
    """Command lines."""
    line = str(rng.choice(_COMMANDS)).split()
    at = int(rng.integers(len(line)))
    if chance(rng, 0.8):
        line[at] = mutated(rng, line[at], [t for t in _TOKENS if t.isprintable()])
    about(repr(line))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tuning.db")
        path.write_bytes(_recorded())
        there = {"FILE": str(path), "OUT": f"{folder}/out"}
        words = []
        for word in line:
            for key, value in there.items():
                word = word.replace(key, value)
            words.append(word)
        if "--" in words or any(w.startswith(("--install", "--show")) for w in words):
            raise Refused("shell completion")
        # What a broken option names is written here, not into the repository.
        with contextlib.chdir(folder):
            return _main(words)


@cache
def _recorded() -> bytes:
    """A record file of a small exploration."""
    op = amos.Operator.parse("out[i,j] += a[i,k] * weight[j,k]", dict(i=6, j=32, k=8))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tuning.db")
        amos.explore(op, _UNITS[0], machine="xeon_6240", trials=4, seed=0, records=path)
        return path.read_bytes()


def record(rng: np.random.Generator, about: About) -> str:
    """Record files with bytes that changed, and rows that were sealed as nonsense."""
    from amos.records import Records
    from amos.records.salvage import salvage

    data = bytearray(_recorded())
    limit = len(data) if rng.random() < 0.6 else 4096
    for _ in range(int(rng.choice([1, 1, 1, 4, 40]))):
        data[int(rng.integers(limit))] ^= 1 << int(rng.integers(8))
    if rng.random() < 0.1:
        del data[int(rng.integers(len(data))) :]
    lines = rng.random() < 0.3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tuning.db")
        path.write_bytes(data)
        about("a record file with changed bytes")
        if lines:
            return _lines(rng, about, Path(folder))
        outcomes = [
            _tried(lambda: [Records(path, readonly=True).all()]),
            _tried(lambda: salvage(path)),
            *(_main(["records", *line]) for line in (["list", str(path)], ["best", str(path)])),
        ]
    return "refused" if "refused" in outcomes else "right"


@cache
def _rows() -> tuple[dict[str, Any], ...]:
    from amos.records import Records
    from amos.records.rows import row_of

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tuning.db")
        path.write_bytes(_recorded())
        with Records(path) as records:
            return tuple(map(row_of, records.all()))


_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1e308, 2**70, "", "x", "9" * 5000, [], [1], ["a"], [[[]]], {}, {"a": 1},
    {"i1": [["i"]]}, {"i1": "i"}, {"": {}}, float("inf"), "nan", [None], {"name": 7},
)  # fmt: skip


def _nonsense(rng: np.random.Generator, value: Any) -> Any:
    """The value with a part of it exchanged."""
    if rng.random() < 0.45 or not isinstance(value, dict | list) or not value:
        return _VALUES[int(rng.integers(len(_VALUES)))]
    if isinstance(value, list):
        at = int(rng.integers(len(value)))
        return [*value[:at], _nonsense(rng, value[at]), *value[at + 1 :]]
    key = str(rng.choice([*map(str, value)]))
    return value | {key: _nonsense(rng, value.get(key))}


def _lines(rng: np.random.Generator, about: About, folder: Path) -> str:
    """JSON lines whose values are of other types, with a digest that fits."""
    from tests.support.forged import sealed

    row = dict(_rows()[int(rng.integers(len(_rows())))])
    name = str(rng.choice([*row]))
    row[name] = _nonsense(rng, row[name])
    about(f"a row with {name} = {row[name]!r}")
    with contextlib.suppress(Exception):
        row = sealed(row)  # whoever forges a digest has the means to
    source, target = folder / "rows.jsonl", folder / "new.db"
    source.write_text(json.dumps(row) + "\n")
    outcome = _main(["records", "import", str(target), str(source)])
    if target.exists():
        for line in (["list"], ["best"], ["replay"], ["export"]):
            arguments = ["1"] if line == ["replay"] else []
            _main(["records", *line, str(target), *arguments])
    return outcome


@cache
def _server() -> Any:
    from amos.explorer import Engine
    from amos.explorer.server import Server

    server = Server(Engine())
    threading.Thread(target=server.run, daemon=True).start()
    return server


def request(rng: np.random.Generator, about: About) -> str:
    """Requests to the explorer's server, as bytes and as messages."""
    server = _server()
    state: dict[str, Any] = {
        "operator": "out[i,j] += a[i,k] * b[k,j]", "extents": "i=8, j=8, k=8", "rule": "access",
        "dtype": "", "intrinsic": _UNITS[1], "machine": "a100", "commute": False,
        "assignment": [0, 1, 2], "order": None,
    }  # fmt: skip
    key = str(rng.choice([*state]))
    which = rng.random()
    if which < 0.4:
        state[key] = mutated(rng, str(state[key]))
    elif which < 0.7:
        state[key] = _nonsense(rng, state[key])
    kind = str(rng.choice(["judge", "rows", "choices"]))
    body = json.dumps({"kind": kind, "state": state, "first": 0, "count": 5}).encode()
    head = (
        f"POST /ask HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    if which >= 0.7:
        words = [*_TOKENS, "GET", "POST", "http://[", "\r\n", "HTTP/1.1", "Host:", "/%00", ":"]
        head = mutated(rng, head, words)
    sent = head.encode("utf-8", "replace") + body
    about(repr(sent[:3000]))
    return _answered(server.port, sent)


def _answered(port: int, sent: bytes) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.settimeout(20)
        answer = b""
        with contextlib.suppress(OSError):  # it may be closed before all is sent
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
        try:
            while chunk := connection.recv(65536):
                answer += chunk
        except TimeoutError:
            raise Wrong("no answer within 20 seconds") from None
        except ConnectionResetError:
            pass
    status = answer.partition(b"\r\n")[0]
    if not answer or b" 500 " in status:
        raise Wrong(f"the server answers {status[:80]!r}")
    return "right" if b" 200 " in status else "refused"
