"""Tensors that are there at once lie apart, and those that are not share memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from amos.network.external.straight_line import ALIGNMENT_BYTES, Span, plan_offsets

_SPANS = st.lists(
    st.builds(
        lambda size, first, steps: Span(size, first, first + steps),
        st.integers(0, 1000),
        st.integers(0, 20),
        st.integers(0, 5),
    ),
    max_size=30,
)


@given(_SPANS)
def test_tensors_that_are_there_at_once_lie_apart(spans: list[Span]) -> None:
    offsets, total = plan_offsets(spans)
    for n, (offset, span) in enumerate(zip(offsets, spans, strict=True)):
        assert offset % ALIGNMENT_BYTES == 0
        assert offset + span.size <= total
        for other_offset, neighbour in zip(offsets[:n], spans[:n], strict=True):
            meet = span.first <= neighbour.last and neighbour.first <= span.last
            disjoint = offset + span.size <= other_offset or other_offset + neighbour.size <= offset
            assert disjoint or not meet or not span.size or not neighbour.size


def test_a_chain_takes_as_much_as_two_of_its_tensors() -> None:
    """What a step reads is not where it writes."""
    spans = [Span(640, step, step + 1) for step in range(10)]
    assert plan_offsets(spans)[1] == 2 * 640


def test_small_tensors_fill_gaps() -> None:
    spans = [Span(640, 0, 1), Span(1280, 1, 2), Span(640, 2, 3), Span(640, 2, 3)]
    assert plan_offsets(spans)[1] == 3 * 640 + 640
