"""How sources become the parts of a joined object: S3's limits kept, as few bytes through memory as they allow."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chunkstore_bindings.s3.joining import Part, Span, plan_parts
from chunkstore_bindings.s3.options import COPY_BYTES_MAX, PARTS_MAX

Ranges = list[tuple[int, int]]
"""Where each begins in its source, and its length."""


def spans(ranges: Ranges) -> list[Span]:
    return [Span(source, start, start + length) for source, (start, length) in enumerate(ranges)]


def whole(lengths: list[int]) -> list[Span]:
    return spans([(0, length) for length in lengths])


def check(wanted: list[Span], parts: list[Part], part_min: int, part_max: int, parts_max: int) -> None:
    assert len(parts) <= parts_max
    # In order, without holes: each range from its start to its end.
    position = {span.source: span.start for span in wanted}
    last = 0
    for span in [span for part in parts for span in part.spans]:
        assert span.source >= last
        assert span.start == position[span.source]
        assert span.stop > span.start
        position[span.source], last = span.stop, span.source
    assert position == {span.source: span.stop for span in wanted}
    for number, part in enumerate(parts):
        assert part.length <= part_max or not part.copied
        assert part.length >= part_min or number == len(parts) - 1
        assert len(part.spans) == 1 or not part.copied


def ranges(min_size: int, max_size: int) -> st.SearchStrategy[Ranges]:
    return st.lists(st.tuples(st.integers(0, 30), st.integers(0, 60)), min_size=min_size, max_size=max_size)


@given(ranges(0, 40), st.integers(10, 20), st.integers(10, 40))
@example([(0, 9), (3, 10), (0, 9), (1, 10)], 20, 10)
@example([(0, 25), (7, 1)], 40, 10)
@settings(max_examples=200, deadline=None)
def test_small_scopes(wanted: Ranges, part_max: int, carried: int) -> None:
    part_min, parts_max = 5, 10_000
    parts = plan_parts(spans(wanted), part_min=part_min, part_max=part_max, carried=carried)
    check(spans(wanted), parts, part_min, part_max, parts_max)


@given(ranges(30, 300))
@settings(max_examples=200, deadline=None)
def test_few_parts_allowed(wanted: Ranges) -> None:
    parts = plan_parts(spans(wanted), part_min=5, part_max=10_000, parts_max=20, carried=10)
    check(spans(wanted), parts, 5, 10_000, 20)


def test_more_than_an_object_can_hold() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        plan_parts(whole([COPY_BYTES_MAX] * (PARTS_MAX + 1)))
