"""What a measurement says about itself, and where measurements are made."""

from __future__ import annotations

import pytest

from amos.errors import MeasureError
from amos.machine.identity import Identity, identify_host
from amos.measure.executor import LocalExecutor, open_executor
from amos.measure.runner import default_memory
from amos.records import Measurement
from amos.records.measurement import drop_outliers, noise_of

QUIET = (1.00, 1.01, 0.99, 1.00, 1.02, 0.98, 1.01, 0.99)


def test_outliers_do_not_count() -> None:
    disturbed = Measurement((*QUIET, 5.0, 9.0))
    assert disturbed.seconds == Measurement(QUIET).seconds == 1.0
    assert drop_outliers(QUIET) == QUIET
    # Faster than the rest is no disturbance.
    assert 0.5 in drop_outliers((*QUIET, 0.5))
    # Of three nobody can tell which one is off.
    assert drop_outliers((1.0, 1.0, 9.0)) == (1.0, 1.0, 9.0)


def test_noise() -> None:
    assert noise_of((1.0,)) == 0.0
    assert noise_of(()) == 0.0
    assert noise_of((1.0, 1.0, 1.0)) == 0.0
    assert 0.002 < noise_of(QUIET) < 0.02
    assert noise_of(QUIET * 4) == pytest.approx(noise_of(QUIET) / 2, rel=0.01)


def test_too_close_to_call() -> None:
    measurement = Measurement(QUIET)
    assert measurement.is_too_close(Measurement(tuple(t * 1.005 for t in QUIET)))
    assert not measurement.is_too_close(Measurement(tuple(t * 1.1 for t in QUIET)))
    assert not measurement.is_too_close(Measurement(failure="crash"))


def test_identities() -> None:
    assert identify_host() == identify_host()
    assert identify_host().name == "host"
    assert dict(identify_host().compilers)["apache-tvm"]
    assert Identity("host", "x", 2).key != Identity("host", "x", 4).key
    assert identify_host().model in str(identify_host())
    assert str(Identity("a100", "figures 1", 108)) == "a100 (described, figures 1)"


def test_executors_by_address() -> None:
    assert default_memory() > 1 << 28
    for address in (None, "local"):
        with open_executor(address) as executor:
            assert isinstance(executor, LocalExecutor)
            assert executor.identity == identify_host()
            assert open_executor(executor) is executor
    with pytest.raises(MeasureError, match="executor 'somewhere': expected 'local', 'tcp://"):
        open_executor("somewhere")
