"""The widget in a page that is as strict and as meddling as VS Code's notebook output.

That page is a webview with a policy for scripts and a style sheet of its own; anywidget
imports the widget's module from a blob. The kernel is played by the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from amos.explorer import Engine, widget

ADDRESS = "https://webview.test/"
#: Stricter than VS Code's own policy, which also allows inline scripts and eval; and what
#: its style sheet does to all tables.
PAGE = """<!doctype html><html><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; script-src blob:; style-src 'unsafe-inline'">
<style>
  body {{ color: {ink}; background: {ground}; }}
  table, thead, tr, th, td, tbody {{ border: none !important; border-collapse: collapse; }}
  table, th, tr {{ vertical-align: middle; text-align: right; }}
  tr:nth-child(even) {{ background-color: rgba(130, 130, 130, 0.08); }}
  th, td {{ padding: 4px 8px; }} tbody th {{ font-weight: normal; }}
</style></head><body class="{theme}"><div id="output"></div></body></html>"""
#: What anywidget does: the module from a blob, the style as an element, then render.
RENDER = """async ([esm, css, state]) => {
  const style = document.createElement("style");
  style.textContent = css;
  document.head.append(style);
  const url = URL.createObjectURL(new Blob([esm], { type: "text/javascript" }));
  const { render } = (await import(url)).default;
  const heard = {};
  window.model = {
    state,
    get: () => window.model.state,
    set: (_, value) => { window.model.state = value; heard["change:state"]?.(); },
    save_changes: () => {},
    on: (name, hear) => { heard[name] = hear; },
    off: (name) => { delete heard[name]; },
    send: async ({ number, message }) =>
      heard["msg:custom"]({ number, answer: await window.kernel(message) }),
  };
  window.end = await render({ model: window.model, el: document.getElementById("output") });
}"""
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(21, 24, 28)"
THEMES = {
    "vscode-light": LIGHT,
    "vscode-dark": DARK,
    "vscode-high-contrast": DARK,
    "vscode-high-contrast vscode-high-contrast-light": LIGHT,
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    """One for all themes, since it remembers what it predicted."""
    return Engine()


@pytest.fixture(params=THEMES)
def webview(
    browser: Any, engine: Engine, request: pytest.FixtureRequest
) -> Iterator[tuple[Any, str]]:
    """The widget, drawn, and the ground that it should have."""
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    shown = widget("conv2d", engine=engine)
    ground = THEMES[request.param]
    # What the system prefers is not what the editor shows.
    context = browser.new_context(color_scheme="dark" if ground == LIGHT else "light")
    page = context.new_page()
    complaints: list[str] = []
    requests: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda message: complaints.append(message.text) if message.type == "error" else None,
    )
    page.on("request", lambda sent: requests.append(sent.url))
    content = PAGE.format(
        theme=request.param, ground=ground, ink="#222" if ground == LIGHT else "#ccc"
    )
    page.route(ADDRESS, lambda route: route.fulfill(body=content, content_type="text/html"))
    page.expose_function("kernel", engine.answer)
    page.goto(ADDRESS)
    page.evaluate(RENDER, [shown._esm, shown._css, shown.state])
    page.wait_for_selector(".rows .row")
    yield page, ground
    context.close()
    assert not complaints
    assert [url for url in requests if not url.startswith("blob:")] == [ADDRESS]


def test_it_works_where_vscode_shows_it(webview: tuple[Any, str]) -> None:
    page, ground = webview
    style = (
        "(node) => { const s = getComputedStyle(node); return [s.backgroundColor, s.outlineStyle]}"
    )
    assert page.eval_on_selector(".amos-explorer", style)[0] == ground
    zero = "td[role=gridcell][data-t='0'][data-s='1']"
    assert page.eval_on_selector(zero, style)[1] == "solid"
    page.click(zero)
    page.wait_for_selector(".verdict.wrong")
    # What was clicked is known to Python, and what Python sets is shown.
    assert page.evaluate("window.model.state.assignment[1]") == 0
    page.evaluate(
        "window.model.set('state', {...window.model.state, rule: 'gather', assignment: null})"
    )
    page.wait_for_function(
        "() => document.querySelector('.verdict').innerText.includes('Valid under rule gather')"
    )
    assert page.input_value("[data-field=rule]") == "gather"
    page.evaluate("window.end()")
