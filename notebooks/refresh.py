"""Run the notebooks and keep their outputs, small and the same wherever they were run.

``python notebooks/refresh.py [NAME …]``; `make notebooks` runs all of them. Each figure is
kept as data, for notebooks that draw, and as a picture, for pages that only show; the
pictures are drawn by the plotting library itself, in a Chromium on the PATH.
"""

from __future__ import annotations

import base64
import os
import shutil
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent
FIGURE = "application/vnd.plotly.v1+json"
WIDTH = 720
_COLOURS = 256
#: Figures as data alone: a notebook that brought the library along would have megabytes.
os.environ["PLOTLY_RENDERER"] = "plotly_mimetype"

#: The pixels of one figure, RGBA.
DRAW = """async ([{data, layout}, width]) => {
  const height = layout.height ?? 420;
  const figure = {data, layout: {...layout, width, height}};
  const image = new Image();
  image.src = await Plotly.toImage(figure, {format: "png", width, height});
  await image.decode();
  const canvas = new OffscreenCanvas(width, height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  const {data: pixels} = canvas.getImageData(0, 0, width, height);
  let text = "";
  for (let n = 0; n < pixels.length; n += 32768) {
    text += String.fromCharCode(...pixels.subarray(n, n + 32768));
  }
  return [height, btoa(text)];
}"""


def refresh(path: Path) -> None:
    """Run one notebook from top to bottom and write it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=600, record_timing=False, resources={"metadata": {"path": str(FOLDER)}}
    )
    start = time.monotonic()
    client.execute()
    took = time.monotonic() - start
    for cell in notebook.cells:
        # A progress line that has ended leaves an output with nothing in it.
        if "outputs" in cell:
            cell.outputs = [x for x in cell.outputs if x.get("data") != {"text/plain": ""}]
    illustrate(notebook)
    # What a widget holds is made anew by its kernel; the versions are this machine's.
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)
    size = path.stat().st_size / 1024
    print(f"{path.name}: {took:.0f} s, {size:.0f} KiB")


def figures(notebook: Any) -> Iterator[Any]:
    """The outputs that are figures."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if FIGURE in output.get("data", {}):
                yield output.data


def illustrate(notebook: Any) -> None:
    """Put a picture beside every figure."""
    found = list(figures(notebook))
    if not found:
        return
    from playwright.sync_api import sync_playwright
    from plotly.offline import get_plotlyjs

    name = shutil.which("chromium") or shutil.which("chromium-browser")
    if name is None:
        sys.exit("no chromium is on the PATH; on Debian: sudo apt install chromium")
    # Root, as in containers, has no sandbox to put the browser in.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=name, args=arguments)
        page = browser.new_page()
        page.add_script_tag(content=get_plotlyjs())
        for data in found:
            data[FIGURE] = short(data[FIGURE])
            height, pixels = page.evaluate(DRAW, [data[FIGURE], WIDTH])
            flat = np.frombuffer(base64.b64decode(pixels), np.uint8).reshape(height, WIDTH, 4)
            data["image/png"] = base64.b64encode(png(flat)).decode()
        browser.close()


def short(value: Any) -> Any:
    """A figure's data with five digits, which are more than a picture shows."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, list):
        return [short(one) for one in value]
    if isinstance(value, dict):
        return {name: short(one) for name, one in value.items()}
    return value


def png(pixels: np.ndarray) -> bytes:
    """A PNG file with a palette: a third of the bytes.

    Args:
        pixels: uint8, rows × columns × 4; red, green, blue, opacity.
    """
    # The colours that fill areas as they are; what smooths edges gets the nearest of them.
    flat = np.where(pixels[..., 3:] > 0, pixels, 0).reshape(-1, 4)
    known, numbers, counts = np.unique(flat, axis=0, return_inverse=True, return_counts=True)
    kept = np.argsort(-counts, kind="stable")[:_COLOURS]
    palette = known[kept]
    nearest = np.concatenate([
        np.abs(part[:, None].astype(int) - palette).sum(axis=2).argmin(axis=1)
        for part in np.array_split(known, 1 + len(known) // 512)
    ])  # fmt: skip
    rows = nearest[numbers].reshape(pixels.shape[:2]).astype(np.uint8)
    lines = b"".join(b"\0" + row.tobytes() for row in rows)
    height, width = rows.shape
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", palette[:, :3].tobytes()),
        (b"tRNS", palette[:, 3].tobytes()),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


if __name__ == "__main__":
    for found in sorted(FOLDER.glob("*.ipynb")):
        if len(sys.argv) == 1 or any(name in found.name for name in sys.argv[1:]):
            refresh(found)
