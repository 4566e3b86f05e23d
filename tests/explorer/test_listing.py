"""A mapping space as rows: in parts, filtered, sorted, with predicted times."""

from __future__ import annotations

import time

import amos
from tests.explorer.test_engine import LARGE, _judge, _rows


def test_rows_come_in_parts() -> None:
    space = amos.enumerate_mappings(
        amos.operators.resolve("conv2d"), amos.intrinsics.get("wmma_m16n16k16_f16_f32")
    )
    answer = _rows({}, first=30, count=50)
    assert (answer["total"], answer["left"], len(answer["rows"])) == (49, 49, 19)
    assert [row["name"] for row in answer["rows"]] == [m.name for m in space[30:]]


def test_rows_are_filtered_and_sorted() -> None:
    space = amos.enumerate_mappings(
        amos.operators.resolve("conv2d"), amos.intrinsics.get("wmma_m16n16k16_f16_f32")
    )
    calls = [row["calls"] for row in _rows({}, order="calls", down=True)["rows"]]
    counts = sorted((m.physical().calls for m in space), reverse=True)
    assert calls == [f"{count:,}" for count in counts]
    rows = _rows({}, words="i1:pq r1:c", least=0.9, order="utilization", down=True)["rows"]
    expected = [
        mapping.name
        for mapping in space
        if {"p", "q"} <= set(mapping.groups["i1"])
        and "c" in mapping.groups["r1"]
        and mapping.physical().utilization >= 0.9
    ]
    assert sorted(row["name"] for row in rows) == sorted(expected)
    shares = [row["utilization"] for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert [row["name"] for row in _rows({}, words="npq-k-cs")["rows"]] == ["npq-k-cs"]


def test_ten_thousand_rows_are_ready_at_once() -> None:
    _rows(LARGE)
    times = []
    for first in range(9000, 9010):
        start = time.thread_time()
        answer = _rows(LARGE, first=first)
        times.append(time.thread_time() - start)
    # The quickest says what an answer takes; the others, what else this machine does.
    assert min(times) < 0.1
    assert (answer["total"], len(answer["rows"])) == (14415, 50)


def test_a_space_too_large_to_sort_is_listed_as_it_is() -> None:
    huge = {
        "operator": "o[a,b,c,d,e,f,g,h,i,j,p,q] += x[a,b,c,d,e,p,k,l,m,n] * y[f,g,h,i,j,q,k,l,m,n]",
        "extents": ", ".join(f"{n}=4" for n in "abcdefghijklmnpq"),
    }
    answer = _rows(huge, first=59_000, count=10)
    assert answer["total"] == 63 * 63 * 15
    assert len(answer["rows"]) == 10
    assert "up to 50,000 can be filtered" in _rows(huge, words="ab")["errors"]["filter"]


def test_mappings_are_ranked_by_predicted_time() -> None:
    state = dict(operator="conv2d", rule="access")
    answer = _rows(state, order="seconds")
    times = [row["seconds"] for row in answer["rows"]]
    assert answer["predicted"] and len(times) == 49
    assert times == sorted(times)
    first = answer["rows"][0]
    shown = _judge(**state, assignment=first["assignment"], order=first["order"])
    assert shown["prediction"]["seconds"] == times[0]


def test_without_a_machine_no_time_is_predicted() -> None:
    for state in (dict(operator="conv2d", machine=""), LARGE):
        answer = _rows(state)
        assert answer["rows"] and not answer["predicted"]
        assert {row["seconds"] for row in answer["rows"]} == {None}
        assert "up to 256 mappings" in _rows(state, order="seconds")["errors"]["filter"]
