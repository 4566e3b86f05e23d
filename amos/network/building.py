"""The kernels of a task: which ones are tried, built, and right.

Requests and answers are plain values, so that another process can build the kernels.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from amos._toolchain import load_tvm
from amos.errors import BuildError, MappingError, NetworkError, ScheduleError
from amos.intrinsics import adopt
from amos.ir import Operator
from amos.measure.reference import References
from amos.network.candidates import Choice, Chooser, choice_of_record, operator_key
from amos.network.checking import checked_kernel
from amos.network.groups import Task
from amos.network.kernels import TaskKernel, build_kernel
from amos.network.model import Check
from amos.network.winograd import by_tiles, form_of, pays
from amos.operators.winograd import Winograd
from amos.records import Record

#: Candidates that are searched for where the first kernel of a task is wrong.
_MORE = 4


@dataclass(frozen=True)
class KernelRequest:
    """A task whose kernels are wanted.

    Attributes:
        operator: of the task.
        form: the convolution that it is by Winograd's tiles; ``None`` where it is none.
        symbol: what to call the function.
        count: how many kernels, the one that seems best first.
        records: of the operator, the fastest first.
        product_records: of the product of its tiles.
        verify: compare each kernel with NumPy.
    """

    operator: Operator
    form: Winograd | None
    symbol: str
    count: int
    records: tuple[Record, ...]
    product_records: tuple[Record, ...]
    verify: bool


@dataclass(frozen=True)
class BuiltKernels:
    """The kernels of a task.

    Attributes:
        kernels: that can be built and are right.
        checks: of each, where they were compared.
        failures: what was wrong with others, in sentences.
        reason: why there is no kernel; empty where there is one.
    """

    kernels: tuple[TaskKernel, ...] = ()
    checks: tuple[Check, ...] = ()
    failures: tuple[str, ...] = ()
    reason: str = ""


def request_kernels(
    task: Task,
    symbol: str,
    count: int,
    *,
    chooser: Chooser,
    ranked: Mapping[str, Sequence[Record]],
    verify: bool,
) -> KernelRequest:
    """State what is wanted of a task.

    Args:
        task: of a network.
        symbol: what to call its function.
        count: how many kernels.
        chooser: of the machine.
        ranked: records by :func:`operator_key`, the fastest first.
        verify: compare each kernel with NumPy.
    """
    form = form_of(task, chooser)
    own = records_of(task.operator, chooser, ranked)
    product = () if form is None else records_of(form.operator, chooser, ranked)
    return KernelRequest(task.operator, form, symbol, count, own, product, verify)


def records_of(
    operator: Operator, chooser: Chooser, ranked: Mapping[str, Sequence[Record]]
) -> tuple[Record, ...]:
    """The records of an operator, the fastest first."""
    return tuple(ranked.get(operator_key(chooser.operator(operator)), ())) if ranked else ()


def load_builders() -> None:
    """Import ahead what building takes."""
    load_tvm()
    Chooser("host").target(())


def build_elsewhere(request: KernelRequest, added: bytes) -> BuiltKernels:
    """Build the kernels of a task in a process for another one.

    Args:
        request: what is wanted.
        added: pickled, what the other one registered beside built-in intrinsics.
    """
    return build_kernels(request, _host_with(added))


@lru_cache(maxsize=1)
def _host_with(added: bytes) -> Chooser:
    """The chooser for this machine, as long as intrinsics stay the same."""
    adopt(pickle.loads(added))
    return Chooser("host")


def build_kernels(request: KernelRequest, chooser: Chooser) -> BuiltKernels:
    """Build the kernels of a task; those that are wrong give way to the next candidate."""
    references = References()
    kernels: list[TaskKernel] = []
    checks: list[Check] = []
    failures: list[str] = []
    reason = ""
    try:
        for choice in _choices(request, chooser):
            try:
                kernel = build_kernel(choice, request.operator, request.symbol)
                if request.verify:
                    checks.append(checked_kernel(kernel, references))
            except NetworkError as error:
                failures.append(str(error))
                reason = reason or failures[-1]
                continue
            except (BuildError, ScheduleError) as error:
                reason = reason or str(error).splitlines()[0]
                continue
            kernels.append(kernel)
            if request.count == 1:
                break  # before more are searched for
    except MappingError as error:
        reason = str(error).splitlines()[0]
    return BuiltKernels(tuple(kernels), tuple(checks), tuple(failures), "" if kernels else reason)


def _choices(request: KernelRequest, chooser: Chooser) -> Iterator[Choice]:
    """The best of the records, or of what the model thinks of; of several both.

    A convolution is also there by tiles: first where that is taken, else last. Where all of
    them fail, some follow that are searched for only then.
    """
    direct = _of_operator(request.operator, chooser, request.records, request.count)
    ordered = [*direct]
    if request.form is not None:

        def best(product: Operator) -> Choice:
            return _of_operator(product, chooser, request.product_records, 1)[0]

        tiles = by_tiles(request.form, request.operator, chooser, best)
        if tiles is not None:
            ordered.insert(0 if pays(tiles, direct[0]) else len(direct), tiles)
    yield from ordered
    seen = {each.key for each in ordered}
    if request.count == 1:
        more = chooser.promising(request.operator, _MORE)
        yield from (each for each in more if each.key not in seen)


def _of_operator(
    operator: Operator, chooser: Chooser, records: Sequence[Record], count: int
) -> Sequence[Choice]:
    here = (each for each in records if each.counts_here)
    rebuilt = (choice_of_record(each, chooser) for each in here)
    recorded = [*islice(filter(None, rebuilt), max(count - 1, 1))]
    if count == 1:
        return recorded or [chooser.predicted(operator, thorough=True)]
    more = chooser.promising(operator, count - len(recorded))
    seen = {each.key for each in recorded}
    return [*recorded, *(each for each in more if each.key not in seen)]
