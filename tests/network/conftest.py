"""Networks of these tests are compiled with brief searches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from amos.network import candidates


@pytest.fixture(scope="module", autouse=True)
def _brief_searches() -> Iterator[None]:
    """Which kernel is chosen rarely matters here; a thorough search takes longer than the rest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("amos.network.candidates.GeneticSearch", candidates._Quick)
        yield
