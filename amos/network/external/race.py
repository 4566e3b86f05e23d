"""Regions of a model beside the operators of onnxruntime that they replace."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amos.codegen.scheduling import last_line
from amos.errors import NetworkError
from amos.network.checks import check_results
from amos.network.external.library import Library
from amos.network.external.regions import whole_model
from amos.network.inputs import random_arrays
from amos.network.kernels import CompiledRegion
from amos.network.precision.rounding import ROUNDED
from amos.network.races import Race, race
from amos.network.sessions import MODEL, QUIET, SessionRunner, open_session, save_model

if TYPE_CHECKING:
    from amos.network.external.compiled import CompiledNetwork


@dataclass(frozen=True)
class Timing:
    """Times of a region and of onnxruntime's own operators.

    Attributes:
        name: of its operator.
        fault: error of AMOS's results; empty if they are right.
    """

    name: str
    race: Race
    fault: str = ""

    @property
    def wins(self) -> bool:
        """Whether AMOS runs the region."""
        return not self.fault and self.race.wins

    def __str__(self) -> str:
        if self.fault:
            return f"{self.name}: {self.fault}: stays with onnxruntime"
        where = "AMOS" if self.wins else "onnxruntime"
        own, engine = (f"{seconds * 1e3:.4g} ms" for seconds in self.race.medians)
        return f"{self.name}: {own}, by onnxruntime's operators {engine}: stays with {where}"


def race_region(
    region: CompiledRegion, plain: Any, library: Library, folder: Path, *, verify: bool
) -> Timing:
    """Time a region in turns with the operators that it replaces, and compare results on request.

    Args:
        plain: the model of onnxruntime's operators, or the path of its file.
        folder: for files that are removed at the end.

    Raises:
        NetworkError: onnxruntime does not take one of them, or fails.
    """
    network = region.network
    ports, arrays = network.inputs, random_arrays(network)
    own = whole_model(network, region.function, library.domain)
    run_own = SessionRunner(_open_either(own, library, folder), ports)
    run_plain = SessionRunner(_open_either(plain, None, folder), ports)
    try:
        results, expected = run_own(arrays), run_plain(arrays)
    except RuntimeError as error:
        raise NetworkError(f"{network.name}: {last_line(error)}") from error
    fault = _find_fault(region, results, expected) if verify else ""
    times = race(lambda: run_own(arrays), lambda: run_plain(arrays))
    return Timing(region.function, times, fault)


def race_whole(compiled: CompiledNetwork, plain: Any) -> Timing | None:
    """Time a divided model in turns with the model as it was read.

    ``None`` if random inputs do not run it, as where integers are shapes.

    Args:
        compiled: with the regions that are faster than their operators.
    """
    arrays = random_arrays(compiled.network)
    own = compiled.with_session(QUIET)
    try:
        session = _open_either(plain, None, compiled.folder.path)
        run_plain = SessionRunner(session, compiled.network.inputs)
        times = race(lambda: own.outputs_of(arrays), lambda: run_plain(arrays))
    except (NetworkError, RuntimeError):
        return None
    return Timing("the whole", times)


def _find_fault(region: CompiledRegion, results: Sequence[Any], expected: Sequence[Any]) -> str:
    """Return the error of results, if any; levels of 8 bits may be rounded differently."""
    if region.network.quantized:
        return ""
    check = check_results(
        region.network.name,
        "onnxruntime",
        results,
        expected,
        rounded=region.network.rounds,
        spreads=region.spreads,
        precision=ROUNDED if region.network.is_rounded else "",
    )
    accepted = region.network.may_round_rows and check.may_be_rounded_apart
    return "" if check.passed or accepted else str(check)


def _open_either(model: Any, library: Library | None, folder: Path) -> Any:
    """Open a session on a model of a region, or on a file."""
    if isinstance(model, str | os.PathLike):
        return open_session(model, library, QUIET)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        save_model(model, Path(place))
        return open_session(Path(place, MODEL), library, QUIET)
