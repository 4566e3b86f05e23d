"""``amos.compile``: a kernel for each task, the engine for the rest, one module of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, overload

from amos._progress import ProgressLine
from amos.codegen.scheduled import last_line
from amos.errors import BuildError, MappingError, NetworkError, ScheduleError
from amos.measure.reference import References, compared, tolerance
from amos.network import engine
from amos.network.bucketed import CompiledBuckets, compiled_buckets
from amos.network.buckets import BucketedNetwork, Loaded
from amos.network.candidates import (
    Choice,
    Chooser,
    choice_of_record,
    operator_key,
    records_by_operator,
)
from amos.network.comparison import Comparison, compare, compare_inside
from amos.network.groups import Task
from amos.network.kernels import TaskKernel, build_kernel
from amos.network.model import Check, CompiledNetwork, check_outputs, random_arrays
from amos.network.network import Network, checked_network
from amos.network.program import rebuilt
from amos.records import Record, Records

#: Kernels of a task that are measured alone, and of those the ones that are inside the network.
_MEASURED, _INSIDE = 6, 4


@overload
def compile_network(
    network: Network,
    *,
    records: str | Path | None = None,
    verify: bool = True,
    measure: bool = False,
    progress: bool = True,
) -> CompiledNetwork: ...


@overload
def compile_network(
    network: BucketedNetwork,
    *,
    records: str | Path | None = None,
    verify: bool = True,
    measure: bool = False,
    progress: bool = True,
) -> CompiledBuckets: ...


def compile_network(
    network: Loaded,
    *,
    records: str | Path | None = None,
    verify: bool = True,
    measure: bool = False,
    progress: bool = True,
) -> CompiledNetwork | CompiledBuckets:
    """Build a network for this CPU.

    A task gets the fastest kernel that the records have of it on this machine, or else the
    one that the model thinks best. What cannot be built stays with the engine.

    Args:
        network: what :func:`amos.load_network` returned.
        records: file of earlier measurements.
        verify: compare each kernel with NumPy, and the whole with the engine alone.
        measure: time the best kernels of the records, or those that the model thinks best,
            beside the engine's own code for the group, and the fastest of them inside the
            network. The fastest there stays.
        progress: show how far it is, on a terminal and in a notebook.

    Raises:
        NetworkError: a result is wrong, or the engine cannot compile the rest.
        RecordError: the record file cannot be read.
    """
    checked_network(network)
    ranked = _ranked(records)
    if isinstance(network, BucketedNetwork):
        build = partial(_compiled, ranked=ranked, verify=verify, measure=measure, progress=progress)
        return compiled_buckets(network, build, verify)
    return _compiled(network, ranked, verify, measure, progress)


def _compiled(
    network: Network,
    ranked: Mapping[str, Sequence[Record]],
    verify: bool,
    measure: bool,
    progress: bool,
) -> CompiledNetwork:
    chooser = Chooser("host")
    finalists: dict[Task, Sequence[TaskKernel]] = {}
    left: dict[Task, str] = {}
    with ProgressLine(progress) as line:
        for number, task in enumerate(network.tasks):
            line.show(f"kernel {number + 1} of {len(network.tasks)}: {task.operator.name}")
            try:
                choices = _choices(task, chooser, ranked, _MEASURED if measure else 1)
                built = [build_kernel(choice, f"amos_task_{number}") for choice in choices]
            except (BuildError, MappingError, ScheduleError) as error:
                left[task] = str(error).splitlines()[0]
                continue
            several, why = _fastest(built, task) if measure else (built, "")
            if why:
                left[task] = why
            else:
                finalists[task] = several
        line.show("compiling the rest")
        inside = _inside(network, finalists)
        kernels = {
            task: each[inside[task].chosen if inside else 0] for task, each in finalists.items()
        }
        checks = tuple(map(_checked, kernels.values())) if verify else ()
        linked = _linked(network, kernels)
        every = [each for task in network.tasks for each in _records(task, chooser, ranked)]
        unused = Counter(each.standing for each in every if not each.counts_here)
        comparisons = tuple(inside.values())
        model = CompiledNetwork(network, linked, kernels, left, checks, comparisons, unused)
        if verify:
            line.show("comparing with the engine alone")
            model = model.with_check(_compared_with_engine(network, model))
    return model


def _ranked(records: str | Path | None) -> Mapping[str, Sequence[Record]]:
    if records is None:
        return {}
    with Records(records, readonly=True) as store:
        return records_by_operator(store.all())


def _choices(
    task: Task, chooser: Chooser, ranked: Mapping[str, Sequence[Record]], count: int
) -> Sequence[Choice]:
    """The best of the records, or of what the model thinks of."""
    here = (each for each in _records(task, chooser, ranked) if each.counts_here)
    rebuilt = (choice_of_record(each, chooser) for each in here)
    if recorded := [*islice(filter(None, rebuilt), count)]:
        return recorded
    if count == 1:
        return [chooser.predicted(task.operator, thorough=True)]
    return chooser.promising(task.operator, count)


def _records(
    task: Task, chooser: Chooser, ranked: Mapping[str, Sequence[Record]]
) -> Sequence[Record]:
    return ranked.get(operator_key(chooser.operator(task.operator)), ())


def _fastest(kernels: Sequence[TaskKernel], task: Task) -> tuple[Sequence[TaskKernel], str]:
    """The fastest of some kernels in order, and that the engine's own code is faster, if it is."""
    *own, engines = compare(kernels, task.groups[0])
    least = min(own)
    order = sorted(range(len(own)), key=own.__getitem__)[:_INSIDE]
    if least <= engines:
        return [kernels[n] for n in order], ""
    return (
        (),
        f"the kernel takes {least * 1e3:.4g} ms, the engine's own code {engines * 1e3:.4g} ms",
    )


def _inside(
    network: Network, kernels: Mapping[Task, Sequence[TaskKernel]]
) -> Mapping[Task, Comparison]:
    """The kernels of each task timed in the network, if there are several of any."""
    count = max(map(len, kernels.values()), default=1)
    if count == 1:
        return {}
    models = []
    for n in range(count):
        lineup = {task: each[min(n, len(each) - 1)] for task, each in kernels.items()}
        models.append(CompiledNetwork(network, _linked(network, lineup), lineup))
    return compare_inside(models, kernels)


def _checked(kernel: TaskKernel) -> Check:
    """A kernel held against NumPy on random inputs.

    Raises:
        NetworkError: it computes something else.
    """
    operator = kernel.operator
    inputs, (expected,) = References().get(operator)
    difference, strange = compared(kernel.run(inputs), expected)
    allowed = tolerance(operator, expected)
    if strange or not difference <= allowed:
        raise NetworkError(
            f"the kernel of {operator} on {kernel.choice.intrinsic.name} is wrong: it differs "
            f"from NumPy by {difference:g}, {allowed:g} is allowed"
        )
    return Check(operator.name, "NumPy", difference, allowed)


def _linked(network: Network, kernels: Mapping[Task, TaskKernel]) -> Any:
    """One module of the kernels and what the engine makes of the rest.

    Raises:
        NetworkError: the engine cannot compile it.
    """
    rewrite: dict[int, Any] = {}
    skip: set[int] = set()
    for task, kernel in kernels.items():
        for group in task.groups:
            skip |= {node.number for node in group.nodes[:-1]}
            rewrite[group.result.number] = _Call(kernel, group)
    module = rebuilt(network.graph, rewrite, frozenset(skip))
    libraries = [kernel.library.mod for kernel in kernels.values()]
    if libraries:
        module = module.with_attr("external_mods", libraries)
    try:
        return engine.executable(module)
    except Exception as error:  # TVM's passes fail with errors of many types
        said = f"{network.name}: TVM cannot compile it: {last_line(error)}"
        raise NetworkError(said) from error


@dataclass(frozen=True)
class _Call:
    """Writes the call of a kernel in the place of a group."""

    kernel: TaskKernel
    group: Any

    def __call__(self, writer: Any) -> Any:
        return self.kernel.call(self.group, writer)


def _compared_with_engine(network: Network, model: CompiledNetwork) -> Check:
    """The whole network held against the engine's own build of the model as it was read.

    Raises:
        NetworkError: it computes something else.
    """
    inputs = random_arrays(network)
    alone = CompiledNetwork(network, engine.executable(network.original), {}, {}, ())
    check = check_outputs(
        network, "the engine alone", model.outputs_of(inputs), alone.outputs_of(inputs)
    )
    if not check.passed:
        raise NetworkError(
            f"{network.name}: differs from the engine alone by {check.difference:g}, "
            f"{check.allowed:g} is allowed"
        )
    return check
