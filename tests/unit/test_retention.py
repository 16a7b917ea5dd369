"""Retention: policies that cannot be, and the planner against a model that looks at every byte."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkstore.config import RetentionPolicy
from chunkstore.errors import InvalidArgument
from chunkstore.metadata.reserved import pattern_key
from chunkstore.records.segments import FLAG_SEALED, SegmentRecord
from chunkstore.upkeep.retention import ChunkLabel, plan_cut


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "size_bytes_max"),
        ({"size_bytes_max": 0}, "size_bytes_max"),
        ({"size_bytes_max": True}, "size_bytes_max"),
        ({"size_bytes_max": 1.5}, "size_bytes_max"),
        ({"size_bytes_max": (1 << 62) + 1}, "size_bytes_max"),
        ({"age_s_max": 0}, "age_s_max"),
        ({"age_s_max": -1.0}, "age_s_max"),
        ({"age_s_max": math.nan}, "age_s_max"),
        ({"age_s_max": math.inf, "size_bytes_max": 5}, "age_s_max"),
        ({"age_s_max": "1d"}, "age_s_max"),
    ],
)
def test_policies_that_cannot_be(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        RetentionPolicy(**arguments)
    assert caught.value.argument == named


@pytest.mark.parametrize("name", ["", "a\0", "\ud800*", "x" * 256, "x" * 256 + "*", "a\0*", 5, None, b"a"])
def test_names_that_cannot_be(name: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        pattern_key(name)
    assert caught.value.argument == "name_or_prefix"


# The planner


class Byte(NamedTuple):
    chunk: int
    written_ms: int


class Model:
    """A segment, told byte by byte: what was written when, into which chunk, and which chunks came by a concat."""

    def __init__(self, steps: list[tuple[str, int, int]]) -> None:
        self.bytes: list[Byte] = []
        self.labels: list[ChunkLabel] = []
        self.modified = 0
        now = 0
        for kind, size, pause in steps:
            now += pause
            if kind == "concat":
                # Made at any time before, written until now: nothing says when.
                self.labels.append(ChunkLabel(len(self.bytes), max(0, now - 3 * size), False))
                self.bytes += [Byte(len(self.labels) - 1, now - pause // 2)] * size
            elif kind == "append" or not self.labels or not self.labels[-1].proves:
                self.labels.append(ChunkLabel(len(self.bytes), now, True))
                self.bytes += [Byte(len(self.labels) - 1, now)] * size
            else:
                self.bytes += [Byte(len(self.labels) - 1, now)] * size
            self.modified = now
        self.now = now

    def chunk_start(self, offset: int) -> int:
        return self.labels[self.bytes[offset].chunk].offset

    def segment(self, start: int, *, sealed: bool) -> SegmentRecord:
        first = self.chunk_start(start)
        return SegmentRecord(
            "s", 1, FLAG_SEALED if sealed else 0, start, len(self.bytes), b"f" * 28, b"l" * 28, self.labels[-1].offset,
            start - first, 100, 1, len(self.labels) - self.bytes[start].chunk, {}, 0, self.modified,
        )  # fmt: skip


steps = st.lists(
    st.tuples(st.sampled_from(("append", "append", "grow", "concat")), st.integers(1, 6), st.integers(0, 9)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=400, deadline=None)
@given(
    steps=steps,
    start=st.integers(0, 200),
    sealed=st.booleans(),
    size=st.none() | st.integers(1, 80),
    age_ms=st.none() | st.integers(1, 100),
    waited=st.integers(0, 60),
)
def test_a_cut_gives_up_no_more_than_the_policy(
    steps: list[tuple[str, int, int]],
    start: int,
    sealed: bool,
    size: int | None,
    age_ms: int | None,
    waited: int,
) -> None:
    model = Model(steps)
    start %= len(model.bytes)
    if size is None and age_ms is None:
        size = 1
    policy = RetentionPolicy(size_bytes_max=size, age_s_max=None if age_ms is None else age_ms / 1000)
    segment, now_ms = model.segment(start, sealed=sealed), model.now + waited
    labels = model.labels[model.bytes[start].chunk :]
    cut = plan_cut(segment, policy, now_ms=now_ms, chunk_start=model.chunk_start, labels=iter(labels))
    offset = start if cut is None else cut
    assert cut is None or start < cut <= segment.length
    assert offset in {start, segment.length, *(label.offset for label in labels)}
    assert sealed or offset <= max(start, segment.last_chunk_offset)

    def given_up(boundary: int) -> bool:
        """Whether one of the two rules lets everything below go."""
        by_size = size is not None and segment.length - boundary >= size
        by_age = age_ms is not None and all(byte.written_ms <= now_ms - age_ms for byte in model.bytes[start:boundary])
        return by_size or by_age

    assert offset == start or given_up(offset)
    # And by size, or without concats, no less.
    concats = any(kind == "concat" for kind, _, _ in steps)
    for label in labels:
        fits = start < label.offset
        if fits and size is not None and segment.length - label.offset >= size:
            assert offset >= label.offset
        if fits and not concats and age_ms is not None and label.created_ms <= now_ms - age_ms:
            assert offset >= label.offset
