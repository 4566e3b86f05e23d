"""The explorer as a page of its own, served to this computer alone.

The page sends what is chosen and gets plain values; nothing that it sends is run. A
browser will also carry messages of other pages here, so each request must name this
server as its host (against DNS rebinding), and a message must come from a page of
this server, as JSON (against cross-site requests).
"""

from __future__ import annotations

import ipaddress
import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from amos.errors import ServeError
from amos.explorer import assets
from amos.explorer.engine import Engine
from amos.explorer.patience import TooLong, limited

__all__ = ["Server", "is_loopback"]

#: Bytes of one message, seconds that a connection may be silent or an answer may take.
_LONGEST, _SILENT, _PATIENCE = 32_768, 30, 20
#: Answers at a time, and connections, each of which has a thread.
_TOGETHER, _CONNECTIONS = 8, 64

_SCRIPTS = (*assets.SCRIPTS, "page.js")
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    **{f"/{name}": (name, "text/javascript; charset=utf-8") for name in _SCRIPTS},
    "/explorer.css": ("explorer.css", "text/css; charset=utf-8"),
}
#: What a connection too many is told.
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


def is_loopback(host: str) -> bool:
    """True if an address reaches this computer only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Server:
    """An HTTP server with an explorer's page, listening once it is made.

    Args:
        engine: what answers.
        host: address to listen on.
        port: port to listen on; 0 for any that is free.
        public: listen on an address that others can reach.

    Raises:
        ServeError: the address is not loopback and ``public`` is not given, or it
            cannot be listened on.
    """

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
        self._slots = threading.BoundedSemaphore(_TOGETHER)
        handler = partial(_Handler, engine, host, self._slots)
        try:
            self._http = _Http((host, port), handler)
        except OSError as error:
            raise ServeError(f"cannot listen on {host!r}, port {port}: {error}") from error
        self.host, self.port = host, int(self._http.server_address[1])

    @property
    def address(self) -> str:
        """Where a browser finds the page."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"

    def run(self) -> None:
        """Answer until :meth:`stop` is called from another thread, or an interrupt."""
        try:
            self._http.serve_forever(poll_interval=0.1)
        finally:
            self._http.server_close()

    def stop(self) -> None:
        """End :meth:`run`."""
        self._http.shutdown()


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: Callable[..., Any]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if there is one left."""
        if self._free.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except RuntimeError:  # the system gives no more threads
                self._free.release()
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
            self._free.release()

    def shutdown_request(self, request: Any) -> None:
        """Close; what was not read is read first, or closing would take the answer back."""
        with suppress(OSError):
            request.shutdown(socket.SHUT_WR)
            request.settimeout(0.1)
            for _ in range(4):
                if not request.recv(65536):
                    break
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke off is no news."""


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server_version, sys_version = "amos", ""
    protocol_version = "HTTP/1.1"
    timeout = _SILENT
    #: Seconds that an answer may take.
    patience: float = _PATIENCE

    def __init__(
        self, engine: Engine, host: str, slots: threading.BoundedSemaphore, *rest: Any
    ) -> None:
        self.engine, self.bound, self.slots = engine, host, slots
        super().__init__(*rest)

    def do_GET(self) -> None:
        """A file of the page."""
        if not self._is_for_us():
            return
        name, kind = _FILES.get(self._page(), ("", ""))
        if not name:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")
            return
        self._send(HTTPStatus.OK, assets.read(name), kind)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """A message to the engine."""
        if not self._is_for_us() or not self._is_ours():
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "a message needs a length")
            return
        if len(length) > len(str(_LONGEST)) or int(length) > _LONGEST:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {_LONGEST} bytes")
            return
        body = self.rfile.read(int(length))
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            self._refuse(HTTPStatus.BAD_REQUEST, "the message is not JSON")
            return
        if not self.slots.acquire(timeout=_SILENT):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many messages at a time")
            return
        try:
            with limited(self.patience):
                answer = json.dumps(self.engine.answer(message), allow_nan=False).encode()
        except TooLong:
            said = f"this would take longer than {self.patience:g} seconds: fewer loops, say"
            answer = json.dumps({"ok": False, "errors": {"": said}}).encode()
        except Exception as error:  # one message must not end the others' connection
            self.log_error("%s: %s", type(error).__name__, error)
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "this could not be answered")
            return
        finally:
            self.slots.release()
        self._send(HTTPStatus.OK, answer, "application/json")

    def _page(self) -> str:
        """Which page is asked for; nothing if that cannot be read."""
        try:
            return urlsplit(self.path).path
        except ValueError:
            return ""

    def _is_for_us(self) -> bool:
        """The request names this server, not a name that somebody pointed at it."""
        port = self.connection.getsockname()[1]
        if _names_us(self.headers.get("Host", ""), self.bound, port):
            return True
        self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this server has another name")
        return False

    def _is_ours(self) -> bool:
        """The message comes from a page of this server, or from no page at all."""
        if self._page() != "/ask":
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")
            return False
        origin = self.headers.get("Origin")
        site = self.headers.get("Sec-Fetch-Site", "same-origin")
        mine = f"http://{self.headers.get('Host', '')}"
        if origin not in (None, mine) or site not in ("same-origin", "none"):
            self._refuse(HTTPStatus.FORBIDDEN, "this message comes from another page")
            return False
        if self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected application/json")
            return False
        return True

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        # What is left of the request is not read.
        self.close_connection = True
        self._send(status, json.dumps({"ok": False, "errors": {"": text}}).encode(),
                   "application/json")  # fmt: skip

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Requests are not printed; errors are."""


def _names_us(host: str, bound: str, port: int) -> bool:
    """True if a Host header is this computer's, or the address that was bound.

    A page elsewhere reaches a loopback server by a name of its own that resolves to
    127.0.0.1. It cannot do that with an address, so addresses are let through where
    the server is public.
    """
    try:
        parts = urlsplit(f"//{host}")
        name, given = parts.hostname or "", parts.port or 80
    except ValueError:
        return False
    if given != port or parts.username is not None or "@" in host:
        return False
    if name == bound or is_loopback(name):
        return True
    if is_loopback(bound):
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
