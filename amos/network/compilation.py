"""``amos.compile``: a kernel for each task, in a model that onnxruntime runs."""

from __future__ import annotations

import errno
import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import TypedDict, Unpack, overload

from amos._progress import ProgressLine
from amos.errors import MappingError, NetworkError, quote
from amos.explore.choosing import Chooser
from amos.measure.helpers import HelperLost
from amos.measure.result_cache import has_result
from amos.network.bucketed import CompiledBuckets, join_buckets
from amos.network.buckets import BucketedNetwork, Loaded
from amos.network.comparison import (
    Comparison,
    compare_alone,
    compare_in_network,
    select_faster_fused,
)
from amos.network.external.compiled import CompiledNetwork
from amos.network.external.linking import link_models, link_trial
from amos.network.external.partition import PartitionedNetwork
from amos.network.groups import Job, Task, drop_fused_groups, select_heaviest
from amos.network.kernels import (
    BuiltKernels,
    CompiledRegion,
    TaskKernel,
    build_kernels,
    load_builders,
    require_compiler,
    start_builders,
)
from amos.network.lowerings.base import Lowering
from amos.network.lowerings.choosing import (
    TaskLowerings,
    list_lowerings,
    predict_lowering,
)
from amos.network.lowerings.fused import choose_fused
from amos.network.network import Network, check_network
from amos.network.precision.choosing import (
    BUDGET,
    check_choice,
    choose_precision,
    has_choice,
    keep_precision,
)
from amos.network.precision.samples import Samples
from amos.network.precision.variants import Accuracy
from amos.network.sessions import MODEL
from amos.network.task_records import find_records, rank_records
from amos.records import Record

#: Kernels of a task that are timed alone, and finalists of them that are timed in the network.
_MEASURED, _FINALISTS = 6, 4
#: Kernels of a chain that are timed alone.
_CHAINS = 4
#: Share of a network's predicted time in the tasks that are measured. The many small ones, which
#: have the rest of it, would take most of the time of measuring.
_HEAVY_SHARE = 0.9
#: Errors of a folder for temporary files that is full, or that cannot be written.
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
#: Hexadecimal digits of a symbol.
_DIGITS = 24


class Options(TypedDict, total=False):
    """Options of :func:`compile_network`, which documents them."""

    records: str | Path | None
    verify: bool
    measure: bool
    precision: str
    budget: float
    samples: Samples | None
    accuracy: Accuracy | None
    progress: bool


@overload
def compile_network(network: PartitionedNetwork, **options: Unpack[Options]) -> CompiledNetwork: ...


@overload
def compile_network(network: BucketedNetwork, **options: Unpack[Options]) -> CompiledBuckets: ...


def compile_network(
    network: Loaded,
    *,
    records: str | Path | None = None,
    verify: bool = True,
    measure: bool = False,
    precision: str = "f32",
    budget: float = BUDGET,
    samples: Samples | None = None,
    accuracy: Accuracy | None = None,
    progress: bool = True,
) -> CompiledNetwork | CompiledBuckets:
    """Build a network for this CPU.

    A task gets the fastest kernel in the records of this machine, or else the one that is
    predicted fastest; records of a convolution may be of the product of its tiles. Convolutions
    that are faster as a cascade are fused: by the records, if these have the cascade and all of
    its convolutions, else by the model. A kernel
    whose results differ from NumPy's is replaced by the next candidate; a task without a right
    kernel is computed by plain loops. Regions that AMOS computes wrongly or more slowly stay with
    onnxruntime.

    Args:
        network: what :func:`amos.load_network` returned.
        records: file of earlier measurements.
        verify: compare each kernel with NumPy, and the whole as
            :meth:`CompiledNetwork.check` does.
        measure: time the best kernels of heavy tasks, by the records and by the model, beside
            plain loops, then the fastest of them and cascades in the network, and use the
            fastest there.
        precision: of the factors of products: ``"f32"`` as the model says, ``"bf16"`` or ``"f16"``
            wherever that is predicted to be faster, ``"int8"`` by the ranges of the samples, or
            ``"auto"``, the fastest within the budget. Sums stay 32 bits wide. Buckets stay in f32.
        budget: error that ``"auto"`` allows: the 2-norm of the difference over that of the
            results, the largest of all samples and outputs.
        samples: inputs of calls by name or in order, or a file of NumPy's format ``npz`` with
            them; random ones by default, by which nothing is quantized.
        accuracy: how good results are; the budget is then the loss of it that is allowed.
        progress: show how far it is, on a terminal and in a notebook.

    Raises:
        NetworkError: AMOS cannot compile it or computes it wrongly, and onnxruntime does not
            take it; or there is no C compiler, or no room for temporary files; or the precision
            cannot be had.
        RecordError: the record file cannot be read.
    """
    check_network(network)
    for name, value in {"verify": verify, "measure": measure}.items():
        if not isinstance(value, bool):
            raise NetworkError(f"{name}: expected True or False, got {quote(value)}")
    build = _Builder(rank_records(records), verify, measure)
    with ProgressLine(progress) as build.line, ExitStack() as stack:
        stack.enter_context(_explaining_full_disks())
        frontier = None
        check_choice(precision, budget)
        build.chooser.target(())  # measured here, if it never was, and by no two processes
        if precision == "auto" and not has_choice(network, samples):
            precision = "f32"
        if build.is_new(network.tasks, precision):
            start_builders(len(network.tasks))
            load_builders()  # before there are threads, beside which TVM would load PyTorch
            stack.enter_context(_collecting_new_objects())
        if precision != "f32":
            build.line.show("measuring errors of other precisions")
            frontier = choose_precision(
                network, precision, budget=budget, samples=samples, accuracy=accuracy
            )
            network = frontier.chosen.network
        else:
            network = keep_precision(network)
        if isinstance(network, BucketedNetwork):
            return join_buckets(network, build.models(network.files), verify)
        (model,) = build.models({MODEL: network})
        return replace(model, precision=frontier)


@contextmanager
def _explaining_full_disks() -> Iterator[None]:
    """Say in a line that temporary files cannot be written."""
    try:
        yield
    except OSError as error:
        # Without a name of a file it is the search for a folder that fails.
        is_nowhere = isinstance(error, FileNotFoundError) and error.filename is None
        if not is_nowhere and error.errno not in _DISK_ERRORS:
            raise
        raise NetworkError(
            f"temporary files cannot be written: {error.strerror or error}; "
            "TMPDIR names another folder"
        ) from error


@contextmanager
def _collecting_new_objects() -> Iterator[None]:
    """Keep what is there out of garbage collections, each of which looks through all modules."""
    if gc.get_freeze_count():  # the program has frozen some, which would be thawed
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@dataclass
class _Builder:
    """Builds the kernels of networks, whose symbols in one library are digests of their requests.

    Attributes:
        verify, measure: as of :func:`compile_network`.
        chooser: selects kernels for this machine.
    """

    ranked: Mapping[str, Sequence[Record]]
    verify: bool
    measure: bool
    line: ProgressLine = field(default_factory=lambda: ProgressLine(False))
    chooser: Chooser = field(default_factory=lambda: Chooser("host"))

    def is_new(self, tasks: Sequence[Task], precision: str) -> bool:
        """Return whether the cache on disk lacks a kernel, or prediction, of the heaviest task."""
        points = {task: task.weight * task.operator.points for task in tasks}
        heaviest = max(points, key=points.__getitem__, default=None)
        if heaviest is None:
            return False
        lowerings = list_lowerings(heaviest, self.chooser, self.ranked)
        if precision != "f32":
            return not has_result(self.chooser.result_key("prediction", lowerings))
        count = _MEASURED if self.measure else 1
        return not has_result(self.chooser.result_key("kernels", lowerings, count, self.verify))

    def models(self, networks: Mapping[str, PartitionedNetwork]) -> list[CompiledNetwork]:
        """Build the regions of models, by the names of their files."""
        if any(each.networks for each in networks.values()):
            require_compiler()  # before minutes are spent on kernels
        regions = {
            name: self.region(each, name)
            for network in networks.values()
            for name, each in network.networks.items()
        }
        self.line.show("linking, and comparing with onnxruntime")
        return link_models(networks, regions, verify=self.verify)

    def region(self, network: Network, name: str) -> CompiledRegion:
        """Build the kernels of a network, which are not linked yet."""
        self.line.show("searching cascades and chains")
        chains = choose_fused(network, self.chooser, _CHAINS if self.measure else 1, self.ranked)
        built_fused, single, measured = self.build_all(network, chains)
        if not (self.measure or all(each.kernels for each in built_fused.values())):
            # Some statements need kernels of their own after all.
            right = {job: chains[job] for job, each in built_fused.items() if each.kernels}
            _, single, measured = self.build_all(network, right)
        fused = {job: _select_alone(job, each) for job, each in built_fused.items() if each.kernels}
        finalists: dict[Job, Sequence[TaskKernel]] = {}
        fallbacks: dict[Job, str] = {}
        for task, built in single.items():
            kernels, why = [*built.kernels], built.reason
            if kernels and task in measured:
                kernels, why = _select_finalists(kernels, task)
            if why:
                fallbacks[task] = why
            else:
                finalists[task] = kernels
        comparisons = _compare_finalists(network, finalists)
        used = {
            task: each[comparisons[task].chosen if comparisons else 0]
            for task, each in finalists.items()
        }
        if self.measure and fused:
            fused = select_faster_fused(network, used, fused)
            used = drop_fused_groups(used, fused)
            fallbacks = drop_fused_groups(fallbacks, fused)
        used, built_kernels = used | fused, [*built_fused.values(), *single.values()]
        checks = {kernel: each for b in built_kernels for kernel, each in b.kernels.items()}
        return CompiledRegion(
            network,
            used,
            fallbacks,
            tuple(check for kernel in used.values() for check in checks[kernel]),
            tuple(comparisons.values()),
            self.count_unused(network, used),
            tuple(why for each in built_kernels for why in each.failures),
            function=name,
        )

    def build_all(
        self, network: Network, chains: Mapping[Job, Sequence[Lowering]]
    ) -> tuple[dict[Job, BuiltKernels], dict[Task, BuiltKernels], frozenset[Task]]:
        """Build kernels of chains and of tasks: several of those that are measured.

        Tasks that chains compute have kernels of their own if both are going to be measured.

        Returns:
            kernels of chains and of tasks, and the tasks that are measured.
        """
        tasks = network.tasks
        if not self.measure:
            tasks = tuple(drop_fused_groups(dict.fromkeys(tasks), chains))
        measured = _select_heavy(tasks, self.chooser) if self.measure else frozenset[Task]()
        lowerings = {task: list_lowerings(task, self.chooser, self.ranked) for task in tasks}
        # Chains and tiles take longest: begun first, they leave no core alone at the end.
        longest_first = sorted(tasks, key=lambda task: not lowerings[task].bands)
        jobs: list[Job] = [*chains, *longest_first]
        counts = [len(each) for each in chains.values()]
        counts += [_MEASURED if task in measured else 1 for task in longest_first]
        requests: list[TaskLowerings | Sequence[Lowering]] = [*chains.values()]
        requests += [lowerings[task] for task in longest_first]
        built = dict(zip(jobs, self.build_jobs(jobs, requests, counts), strict=True))
        return {each: built[each] for each in chains}, {x: built[x] for x in tasks}, measured

    def build_jobs(
        self,
        jobs: Sequence[Job],
        lowerings: Sequence[TaskLowerings | Sequence[Lowering]],
        counts: Iterable[int],
    ) -> list[BuiltKernels]:
        """Build some kernels of each task, cascade or chain, by its count, on all cores."""
        requests = [*zip(lowerings, counts, strict=True)]
        keys = [self.chooser.result_key("kernels", *each, self.verify) for each in requests]
        results = self.chooser.map_in_processes(
            build_kernels,
            lowerings,
            [f"amos_{key[:_DIGITS]}" for key in keys],
            [count for _, count in requests],
            repeat(self.verify),
            keys=keys,
            lost=_report_lost,
        )
        built: list[BuiltKernels] = []
        with closing(results):
            for place, job in enumerate(jobs):
                self.line.show(f"kernel {place + 1} of {len(jobs)}: {job.operator.name}")
                built.append(next(results))
        return built

    def count_unused(self, network: Network, used: Mapping[Job, TaskKernel]) -> Counter[str]:
        """Count the records of a network's tasks that do not count here, by reason."""
        operators = [task.operator for task in network.tasks]
        operators += [each for kernel in used.values() for each in kernel.lowering.tuned]
        records = (
            record
            for operator in dict.fromkeys(operators)
            for record in find_records(operator, self.chooser, self.ranked)
        )
        return Counter(record.standing for record in records if not record.counts_here)


def _report_lost(error: HelperLost) -> BuiltKernels:
    """Return that a task has no kernels, as building them ended a process."""
    return BuiltKernels(failures=(str(error),), reason=str(error))


def _select_alone(job: Job, built: BuiltKernels) -> TaskKernel:
    """Select the fastest of the kernels of a cascade or a chain, timed alone."""
    kernels = [*built.kernels]
    if len(kernels) == 1:
        return kernels[0]
    *seconds, _ = compare_alone(kernels, job)
    return kernels[seconds.index(min(seconds))]


def _select_heavy(tasks: Sequence[Task], chooser: Chooser) -> frozenset[Task]:
    """Select the tasks that have most of the predicted time."""
    seconds: dict[Task, float] = {}
    for task in tasks:
        with suppress(MappingError):
            seconds[task] = task.weight * predict_lowering(task, chooser).expected
    return frozenset(select_heaviest(seconds, _HEAVY_SHARE))


def _select_finalists(kernels: Sequence[TaskKernel], task: Task) -> tuple[list[TaskKernel], str]:
    """Select the fastest kernels, in order; none, with the reason, if plain loops are faster."""
    *own, loops = compare_alone(kernels, task)
    least = min(own)
    if least > loops:
        return [], f"the kernel takes {least * 1e3:.4g} ms, plain loops {loops * 1e3:.4g} ms"
    order = sorted(range(len(own)), key=own.__getitem__)[:_FINALISTS]
    return [kernels[n] for n in order], ""


def _compare_finalists(
    network: Network, kernels: Mapping[Job, Sequence[TaskKernel]]
) -> Mapping[Job, Comparison]:
    """Time the finalists of each task in the network, if any task has several."""
    count = max(map(len, kernels.values()), default=1)
    if count == 1:
        return {}
    models = [
        link_trial(CompiledRegion(network, {x: k[min(n, len(k) - 1)] for x, k in kernels.items()}))
        for n in range(count)
    ]
    return compare_in_network(models, kernels)
