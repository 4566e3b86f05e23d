"""Compiled regions linked into a library, raced against onnxruntime, and put into a model."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from amos._display import several
from amos.errors import NetworkError
from amos.network.checks import Check
from amos.network.external.compiled import CompiledNetwork
from amos.network.external.folders import ModelFolder
from amos.network.external.library import Library, write_library
from amos.network.external.partition import PartitionedNetwork
from amos.network.external.race import Timing, race_region, race_whole
from amos.network.external.regions import contract_regions, whole_model
from amos.network.kernels import CompiledRegion
from amos.network.sessions import explain_refusal, load_onnx, save_model

#: Regions by the name of their operator.
Regions = Mapping[str, CompiledRegion]


def link_models(
    networks: Mapping[str, PartitionedNetwork], regions: Regions, *, verify: bool
) -> list[CompiledNetwork]:
    """Compile models into one library, which has equal constants once.

    onnxruntime gets the regions that it runs faster itself, that cannot be compiled, and whose
    results are wrong; and all of a model where the whole is wrong with them, or no faster.

    Args:
        networks: the models by the names of their files.
        verify: compare each region and each model with onnxruntime.

    Raises:
        NetworkError: there is no C compiler, or onnxruntime does not take a model.
    """
    folder = ModelFolder()
    library, failed = _build_library(regions, folder.path)
    models = []
    for file, network in networks.items():
        built = {n: each for n, each in regions.items() if n in network.regions and n not in failed}
        unbuilt = {name: why for name, why in failed.items() if name in network.regions}
        models.append(_Draft(network, library, folder, file).finish(built, unbuilt, verify))
    if library is not None and not any(each.library for each in models):
        library.path.unlink(missing_ok=True)
        library.constants.unlink(missing_ok=True)
    return models


@dataclass(frozen=True)
class _Draft:
    """A model before it is decided which regions AMOS runs.

    Attributes:
        library: of all regions that could be compiled.
        folder: that it is written to.
        file: its name there.
    """

    network: PartitionedNetwork
    library: Library | None
    folder: ModelFolder
    file: str

    def finish(self, regions: Regions, failed: Mapping[str, str], verify: bool) -> CompiledNetwork:
        """Put the regions in that are right and faster.

        Args:
            regions: that could be compiled.
            failed: why others could not.
        """
        timings, more = self.race_regions(regions, verify)
        failed = {**failed, **more}
        wrong = [f"{each.name}: {each.fault}" for each in timings if each.fault]
        why = (*failed.values(), *wrong)
        losers = {each.name for each in timings if not each.wins} | failed.keys()
        compiled = self.write({n: each for n, each in regions.items() if n not in losers})
        if compiled.regions and not self.network.is_single_region:
            whole = race_whole(compiled, self.network.source)
            if whole is not None and not whole.wins:
                slow = "the whole is no faster"
                timings = (*(replace(each, fault=each.fault or slow) for each in timings), whole)
                compiled = self.write({})
        check = compiled.worst_check() if verify and compiled.regions else None
        if check is not None and check.is_fault:
            why = (*why, f"with {several(len(compiled.regions), 'region')} of AMOS it {check}")
            check, compiled = None, self.write({})
        checks: tuple[Check, ...] = tuple(
            each for region in compiled.regions.values() for each in region.checks
        )
        if check is not None:
            checks = (*checks, check)
        compiled = replace(compiled, timings=timings, checks=checks, refused=why)
        if not compiled.regions:
            _check_session(compiled)
        return compiled

    def race_regions(
        self, regions: Regions, verify: bool
    ) -> tuple[tuple[Timing, ...], dict[str, str]]:
        """Time regions beside their operators; why some fail that onnxruntime takes."""
        timings, failed = list[Timing](), dict[str, str]()
        for name, region in regions.items():
            assert self.library is not None
            plain = self.network.regions[name].model
            try:
                timings.append(
                    race_region(region, plain, self.library, self.folder.path, verify=verify)
                )
            except NetworkError as error:
                if not explain_refusal(plain):  # it lacks some operators for bfloat16
                    failed[name] = f"{name}: {str(error).splitlines()[0]}"
        return tuple(timings), failed

    def write(self, regions: Regions) -> CompiledNetwork:
        """Write the model with an operator for each region that AMOS runs."""
        library = self.library if regions else None
        if library is None:
            model = load_onnx(self.network.source, all_weights=True)
        else:
            parts = {name: self.network.regions[name] for name in regions}
            model = contract_regions(self.network.graph, parts, library.domain)
        save_model(model, self.folder.path, self.file)
        reference = self.network.reference
        return CompiledNetwork(
            self.network, regions, library, self.folder, file=self.file, reference=reference
        )


def _check_session(compiled: CompiledNetwork) -> None:
    """Open the session of a model that onnxruntime runs alone, or say why not, with what failed."""
    try:
        _ = compiled.session
    except NetworkError as error:
        raise NetworkError("; ".join([str(error), *compiled.refused])) from error


def link_trial(region: CompiledRegion) -> CompiledNetwork:
    """Compile a network for measurements into a library, with a model of its operator alone."""
    folder, network, name = ModelFolder(), region.network, region.function
    library = write_library([region], folder.path)
    save_model(whole_model(network, name, library.domain), folder.path)
    return CompiledNetwork(network, {name: region}, library, folder, checks=region.checks)


def _build_library(regions: Regions, folder: Path) -> tuple[Library | None, dict[str, str]]:
    """Compile the regions that can be into a library; return why others cannot."""
    if not regions:
        return None, {}
    try:
        return write_library([*regions.values()], folder), {}
    except NetworkError:
        failed = _explain_failures(regions, folder)
    sound = [region for name, region in regions.items() if name not in failed]
    return write_library(sound, folder) if sound else None, failed


def _explain_failures(regions: Regions, folder: Path) -> dict[str, str]:
    """Return why regions cannot be compiled alone; trials leave no files."""
    failures = {}
    for name, region in regions.items():
        try:
            with tempfile.TemporaryDirectory(dir=folder) as trial:
                write_library([region], Path(trial))
        except NetworkError as error:
            failures[name] = f"{name}: {str(error).splitlines()[0]}"
    return failures
