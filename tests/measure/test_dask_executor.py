"""Measuring on a real Dask cluster of two worker processes on this machine."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import amos
from amos.codegen.tir.tensor_intrin import implementation
from amos.errors import MeasureError
from amos.explore.sweep import sweep
from amos.ir import Operator
from amos.machine.cpu import cpu
from amos.measure.dask_executor import map_on_cluster
from amos.records import Records, Trial
from tests.support.streams import OPERATORS, PYNQ, VTA

pytestmark = pytest.mark.features

distributed = pytest.importorskip("distributed", reason="needs the extra 'distributed'")

VNNI = "vnni_dpbusd_m16k4_u8_s8_s32"
#: What this CPU can do, and so the workers.
KIND = implementation(amos.intrinsics.get(VNNI), cpu().features)
GEMM = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=12, j=64, k=32))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with warnings.catch_warnings():
        # Of Dask's own clean-up.
        warnings.simplefilter("ignore")
        cluster = distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            host="127.0.0.1",
            silence_logs=50,
        )
        with cluster:
            yield cluster


@pytest.mark.filterwarnings("ignore")
def test_workers_without_the_instruction(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from amos.measure import dask_executor

    def lacking(*_: object) -> None:
        return None

    monkeypatch.setattr(dask_executor, "_introduce", lacking)
    with pytest.raises(MeasureError, match="none of 2 workers has avx512_vnni") as caught:
        amos.explore(
            GEMM, VNNI, trials=1, measure=amos.MeasureOptions(executor=cluster.scheduler_address)
        )
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.long
def test_a_run_survives_the_loss_of_a_worker(cluster: Any, tmp_path: Path) -> None:
    victims = [worker.pid for worker in cluster.workers.values()]
    path = tmp_path / "tuning.db"

    def tell(trial: Trial, _: int) -> None:
        if trial.number == 1:
            os.kill(victims[0], signal.SIGKILL)

    run: dict[str, Any] = dict(trials=4, records=path)
    there = amos.MeasureOptions(executor=cluster.scheduler_address, implementation=KIND)
    result = amos.explore(GEMM, VNNI, **run, measure=there, progress=tell)
    assert len(result.trials) == 4
    assert result.failures == {}
    assert result.best.measurement is not None
    assert result.best.measurement.verified_elements == 12 * 64
    with Records(path) as records:
        rows = [row for row in records.all() if row.phase == "search"]
    assert sorted(row.number for row in rows) == list(range(4))
    # Workers on this machine are this machine: the same run goes on without them.
    assert amos.explore(GEMM, VNNI, **run, measure=replace(there, executor=None)).replayed == 4


@pytest.mark.filterwarnings("ignore")
def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    from amos.measure import dask_executor

    monkeypatch.setattr(dask_executor, "_CONNECT", 0.5)
    with pytest.raises(MeasureError, match="executor tcp://127.0.0.1:9: .*does not answer"):
        amos.explore(
            GEMM, VNNI, trials=1, measure=amos.MeasureOptions(executor="tcp://127.0.0.1:9")
        )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.long
def test_calls_on_workers(cluster: Any) -> None:
    address = cluster.scheduler_address
    assert list(map_on_cluster(address, abs, range(-3, 3))) == [3, 2, 1, 0, 1, 2]
    with pytest.raises(MeasureError, match="ValueError: could not convert string"):
        list(map_on_cluster(address, float, ["text"]))
    with pytest.raises(MeasureError, match="executor 'here': expected that of Dask, tcp://HOST"):
        list(map_on_cluster("here", abs, [1]))
    with pytest.raises(MeasureError, match="serialize"):
        list(map_on_cluster(address, str, [threading.Lock()]))
    points = partial(sweep, VTA, PYNQ, {"machine.clock": [1e8]}, [OPERATORS["gemm"]], trials=1)
    assert list(points(executor=address)) == list(points())
