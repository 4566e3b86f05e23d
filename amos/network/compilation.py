"""``amos.compile``: a kernel for each task, and onnxruntime, which runs them and the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count as counting
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, overload

from amos._progress import ProgressLine
from amos._threads import map_in_threads
from amos.errors import BuildError, MappingError, NetworkError, ScheduleError, shown
from amos.ir import Operator
from amos.network.bucketed import CompiledBuckets, compiled_buckets
from amos.network.buckets import BucketedNetwork, Loaded
from amos.network.candidates import (
    Choice,
    Chooser,
    choice_of_record,
    operator_key,
    records_by_operator,
)
from amos.network.cascades import CascadeTask, cascades_of, outside
from amos.network.checking import KernelChecks
from amos.network.comparison import Comparison, compare, compare_inside, faster_inside
from amos.network.cuts import of_strips
from amos.network.external.compiled import CompiledNetwork
from amos.network.external.linking import link_buckets, link_regions, link_trials, link_whole
from amos.network.external.partition import PartitionedNetwork
from amos.network.groups import Task
from amos.network.kernels import TaskKernel, build_cascade, build_kernel
from amos.network.model import CompiledRegion
from amos.network.network import Network, checked_network
from amos.network.winograd import by_tiles, pays, predicted
from amos.records import Record, Records

#: Kernels of a task that are measured alone, and of those the ones that are inside the network.
_MEASURED, _INSIDE = 6, 4
#: Candidates that are searched for where the first kernel of a task is wrong.
_MORE = 4
#: Share of a network's predicted time whose tasks are measured. The many small ones that are
#: left take most of the time it takes.
_MATTERS = 0.9
_T = TypeVar("_T")


@overload
def compile_network(
    network: Network | PartitionedNetwork,
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


@overload
def compile_network(
    network: Loaded,
    *,
    records: str | Path | None = None,
    verify: bool = True,
    measure: bool = False,
    progress: bool = True,
) -> CompiledNetwork | CompiledBuckets: ...


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
    one that the model thinks best; of a convolution the records may have the product of its
    tiles. Convolutions that are predicted to be faster as a cascade
    (:mod:`amos.operators.cascade`) are computed as such, whatever the records have of them.
    A kernel that computes something else than NumPy gives way to the next candidate, and what
    cannot be built, or has no right kernel, is computed by plain loops. An ONNX model that is
    wrong as a whole is divided between AMOS and onnxruntime, which also gets what it runs faster.

    Args:
        network: what :func:`amos.load_network` returned.
        records: file of earlier measurements.
        verify: compare each kernel with NumPy, and the whole as
            :meth:`CompiledNetwork.check` does.
        measure: of the tasks that matter, time the best kernels of the records, and those that
            the model thinks best, beside plain loops for the group, and the fastest of
            them inside the network, cascades too. The fastest there stays.
        progress: show how far it is, on a terminal and in a notebook.

    Raises:
        NetworkError: the network cannot be compiled, or a result is wrong, and onnxruntime does
            not take it either; or there is no C compiler.
        RecordError: the record file cannot be read.
    """
    checked_network(network)
    for name, value in {"verify": verify, "measure": measure}.items():
        if not isinstance(value, bool):
            raise NetworkError(f"{name}: expected True or False, got {shown(value)}")
    build = _Builder(_ranked(records), verify, measure)
    with ProgressLine(progress) as build.line:
        if isinstance(network, BucketedNetwork):
            regions = [build.region(each, name) for name, each in network.names.items()]
            return compiled_buckets(network, link_buckets(regions, verify=verify), verify)
        if isinstance(network, PartitionedNetwork):
            return build.divided(network)
        try:
            return build.whole(network)
        except NetworkError as refused:
            if network.divide is None:
                raise
            why = str(refused).splitlines()[0]
            return build.divided(network.divide(refused), why)


@dataclass
class _Builder:
    """Builds the kernels of networks, which have symbols of their own in one library.

    Attributes:
        ranked: records by operator.
        verify, measure: as of :func:`compile_network`.
        line: shows how far it is.
    """

    ranked: Mapping[str, Sequence[Record]]
    verify: bool
    measure: bool
    line: ProgressLine = field(default_factory=lambda: ProgressLine(False))
    chooser: Chooser = field(default_factory=lambda: Chooser("host"))
    numbers: Iterator[int] = field(default_factory=counting)

    def region(self, network: Network, name: str) -> CompiledRegion:
        """Build the kernels of a network."""
        region = _chosen(
            network, self.chooser, self.ranked, self.verify, self.measure, self.line, self.numbers
        )
        return replace(region, function=name)

    def whole(self, network: Network) -> CompiledNetwork:
        """Build a network that AMOS takes as a whole."""
        region = self.region(network, "main")
        self.line.show("linking, and comparing the whole")
        return link_whole(region, verify=self.verify)

    def divided(self, network: PartitionedNetwork, *refused: str) -> CompiledNetwork:
        """Build the regions of a model; ``refused`` says what went wrong before."""
        regions = {name: self.region(each, name) for name, each in network.networks.items()}
        self.line.show("linking, and comparing with onnxruntime")
        return link_regions(network, regions, verify=self.verify, refused=refused)


def _chosen(
    network: Network,
    chooser: Chooser,
    ranked: Mapping[str, Sequence[Record]],
    verify: bool,
    measure: bool,
    line: ProgressLine,
    numbers: Iterator[int],
) -> CompiledRegion:
    """A network with its kernels, not linked yet."""
    checks = KernelChecks(verify)
    cascades = _cascades(network, chooser, line, numbers, checks)
    tasks = network.tasks if measure else outside(network.tasks, cascades)
    finalists: dict[Task, Sequence[TaskKernel]] = {}
    left: dict[Task, str] = {}
    measured = _that_matter(tasks, chooser) if measure else frozenset()

    def build(task: Task, symbol: str) -> tuple[list[TaskKernel], str]:
        count = _MEASURED if task in measured else 1
        return _built(task, symbol, chooser, ranked, count, checks)

    symbols = [f"amos_task_{next(numbers)}" for _ in tasks]
    results = []
    for place, result in enumerate(map_in_threads(build, tasks, symbols)):
        line.show(f"kernel {place + 1} of {len(tasks)}: {tasks[place].operator.name}")
        results.append(result)
    for task, (built, why) in zip(tasks, results, strict=True):
        several, why = _fastest(built, task) if task in measured and built else (built, why)
        if why:
            left[task] = why
        else:
            finalists[task] = several
    inside = _inside(network, finalists)
    alone = {task: each[inside[task].chosen if inside else 0] for task, each in finalists.items()}
    if measure and cascades:
        cascades = _faster(network, alone, cascades)
        alone, left = _outside(alone, cascades), _outside(left, cascades)
    operators = [task.operator for task in network.tasks]
    operators += [each.choice.operator for each in alone.values() if each.choice.winograd]
    kernels = _together(alone, cascades)
    every = [each for one in operators for each in _records(one, chooser, ranked)]
    unused = Counter(each.standing for each in every if not each.counts_here)
    comparisons = tuple(inside.values())
    passed, failures = checks.of(kernels.values()), tuple(checks.failures)
    return CompiledRegion(network, kernels, left, passed, comparisons, unused, failures)


def _cascades(
    network: Network,
    chooser: Chooser,
    line: ProgressLine,
    numbers: Iterator[int],
    checks: KernelChecks,
) -> dict[CascadeTask, TaskKernel]:
    """The kernels of a network's cascades; convolutions of others stay tasks of their own."""
    built: dict[CascadeTask, TaskKernel] = {}
    for task, brief in cascades_of(network.tasks, network.graph, chooser).items():
        line.show(f"cascade: {task.operator.name}")
        choice = of_strips(task.operator, brief.by, brief.size, chooser, thorough=True)
        with suppress(BuildError, ScheduleError):
            if choice is not None:
                kernel = build_cascade(choice, f"amos_task_{next(numbers)}")
                if not checks.find_fault(kernel):
                    built[task] = kernel
    return built


def _faster(
    network: Network,
    kernels: Mapping[Task, TaskKernel],
    cascades: Mapping[CascadeTask, TaskKernel],
) -> dict[CascadeTask, TaskKernel]:
    """The cascades that are no slower in the network than the kernels of their convolutions."""
    lineups = _together(kernels), _together(_outside(kernels, cascades), cascades)
    models = link_trials(CompiledRegion(network, lineup) for lineup in lineups)
    return faster_inside(models, kernels, cascades)


def _together(*parts: Mapping[Any, TaskKernel]) -> dict[Task | CascadeTask, TaskKernel]:
    return {task: kernel for part in parts for task, kernel in part.items()}


def _outside(values: Mapping[Task, _T], cascades: Iterable[CascadeTask]) -> dict[Task, _T]:
    """What there is of tasks, without groups that are in cascades."""
    whole = {task.operator: value for task, value in values.items()}
    return {task: whole[task.operator] for task in outside([*values], cascades)}


def _that_matter(tasks: Sequence[Task], chooser: Chooser) -> frozenset[Task]:
    """The tasks that are predicted to take longest, as many as most of the time needs."""
    seconds: dict[Task, float] = {}
    for task in tasks:
        with suppress(MappingError):
            seconds[task] = task.weight * predicted(task, chooser).expected
    left, found = _MATTERS * sum(seconds.values()), set()
    for task in sorted(seconds, key=seconds.__getitem__, reverse=True):
        if left <= 0:
            break
        found.add(task)
        left -= seconds[task]
    return frozenset(found)


def _built(
    task: Task,
    symbol: str,
    chooser: Chooser,
    ranked: Mapping[str, Sequence[Record]],
    count: int,
    checks: KernelChecks,
) -> tuple[list[TaskKernel], str]:
    """Those kernels of a task that can be built and are right, and why there is none."""
    kernels: list[TaskKernel] = []
    why = ""
    try:
        for choice in _choices(task, chooser, ranked, count):
            try:
                kernel = build_kernel(choice, task.operator, symbol)
            except (BuildError, ScheduleError) as error:
                why = why or str(error).splitlines()[0]
                continue
            if fault := checks.find_fault(kernel):
                why = why or fault
                continue
            kernels.append(kernel)
            if count == 1:
                break  # before more are searched for
    except MappingError as error:
        why = str(error).splitlines()[0]
    return kernels, "" if kernels else why


def _ranked(records: str | Path | None) -> Mapping[str, Sequence[Record]]:
    if records is None:
        return {}
    with Records(records, readonly=True) as store:
        return records_by_operator(store.all())


def _choices(
    task: Task, chooser: Chooser, ranked: Mapping[str, Sequence[Record]], count: int
) -> Iterator[Choice]:
    """The best of the records, or of what the model thinks of; of several both.

    A convolution is also there by tiles: first where that is taken, else last. Where all of
    them fail, some follow that are searched for only then.
    """
    direct = _of_operator(task.operator, chooser, ranked, count)
    tiles = by_tiles(task, chooser, lambda product: _of_operator(product, chooser, ranked, 1)[0])
    ordered = [*direct]
    if tiles is not None:
        ordered.insert(0 if pays(tiles, direct[0]) else len(direct), tiles)
    yield from ordered
    seen = {each.key for each in ordered}
    if count == 1:
        more = chooser.promising(task.operator, _MORE)
        yield from (each for each in more if each.key not in seen)


def _of_operator(
    operator: Operator, chooser: Chooser, ranked: Mapping[str, Sequence[Record]], count: int
) -> Sequence[Choice]:
    here = (each for each in _records(operator, chooser, ranked) if each.counts_here)
    rebuilt = (choice_of_record(each, chooser) for each in here)
    recorded = [*islice(filter(None, rebuilt), max(count - 1, 1))]
    if count == 1:
        return recorded or [chooser.predicted(operator, thorough=True)]
    more = chooser.promising(operator, count - len(recorded))
    seen = {each.key for each in recorded}
    return [*recorded, *(each for each in more if each.key not in seen)]


def _records(
    operator: Operator, chooser: Chooser, ranked: Mapping[str, Sequence[Record]]
) -> Sequence[Record]:
    return ranked.get(operator_key(chooser.operator(operator)), ())


def _fastest(kernels: Sequence[TaskKernel], task: Task) -> tuple[Sequence[TaskKernel], str]:
    """Kernels, the fastest first; or none, and why plain loops stay."""
    *own, loops = compare(kernels, task)
    least = min(own)
    order = sorted(range(len(own)), key=own.__getitem__)[:_INSIDE]
    if least <= loops:
        return [kernels[n] for n in order], ""
    return (
        (),
        f"the kernel takes {least * 1e3:.4g} ms, plain loops {loops * 1e3:.4g} ms",
    )


def _inside(
    network: Network, kernels: Mapping[Task, Sequence[TaskKernel]]
) -> Mapping[Task, Comparison]:
    """The kernels of each task timed in the network, if there are several of any."""
    count = max(map(len, kernels.values()), default=1)
    if count == 1:
        return {}
    lineups = [
        {task: each[min(n, len(each) - 1)] for task, each in kernels.items()} for n in range(count)
    ]
    models = link_trials(CompiledRegion(network, _together(lineup)) for lineup in lineups)
    return compare_inside(models, kernels)
