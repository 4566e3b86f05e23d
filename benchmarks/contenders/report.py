"""Rows → a table with geometric means, and pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]
_COLOURS = ["#3b6fb6", "#e08e2b", "#5a9e4b", "#b6483b", "#7d5ba6", "#8a6d5c", "#c774ab", "#777777"]


def label(row: Row) -> str:
    return f"{row['contender']} {row['trials']}" if row["trials"] else str(row["contender"])


def _geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def groups(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows by table: layers of one network and batch, or an operator's shapes."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        table, _, rest = row["workload"].partition(":")
        _, _, batch = rest.partition("@")
        found.setdefault(f"{table}@{batch}" if batch else table, []).append(row)
    return found


def is_peak(row: Row) -> bool:
    """Whether a row says what the machine can do, not what somebody did."""
    return str(row["contender"]).startswith("peak")


def uses_amx(row: Row, peaks: Mapping[tuple[str, str], float]) -> bool:
    """Whether a contender may use AMX where the machine has it."""
    name = str(row["contender"])
    if (row["workload"], "peak-amx_fed") not in peaks:
        return False
    return "-amx" in name or name.startswith(("onednn_", "pytorch_"))


def table(rows: list[Row], machine: dict[str, Any]) -> list[str]:
    """Each row, and for each contender how much faster the best-tuned AMOS kernel is."""
    peaks = {(r["workload"], r["contender"]): r["tops"] for r in rows if is_peak(r)}
    told = ", ".join(f"{n} {tops:.2f}" for n, tops in machine.get("peaks", {}).items())
    lines = [
        f"{machine.get('cpu', '')}, {machine.get('cores', '')} cores, "
        f"Top/s measured: {told or machine.get('peak_tops', 0.0)}",
        "of peak: of the instruction on registers, and fed from the nearest cache, in the same "
        "run; padding counts as work, also where a kernel skips it",
        f"{'workload':24} {'contender':24} {'ms':>9} {'spread':>7} {'Top/s':>7} "
        f"{'of peak':>8} {'fed':>7}",
    ]
    for row in rows:
        unit = "peak-amx" if uses_amx(row, peaks) else "peak"
        shares = [
            row["tops"] / peaks.get((row["workload"], f"{unit}_{kind}"), math.inf)
            for kind in ("registers", "fed")
        ]
        lines.append(
            f"{row['workload']:24} {label(row):24} {row['median_seconds'] * 1e3:9.4f} "
            f"{row['spread']:7.1%} {row['tops']:7.3f} {shares[0]:8.1%} {shares[1]:7.1%}"
        )
    for name, members in groups(rows).items():
        lines += [f"geometric mean of {name}: time / time of {text}" for text in _ratios(members)]
    return lines + _fastest(rows)


def is_call(row: Row) -> bool:
    """Whether a row times a call of a library, as a user makes it."""
    name = str(row["contender"])
    return name.startswith(("onednn", "pytorch")) and not name.endswith("_primitive")


def _fastest(rows: list[Row]) -> list[str]:
    """The fastest of the libraries' calls over AMOS's kernel with the same instructions.

    Where the CPU has AMX, calls held to VNNI stand against the kernels on VNNI. Networks are
    told one by one, the shapes of single operators together.
    """
    found: dict[str, dict[str, float]] = {}
    for name, members in groups(rows).items():
        part = name if name.partition("@")[0] in ("resnet18", "heron") else "all operators"
        for work in dict.fromkeys(row["workload"] for row in members):
            turns = [row for row in members if row["workload"] == work]
            for kernel, ratio in _calls_over_kernels(turns).items():
                found.setdefault(f"{part}: fastest call / {kernel}", {})[work] = ratio
    return [
        f"geometric mean of {told} {_geomean(list(ratios.values())):.2f} "
        f"(worst {min(ratios.values()):.2f}, {min(ratios, key=ratios.__getitem__)}; {len(ratios)})"
        for told, ratios in sorted(found.items())
    ]


def _calls_over_kernels(rows: list[Row]) -> dict[str, float]:
    """Of one workload: for each kernel of AMOS, the time of the fastest call over its own."""
    calls = [row for row in rows if is_call(row)]
    held = [row for row in calls if "-vnni" in row["contender"]]
    free = [row for row in calls if row not in held]
    against = {"amos": held or free, "amos-amx": free}
    return {
        label(row): min(call["median_seconds"] for call in chosen) / row["median_seconds"]
        for row in rows
        if (chosen := against.get(row["contender"]))
    }


def _ratios(rows: list[Row]) -> list[str]:
    """For each count of trials of AMOS, every contender's time over AMOS's."""
    by_workload: dict[str, dict[str, float]] = {}
    for row in rows:
        by_workload.setdefault(row["workload"], {})[label(row)] = row["median_seconds"]
    counts = sorted({row["trials"] for row in rows if row["contender"] == "amos"})
    told = []
    for count in counts:
        base = f"amos {count}"
        ratios: dict[str, list[float]] = {}
        for times in by_workload.values():
            for name, seconds in times.items():
                if base in times and name != base and not name.startswith("peak"):
                    ratios.setdefault(name, []).append(seconds / times[base])
        text = ", ".join(
            f"{name} {_geomean(values):.2f} (worst {min(values):.2f}, {len(values)})"
            for name, values in sorted(ratios.items())
        )
        told.append(f"{base}: {text}")
    return told


def pictures(rows: list[Row], machine: dict[str, Any], out: Path) -> list[Path]:
    """One SVG for each group of workloads: Top/s of each contender, and the peak."""
    made = []
    for name, members in groups(rows).items():
        path = out.with_name(f"{out.stem}_{name.replace('@', '_b')}.svg")
        path.write_text(picture(name, members, machine), encoding="utf-8")
        made.append(path)
    return made


def picture(name: str, rows: list[Row], machine: dict[str, Any]) -> str:
    """Grouped bars as SVG text."""
    works = list(dict.fromkeys(row["workload"] for row in rows))
    rows = [row for row in rows if not is_peak(row)]
    kinds = list(dict.fromkeys(label(row) for row in rows))
    peak = machine.get("peak_tops", 0.0)
    top = 1.05 * max([peak, *(row["tops"] for row in rows)])
    bar, gap, high, left, base = 7, 14, 260, 46, 300
    step = bar * len(kinds) + gap
    width = max(left + step * len(works) + 20, 640)
    tall = base + 70 + 16 * -(-len(kinds) // 4)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{tall}" '
        'font-family="sans-serif" font-size="10">',
        f'<rect width="{width}" height="{tall}" fill="white"/>',
        f'<text x="{left}" y="18" font-size="13">{name}: 10¹² operations per second, '
        f"{machine.get('cpu', '')}, {machine.get('cores', '')} cores</text>",
    ]
    for tenth in range(6):
        value = top * tenth / 5
        y = base - high * tenth / 5
        parts.append(
            f'<line x1="{left}" x2="{width - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
        )
        parts.append(f'<text x="{left - 6}" y="{y + 3:.1f}" text-anchor="end">{value:.2f}</text>')
    for number, work in enumerate(works):
        x = left + gap / 2 + number * step
        for row in (r for r in rows if r["workload"] == work):
            place = kinds.index(label(row))
            tall_bar = high * row["tops"] / top
            parts.append(
                f'<rect x="{x + place * bar:.1f}" y="{base - tall_bar:.1f}" width="{bar - 1}" '
                f'height="{tall_bar:.1f}" fill="{_COLOURS[place % len(_COLOURS)]}">'
                f"<title>{work} {label(row)}: {row['median_seconds'] * 1e3:.4f} ms, "
                f"{row['tops']:.3f} Top/s</title></rect>"
            )
        parts.append(
            f'<text x="{x + step / 2 - gap / 2:.1f}" y="{base + 14}" text-anchor="middle">'
            f"{work.partition(':')[2]}</text>"
        )
    if peak:
        parts += _peak(base - high * peak / top, left, width)
    parts += _legend(kinds, left, base + 40)
    return "\n".join([*parts, "</svg>", ""])


def _peak(y: float, left: int, width: int) -> list[str]:
    """A line at what the machine can do."""
    return [
        f'<line x1="{left}" x2="{width - 10}" y1="{y:.1f}" y2="{y:.1f}" '
        'stroke="#b00000" stroke-dasharray="5 3"/>',
        f'<text x="{width - 12}" y="{y - 4:.1f}" text-anchor="end" '
        'fill="#b00000">measured peak</text>',
    ]


def _legend(kinds: list[str], left: int, top: int) -> list[str]:
    """Who has which colour, four in a row."""
    parts = []
    for place, kind in enumerate(kinds):
        x, y = left + place % 4 * 150, top + 16 * (place // 4)
        colour = _COLOURS[place % len(_COLOURS)]
        parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="{y}">{kind}</text>')
    return parts
