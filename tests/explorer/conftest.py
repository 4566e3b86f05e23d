"""A served explorer, and its page in a browser."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from amos.explorer import Engine
from amos.explorer.server import Server
from tests.support.serving import served


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server in this process, on a port of its own."""
    engine = Engine()
    engine.check()
    with served(engine) as server:
        yield server


@pytest.fixture(scope="session")
def serve() -> Iterator[str]:
    """Address of `amos serve`, run as a user would."""
    command = [sys.executable, "-m", "amos", "serve", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        match = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
        assert match is not None
        yield match[0]
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
def page(browser: Any, serve: str) -> Iterator[Any]:
    """The explorer's page, drawn; what the browser complains of fails the test."""
    context = browser.new_context(
        viewport={"width": 1200, "height": 1300}, permissions=["clipboard-read", "clipboard-write"]
    )
    opened = context.new_page()
    complaints: list[str] = []
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on(
        "console",
        lambda message: complaints.append(message.text) if message.type == "error" else None,
    )
    opened.goto(serve)
    opened.wait_for_selector(".rows .row")
    yield opened
    context.close()
    assert not complaints
