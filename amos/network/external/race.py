"""Regions of a model beside the operators of onnxruntime that they replace."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from amos.codegen.scheduled import last_line
from amos.errors import NetworkError
from amos.network.external.library import Library
from amos.network.external.sessions import MODEL, QUIET, open_session, run_session, save_model
from amos.network.external.whole import whole_model
from amos.network.model import CompiledRegion, check_results, random_arrays
from amos.network.tolerances import rounds

#: Calls of each contender, in turns, and the share of onnxruntime's time that has to be saved.
_ROUNDS, _MARGIN = 9, 0.02


@dataclass(frozen=True)
class Timing:
    """A region beside onnxruntime's own operators, in seconds.

    Attributes:
        name: of its operator.
        own: AMOS's.
        engine: onnxruntime's.
        fault: what is wrong with AMOS's results; empty if nothing is.
    """

    name: str
    own: float
    engine: float
    fault: str = ""

    @property
    def wins(self) -> bool:
        """Whether AMOS runs the region."""
        return not self.fault and self.own <= self.engine * (1 - _MARGIN)

    def __str__(self) -> str:
        if self.fault:
            return f"{self.name}: {self.fault}: stays with onnxruntime"
        where = "AMOS" if self.wins else "onnxruntime"
        return (
            f"{self.name}: {self.own * 1e3:.4g} ms, by onnxruntime's operators "
            f"{self.engine * 1e3:.4g} ms: stays with {where}"
        )


def race(
    region: CompiledRegion, plain: Any, library: Library, folder: Path, *, verify: bool
) -> Timing:
    """Time a region in turns with the operators that it replaces.

    Args:
        region: with its kernels.
        plain: the model of onnxruntime's operators, or the path of its file.
        library: that holds the operator.
        folder: for files that are removed at the end.
        verify: compare the results.

    Raises:
        NetworkError: onnxruntime does not take one of them, or fails.
    """
    network = region.network
    ports, arrays = network.inputs, random_arrays(network)
    own = whole_model(network, region.function, library.domain)
    sessions = [_opened(own, library, folder), _opened(plain, None, folder)]
    try:
        results, expected = (run_session(session, ports, arrays) for session in sessions)
    except RuntimeError as error:
        raise NetworkError(f"{network.name}: {last_line(error)}") from error
    fault = _fault(region, results, expected) if verify else ""
    times: list[list[float]] = [[], []]
    for _ in range(_ROUNDS):
        for session, row in zip(sessions, times, strict=True):
            run_session(session, ports, arrays)  # the caches are another session's
            start = time.perf_counter()
            run_session(session, ports, arrays)
            row.append(time.perf_counter() - start)
    own_seconds, engine_seconds = map(median, times)
    return Timing(region.function, own_seconds, engine_seconds, fault)


def _fault(region: CompiledRegion, results: Sequence[Any], expected: Sequence[Any]) -> str:
    """What is wrong with results; where levels of 8 bits are rounded apart nothing is."""
    if region.network.quantized:
        return ""
    check = check_results(
        region.network.name,
        "onnxruntime",
        results,
        expected,
        rounded=rounds(region.network),
        spreads=region.spreads,
    )
    return "" if check.passed else str(check)


def _opened(model: Any, library: Library | None, folder: Path) -> Any:
    """Open a session on a model of a region, or on a file."""
    if isinstance(model, str | os.PathLike):
        return open_session(model, library, QUIET)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        save_model(model, Path(place))
        return open_session(Path(place, MODEL), library, QUIET)
