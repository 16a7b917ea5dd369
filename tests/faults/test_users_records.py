"""Bytes of users that look like records of the journal: they are appended as any other, and never taken for one (protocol 3.2).

The log is torn at each byte of the record that holds them, and its header is lost while they arrived, as a disk may write it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from chunkstore.assembly import open_store_on
from chunkstore.config import RollingPolicy
from chunkstore.errors import Damaged
from chunkstore.metadata.memory import MemoryShelf
from chunkstore_journal.payloads import BLOB_AT, encode_ops
from chunkstore_journal.record import HEADER_BYTES, LogReader, RecordHeader, encode_record
from tests.faults import tiny
from tests.faults.ground import FULL_RUN
from tests.faults.tiny import NAMES, recover, settings, storage_of
from tests.support.alone import abandon
from tests.support.worlds import ShelfCache

Text = Callable[[bytes, RecordHeader, int], list[bytes]]
"""What is appended, from the log so far, its last header, and the byte of the log at which it will be."""


class Torn(NamedTuple):
    """A container that was killed; its newest log begins its last record at ``begin``."""

    objects: dict[str, bytes]
    log: str
    begin: int
    states: tuple[dict[bytes, bytes], dict[bytes, bytes]]

    def recovered(self, data: bytes) -> int | None:
        """How many of the two states a take-over reaches with this log: the last record is in, or cut; None: it is refused."""
        try:
            found = recover({**self.objects, self.log: data}, "append")
        except Damaged:
            return None
        state = self.states.index(tiny.unplaced(found.state))
        assert (found.report.tail_cut is None) == (state == 1 or len(data) == self.begin)
        return state


def torn(text: Text) -> Torn:
    with storage_of({}) as storage:
        cache = ShelfCache(storage, "default", "owner", MemoryShelf())
        store = open_store_on(
            storage, settings=replace(settings("append"), default_rolling=RollingPolicy()), cache=cache
        )
        store.create("log")
        store.append("log", b"acknowledged")
        store.table("rows").put(b"key", b"value")
        name = NAMES.log(store.epoch)
        data = tiny.objects_of(storage)[name]
        reader = LogReader(lambda at, size: data[at : at + size], object=name, container=None)
        *_, last = reader
        states = [tiny.rows_of(store._container.current.store)]
        begin = len(data)
        pieces = text(data, last.header, begin + HEADER_BYTES + BLOB_AT)
        for piece in pieces:
            begin = len(tiny.objects_of(storage)[name])
            states.append(tiny.rows_of(store._container.current.store))
            store.append("log", piece)
        states.append(tiny.rows_of(store._container.current.store))
        assert store.read("log", 0, 1 << 20) == b"acknowledged" + b"".join(pieces)
        assert {chunk.kind for chunk in store.layout("log")} == {"inline"}
        abandon(store)
        before, after = map(tiny.unplaced, states[-2:])
        return Torn(tiny.objects_of(storage), name, begin, (before, after))


def following(header: RecordHeader, **changes: object) -> bytes:
    """A whole record as this very stream may hold one, behind the one that is torn."""
    later = header._replace(index=header.index + 2, lsn=header.lsn + 2, committed_lsn=header.lsn + 1)
    return encode_record(later._replace(**changes), encode_ops((), [(b"Tforged", b"")]))[0]  # type: ignore[arg-type]


def tears(made: Torn) -> list[tuple[int, bytes]]:
    """The log cut in its last record, and with that record's first bytes lost; by default at every fifth byte."""
    data, begin = made.objects[made.log], made.begin
    step = 1 if FULL_RUN else 5
    lost = range(1, HEADER_BYTES + BLOB_AT, step)
    cuts = [(cut, data[:cut]) for cut in range(begin, len(data), step)]
    return cuts + [(-count, data[:begin] + bytes(count) + data[begin + count :]) for count in lost]


def cut_at(cut: int) -> Text:
    return lambda log, header, place: [log[:cut], log[cut:]]


def moved_by(pad: int) -> Text:
    return lambda log, header, place: [bytes(pad) + log]


TEXTS: dict[str, Text] = {
    **{f"log-from-byte-{cut}": cut_at(cut) for cut in (1, 3, 160, 175)},
    **{f"log-moved-by-{pad}": moved_by(pad) for pad in (0, 1, 4, 16, 157)},
    "of-this-claim-before": lambda log, header, place: [following(header, at=place, lsn=header.lsn)],
    "another-claim": lambda log, header, place: [following(header, at=place, token=bytes(16))],
    "another-container": lambda log, header, place: [following(header, at=place, container=bytes(16))],
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_torn_record_with_records_of_users_is_torn(name: str) -> None:
    made = torn(TEXTS[name])
    assert made.recovered(made.objects[made.log]) == 1
    for cut, data in tears(made):
        assert made.recovered(data) == 0, cut


def test_who_knows_the_claims_token_gains_a_refused_open() -> None:
    """Only where the header of the record with his bytes is lost; he loses nothing of others, and nothing of his is replayed."""
    made = torn(lambda log, header, place: [following(header, at=place)])
    assert made.recovered(made.objects[made.log]) == 1
    for cut, data in tears(made):
        assert made.recovered(data) == (0 if cut > 0 else None), cut
