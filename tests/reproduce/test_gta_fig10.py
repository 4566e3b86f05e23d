"""GTA's sampling rates, replayed on stored samples."""

from __future__ import annotations

import pytest

from amos.errors import ExploreError
from amos.reproduce import gta_fig10


@pytest.mark.long
def test_few_mappings_and_few_measurements_are_enough() -> None:
    """Within 2 % on the mean and 5 % on the worst layer, with a fifth of the measurements."""
    few, full = gta_fig10(budget=0.2, rates=(0.2, 1.0), seeds=2)
    assert few.measurements <= 0.2 and full.measurements <= 0.2
    assert few.mean >= 0.98 and few.worst >= 0.95
    # With all of them it finds the best there is.
    (whole,) = gta_fig10(budget=1.0, rates=(0.2,), seeds=1)
    assert whole.mean == whole.measurements == 1.0


@pytest.mark.parametrize("options", [{"budget": 0.0}, {"rates": (2.0,)}, {"seeds": 0}])
def test_what_is_no_share_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ExploreError, match="expected"):
        gta_fig10(**options)  # type: ignore[arg-type]
