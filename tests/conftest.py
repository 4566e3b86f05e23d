"""What every test gets: golden files, a cache directory of its own, a browser; no deadlines."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from amos.measure import Runner

# An example takes as long as the machine is busy; tests have a time limit as a whole.
settings.register_profile("amos", deadline=None)
settings.load_profile("amos")

# A shell that starts these tests in the background has SIGINT ignored, by all they start too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

Golden = Callable[[str, str], None]
Contrast = Callable[[str, str], float]

#: What a Chromium is called, Debian's name first.
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files of the tests anew"
    )


@pytest.fixture(scope="session", autouse=True)
def _own_cache(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Nothing that a test caches reaches the user's own directories, or comes from there.

    The rates of this machine, which take half a minute to measure, outlive a run in pytest's cache.
    """
    folder = tmp_path_factory.getbasetemp()
    # Processes side by side share one, so that what is measured of this machine is so once.
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    rates, cache = folder / "cache" / "amos", getattr(request.config, "cache", None)
    rates.mkdir(parents=True, exist_ok=True)
    durable: Path = cache.mkdir("host") if cache is not None else rates
    for file in durable.glob("host-*.json"):
        if not (rates / file.name).exists():
            shutil.copyfile(file, rates / file.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("AMOS_CACHE_MIB", "0")  # tests break what would come from the cache
        yield
    for file in rates.glob("host-*.json") if durable != rates else ():
        shutil.copyfile(file, durable / file.name)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """``golden(name, text)`` compares a text with ``golden/<name>`` beside the test."""
    folder = Path(str(request.path)).parent / "golden"

    def compare(name: str, text: str) -> None:
        path = (folder / name).resolve()  # a file beside the tests too, without the folder
        if request.config.getoption("--update-golden"):
            folder.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing; run pytest --update-golden"
        assert text == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture
def short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer scores of the model between two batches, for what asks nothing of how good they are."""
    monkeypatch.setattr("amos.explore.method.Search.inner", 64)


@pytest.fixture(scope="session")
def _idle_guards() -> Iterator[list[Any]]:
    """Guards that a runner has left: environment, process, and what ends with it."""
    guards: list[Any] = []
    yield guards
    for _, _, stack, _, _ in guards:
        stack.close()


@pytest.fixture
def one_guard(monkeypatch: pytest.MonkeyPatch, _idle_guards: list[Any]) -> None:
    """Runners take over the guard of the one before, which has loaded TVM.

    For what asks nothing of how guards start and end. One whose runner was interrupted in a
    request, or that has another environment, is not taken over.
    """
    start, request, close = Runner._start, Runner.request, Runner.close
    asking: set[Runner] = set()

    def environment() -> dict[str, str]:
        return {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}

    def take_over(runner: Runner) -> Any:
        for guard in _idle_guards if runner._process is None else ():
            if guard[0] == environment():
                _idle_guards.remove(guard)
                _, runner._process, runner._resources, runner._errors, runner._folder = guard
                break
        return start(runner)

    def ask(runner: Runner, *arguments: Any) -> Any:
        asking.add(runner)
        reply = request(runner, *arguments)
        asking.discard(runner)
        return reply

    def leave(runner: Runner) -> None:
        process = runner._process
        if process is None or process.poll() is not None or runner in asking:
            close(runner)
            return
        resources = runner._resources, runner._errors, runner._folder
        _idle_guards.append((environment(), process, *resources))
        runner._process, runner._resources = None, ExitStack()

    for name, function in dict(_start=take_over, request=ask, close=leave).items():
        monkeypatch.setattr(Runner, name, function)


@pytest.fixture(scope="session")
def contrast() -> Contrast:
    """``contrast(a, b)`` of two colours, as WCAG counts it; texts as style sheets have them."""

    def light(text: str) -> float:
        if text.startswith("#"):
            digits = text[1:] if len(text) == 7 else "".join(2 * digit for digit in text[1:])
            parts = [int(digits[n : n + 2], 16) for n in (0, 2, 4)]
        else:
            parts = [int(component) for component in re.findall(r"\d+", text)]
        shares = [component / 255 for component in parts]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def compare(color: str, background: str) -> float:
        low, high = sorted((light(color), light(background)))
        return (high + 0.05) / (low + 0.05)

    return compare


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    name = os.environ.get("AMOS_BROWSER") or next(filter(None, map(shutil.which, _BROWSERS)), None)
    if name is None:
        pytest.skip(f"no browser is installed: none of {', '.join(_BROWSERS)} is on the PATH")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        # Root, as in containers, has no sandbox to put the browser in.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        launched = playwright.chromium.launch(executable_path=name, args=arguments)
        yield launched
        launched.close()
