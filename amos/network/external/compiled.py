"""A model with its regions compiled: an onnxruntime session with AMOS's operators."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from amos._display import Shown, several
from amos.codegen.scheduled import last_line
from amos.errors import NetworkError, checked_path
from amos.machine.cpu import cpu
from amos.measure.reference import compared
from amos.network.external.library import Library, write_library
from amos.network.external.partition import PartitionedNetwork
from amos.network.external.regions import Region, contracted
from amos.network.model import (
    Check,
    CompiledNetwork,
    bound,
    random_arrays,
    random_values,
    values_of,
)
from amos.network.tolerances import allowed, rounds

if TYPE_CHECKING:
    from amos.network.report import Report

#: Name of the model in a folder.
MODEL = "model.onnx"
#: Calls of each contender, in turns, and the share of onnxruntime's time that has to be saved.
_ROUNDS, _MARGIN = 9, 0.02
#: A model of more bytes has its weights in a file of its own.
_LARGEST = 1 << 30


class _Folder:
    """A folder that is removed when nothing refers to this any more, or Python ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="amos-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(frozen=True)
class Timing:
    """A region beside onnxruntime's own operators, in seconds.

    Attributes:
        name: of its operator.
        own: AMOS's.
        engine: onnxruntime's.
    """

    name: str
    own: float
    engine: float

    @property
    def wins(self) -> bool:
        """Whether AMOS runs the region."""
        return self.own <= self.engine * (1 - _MARGIN)

    def __str__(self) -> str:
        where = "AMOS" if self.wins else "onnxruntime"
        return (
            f"{self.name}: {self.own * 1e3:.4g} ms, by onnxruntime's operators "
            f"{self.engine * 1e3:.4g} ms: stays with {where}"
        )


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
        folder: holds model and library while this exists.
    """

    network: PartitionedNetwork
    models: Mapping[str, CompiledNetwork]
    library: Library | None
    timings: tuple[Timing, ...]
    checks: tuple[Check, ...]
    folder: _Folder = field(repr=False)

    @cached_property
    def session(self) -> Any:
        """The session of onnxruntime."""
        return open_session(self.folder.path / MODEL, self.library)

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
        values = {port.name: _array(port, value) for port, value in zip(ports, arrays, strict=True)}
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
        network, stated = self.network, arrays or named
        values = bound(network.inputs, arrays, named) if stated else self._random()
        expected = network.reference.evaluate([*map(values_of, network.inputs, values)])
        if expected is None:
            return ()
        worst = Check(network.name, network.reference.name, 0.0, 0.0)
        for result, right in zip(self.outputs_of(values), expected, strict=True):
            check = _check(network, np.asarray(result), right)
            worst = check if check.excess >= worst.excess else worst
        quantized = any(model.network.quantized for model in self.models.values())
        if not worst.passed and not quantized:
            raise NetworkError(
                f"{network.name}: differs from {worst.reference} by {worst.difference:g}, "
                f"{worst.allowed:g} is allowed"
            )
        return (worst,)

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
        return "\n".join([*lines, *(f"  {each}" for each in (*self.timings, *self.checks))])

    __repr__ = __str__


def compiled_partition(
    network: PartitionedNetwork, models: Mapping[str, CompiledNetwork], verify: bool
) -> CompiledPartition:
    """Link regions into a library, and give onnxruntime those that it runs slower itself.

    Args:
        network: the model.
        models: its regions with their kernels, by the name of their operator.
        verify: compare the whole with onnxruntime.

    Raises:
        NetworkError: there is no C compiler, onnxruntime does not take the model, or a result
            is wrong.
    """
    folder = _Folder()
    path, timings, library = folder.path, tuple[Timing, ...](), None
    if models:
        library = write_library([*models.values()], path)
        timings = tuple(_raced(name, network.regions[name], library, path) for name in models)
        models = {each.name: models[each.name] for each in timings if each.wins}
    if not models and library is not None:
        library.path.unlink()
        library.constants.unlink()
        library = None
    regions = {name: network.regions[name] for name in models}
    domain = library.domain if library is not None else ""
    model = contracted(network.graph, regions, domain)
    save_model(model, path)
    compiled = CompiledPartition(network, models, library, timings, (), folder)
    checks = [check for each in models.values() for check in each.checks]
    checks += compiled.check() if verify else ()
    return CompiledPartition(network, models, library, timings, tuple(checks), folder)


def save_model(model: Any, folder: Path) -> None:
    """Write a model, with its weights in a file of their own where it is large."""
    import onnx

    large = model.ByteSize() > _LARGEST
    onnx.save(model, folder / MODEL, save_as_external_data=large, location="weights.data")


def open_session(path: Path, library: Library | None) -> Any:
    """Open a session of onnxruntime on a model.

    Its threads stop spinning when a call ends: other frameworks of the process then have the
    cores for themselves.

    Raises:
        NetworkError: onnxruntime is missing or does not take the model.
    """
    try:
        import onnxruntime
    except ImportError:
        raise NetworkError(
            "running this model needs onnxruntime: pip install 'amos-mapper[onnx]'"
        ) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = cpu().cores
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        if library is not None:
            options.register_custom_ops_library(str(library.path))
        return onnxruntime.InferenceSession(
            os.fspath(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime raises types of its own
        raise NetworkError(f"onnxruntime refuses the model: {last_line(error)}") from error


def _raced(name: str, region: Region, library: Library, folder: Path) -> Timing:
    """A region timed in turns with the operators that it replaces."""
    from onnx import helper

    network = region.network
    arrays = dict(zip(region.inputs, random_arrays(network), strict=True))
    arrays = {port.name: _array(port, arrays[port.name]) for port in network.inputs}
    graph = region.model.graph
    node = helper.make_node(name, region.inputs, region.outputs, domain=library.domain)
    own = helper.make_model(
        helper.make_graph([node], "region", graph.input, graph.output),
        opset_imports=[*region.model.opset_import, helper.make_opsetid(library.domain, 1)],
        ir_version=region.model.ir_version,
    )
    sessions = []
    for model, used in ((own, library), (region.model, None)):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            save_model(model, Path(place))
            sessions.append(open_session(Path(place, MODEL), used))
    times: list[list[float]] = [[], []]
    for _ in range(_ROUNDS):
        for session, row in zip(sessions, times, strict=True):
            session.run(None, arrays)  # the caches are another session's
            start = time.perf_counter()
            session.run(None, arrays)
            row.append(time.perf_counter() - start)
    return Timing(name, *map(median, times))


def _array(port: Any, value: Any) -> np.ndarray:
    """An input as onnxruntime takes it."""
    array = values_of(port, value)
    return array.astype(bool) if port.dtype == "bool" else array


def _check(network: PartitionedNetwork, result: np.ndarray, expected: np.ndarray) -> Check:
    """A result held against another one."""
    name, kind = network.reference.name, str(expected.dtype)
    if result.shape != expected.shape:
        return Check(network.name, name, np.inf, 0.0)
    if expected.dtype.kind not in "fiub":
        wrong = float(not np.array_equal(result, expected))
        return Check(network.name, name, wrong, 0.0)
    difference, strange = compared(result, expected)
    rounded = any(rounds(each) for each in network.networks.values())
    limit = allowed(kind, expected, rounded)
    return Check(network.name, name, np.inf if strange else difference, limit)


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
