"""Schedulers of a network's tasks, replayed on stored samples."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from amos.errors import ExploreError, RecordError
from amos.explore.task_scheduler import TaskState
from amos.reproduce import gta_fig8
from amos.reproduce.gta_fig8 import NETWORKS, _divide, _until
from amos.reproduce.pools import POOLED, PooledTask, load, load_pool, save


@pytest.mark.long
def test_trials_go_where_the_network_gains() -> None:
    rows = gta_fig8(seeds=1)
    assert [(row.network, row.scheduler) for row in rows[:5]] == [
        ("resnet18", name) for name in ("equal", "round_robin", "gradient", "dual", "bound")
    ]
    saved = dict.fromkeys(("gradient", "dual", "bound"), 0)
    for network, layers in NETWORKS.items():
        of = {(row.model, row.scheduler): row for row in rows if row.network == network}
        needed = {(model, name): row.within5[0] for (model, name), row in of.items()}
        # The model finds a fast kernel of each layer among the first; nobody needs many more.
        guided = [count for (model, name), count in needed.items() if model and name != "equal"]
        assert max(guided) <= 4 * len(layers)
        assert of[True, "bound"].within1[0] <= 10 * len(layers)
        # By chance it takes longer, and who looks at results needs less than who does not.
        even = needed[False, "round_robin"]
        assert even > 2 * max(guided)
        for name in saved:
            saved[name] += even - needed[False, name]
        # One task after the other: the network is slow until the last has its turn.
        assert needed[False, "equal"] > even
    assert min(saved.values()) > 0


def test_until_counts_slices() -> None:
    """Two tasks, of which one gains all in its second slice; the first slice of each is due."""
    tasks = [TaskState(1.0, 100, "conv", 1.0, 1.0)] * 2
    curves = [[4.0, 4.0], [2.0, 1.0]]
    assert _divide("round_robin", tasks, [5.0, math.inf], curves) == [math.inf, math.inf, 6, 6, 5]
    histories = [np.array([9.0, 6.0, 6.0, 5.0]), np.array([5.0])]
    assert _until(histories, 5.05, 4) == (0, 12)
    assert _until(histories, 5.05, 1) == (0, 3)


def test_a_pool_is_kept_and_read(tmp_path: Path) -> None:
    pool = PooledTask("out", "conv", 2, 100, 1.0, (0, 1), (1.0, 2.0), (3.0, 1.5))
    save([pool, pool], tmp_path / "pool.gz")
    assert load(tmp_path / "pool.gz") == [pool, pool]
    with pytest.raises(RecordError, match="expected a mapping and times of each kernel"):
        replace(pool, measured=(3.0,))
    (tmp_path / "pool.gz").write_bytes(b"no pool")
    with pytest.raises(RecordError, match="pool.gz' cannot be read"):
        load(tmp_path / "pool.gz")
    for name in POOLED:
        assert min(len(task.measured) for task in load_pool(name)) >= 16


def test_no_replay_is_refused() -> None:
    with pytest.raises(ExploreError, match="seeds: expected a whole number from 1 on, got 0"):
        gta_fig8(0)
