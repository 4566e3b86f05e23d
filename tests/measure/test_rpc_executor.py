"""Measuring by way of TVM's RPC tracker, on loopback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

import amos
from amos.errors import MeasureError
from amos.ir import Operator

pytest.importorskip("tornado", reason="TVM's tracker needs tornado, of the extra 'distributed'")

VNNI = "vnni_dpbusd_m16k4_u8_s8_s32"
GEMM = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=6, j=32, k=8))

_BOARD = """
import sys, time
from tvm.rpc.server import Server
from tvm.rpc.tracker import Tracker
if __name__ == "__main__":
    tracker = Tracker(host="127.0.0.1", port=9390, port_end=9490, silent=True)
    server = Server(
        "127.0.0.1", port=9491, port_end=9590, key="board",
        tracker_addr=("127.0.0.1", tracker.port), silent=True,
    )
    print(tracker.port, flush=True)
    sys.stdin.read()
    server.terminate()
    tracker.terminate()
"""


@pytest.fixture(scope="module")
def tracker() -> Iterator[str]:
    run = subprocess.Popen(
        [sys.executable, "-c", _BOARD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert run.stdout is not None
    port = run.stdout.readline().strip()
    if not port:
        pytest.skip("the tracker does not start here")
    try:
        yield f"rpc://127.0.0.1:{port}"
    finally:
        run.communicate(timeout=30)


@pytest.mark.slow
def test_a_run_on_a_board(tracker: str) -> None:
    result = amos.explore(
        GEMM, VNNI, trials=3, measure=amos.MeasureOptions(executor=f"{tracker}/board")
    )
    assert result.failures == {}
    assert result.best.measurement is not None
    assert result.best.measurement.verified_elements == 6 * 32


def test_no_tracker_and_no_address() -> None:
    with pytest.raises(
        MeasureError, match="executor rpc://127.0.0.1:9/board: the tracker does not"
    ) as caught:
        amos.explore(
            GEMM, VNNI, trials=1, measure=amos.MeasureOptions(executor="rpc://127.0.0.1:9/board")
        )
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(MeasureError, match="expected 'rpc://HOST:PORT/KEY'"):
        amos.explore(GEMM, VNNI, trials=1, measure=amos.MeasureOptions(executor="rpc://127.0.0.1"))
