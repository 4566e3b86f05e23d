"""Schedulers of a network's tasks, replayed on stored samples."""

from __future__ import annotations

import pytest

from amos.errors import ExploreError
from amos.reproduce import gta_fig8
from amos.reproduce.gta_fig8 import NETWORKS


def test_trials_go_where_the_network_gains() -> None:
    rows = gta_fig8(seeds=1)
    assert [(row.network, row.scheduler) for row in rows[:4]] == [
        ("resnet18", name) for name in ("round_robin", "gradient", "dual", "bound")
    ]
    for network, layers in NETWORKS.items():
        of = {(row.model, row.scheduler): row for row in rows if row.network == network}
        # The model finds a fast kernel of each layer among the first; nobody needs many more.
        guided = [row for (model, _), row in of.items() if model]
        assert all(row.within5 == 4 * len(layers) for row in guided)
        assert all(row.within1 <= 10 * len(layers) for row in guided)
        # By chance it takes longer, and who looks at results needs less than who does not.
        even = of[False, "round_robin"].within5
        assert even > 2 * guided[0].within5
        assert all(of[False, name].within5 < even for name in ("gradient", "dual", "bound"))


def test_no_replay_is_refused() -> None:
    with pytest.raises(ExploreError, match="seeds: expected at least one, got 0"):
        gta_fig8(0)
