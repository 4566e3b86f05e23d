"""The explorer as a page of its own, served to this computer alone.

The page sends its choices and gets plain values; nothing that it sends is executed. A
browser will also carry messages of other pages here, so each request must name this
server as its host (against DNS rebinding), and a message must come from a page of
this server, as JSON (against cross-site requests).
"""

from __future__ import annotations

import ctypes
import ipaddress
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from amos.errors import ServeError
from amos.explorer import assets
from amos.explorer.engine import Engine

#: Bytes of one message, seconds that a connection may be silent or an answer may take.
_LONGEST, _SILENT, _PATIENCE = 32_768, 30, 20
#: Answers at a time, and connections, each of which has a thread.
_TOGETHER, _CONNECTIONS = 8, 64

_JSON = "application/json"
_SCRIPTS = (*assets.SCRIPTS, "page.js")
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    **{f"/{name}": (name, "text/javascript; charset=utf-8") for name in _SCRIPTS},
    "/explorer.css": ("explorer.css", "text/css; charset=utf-8"),
}
#: Headers that decide the addressee and the end of a message.
_ONCE = ("Host", "Origin", "Sec-Fetch-Site", "Content-Type", "Content-Length")
#: A host as a browser writes it: a name, or an address, and a port.
_HOST = re.compile(
    r"(?P<name>[A-Za-z0-9.-]+|\[[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*\])(?::(?P<port>[0-9]{1,5}))?"
)
#: Reply to a connection beyond the limit.
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Server(ThreadingHTTPServer):
    """An HTTP server with an explorer's page, listening once it is made.

    Args:
        port: port to listen on; 0 for any that is free.
        public: listen on an address that others can reach.

    Raises:
        ServeError: the address is not loopback and ``public`` is not given, or it
            cannot be listened on.
    """

    daemon_threads = True

    def __init__(
        self, engine: Engine, host: str = "127.0.0.1", port: int = 0, *, public: bool = False
    ) -> None:
        if not public and not is_loopback(host):
            raise ServeError(
                f"{host!r} is not a loopback address: whoever reaches this computer could use "
                "the explorer; say --public if that is meant"
            )
        if not 0 <= port <= 65535:
            raise ServeError(f"port {port}: expected 0 to 65535")
        self.engine, self.host = engine, host
        self.answers = threading.BoundedSemaphore(_TOGETHER)
        self._connections = threading.BoundedSemaphore(_CONNECTIONS)
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ServeError(f"cannot listen on {host!r}, port {port}: {error}") from error
        self.port = self.server_port

    @property
    def address(self) -> str:
        """Address of the page for a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"

    def run(self) -> None:
        """Answer until :meth:`stop` is called from another thread, or an interrupt."""
        try:
            self.serve_forever(poll_interval=0.1)
        finally:
            self.server_close()

    def stop(self) -> None:
        """End :meth:`run`."""
        self.shutdown()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if there is one left."""
        if self._connections.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except RuntimeError:  # the system gives no more threads
                self._connections.release()
                raise
            return
        with suppress(OSError):
            request.settimeout(1)
            request.sendall(_FULL)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and give the thread back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def shutdown_request(self, request: Any) -> None:
        """Close a connection; unread data is read first, or the answer would be lost."""
        with suppress(OSError):
            request.shutdown(socket.SHUT_WR)
            request.settimeout(0.1)
            for _ in range(4):
                if not request.recv(65536):
                    break
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore that a connection broke off."""


class _Refused(Exception):
    """A request that is not answered."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        self.status = status
        super().__init__(text)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    server_version, sys_version = "amos", ""
    protocol_version = "HTTP/1.1"
    timeout = _SILENT
    #: Seconds that an answer may take.
    patience: float = _PATIENCE

    def do_GET(self) -> None:
        self._respond(self._file)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._respond(self._answer)

    def _respond(self, content: Callable[[], tuple[bytes, str]]) -> None:
        status = HTTPStatus.OK
        try:
            self._refuse_ambiguous()
            # A foreign name that resolves to this server is not its own.
            port = self.connection.getsockname()[1]
            if not _names_us(self.headers.get("Host", ""), self.server.host, port):
                raise _Refused(HTTPStatus.MISDIRECTED_REQUEST, "this server has another name")
            body, kind = content()
        except _Refused as refused:
            # The request has unread bytes, so the connection cannot be used again.
            self.close_connection = True
            status, body, kind = refused.status, _failure(str(refused)), _JSON
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse_ambiguous(self) -> None:
        """Refuse what two readers may take for two different requests."""
        if any(len(self.headers.get_all(name, ())) > 1 for name in _ONCE):
            raise _Refused(HTTPStatus.BAD_REQUEST, f"at most one each of {', '.join(_ONCE)}")
        if "Transfer-Encoding" in self.headers:
            raise _Refused(HTTPStatus.NOT_IMPLEMENTED, "a message comes as one piece")

    def _file(self) -> tuple[bytes, str]:
        if (page := self._page()) not in _FILES:
            raise _Refused(HTTPStatus.NOT_FOUND, "there is no such page")
        name, kind = _FILES[page]
        return assets.read(name), kind

    def _answer(self) -> tuple[bytes, str]:
        """Return the engine's reply to a message."""
        message = self._message()
        if not self.server.answers.acquire(timeout=_SILENT):
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many messages at a time")
        try:
            with _limit_time(self.patience):
                answer = self.server.engine.answer(message)
                return json.dumps(answer, allow_nan=False).encode(), _JSON
        except _TooLong:
            text = f"this would take longer than {self.patience:g} seconds: fewer loops, say"
            return _failure(text), _JSON
        except Exception as error:  # one message must not end the others' connection
            self.log_error("%s: %s", type(error).__name__, error)
            raise _Refused(
                HTTPStatus.INTERNAL_SERVER_ERROR, "this could not be answered"
            ) from error
        finally:
            self.server.answers.release()

    def _message(self) -> Any:
        """Decode JSON that comes from a page of this server, or from no page at all."""
        if self._page() != "/ask":
            raise _Refused(HTTPStatus.NOT_FOUND, "there is no such page")
        origin = self.headers.get("Origin")
        site = self.headers.get("Sec-Fetch-Site", "same-origin")
        own = f"http://{self.headers.get('Host', '')}"
        if origin not in (None, own) or site not in ("same-origin", "none"):
            raise _Refused(HTTPStatus.FORBIDDEN, "this message comes from another page")
        if self.headers.get_content_type() != _JSON:
            raise _Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"expected {_JSON}")
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise _Refused(HTTPStatus.LENGTH_REQUIRED, "a message needs a length")
        if len(length) > len(str(_LONGEST)) or int(length) > _LONGEST:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {_LONGEST} bytes")
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise _Refused(HTTPStatus.BAD_REQUEST, "the message is not JSON") from None

    def _page(self) -> str:
        """Return the requested page; empty if that cannot be read."""
        try:
            return urlsplit(self.path).path
        except ValueError:
            return ""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Print no requests; only errors are printed."""


def _failure(text: str) -> bytes:
    return json.dumps({"ok": False, "errors": {"": text}}).encode()


def is_loopback(host: str) -> bool:
    """Return whether an address reaches this computer only."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _names_us(host: str, bound: str, port: int) -> bool:
    """Return whether a Host header is this computer's, or the bound address.

    A page elsewhere reaches a loopback server by a name of its own that resolves to 127.0.0.1. It
    cannot do that with an address, so addresses are accepted where the server is public.
    """
    parts = _HOST.fullmatch(host)
    if parts is None or int(parts["port"] or 80) != port:
        return False
    name = parts["name"].strip("[]").lower()
    public = not is_loopback(bound) and _address(name) is not None
    return name == bound or is_loopback(name) or public


class _TooLong(Exception):
    """An answer took too long."""


@contextmanager
def _limit_time(seconds: float) -> Iterator[None]:
    """End this thread's work in the block after some seconds.

    Python cannot stop a thread from outside, but can raise an exception in it before its next
    step. A single call into C, such as NumPy's, finishes first; the limits of inputs
    (:mod:`amos.ir.limits`) keep each of these short.

    Raises:
        _TooLong: the time is over.
    """
    thread, lock, ended = threading.get_ident(), threading.Lock(), threading.Event()

    def interrupt() -> None:
        with lock:
            if not ended.is_set():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), ctypes.py_object(_TooLong)
                )

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            ended.set()
