"""The judge of extents: an object of the journal may go when nothing of it is wanted any more, and not before."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from chunkstore.metadata.codec import encode_chunk, encode_garbage
from chunkstore.metadata.keys import chunk_key, garbage_key
from chunkstore.names import NO_CHUNK, chunk_id
from chunkstore.records import CLOSED, KIND_INLINE, ChunkRecord, GarbageRecord
from tests.judges.extents import Extents

pytestmark = pytest.mark.proof

EXTENT = chunk_id(5, 1, 1, 7)
PLACE = "1/3"
REMOVED = 9
GRACE = 1_000


class History:
    """As much of one as is asked of it: an extent lies in slot 3 of epoch 1; it goes with the record 9."""

    append = False

    def __init__(self, *, spilled: bool) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.opens: dict[int, Any] = {}
        self.arrived: list[bytes] = []
        self.removed: dict[bytes, int] = {} if spilled else {EXTENT: REMOVED}
        self.pins: dict[bytes, int] = {}
        self.entries: Sequence[Any] = [SimpleNamespace(written=lsn, time_ms=lsn) for lsn in range(1, REMOVED + 1)]
        self.found: list[int] = []
        self.extents = Extents(self)
        row = encode_chunk(ChunkRecord(PLACE, 40, 3, 7, b"", b"", 5, 1, CLOSED, KIND_INLINE, 0))
        self.extents.changed(chunk_key(EXTENT), row, 4, 4)

    def report(self, invariant: int, message: str) -> None:
        self.found.append(invariant)

    def put(self, mapping: Any, key: Any, value: Any) -> None:
        mapping[key] = value

    def drop(self, mapping: Any, key: Any) -> None:
        mapping.pop(key, None)

    def bytes_of(self, identity: bytes) -> bytes | None:
        return b""

    extent = bytes_of

    def gone(self) -> None:
        self.extents.changed(chunk_key(EXTENT), None, REMOVED, REMOVED)

    def garbage(self, first: bytes, *oldest: int, number: int = 0) -> None:
        garbage = GarbageRecord(first, first, len(first) and 1, 0, REMOVED, 0, 0, oldest)
        self.rows[garbage_key(REMOVED, number)] = encode_garbage(garbage)

    def deleted(self, now: int) -> bool:
        """Whether it is right that the slot is deleted."""
        self.found.clear()
        self.extents.judge_deletion("p", "slot", PLACE, now, lambda label_ms, written: max(label_ms, written) + GRACE)
        assert not self.found or set(self.found) == {35}
        return not self.found


@pytest.mark.parametrize("spilled", [True, False])
def test_what_has_a_row_a_pin_or_is_not_old_enough_stays(spilled: bool) -> None:
    history = History(spilled=spilled)
    assert not history.deleted(10_000)
    history.gone()
    assert history.deleted(REMOVED + GRACE) and not history.deleted(REMOVED + GRACE - 1)
    history.pins[b"P"] = REMOVED - 1
    assert not history.deleted(10_000)
    history.pins[b"P"] = REMOVED
    assert history.deleted(10_000)


@pytest.mark.parametrize(("oldest", "right"), [((1, 3), False), ((1, 2), False), ((1, 4), True), ((2, 0), True)])
def test_the_garbage_of_a_spill_keeps_its_records_and_all_behind_them(oldest: tuple[int, int], right: bool) -> None:
    history = History(spilled=True)
    history.gone()
    history.garbage(NO_CHUNK, *oldest)
    assert history.deleted(10_000) == right


@pytest.mark.parametrize("spilled", [True, False])
def test_other_garbage_of_the_same_record_keeps_none_of_it(spilled: bool) -> None:
    """One row after the other is collected: of a record that spills and deletes, the spill's may be gone first."""
    history = History(spilled=spilled)
    history.gone()
    history.garbage(chunk_id(6, 1, 2, 7), number=1)
    assert history.deleted(10_000)


def test_a_spill_that_is_embedded_once_more_takes_what_has_gone_since() -> None:
    """Seed 2000000802: an OPEN that went back embedded a spill whose extents had rightly gone with their log."""
    history = History(spilled=True)
    piece: Any = SimpleNamespace(fields=[PLACE, 40, 3, 7, b"", b"", 5, 1, CLOSED, KIND_INLINE, 0], identity=EXTENT)
    history.gone()

    def found(*, embedded: bool) -> list[int]:
        history.found.clear()
        history.extents.judge_spills(REMOVED, [((16, 5, 0, 3, [[0, EXTENT]]), [piece], None)], embedded=embedded)
        return history.found

    assert found(embedded=True) == [36], "nothing was deleted: it is lost"
    assert history.deleted(10_000)
    assert found(embedded=False) == [36]
    assert found(embedded=True) == []
