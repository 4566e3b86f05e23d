"""The curves of Heron's Figure 12 as SVG pictures, without any library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from amos.errors import ExploreError
from amos.reproduce.heron_fig12 import Fig12

__all__ = ["draw"]

_WIDTH, _HEIGHT, _EDGE = 640, 360, 48
_COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#7f7f7f", "#ff7f0e", "#9467bd", "#8c564b", "#17becf")


def draw(figure: Fig12, picture: Path) -> None:
    """Write one picture an operator: median and quartiles of each method's runs.

    Raises:
        ExploreError: a file cannot be written.
    """
    methods = dict.fromkeys(run.method for run in figure.runs)
    for operator, best in figure.best_known.items():
        lines = {name: [run.best for run in figure.of(operator, name)] for name in methods}
        path = picture.with_stem(f"{picture.stem}-{operator}")
        try:
            text = _curves(f"{operator} on {figure.machine}", lines, best)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ExploreError(f"picture {str(path)!r}: {error}") from error


def _curves(title: str, lines: Mapping[str, Sequence[Sequence[float]]], best: float) -> str:
    """Performance after each evaluation, as a share of the ``best`` seconds."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<text x="{_EDGE}" y="16" font-size="13">{title}</text>',
    ]
    for tick in (0.0, 0.25, 0.5, 0.75, 0.95, 1.0):
        y = _y(tick)
        parts.append(f'<path d="M{_EDGE} {y:.1f}H{_WIDTH - _EDGE}" stroke="#ddd"/>')
        parts.append(f'<text x="{_EDGE - 32}" y="{y + 4:.1f}">{tick:g}</text>')
    for number, (name, runs) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        low, middle, high = (_quantile(runs, share, best) for share in (0.25, 0.5, 0.75))
        band = " ".join([*_points(low), *reversed(_points(high))])
        parts.append(f'<polygon points="{band}" fill="{colour}" fill-opacity="0.12"/>')
        parts.append(
            f'<polyline points="{" ".join(_points(middle))}" fill="none" stroke="{colour}" '
            'stroke-width="1.6"/>'
        )
        at = _EDGE + 64 * number
        parts.append(f'<text x="{at}" y="{_HEIGHT - 8}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _quantile(runs: Sequence[Sequence[float]], share: float, best: float) -> list[float]:
    columns = (sorted(column) for column in zip(*runs, strict=True))
    # The slow runs are the low performance.
    picked = (column[round((1 - share) * (len(column) - 1))] for column in columns)
    return [best / seconds if math.isfinite(seconds) else 0.0 for seconds in picked]


def _points(values: Sequence[float]) -> list[str]:
    step = (_WIDTH - 2 * _EDGE) / max(1, len(values) - 1)
    return [f"{_EDGE + n * step:.1f},{_y(value):.1f}" for n, value in enumerate(values)]


def _y(value: float) -> float:
    return _HEIGHT - _EDGE - value * (_HEIGHT - 2 * _EDGE)
