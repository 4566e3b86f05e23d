"""Predictions of kernels on CUDA machines in words."""

from __future__ import annotations

from collections.abc import Sequence

from amos.perfmodel.terms import BatchPrediction


def explain(
    result: BatchPrediction, row: int, sources: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Explain banks, stages, widths, waves and parts on a row: pairs of a term and its reason."""
    if not result.notes:
        return ()
    notes = {name: float(values[row]) for name, values in result.notes.items()}
    inner = next(iter(result.read))
    reasons = []
    for number, name in enumerate(sources):
        if (factor := notes[f"conflicts {number}"]) > 1:
            reasons.append((f"{inner} read", f"bank conflicts of `{name}` reads: {factor:.2g}x"))
    if notes["latency"]:
        ahead = notes["ahead"]
        hidden = f"{ahead:.0f} stages ahead" if ahead > 1 else "one stage ahead"
        text = f"latency of copies, {hidden if ahead else 'not hidden by another stage'}"
    else:
        piece, name = min((notes[f"piece {n}"], name) for n, name in enumerate(sources))
        text = f"instructions of copies, those of `{name}` {piece:.0f} bytes wide"
    reasons.append(("staging", text))
    text = f"{notes['blocks']:.0f} blocks fill {notes['full']:.0%} of their waves"
    reasons.append(("intrinsic compute", text))
    if notes["raster"] > 1:
        text = f"{notes['raster']:.0f} rows of blocks take turns at each column"
        reasons.append((f"{[*result.read][-1]} read", text))
    if notes["parts"] > 1:
        text = f"{notes['parts']:.0f} parts of the reduction added by atomics"
        reasons.append((f"{list(result.read)[1]} write", text))
        reasons.append(("launch", f"zeroing the output for them: {notes['cleared'] * 1e6:.2g} us"))
    return tuple(reasons)
