"""Networks of these tests are compiled with brief searches, and run by AMOS if it is right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from amos.explore import choosing
from amos.explore.ranking import QuickSearch
from amos.measure import helpers
from amos.network.external.race import Timing


@pytest.fixture(scope="module", autouse=True)
def _brief_searches() -> Iterator[None]:
    """Which kernel is chosen rarely matters here; a thorough search takes longer than the rest."""
    helpers.stop_helpers()  # others search thoroughly, and are not patched
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "Thorough", QuickSearch)
        patch.setattr(helpers, "LEAST_CALLS", 1000)  # other processes would search for long
        yield


@pytest.fixture(scope="module", autouse=True)
def _not_raced() -> Iterator[None]:
    """Otherwise onnxruntime would run some of these small networks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Timing, "wins", property(lambda timing: not timing.fault))
        yield
