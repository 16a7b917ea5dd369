"""What is an orphan: decided by rows and epochs alone, from names that anybody may have made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from chunkstore.checksum import name_spread
from chunkstore.metadata.codec import encode_chunk, encode_garbage, encode_segment, encode_session
from chunkstore.metadata.keys import chunk_key, garbage_key, segment_key, session_key
from chunkstore.metadata.port import MetadataView
from chunkstore.names import ContainerNames, chunk_id, session_chunk_id
from chunkstore.operations.orphans import Suspect, judge
from chunkstore.records import (
    CLOSED,
    KIND_OBJECT,
    ChunkRecord,
    GarbageRecord,
    SegmentRecord,
    SessionRecord,
)
from chunkstore.storage import ChunkInfo

NAMES = ContainerNames("c")
EPOCH = 7
A_SEGMENT = SegmentRecord("s", 1, 0, 0, 0, b"", b"", 0, 0, 1, 0, 0, {}, 0, 0)


class Rows:
    """As much of a view as judging needs."""

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        self._rows = rows

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return ((key, self._rows[key]) for key in sorted(self._rows) if start <= key < stop)


def standing(identity: bytes, rows: dict[bytes, bytes] | None = None) -> str:
    suspect = Suspect(identity, ChunkInfo(NAMES.chunk(identity), 1))
    return judge(cast("MetadataView", Rows(rows or {})), NAMES, [suspect], epoch=EPOCH)[identity]


def own(epoch: int) -> bytes:
    return chunk_id(1, epoch, 5, 6)


def of_session(epoch: int) -> bytes:
    return session_chunk_id((epoch << 32) + 3, 1, 2)


def chunk(**changes: object) -> bytes:
    record = ChunkRecord("", 0, 1, 0, b"", b"", 1, 1, CLOSED, KIND_OBJECT, 1)
    return encode_chunk(record._replace(**changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("epoch", "owners", "sessions"),
    [
        (0, "never opened", "never opened"),
        (1, "orphan", "orphan"),
        (EPOCH - 1, "orphan", "orphan"),
        (EPOCH, "under way", "under way"),
        (EPOCH + 1, "never opened", "under way"),
    ],
)
def test_only_what_lies_strictly_below_the_own_epoch_is_an_orphan(epoch: int, owners: str, sessions: str) -> None:
    assert standing(own(epoch)) == owners
    assert standing(of_session(epoch)) == sessions, "an unknown session has ended only if it began below"


def test_chunks_of_an_open_session_are_wanted() -> None:
    rows = {session_key((1 << 32) + 3): encode_session(SessionRecord("me", 1, 2))}
    assert standing(of_session(1), rows) == "wanted"


OTHER = chunk_id(9, 1, 1, 1)


@pytest.mark.parametrize(
    "row",
    [
        (chunk_key(own(1)), chunk()),
        (chunk_key(own(1)), b"rubbish"),
        (chunk_key(OTHER), chunk(object=NAMES.chunk(own(1)))),
        (chunk_key(OTHER), chunk(object=NAMES.chunk(own(1)), object_offset=5)),
        (chunk_key(OTHER), chunk(next=own(1))),
        (chunk_key(OTHER), chunk(previous=own(1))),
        (garbage_key(3, 0), encode_garbage(GarbageRecord(own(1), OTHER, 2, 2, 3, 4, 0))),
        (garbage_key(3, 0), encode_garbage(GarbageRecord(OTHER, own(1), 2, 2, 3, 4, 0))),
        (segment_key("s"), encode_segment(A_SEGMENT._replace(first_chunk=own(1)))),
        (segment_key("s"), encode_segment(A_SEGMENT._replace(last_chunk=own(1)))),
    ],
)
def test_whatever_row_names_a_chunk_it_is_wanted(row: tuple[bytes, bytes]) -> None:
    assert standing(own(1), dict([row])) == "wanted"
    assert standing(chunk_id(1, 1, 5, 7), dict([row])) == "orphan"


@pytest.mark.parametrize("front", ["01", "s01", "1", "s1", "8000000000000000", "s8000000000000000", "A", "../1", ""])
@pytest.mark.parametrize("epoch", ["1", "01", "-1", ""])
def test_names_that_are_not_in_our_words_are_nobodys(front: str, epoch: str) -> None:
    """What is deleted is deleted by the name that a listing shows: only the one name that an id has counts."""
    rest = f"{front}-1-00000001" if front.startswith("s") else f"{front}-{epoch}-1-00000001"
    listed = f"{NAMES.data_prefix()}{name_spread(rest)}/{rest}"
    identity = NAMES.parse_chunk(listed)
    assert identity is None or NAMES.chunk(identity) == listed
    assert (identity is None) is (rest not in ("1-1-1-00000001", "s1-1-00000001"))
    assert NAMES.parse_chunk(listed + "x") is None and NAMES.parse_chunk("c/d/zz/" + rest) is None
