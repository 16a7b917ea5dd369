"""Which segments count: the metadata log's records applied, and overlaps, gaps and lineages resolved, without any object."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.codec.kafka.checkpoints import LeaderEpoch
from chunkstore.codec.kafka.remote_metadata import PartitionDeleteState, RecordKind, SegmentState
from chunkstore.kafka.lineage import apply_records, resolve
from chunkstore.kafka.sources import Segment
from tests.kafka.support_records import SEGMENT

STARTED, FINISHED, DELETING, DELETED = SegmentState
Made = tuple[int, int, dict[int, int]]


def segment(number: int, made: Made) -> Segment:
    start, end, epochs = made
    several = tuple(LeaderEpoch(*each) for each in sorted(epochs.items()))
    return Segment("t", "", 0, start, end, f"{number:03}", None, 1, several, f"{number}", dense=True)


def pieces(*made: Made) -> list[tuple[int, int, int]]:
    found = resolve([segment(number, each) for number, each in enumerate(made)])
    return [(int(piece.segment.uuid), piece.start, piece.stop - 1) for piece in found]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param([(0, 94, {0: 0}), (95, 157, {0: 95})], [(0, 0, 94), (1, 95, 157)], id="one after the other"),
        pytest.param([(0, 9, {0: 0}), (20, 29, {0: 20})], [(0, 0, 9), (1, 20, 29)], id="a gap"),
        pytest.param([(10, 100, {0: 10}), (10, 100, {0: 10})], [(1, 10, 100)], id="twice: one"),
        pytest.param([(10, 150, {0: 10}), (10, 100, {0: 10})], [(0, 10, 150)], id="a late smaller one hides nothing"),
        pytest.param(
            [(10, 100, {0: 10}), (5, 150, {0: 5}), (148, 155, {0: 148}), (4, 200, {0: 4})], [(3, 4, 200)], id="covered"
        ),
        pytest.param([(0, 99, {0: 0}), (5, 120, {0: 5})], [(0, 0, 4), (1, 5, 120)], id="the higher end has the overlap"),
        pytest.param(
            [(0, 99, {0: 0}), (100, 300, {0: 100, 1: 150}), (100, 180, {0: 100, 2: 120})],
            [(0, 0, 99), (2, 100, 180)],
            id="an unclean election cuts what the old leader had",
        ),
        pytest.param([(100, 199, {1: 100}), (150, 250, {2: 150})], [(0, 100, 149), (1, 150, 250)], id="cut in a segment"),
        pytest.param(
            [(0, 150, {0: 0, 4: 50}), (100, 300, {0: 100, 9: 200})], [(0, 0, 49), (1, 100, 300)],
            id="no epoch that the later segment does not know",
        ),
        pytest.param([], [], id="nothing"),
    ],
)  # fmt: skip
def test_segments_are_resolved(made: list[Made], expected: list[tuple[int, int, int]]) -> None:
    assert pieces(*made) == expected


@given(
    st.lists(
        st.tuples(
            st.integers(0, 40), st.integers(-1, 20), st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True)
        )
    )
)
def test_each_offset_is_read_once_and_the_newest_segment_whole(drawn: list[tuple[int, int, list[int]]]) -> None:
    made: list[Made] = [
        (start, start + length, {epoch: start + at for at, epoch in enumerate(sorted(epochs))})
        for start, length, epochs in drawn
    ]
    found = pieces(*made)
    assert all(left[2] < right[1] for left, right in pairwise(found))
    assert all(made[number][0] <= first <= last <= made[number][1] for number, first, last in found)
    whole = [each for each in made if each[1] >= each[0]]
    if whole:
        newest = max(whole, key=lambda each: (max(each[2]), each[1]))
        assert any((max(made[number][2]), last) == (max(newest[2]), newest[1]) for number, _, last in found)


def test_states_follow_each_other_as_brokers_allow() -> None:
    def update(state: SegmentState) -> object:
        return SEGMENT._replace(
            kind=RecordKind.SEGMENT_METADATA_UPDATE, state=state, custom_metadata=state.name.encode()
        )

    def state_after(*states: SegmentState) -> SegmentState | PartitionDeleteState | None:
        records = apply_records([SEGMENT, *(update(state) for state in states)])  # type: ignore[list-item]
        return records[SEGMENT.segment_id].state if records else None

    assert state_after() == STARTED
    assert state_after(DELETED) == STARTED
    assert state_after(FINISHED) == state_after(FINISHED, DELETED, STARTED) == FINISHED
    assert state_after(FINISHED, DELETING, FINISHED) == state_after(DELETING) == DELETING
    assert state_after(FINISHED, DELETING, DELETED) is None
    [record] = apply_records([SEGMENT, update(FINISHED)]).values()  # type: ignore[list-item]
    assert (record.custom_metadata, record.end_offset) == (b"COPY_SEGMENT_FINISHED", SEGMENT.end_offset)
    assert apply_records([update(FINISHED)]) == {}  # type: ignore[list-item]  # its first record is below the log's start


def test_a_deleted_partition_has_no_segments() -> None:
    other = SEGMENT._replace(segment_id=b"other-other-othe", partition=8)
    gone = SEGMENT._replace(kind=RecordKind.PARTITION_DELETE, state=PartitionDeleteState.DELETE_PARTITION_STARTED)
    assert len(apply_records([SEGMENT, other, gone])) == 2
    gone = gone._replace(state=PartitionDeleteState.DELETE_PARTITION_FINISHED)
    assert list(apply_records([SEGMENT, other, gone]).values()) == [other]
