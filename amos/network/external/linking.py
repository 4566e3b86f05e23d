"""Compiled regions linked into a library, raced against onnxruntime, and put into a model."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from amos._display import several
from amos.errors import NetworkError
from amos.network.external.compiled import CompiledNetwork
from amos.network.external.folders import ModelFolder
from amos.network.external.library import Library, MissingCompiler, write_library
from amos.network.external.partition import PartitionedNetwork
from amos.network.external.race import Timing, race_region, race_whole
from amos.network.external.regions import contracted
from amos.network.external.sessions import MODEL, save_model
from amos.network.external.whole import whole_model
from amos.network.frontend import plain_session
from amos.network.model import CompiledRegion

#: Regions by the name of their operator.
Regions = Mapping[str, CompiledRegion]


def link_buckets(regions: Sequence[CompiledRegion], *, verify: bool) -> list[CompiledNetwork]:
    """Compile networks into one library, which has equal constants once, and a model for each.

    Raises:
        NetworkError: there is no C compiler, it fails, or a result is wrong.
    """
    folder = ModelFolder()
    library = write_library(regions, folder.path)
    models = [_with_whole(each, library, folder, f"{each.function}.onnx") for each in regions]
    return [*map(_verified, models)] if verify else models


def link_regions(network: PartitionedNetwork, regions: Regions, *, verify: bool) -> CompiledNetwork:
    """Compile a model of which AMOS takes regions.

    onnxruntime gets the regions that it runs faster itself, that cannot be compiled, and whose
    results are wrong; and all of the model where the whole is wrong with them, or no faster.

    Args:
        network: the model.
        regions: with their kernels.
        verify: compare each region and the whole with onnxruntime.

    Raises:
        NetworkError: there is no C compiler, or onnxruntime does not take the model.
    """
    folder = ModelFolder()
    library, regions, unbuilt = _built_library(regions, folder.path)
    timings, failed = tuple[Timing, ...](), dict[str, str]()
    if library is not None:
        timings, failed = _race_regions(network, regions, library, folder.path, verify)
    wrong = [f"{each.name}: {each.fault}" for each in timings if each.fault]
    why = (*unbuilt, *failed.values(), *wrong)
    losers = {each.name for each in timings if not each.wins} | failed.keys()
    winners = {name: region for name, region in regions.items() if name not in losers}
    compiled = _contracted(network, winners, library, folder)
    together = _raced_whole(compiled) if winners and not network.is_single_region else None
    if together is not None and not together.wins:
        lost = (replace(each, fault=each.fault or "the whole is no faster") for each in timings)
        winners, timings = {}, (*lost, together)
        compiled = _contracted(network, winners, library, folder)
    check = compiled.worst_check() if verify and winners else None
    if check is not None and compiled.is_fault(check):
        why = (*why, f"with {several(len(winners), 'region')} of AMOS it {check}")
        winners, check = {}, None
        compiled = _contracted(network, winners, library, folder)
    checks = (*_kernel_checks(winners), *([check] if check is not None else []))
    compiled = replace(compiled, timings=timings, checks=checks, refused=why)
    if not winners:
        _check_session(compiled)
    return compiled


def _check_session(compiled: CompiledNetwork) -> None:
    """Open the session of a model that onnxruntime runs alone.

    Raises:
        NetworkError: it does not take the model.
    """
    try:
        _ = compiled.session
    except NetworkError as error:
        raise NetworkError("; ".join([str(error), *compiled.refused])) from error


def _race_regions(
    network: PartitionedNetwork, regions: Regions, library: Library, folder: Path, verify: bool
) -> tuple[tuple[Timing, ...], dict[str, str]]:
    """Regions beside their operators, and why others fail that onnxruntime takes."""
    timings, failed = list[Timing](), dict[str, str]()
    for name, region in regions.items():
        plain = network.regions[name].model
        try:
            timings.append(race_region(region, plain, library, folder, verify=verify))
        except NetworkError as error:
            if _opens(plain):  # it lacks some operators for bfloat16
                failed[name] = f"{name}: {str(error).splitlines()[0]}"
    return tuple(timings), failed


def _opens(model: Any) -> bool:
    """Whether onnxruntime takes a model."""
    try:
        plain_session(model)
    except Exception:  # onnxruntime raises types of its own
        return False
    return True


def _raced_whole(compiled: CompiledNetwork) -> Timing | None:
    """The whole beside the model as it was read; ``None`` if random inputs do not run it."""
    assert isinstance(compiled.network, PartitionedNetwork)
    try:
        return race_whole(compiled, compiled.network.source)
    except NetworkError:  # integers may be shapes
        return None


def link_trials(regions: Iterable[CompiledRegion]) -> list[CompiledNetwork]:
    """Compile networks for measurements of their kernels, a library each."""
    return [*map(_linked, regions)]


def _linked(region: CompiledRegion) -> CompiledNetwork:
    """Compile a network into a library of its own, and write its model."""
    folder = ModelFolder()
    return _with_whole(region, write_library([region], folder.path), folder, MODEL)


def _with_whole(
    region: CompiledRegion, library: Library, folder: ModelFolder, file: str
) -> CompiledNetwork:
    """Write the model of one operator that calls a region of a library."""
    network, name = region.network, region.function
    save_model(whole_model(network, name, library.domain), folder.path, file)
    checks = _kernel_checks({name: region})
    return CompiledNetwork(network, {name: region}, library, folder, checks=checks, file=file)


def _verified(compiled: CompiledNetwork) -> CompiledNetwork:
    return replace(compiled, checks=(*compiled.checks, *compiled.check()))


def _kernel_checks(regions: Regions) -> tuple[Any, ...]:
    return tuple(check for each in regions.values() for check in each.checks)


def _built_library(regions: Regions, folder: Path) -> tuple[Library | None, Regions, list[str]]:
    """A library of the regions that can be compiled, these, and why others cannot."""
    if not regions:
        return None, regions, []
    try:
        return write_library([*regions.values()], folder), regions, []
    except MissingCompiler:
        raise
    except NetworkError:
        sound, failures = _sound(regions, folder)
    return write_library([*sound.values()], folder) if sound else None, sound, failures


def _sound(regions: Regions, folder: Path) -> tuple[Regions, list[str]]:
    """The regions that can be compiled alone, and why others cannot; trials leave no files."""
    sound: dict[str, CompiledRegion] = {}
    failures: list[str] = []
    for name, region in regions.items():
        try:
            with tempfile.TemporaryDirectory(dir=folder) as trial:
                write_library([region], Path(trial))
        except NetworkError as error:
            failures.append(f"{name}: {str(error).splitlines()[0]}")
        else:
            sound[name] = region
    return sound, failures


def _contracted(
    network: PartitionedNetwork, regions: Regions, library: Library | None, folder: ModelFolder
) -> CompiledNetwork:
    """Write the model with an operator for each region that AMOS runs."""
    if not regions:
        if library is not None:
            _remove_library(library)
        save_model(_opened(network.source), folder.path)
        return CompiledNetwork(network, regions, None, folder)
    parts = {name: network.regions[name] for name in regions}
    domain = library.domain if library is not None else ""
    save_model(contracted(network.graph, parts, domain), folder.path)
    return CompiledNetwork(network, regions, library, folder)


def _remove_library(library: Library) -> None:
    library.path.unlink(missing_ok=True)
    library.constants.unlink(missing_ok=True)


def _opened(source: Any) -> Any:
    """A model of ONNX in memory."""
    import onnx

    return onnx.load(source) if isinstance(source, str | os.PathLike) else source
