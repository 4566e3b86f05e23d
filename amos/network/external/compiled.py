"""A compiled network: an ONNX model with AMOS's operators, run by onnxruntime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from amos._display import Shown, several
from amos.codegen.scheduling import last_line
from amos.errors import NetworkError
from amos.network.checks import Check, check_results, summarize_checks
from amos.network.export import export_models
from amos.network.external.folders import ModelFolder
from amos.network.external.library import Library
from amos.network.external.partition import PartitionedNetwork
from amos.network.external.race import Timing
from amos.network.groups import Job
from amos.network.inputs import CallableNetwork, bind_inputs, perturb, random_arrays, values_of
from amos.network.kernels import CompiledRegion, TaskKernel
from amos.network.network import Network
from amos.network.precision.rounding import ROUNDED
from amos.network.profile import Profile, profile
from amos.network.report import Report
from amos.network.reporting import model_report
from amos.network.sessions import MODEL, Reference, SessionRunner, open_session

if TYPE_CHECKING:
    from amos.network.comparison import Comparison
    from amos.network.precision.frontier import Frontier


@dataclass(frozen=True, eq=False)
class CompiledNetwork(CallableNetwork, Shown):
    """A network compiled for this CPU, run by onnxruntime.

    Calling it with the network's inputs, in order or by name, returns its output, or a tuple of
    them. Inputs are NumPy arrays or tensors of any package that speaks DLPack.

    Attributes:
        regions: that AMOS computes, by the name of their operator.
        library: of the operators; ``None`` where onnxruntime runs all of the model.
        folder: of model and library, which lives as long as this.
        timings: of each region beside onnxruntime's own operators, and of a whole that lost.
        checks: comparisons with a reference.
        refused: why regions stay with onnxruntime after all.
        settings: of its session, by onnxruntime's names.
        precision: variants of the network and the chosen one; ``None`` for f32.
        reference: another program that runs the model, if there is one.
    """

    network: Network | PartitionedNetwork
    regions: Mapping[str, CompiledRegion]
    library: Library | None
    folder: ModelFolder = field(repr=False)
    timings: tuple[Timing, ...] = ()
    checks: tuple[Check, ...] = ()
    refused: tuple[str, ...] = ()
    file: str = MODEL
    settings: Mapping[str, str] = field(default_factory=dict)
    precision: Frontier | None = None
    reference: Reference | None = None

    @cached_property
    def session(self) -> Any:
        """The session of onnxruntime."""
        return open_session(self.folder.path / self.file, self.library, self.settings)

    @cached_property
    def _runner(self) -> SessionRunner:
        return SessionRunner(self.session, self.network.inputs)

    def with_session(self, settings: Mapping[str, str]) -> CompiledNetwork:
        """Return the same model with a session of its own.

        Args:
            settings: entries of onnxruntime's session configuration, for example
                ``{"session.force_spinning_stop": "1"}`` where other frameworks of the process
                use the cores between calls.
        """
        return replace(self, settings=dict(settings))

    @property
    def kernels(self) -> dict[Job, TaskKernel]:
        """Kernels of tasks and cascades."""
        regions = self.regions.values()
        return {task: each for region in regions for task, each in region.kernels.items()}

    @property
    def fallbacks(self) -> dict[Job, str]:
        """Why tasks are computed by plain loops."""
        regions = self.regions.values()
        return {task: why for region in regions for task, why in region.fallbacks.items()}

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Kernels of tasks that were timed in the network."""
        return tuple(each for region in self.regions.values() for each in region.comparisons)

    @property
    def unused(self) -> Counter[str]:
        """Number of records of its tasks that do not count here, by the reason."""
        counts: Counter[str] = Counter()
        for region in self.regions.values():
            counts.update(region.unused)
        return counts

    @property
    def has_rounded_products(self) -> bool:
        """Whether factors of a product are floats of 16 bits."""
        return any(each.has_rounded_products for each in self.network.networks.values())

    @property
    def failures(self) -> tuple[str, ...]:
        """Why kernels and regions are not used."""
        return (*self.refused, *(why for each in self.regions.values() for why in each.failures))

    def __call__(self, /, *arrays: Any, **named: Any) -> Any:
        """Run the network; see :meth:`CallableNetwork.__call__`."""
        runner = self._runner
        values = named or dict(zip(runner.names, arrays, strict=False))
        if len(arrays) + len(named) != len(values) or not runner.takes(values):
            return super().__call__(*arrays, **named)
        try:
            results = runner.run(values)
        except Exception as error:  # onnxruntime raises types of its own
            raise self._explain(error) from error
        return results[0] if len(results) == 1 else tuple(results)

    def _explain(self, error: Exception) -> NetworkError:
        return NetworkError(f"{self.network.name}: {last_line(error)}")

    def outputs_of(self, arrays: Sequence[Any]) -> tuple[np.ndarray, ...]:
        """Run it on inputs in order; returns all outputs. Errors are those of a call."""
        try:
            return self._runner(arrays)
        except RuntimeError as error:
            raise self._explain(error) from error

    def check(self, /, *arrays: Any, **named: Any) -> tuple[Check, ...]:
        """Compare the results with those of another program that runs the model.

        It is PyTorch for its models, and otherwise onnxruntime without optimization.

        Args:
            arrays: inputs in order; random ones by default.
            named: inputs by name.

        Returns:
            the difference. It may exceed the tolerance where levels of 8 bits are rounded
            differently.

        Raises:
            NetworkError, BuildError: as of a call; NetworkError also where results differ by more.
        """
        worst = self.worst_check(*arrays, **named)
        if worst is None:
            return ()
        if worst.is_fault:
            raise NetworkError(
                f"{worst.name}: differs from {worst.reference} by {worst.difference:g}, "
                f"{worst.allowed:g} is allowed"
            )
        return (worst,)

    def worst_check(self, /, *arrays: Any, **named: Any) -> Check | None:
        """Compare as :meth:`check` does; return the worst result, right or wrong.

        There is none of a model that draws random numbers, whose regions are compared alone.
        """
        network, reference = self.network, self.reference
        if reference is None or network.is_random:
            return None
        inputs = self._bound_or_random(arrays, named)
        values = [*map(values_of, network.inputs, inputs)]
        expected = reference.evaluate(values)
        if expected is None:
            return None
        results = self.outputs_of(inputs)
        check = self._compare(results, expected)
        if check.passed:
            return check
        networks = [each.network for each in self.regions.values()]
        if any(each.quantized or each.may_round_rows for each in networks):
            if check.may_be_rounded_apart:
                check = replace(check, accepted="levels of 8 bits are rounded apart")
        elif self._is_unstable(values, results, expected):
            accepted = f"{reference.name}'s results change as much where inputs do by 1e-6"
            check = replace(check, accepted=accepted)
        return check

    def _compare(self, results: Sequence[Any], expected: Sequence[Any]) -> Check:
        network = self.network
        return check_results(
            network.name,
            "" if self.reference is None else self.reference.name,
            results,
            expected,
            rounded=any(each.rounds for each in network.networks.values()),
            spreads=any(each.spreads for each in self.regions.values()),
            precision=ROUNDED if self.has_rounded_products or ROUNDED in network.halves else "",
        )

    def _is_unstable(
        self, values: Sequence[Any], results: Sequence[Any], expected: Sequence[Any]
    ) -> bool:
        """Return whether the reference itself changes as much for inputs nearby.

        So does what selects: of two scores that rounding decides between, ``TopK`` takes either.
        """
        assert self.reference is not None
        nearby = self.reference.evaluate(perturb(values))
        if nearby is None or len(nearby) != len(expected):
            return False
        pairs = zip(expected, nearby, strict=True)
        unstable = [not self._compare([near], [right]).passed for right, near in pairs]
        stable = [n for n, moves in enumerate(unstable) if not moves]
        same = self._compare([results[n] for n in stable], [expected[n] for n in stable])
        return any(unstable) and same.passed

    def _bound_or_random(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
        """Return the inputs of a call; random ones by default."""
        if arrays or named:
            return bind_inputs(self.network.inputs, arrays, named)
        return random_arrays(self.network)

    def profile(self, /, *arrays: Any, repeat: int = 20, **named: Any) -> Profile:
        """Time each function in the network, beside its prediction.

        Args:
            arrays: inputs in order; random ones by default.
            repeat: runs, of which the median counts.
            named: inputs by name.

        Raises:
            NetworkError, BuildError: as of a call.
            ExploreError: ``repeat`` is not a whole number from 1 on.
        """
        return profile(self, self._bound_or_random(arrays, named), repeat)

    def report(self) -> Report:
        """Report what runs where, with the kernels that were built."""
        return model_report(self)

    def export(self, folder: str | Path) -> tuple[Path, ...]:
        """Write the model and its library, for any application of onnxruntime, and examples.

        Args:
            folder: target, which is created if it is missing. Files in it are replaced when all
                of the new ones are complete.

        Raises:
            NetworkError: nothing can be written there.
        """
        return export_models([self], folder)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; seconds."""
        return {
            "network": self.network.name,
            "kernels": [
                {
                    "kind": task.operator.name,
                    "operator": str(task.operator),
                    "count": task.weight,
                    **kernel.lowering.to_dict(),
                }
                for task, kernel in self.kernels.items()
            ],
            "engine": [
                {"operator": str(task.operator), "count": task.weight, "reason": reason}
                for task, reason in self.fallbacks.items()
            ],
            "regions": [
                dict(zip(("seconds", "onnxruntime_seconds"), each.race.medians, strict=True))
                | {"name": each.name, "chosen": each.wins}
                for each in self.timings
            ],
            "onnxruntime": [
                {"operation": name, "reason": why, "count": count}
                for (name, why), count in self.network.external.items()
            ],
            "unused_records": dict(self.unused),
            "failures": list(self.failures),
            "checks": [asdict(check) for check in self.checks],
            "precision": self.precision.to_dict() if self.precision else None,
            "comparisons": [asdict(each) | {"chosen": each.chosen} for each in self.comparisons],
        }

    def __str__(self) -> str:
        called = sum(task.weight for task in self.kernels)
        measured = sum(kernel.lowering.measured is not None for kernel in self.kernels.values())
        # What onnxruntime runs in place of regions is not rounded.
        rounded = self.precision and (self.regions or self.precision.chosen.name == "int8")
        lines = [str(self.precision)] if rounded else []
        lines += [
            f"{self.network.name}: {several(called, 'call')} of "
            f"{several(len(self.kernels), 'kernel')} in {several(len(self.regions), 'operator')} "
            f"of onnxruntime, {measured} from records"
        ]
        lines += [
            f"  {several(count, 'record')} not used: {why}" for why, count in self.unused.items()
        ]
        lines += [f"  not used: {why}" for why in self.failures]
        lines += [f"  engine: {task.operator}: {why}" for task, why in self.fallbacks.items()]
        rows = (*self.comparisons, *self.timings, *summarize_checks(self.checks))
        return "\n".join([*lines, *(f"  {each}" for each in rows)])

    __repr__ = __str__
