"""Draw the pictures of the README: the explorer and some figures, in a real browser.

    python docs/pictures.py

writes PNG files to ``docs/pictures/``. Needs a Chromium on the PATH and the packages
of the extra ``test``.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, sync_playwright

import amos
from amos import viz
from amos.explore.sampled import best_sampled
from amos.explorer import Engine, State
from amos.explorer.server import Server
from amos.reproduce import fig5

OUT = Path(__file__).resolve().parent / "pictures"
MOST_BYTES = 200_000
WMMA, VNNI = "wmma_m16n16k16_f16_f32", "vnni_dpbusd_m16k4_u8_s8_s32"


def figures() -> dict[str, Any]:
    """The pictures by name, all of them by the model alone."""
    op, unit = amos.operators.resolve("conv2d"), amos.intrinsics.get(WMMA)
    space, a100 = amos.enumerate_mappings(op, unit, rule="access"), amos.machines.get("a100")
    mapping = space.find("npq-k-crs")
    vnni, xeon = amos.intrinsics.get(VNNI), amos.machines.get("xeon_4110")
    layer = amos.enumerate_mappings(amos.operators.resolve("resnet18:C5"), vnni, rule="access")
    best = best_sampled(layer[0], xeon, 200, np.random.default_rng(0))
    assert best is not None
    predicted = fig5.predictions(fig5.load_stored())
    return {
        "matching": viz.matching(mapping),
        "space": viz.space(space, a100, by="r1"),
        "landscape": viz.landscape(layer[0], xeon, "tile.p", "tile.q", schedule=best[1].schedule),
        "accuracy": viz.accuracy({name: predicted[name] for name in fig5.FITTED_ON}),
        "roofline": viz.roofline(best[1], xeon),
    }


def draw(browser: Browser) -> None:
    """Each figure on a page of its own."""
    for name, figure in figures().items():
        page = browser.new_page(viewport={"width": 820, "height": int(figure.layout.height)})
        page.set_content(figure.to_html(include_plotlyjs=True, config={"displayModeBar": False}))
        page.add_style_tag(content="body { margin: 0 }")
        page.wait_for_selector(".main-svg")
        shot(page, name)


def photograph(browser: Browser) -> None:
    """The explorer, in light with a mapping and in dark with a refusal."""
    engine = Engine(initial=State(extents="n=16"))
    engine.check()
    server = Server(engine)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        for scheme in ("light", "dark"):
            context = browser.new_context(
                viewport={"width": 1120, "height": 1010},
                color_scheme="dark" if scheme == "dark" else "light",
            )
            page = context.new_page()
            page.goto(server.address)
            page.wait_for_selector(".rows .row")
            if scheme == "dark":
                page.click("td[role=gridcell][data-t='0'][data-s='5']")
                page.wait_for_selector(".verdict.wrong")
            shot(page, f"explorer-{scheme}")
    finally:
        server.stop()
        thread.join()


def shot(page: Any, name: str) -> None:
    """Write what a page shows, and refuse a picture that is too large for a README."""
    path = OUT / f"{name}.png"
    page.screenshot(path=path)
    page.close()
    size = path.stat().st_size
    print(f"{path.name}: {size / 1000:.0f} kB")
    if size > MOST_BYTES:
        raise SystemExit(f"{path.name}: expected at most {MOST_BYTES} bytes, got {size}")


def main() -> None:
    """Draw everything."""
    name = shutil.which("chromium") or shutil.which("chromium-browser")
    if name is None:
        sys.exit("no chromium is on the PATH; on Debian: sudo apt install chromium")
    OUT.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        # Root, as in containers, has no sandbox to put the browser in.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=name, args=arguments)
        draw(browser)
        photograph(browser)
        browser.close()


if __name__ == "__main__":
    main()
