"""The widget where notebooks are used: JupyterLab and Notebook 7, driven in a real browser.

Neither is among the packages that the tests need: where one is missing its test is skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

#: Module to run, and where it shows a notebook.
FRONTS = {"jupyterlab": "lab/tree", "notebook": "notebooks"}
CELL = "td[role=gridcell][data-t='{}'][data-s='{}']"
#: A busy machine takes its time to start a server, a page of megabytes and a kernel.
PATIENCE = 180_000
#: Reads what the widget says to Python, in the notebook's next cell.
SAID = "print('SAID', bool(shown.verdict), shown.mapping and shown.mapping.name)"
CODE = ["from amos.explorer import widget\nshown = widget('conv2d')\nshown", SAID]


def _notebook() -> dict[str, Any]:
    cells: list[dict[str, Any]] = [
        dict(cell_type="code", id=f"c{n}", source=text, metadata={}, outputs=[],
             execution_count=None)
        for n, text in enumerate(CODE)
    ]  # fmt: skip
    spec = dict(name="python3", display_name="Python 3", language="python")
    return dict(cells=cells, metadata={"kernelspec": spec}, nbformat=4, nbformat_minor=5)


def _port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(params=sorted(FRONTS))
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a server of that front end shows a notebook with the widget in it."""
    module = request.param
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: pip install {module}")
    (tmp_path / "explore.ipynb").write_text(json.dumps(_notebook()), encoding="utf-8")
    port, token = _port(), secrets.token_hex(8)
    root = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", module, "--no-browser", f"--ServerApp.port={port}",
               "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}",
               f"--ServerApp.root_dir={tmp_path}"]  # fmt: skip
    if os.geteuid() == 0:
        command.append("--allow-root")
    own = {"JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
           "JUPYTER_DATA_DIR": str(tmp_path / "data")}  # fmt: skip
    log = (tmp_path / "server.log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | own)
    try:
        _wait(f"{root}/api?token={token}", process, tmp_path / "server.log")
        yield f"{root}/{FRONTS[module]}/explore.ipynb?token={token}"
    finally:
        process.terminate()
        process.wait()
        log.close()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE / 1000
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"the server did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.3)


def test_the_widget_works_in_a_notebook(browser: Any, address: str) -> None:
    context = browser.new_context(
        viewport={"width": 1500, "height": 1500}, permissions=["clipboard-read", "clipboard-write"]
    )
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda message: complaints.append(message.text) if message.type == "error" else None,
    )
    page.goto(address)
    _run_cell(page, 0)
    page.wait_for_selector(".amos-explorer .rows .row")
    del complaints[:]  # what the front end itself complains of while it starts

    assert "Valid under rule access" in page.inner_text(".verdict")
    page.click(CELL.format(1, 1))
    _wait_text(page, ".verdict", "`i2` stays empty though `k` could go there")
    # What the browser shows, Python has.
    assert _read_status(page) == "SAID False None"
    page.click(CELL.format(1, 1))
    _wait_text(page, ".verdict", "Valid")
    page.focus(CELL.format(2, 6))
    page.keyboard.press(" ")  # no command of the notebook takes the key
    page.wait_for_function(  # and not npq-k-crs, which was there before
        r"/npq-k-cr\b/.test(document.querySelector('.amos-explorer .physical h4')?.innerText)"
    )
    assert _read_status(page) == "SAID True npq-k-cr"
    page.click("text=Copy Python")
    page.wait_for_selector("text=Copied")
    code = page.evaluate("navigator.clipboard.readText()")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("valid (access)")
    _is_dark_where_the_notebook_is(page)
    assert not complaints
    context.close()


def _run_cell(page: Any, number: int) -> Any:
    """Run a cell as a user does, and return it: click into it, Shift-Enter.

    While a front end starts it can show a cell that takes no key yet, and one that it
    marked as running before its kernel was connected it forgets. So: again, until the
    cell has a new number.
    """
    cell = page.locator(".jp-Notebook .jp-CodeCell").nth(number)
    prompt = cell.locator(".jp-InputPrompt")
    before, end = _number(prompt), time.monotonic() + PATIENCE / 1000
    while _number(prompt) == before:
        assert time.monotonic() < end, f"cell {number} does not run"
        if "*" not in prompt.inner_text():
            cell.locator(".cm-content").click()
            page.keyboard.press("Shift+Enter")
        page.wait_for_timeout(2000)
    return cell


def _number(prompt: Any) -> int:
    """How often cells had run when this one did last; 0 if it never did, or does now."""
    match = re.search(r"\d+", prompt.inner_text())
    return int(match[0]) if match else 0


def _read_status(page: Any) -> str:
    cell = _run_cell(page, 1)
    return str(cell.locator(".jp-OutputArea-output").last.inner_text()).strip()


def _wait_text(page: Any, selector: str, text: str) -> None:
    page.wait_for_function(
        "([selector, text]) => document.querySelector(`.amos-explorer ${selector}`)"
        "?.innerText.includes(text)",
        arg=[selector, text],
    )


def _is_dark_where_the_notebook_is(page: Any) -> None:
    ground = "getComputedStyle(document.querySelector('.amos-explorer')).backgroundColor"
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    assert page.evaluate(ground) == "rgb(21, 24, 28)"
