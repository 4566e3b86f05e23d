"""A model with its regions compiled: an onnxruntime session with AMOS's operators."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from amos._display import Shown, several
from amos.codegen.scheduled import last_line
from amos.errors import NetworkError, checked_path
from amos.network.external.library import Library, MissingCompiler, write_library
from amos.network.external.partition import PartitionedNetwork
from amos.network.external.race import (
    MODEL,
    REFERENCE,
    Timing,
    array_of,
    check_result,
    open_session,
    race,
    save_model,
)
from amos.network.external.regions import contracted
from amos.network.model import (
    Check,
    CompiledNetwork,
    bound,
    random_values,
    values_of,
)
from amos.network.tolerances import rounds

if TYPE_CHECKING:
    from amos.network.report import Report


class _Folder:
    """A folder that is removed when nothing refers to this any more, or Python ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="amos-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(frozen=True, eq=False)
class CompiledPartition(Shown):
    """A model compiled for this CPU, run by onnxruntime.

    Calling it with the model's inputs, in order or by name, returns its output, or a tuple of
    them. Inputs are NumPy arrays or tensors of any package that speaks DLPack.

    Attributes:
        network: what it was made of.
        models: regions with their kernels, by the name of their operator.
        library: of the operators; ``None`` where onnxruntime runs all of the model.
        timings: of each region.
        checks: what was compared with a reference.
        failures: why parts that AMOS had taken went to onnxruntime.
        folder: holds model and library while this exists.
        settings: of its session, by onnxruntime's names.
    """

    network: PartitionedNetwork
    models: Mapping[str, CompiledNetwork]
    library: Library | None
    timings: tuple[Timing, ...]
    checks: tuple[Check, ...]
    failures: tuple[str, ...]
    folder: _Folder = field(repr=False)
    settings: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def session(self) -> Any:
        """The session of onnxruntime."""
        return open_session(self.folder.path / MODEL, self.library, self.settings)

    def with_session(self, settings: Mapping[str, str]) -> CompiledPartition:
        """The same model in a session of its own.

        Args:
            settings: entries of onnxruntime's session configuration, for example
                ``{"session.force_spinning_stop": "1"}`` where other frameworks of the process
                use the cores between calls.
        """
        return replace(self, settings=dict(settings))

    def __call__(self, /, *arrays: Any, **named: Any) -> Any:
        """Run the model.

        Raises:
            NetworkError: an input is missing or unknown, or onnxruntime fails.
            BuildError: an input is of another shape, dtype or device.
        """
        results = self.outputs_of(bound(self.network.inputs, arrays, named))
        return results[0] if len(results) == 1 else results

    def outputs_of(self, arrays: Sequence[Any]) -> tuple[np.ndarray, ...]:
        """Every output, of inputs in order; errors as of a call."""
        ports = self.network.inputs
        values = {
            port.name: array_of(port, value) for port, value in zip(ports, arrays, strict=True)
        }
        try:
            return tuple(self.session.run(None, values))
        except Exception as error:  # onnxruntime raises types of its own
            raise NetworkError(f"{self.network.name}: {last_line(error)}") from error

    def check(self, /, *arrays: Any, **named: Any) -> tuple[Check, ...]:
        """Compare the results with those of onnxruntime without optimization.

        Args:
            arrays: inputs in order; random ones where none are given at all.
            named: inputs by name.

        Raises:
            NetworkError, BuildError: as of a call.
            NetworkError: results differ by more than is allowed.
        """
        worst = self.worst_check(*arrays, **named)
        if worst is None:
            return ()
        if self.counts(worst):
            raise NetworkError(
                f"{worst.name}: differs from {worst.reference} by {worst.difference:g}, "
                f"{worst.allowed:g} is allowed"
            )
        return (worst,)

    def worst_check(self, /, *arrays: Any, **named: Any) -> Check | None:
        """Compare as :meth:`check` does; return the worst result, right or wrong."""
        network, stated = self.network, arrays or named
        values = bound(network.inputs, arrays, named) if stated else self._random()
        expected = network.reference.evaluate([*map(values_of, network.inputs, values)])
        if expected is None:
            return None
        rounded = any(rounds(each) for each in network.networks.values())
        worst = Check(network.name, REFERENCE, 0.0, 0.0)
        for result, right in zip(self.outputs_of(values), expected, strict=True):
            check = check_result(network.name, rounded, np.asarray(result), right)
            worst = check if check.excess >= worst.excess else worst
        return worst

    def counts(self, check: Check) -> bool:
        """Whether a difference is a fault: not where levels of 8 bits are rounded apart."""
        quantized = any(model.network.quantized for model in self.models.values())
        return not check.passed and not quantized

    def _random(self) -> list[np.ndarray]:
        """Draw inputs; where integers may be divided by them, none is 0."""
        divides = any(each.op_type in ("Div", "Mod") for each in self.network.graph.nodes)
        return random_values(self.network.inputs, integers=(int(divides), 1))

    def report(self) -> Report:
        """What runs where: the report of the network, with the kernels that it has."""
        from amos.network.external.report import compiled_report

        return compiled_report(self)

    def export(self, folder: str | Path) -> tuple[Path, ...]:
        """Write the model and its library, for any application of onnxruntime.

        Args:
            folder: where to; it is made if it is not there. Files that are there are replaced
                when all of the new ones are complete.

        Returns:
            the files.

        Raises:
            NetworkError: nothing can be written there.
        """
        return export_folder(self.folder.path, folder)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; seconds."""
        return {
            "network": self.network.name,
            "regions": [
                {"name": each.name, "seconds": each.own, "onnxruntime_seconds": each.engine}
                | {"chosen": each.wins}
                for each in self.timings
            ],
            "models": {name: model.to_dict() for name, model in self.models.items()},
            "failures": list(self.failures),
            "engine": [
                {"operation": name, "reason": why, "count": count}
                for (name, why), count in self.network.left.items()
            ],
            "checks": [
                {"name": each.name, "reference": each.reference}
                | {"difference": each.difference, "allowed": each.allowed}
                for each in self.checks
            ],
        }

    def __str__(self) -> str:
        kernels = sum(len(model.kernels) for model in self.models.values())
        lines = [
            f"{self.network.name}: {several(len(self.models), 'operator')} of "
            f"{several(kernels, 'kernel')} in onnxruntime"
        ]
        lines += [f"  not used: {why}" for why in self.failures]
        return "\n".join([*lines, *(f"  {each}" for each in (*self.timings, *self.checks))])

    __repr__ = __str__


def compiled_partition(
    network: PartitionedNetwork,
    models: Mapping[str, CompiledNetwork],
    verify: bool,
    failures: Sequence[str] = (),
) -> CompiledPartition:
    """Link regions into a library.

    onnxruntime gets the regions that it runs faster itself, that cannot be compiled, and whose
    results are wrong; and all of the model where the whole is wrong with them.

    Args:
        network: the model.
        models: its regions with their kernels, by the name of their operator.
        verify: compare each region and the whole with onnxruntime.
        failures: what went wrong before, for the report.

    Raises:
        NetworkError: there is no C compiler, or onnxruntime does not take the model.
    """
    folder = _Folder()
    library, models, unbuilt = _built_library(models, folder.path)
    timings = tuple[Timing, ...]()
    if library is not None:
        regions = [(name, network.regions[name]) for name in models]
        timings = tuple(race(*each, library, folder.path, verify) for each in regions)
    wrong = [f"{each.name}: {each.fault}" for each in timings if each.fault]
    said = (*failures, *unbuilt, *wrong)
    winners = {each.name: models[each.name] for each in timings if each.wins}
    checks = tuple(check for each in winners.values() for check in each.checks)
    compiled = _contracted(network, winners, library, folder)
    compiled = replace(compiled, timings=timings, checks=checks, failures=said)
    whole = compiled.worst_check() if verify else None
    if whole is not None and compiled.counts(whole):
        compiled = _contracted(network, {}, library, folder)
        said = (*said, f"with {several(len(winners), 'region')} of AMOS it {whole}")
        compiled = replace(compiled, timings=timings, failures=said)
    elif whole is not None:
        compiled = replace(compiled, checks=(*checks, whole))
    return compiled


def _built_library(
    models: Mapping[str, CompiledNetwork], folder: Path
) -> tuple[Library | None, Mapping[str, CompiledNetwork], list[str]]:
    """A library of the models that can be compiled, these, and why others cannot."""
    if not models:
        return None, models, []
    try:
        return write_library([*models.values()], folder), models, []
    except MissingCompiler:
        raise
    except NetworkError:
        sound, failures = _sound(models, folder)
    return write_library([*sound.values()], folder) if sound else None, sound, failures


def _sound(
    models: Mapping[str, CompiledNetwork], folder: Path
) -> tuple[Mapping[str, CompiledNetwork], list[str]]:
    """The models that can be compiled alone, and why others cannot; trials leave no files."""
    sound: dict[str, CompiledNetwork] = {}
    failures: list[str] = []
    for name, model in models.items():
        try:
            with tempfile.TemporaryDirectory(dir=folder) as trial:
                write_library([model], Path(trial))
        except NetworkError as error:
            failures.append(f"{name}: {str(error).splitlines()[0]}")
        else:
            sound[name] = model
    return sound, failures


def _contracted(
    network: PartitionedNetwork,
    models: Mapping[str, CompiledNetwork],
    library: Library | None,
    folder: _Folder,
) -> CompiledPartition:
    """Write the model with an operator for each region that AMOS runs."""
    if not models and library is not None:
        library.path.unlink(missing_ok=True)
        library.constants.unlink(missing_ok=True)
        library = None
    regions = {name: network.regions[name] for name in models}
    domain = library.domain if library is not None else ""
    save_model(contracted(network.graph, regions, domain), folder.path)
    return CompiledPartition(network, models, library, (), (), (), folder)


def export_folder(source: Path, folder: str | Path) -> tuple[Path, ...]:
    """Copy what a compiled model consists of; see :meth:`CompiledPartition.export`."""
    target = checked_path("export", folder, NetworkError)
    names = sorted(path.name for path in source.iterdir() if path.is_file())
    try:
        target.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".amos-", dir=target))
        try:
            for name in names:
                shutil.copyfile(source / name, partial / name)
            for name in names:
                os.replace(partial / name, target / name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        for path in target.glob("constants-*.bin"):
            if path.name not in names:
                path.unlink()
    except OSError as error:
        raise NetworkError(f"export to {str(target)!r}: {error.strerror or error}") from error
    return tuple(target / name for name in names)
