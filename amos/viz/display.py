"""Any object that can be shown, as text and as HTML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amos.viz import assignments, chains, pages, results
from amos.viz.blocks import Block, Code, Heading
from amos.viz.palette import BAD, INK, MARK

#: Keyed by the name of the class, so that showing an operator does not load a search.
_PAGES: dict[str, Callable[[Any], list[Block]]] = {
    "Candidate": results.candidate,
    "Chain": chains.chain,
    "ChainExploration": chains.exploration,
    "ChainKernel": chains.kernel,
    "Exploration": results.exploration,
    "Frontier": results.frontier,
    "FusionVerdict": pages.fusion,
    "Intrinsic": pages.intrinsic,
    "Kernel": results.kernel,
    "Machine": results.machine,
    "Mapping": pages.mapping,
    "MappingSpace": pages.space,
    "Operator": pages.operator,
    "Prediction": results.prediction,
    "ScheduleSpace": results.schedules,
    "TaskMapping": assignments.assignment,
    "Trial": results.trial,
    "Tuning": results.tuning,
    "Verdict": pages.verdict,
    "VirtualMapping": pages.placing,
}

_STYLE = f"""<style>
.amos {{ font-size: 13px; line-height: 1.45; color: inherit; }}
.amos pre, .amos code {{ font-size: 12px; white-space: pre-wrap; margin: 2px 0;
  background: none; color: inherit; }}
.amos h4 {{ margin: 4px 0; font-size: 14px; }}
.amos .side {{ display: flex; flex-wrap: wrap; gap: 18px; align-items: flex-start; margin: 6px 0; }}
.amos table {{ border-collapse: collapse; margin: 4px 0; width: auto; }}
.amos caption {{ text-align: left; opacity: .75; caption-side: top; padding: 0; }}
/* An outline, since VS Code takes the borders of all tables away. */
.amos th, .amos td {{ border: none; outline: 1px solid #8886; outline-offset: -.5px;
  padding: 2px 7px; text-align: left; background: none; color: inherit; }}
.amos th {{ font-weight: 600; }}
.amos td.n {{ text-align: right; font-variant-numeric: tabular-nums; }}
.amos table.m td {{ text-align: center; min-width: 1.3em; }}
.amos table.m td.o {{ color: {INK}; font-weight: 600; }}
.amos td.x {{ outline: 3px solid {MARK}; outline-offset: -3px; }}
.amos tr.idle th {{ box-shadow: inset 4px 0 {BAD}; }}
/* 4.5 to 1 on either ground; no one colour has that on both. */
.amos .good {{ color: #1f7a4a; }} .amos .bad {{ color: #c62f36; }}
body[data-jp-theme-light="false"] .amos .good, body.vscode-dark .amos .good {{ color: #5fd39b; }}
body[data-jp-theme-light="false"] .amos .bad, body.vscode-dark .amos .bad {{ color: #ff7b80; }}
body.vscode-high-contrast:not(.vscode-high-contrast-light) .amos :is(.good, .bad) {{
  color: inherit; }}
.amos table.s th {{ cursor: pointer; }} .amos .scroll {{ max-height: 420px; overflow: auto; }}
.amos .bar {{ height: 11px; min-width: 1px; }} .amos .note {{ opacity: .75; }}
</style>"""


def describe(value: object) -> list[Block]:
    """Return blocks that show an object."""
    for kind in type(value).__mro__:
        if kind.__name__ in _PAGES and kind.__module__.startswith("amos."):
            return _PAGES[kind.__name__](value)
    return [Heading(type(value).__name__), Code(str(value))]


def text(value: object) -> str:
    """Complete plain text, for a terminal."""
    return "\n".join(map(str, describe(value)))


def html(value: object) -> str:
    """Return self-contained HTML for Jupyter and web pages."""
    return f'{_STYLE}<div class="amos">{"".join(b._repr_html_() for b in describe(value))}</div>'
