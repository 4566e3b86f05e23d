"""Sliders over the points of a sweep: one for each path, and the points at their values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amos.explore.sweep import Point

_PAGE = """
<style>
#amos-sizes { font: 14px system-ui, sans-serif; margin: 1em 5em }
#amos-sizes label { display: grid; grid-template-columns: 20em 16em auto; gap: 1em }
#amos-sizes td, #amos-sizes th { text-align: right; padding: 2px 1em 2px 0 }
#amos-sizes td:first-child, #amos-sizes td:last-child { text-align: left }
</style>
<form id="amos-sizes"></form>
<script>
(() => {
  const points = %s, form = document.getElementById("amos-sizes");
  const say = (parent, tag, text) => {
    const element = parent.appendChild(document.createElement(tag));
    element.textContent = text;
    return element;
  };
  const number = (scale, digits) => x => x === null ? "-" : (x * scale).toFixed(digits);
  const columns = [
    ["operator", "operator", x => x], ["mappings", "mappings", x => x],
    ["infeasible", "infeasible", x => x], ["unit used %%", "utilization", number(100, 1)],
    ["predicted ms", "predicted", number(1e3, 4)], ["simulated ms", "simulated", number(1e3, 4)],
    ["of peak %%", "share", number(100, 1)], ["energy uJ", "energy", number(1e6, 1)],
    ["why not", "reason", x => x],
  ];
  const axes = Object.keys(points[0].settings).map(path => {
    const values = [...new Set(points.map(point => point.settings[path]))];
    const label = say(form, "label", "");
    say(label, "span", path);
    const input = say(label, "input", "");
    Object.assign(input, { type: "range", min: 0, max: values.length - 1, value: 0 });
    const axis = { path, values, input, output: say(label, "output", "") };
    input.oninput = show;
    return axis;
  });
  const table = say(form, "table", "");
  function show() {
    for (const axis of axes) axis.output.textContent = axis.values[axis.input.value];
    table.textContent = "";
    const head = say(table, "tr", "");
    for (const [title] of columns) say(head, "th", title);
    for (const point of points) {
      if (axes.some(a => point.settings[a.path] !== a.values[a.input.value])) continue;
      const row = say(table, "tr", "");
      for (const [, key, text] of columns) say(row, "td", text(point[key]));
    }
  }
  show();
})();
</script>
"""


def sliders(points: Sequence[Point]) -> str:
    """Return a part of a web page with sliders over the swept sizes."""
    values = json.dumps([asdict(point) for point in points], allow_nan=False)
    return _PAGE % values.replace("<", "\\u003c")
