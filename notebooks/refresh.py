"""Run the notebooks and keep their outputs, small and the same wherever they were run.

``python notebooks/refresh.py [NAME …]``; `make notebooks` runs all of them.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent
#: Figures as data alone: a notebook that brought the library along would have megabytes.
os.environ["PLOTLY_RENDERER"] = "plotly_mimetype"


def refresh(path: Path) -> None:
    """Run one notebook from top to bottom and write it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=600, record_timing=False, resources={"metadata": {"path": str(FOLDER)}}
    )
    start = time.monotonic()
    client.execute()
    # What a widget holds is made anew by its kernel; the versions are this machine's.
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)
    size = path.stat().st_size / 1024
    print(f"{path.name}: {time.monotonic() - start:.0f} s, {size:.0f} KiB")


if __name__ == "__main__":
    for found in sorted(FOLDER.glob("*.ipynb")):
        if len(sys.argv) == 1 or any(name in found.name for name in sys.argv[1:]):
            refresh(found)
