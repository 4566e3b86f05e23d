"""Who may ask the explorer's server, and how."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from amos.cli import main
from amos.errors import ServeError
from amos.explorer import Engine
from amos.explorer.assets import SCRIPTS
from amos.explorer.server import Server, _names_us, is_loopback
from tests.support.serving import served

ASK = json.dumps({"kind": "judge", "state": {}}).encode()
_JSON = {"Content_Type": "application/json"}


def _request(
    server: Server, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes, Mapping[str, str]]:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=20)
    try:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


def _ask(server: Server, body: bytes = ASK, **headers: str) -> int:
    return _request(server, "POST", "/ask", body, **(_JSON | headers))[0]


def test_the_page_and_what_it_needs(server: Server) -> None:
    for path, kind in (
        ("/", "text/html"),
        *((f"/{name}", "text/javascript") for name in (*SCRIPTS, "page.js")),
        ("/explorer.css", "text/css"),
    ):
        status, content, headers = _request(server, "GET", path)
        assert (status, headers["Content-Type"].split(";")[0]) == (200, kind)
        assert len(content) == int(headers["Content-Length"])
        assert "script-src 'self'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_nothing_else_is_there(server: Server) -> None:
    for path in ("/engine.py", "/../state.py", "/static/index.html", "/ask", "/%2e%2e/state.py"):
        assert _request(server, "GET", path)[0] == 404
    assert _request(server, "POST", "/", ASK, Content_Type="application/json")[0] == 404
    assert _request(server, "PUT", "/ask", ASK)[0] == 501
    assert _request(server, "OPTIONS", "/ask")[0] == 501


def test_a_message_is_answered(server: Server) -> None:
    status, content, _ = _request(server, "POST", "/ask", ASK, Content_Type="application/json")
    assert status == 200
    assert json.loads(content)["verdict"]["kind"] == "valid"
    assert _ask(server, Origin=server.address.rstrip("/"), Sec_Fetch_Site="same-origin") == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "10.0.0.7:{port}",
             "localhost@evil.example:{port}", "evil.example:{port}@localhost:{port}", "", "[",
             "127.0.0.1:{port}#evil", "127.0.0.1:{port}/evil", "127.0.0.1:{port}?evil",
             "127.0.0.1:{port}\\evil", "127.0.0.1:+{port}", "127.0.0.1:{port} evil",
             "[::1%evil]:{port}", "[127.0.0.1]evil:{port}"]
)  # fmt: skip
def test_other_names_are_refused(server: Server, host: str) -> None:
    """A page whose name was pointed at this address (DNS rebinding) gets nothing."""
    named = host.format(port=server.port)
    assert _request(server, "GET", "/", Host=named)[0] == 421
    assert _ask(server, Host=named) == 421


@pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1:{port}", "[::1]:{port}"])
def test_own_names_are_accepted(server: Server, host: str) -> None:
    assert _request(server, "GET", "/", Host=host.format(port=server.port))[0] == 200


@pytest.mark.parametrize(
    "lines",
    ["Host: evil.example", "Host: {host}", "Origin: http://{host}\r\nOrigin: http://evil.example",
     "Origin: http://evil.example\r\nOrigin: http://{host}", "Content-Length: 4",
     "Content-Type: text/plain", "Transfer-Encoding: chunked", "Transfer-Encoding: identity"],
)  # fmt: skip
def test_what_can_be_read_in_two_ways_is_refused(server: Server, lines: str) -> None:
    """A second header that decides, or a second length, on a page as on a message."""
    host = f"{server.host}:{server.port}"
    own = f"Host: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(ASK)}"
    for line in ("POST /ask HTTP/1.1", "GET / HTTP/1.1"):
        head = "\r\n".join([line, own, lines.format(host=host), "", ""]).encode()
        with socket.create_connection((server.host, server.port), timeout=20) as connection:
            connection.sendall(head + ASK)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))  # it is closed
        assert answer.split()[1] in (b"400", b"501")
        assert answer.count(b"HTTP/1.1 ") == 1


def test_messages_of_other_pages_are_refused(server: Server) -> None:
    assert _ask(server, Origin="http://evil.example") == 403
    assert _ask(server, Origin="null") == 403
    assert _ask(server, Origin=f"http://127.0.0.1:{server.port + 1}") == 403
    assert _ask(server, Sec_Fetch_Site="cross-site") == 403
    assert _ask(server, Sec_Fetch_Site="same-site") == 403


def test_only_json_of_bounded_length_is_read(server: Server) -> None:
    # What a form of another page could send without being asked first.
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert _ask(server, Content_Type=kind) == 415
    assert _ask(server, b"x" * 40_000) == 413
    assert _ask(server, b"{") == 400
    assert _ask(server, b"[" * 30_000) == 400
    assert _ask(server, b"\xff\xfe{}") in (200, 400)
    assert _ask(server, b"{}", Content_Length="-1") == 411


def test_a_fault_in_one_answer_ends_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    class Faulty(Engine):
        def answer(self, message: object) -> dict[str, object]:
            if message == {"fault": 1}:
                raise RuntimeError("broken on purpose")
            return super().answer(message)

    with served(Faulty()) as server:
        assert _ask(server, b'{"fault": 1}') == 500
        assert _ask(server) == 200
    assert "broken on purpose" in capfd.readouterr().err


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
def test_an_address_that_others_reach_must_be_asked_for(
    host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--host", host]) == 2
    assert "is not a loopback address" in capsys.readouterr().err
    with pytest.raises(ServeError, match="not a loopback address"):
        Server(Engine(), host)


def test_a_public_server_goes_by_its_addresses() -> None:
    assert _names_us("192.0.2.7:80", "0.0.0.0", 80)
    assert not _names_us("evil.example:80", "0.0.0.0", 80)
    assert _names_us("[2001:db8::1]:80", "::", 80)
    assert _names_us("192.0.2.7", "0.0.0.0", 80)
    assert is_loopback("127.8.8.8") and is_loopback("::1") and not is_loopback("evil.example")


def test_a_port_in_use_is_told(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", str(server.port)]) == 2
    assert f"cannot listen on '127.0.0.1', port {server.port}" in capsys.readouterr().err


def test_what_it_begins_with_must_be_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "conv2"]) == 2
    assert "did you mean 'conv2d'?" in capsys.readouterr().err
    assert main(["serve", "conv2d", "wmma"]) == 2
    assert main(["serve", "--machine", "nothing"]) == 2


def test_serve_says_where_once_it_listens_and_ends_by_an_interrupt() -> None:
    command = [sys.executable, "-m", "amos", "serve", "gemm", "--port", "0", "--machine", "v100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        match = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
        assert match is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(match[1]), timeout=20)
        connection.request(
            "POST", "/ask", json.dumps({"kind": "choices"}), {"Content-Type": "application/json"}
        )
        answer = json.loads(connection.getresponse().read())
        connection.close()
        assert answer["state"]["operator"] == "gemm"
        assert answer["state"]["machine"] == "v100"
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=20) == 130


def test_an_intrinsic_of_your_own_is_on_offer(tmp_path: Path) -> None:
    text = """
name = "acme_served_m4n4k4_s8_s32"
family = "acme"
source = "made up"
compute = "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]"
extents = { i1 = 4, i2 = 4, r1 = 4 }
dtypes = { Src1 = "s8", Src2 = "s8", Dst = "s32" }
memory = [
    "reg.Src1[i1, r1] = shared.Src1[addr_a + i1 * stride_a + r1]",
    "reg.Src2[r1, i2] = shared.Src2[addr_b + r1 * stride_b + i2]",
    "global.Dst[addr_c + i1 * stride_c + i2] = reg.Dst[i1, i2]",
]
"""
    code = (
        "import sys, json\n"
        "from pathlib import Path\n"
        "import amos\n"
        "from amos.explorer import Engine, State\n"
        "path = Path(sys.argv[1])\n"
        "unit = amos.intrinsics.load(path)\n"
        "engine = Engine({unit.name: path}, initial=State(intrinsic=unit.name))\n"
        "answer = engine.answer({'kind': 'judge', 'state': vars(engine.initial)})\n"
        "print(json.dumps([answer['count'], answer['code'], answer['prediction']]))\n"
    )
    path = tmp_path / "acme.toml"
    path.write_text(text, encoding="utf-8")
    count, program, prediction = json.loads(_python(code, str(path)))
    assert (count, prediction) == ("49", None)
    assert f"amos.intrinsics.load({str(path)!r})" in program
    assert _python(program).startswith("valid (access)")


def _python(code: str, *arguments: str) -> str:
    """What a program prints in a process that knows no such intrinsic yet."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /ask HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
         b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
        (b"GET http://[ HTTP/1.1\r\nHost: {host}\r\n\r\n", 404),
        (b"POST http://[ HTTP/1.1\r\nHost: {host}\r\n\r\n", 404),
    ],
)  # fmt: skip
def test_odd_requests_are_answered(server: Server, sent: bytes, status: int) -> None:
    with socket.create_connection((server.host, server.port), timeout=20) as connection:
        connection.sendall(sent.replace(b"{host}", f"{server.host}:{server.port}".encode()))
        assert connection.makefile("rb").readline().split()[1] == str(status).encode()


def test_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amos.explorer.server._CONNECTIONS", 3)
    with served(Engine()) as small:
        idle = [socket.create_connection((small.host, small.port), timeout=20) for _ in range(3)]
        with socket.create_connection((small.host, small.port), timeout=20) as refused:
            assert refused.makefile("rb").readline().split()[1] == b"503"
        for connection in idle:
            connection.close()
        until = time.monotonic() + 20
        while _request(small, "GET", "/")[0] != 200:
            assert time.monotonic() < until


def test_an_answer_that_takes_too_long_ends(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(self: Engine, message: object) -> object:
        while True:
            time.sleep(0.001)

    monkeypatch.setattr(Engine, "answer", never)
    monkeypatch.setattr("amos.explorer.server._Handler.patience", 0.05)
    status, content, _ = _request(server, "POST", "/ask", ASK, Content_Type="application/json")
    assert (status, json.loads(content)["ok"]) == (200, False)
    assert "longer than 0.05 seconds" in json.loads(content)["errors"][""]
    monkeypatch.undo()
    assert _ask(server) == 200
