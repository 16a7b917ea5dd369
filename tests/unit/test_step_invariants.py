"""The invariants of steps: each is shown a sequence that breaks it, and says so by its number; a right one leaves them silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from chunkstore.checksum import crc32c
from chunkstore.metadata.codec import encode_garbage, encode_segment
from chunkstore.metadata.keys import garbage_key
from chunkstore.metadata.port import Head, Line, Position
from chunkstore.names import ContainerNames, chunk_id
from chunkstore.records import GarbageRecord, SegmentRecord
from chunkstore_journal.objects import Claim, encode_claim
from chunkstore_journal.payloads import SnapshotLink
from tests.support.history_bench import Bench, Mode, started, with_chunk

pytestmark = pytest.mark.proof
SEGMENT = encode_segment(SegmentRecord("b", 6, 0, 0, 0, b"", b"", 0, 0, 1 << 20, 1, 0, {}, 1, 2))


@pytest.mark.parametrize("mode", ["slot", "append"])
def test_what_is_right_is_not_remarked_upon(mode: Mode) -> None:
    bench = started(mode)
    for epoch in (2, 3):
        bench.claim(epoch)
    bench.open(3, 1)
    bench.append(3, 5, 3, 3)
    bench.told("a", 3, 3)
    history = bench.steps.history
    bench.steps.taken_over("p3", 3, bench.head(3))
    before = bench.head(3)
    bench.record(3, rows=[(b"Sb", SEGMENT)])
    bench.lines(3, lines_of((0, b"abc"), (3, b"de")), b"abcde")
    bench.lines(3, lines_of((5, b"f")), b"f")
    bench.steps.cache_at("p3", bench.head(3))
    bench.steps.replica_at("r", before)
    bench.steps.replica_at("r", bench.head(3))
    bench.steps.power_cut()
    assert bench.steps.finish() == []
    assert (history.top, history.lsn) == (3, bench.lsn)


def undecided_slot(bench: Bench) -> None:
    bench.claim(2)
    bench.put("p2", bench.names.slot(2, 0), b"rubbish")


def not_void(bench: Bench) -> None:
    bench.claim(2)
    bench.claim(3)
    bench.open(3, 1, void=False)


def hole(bench: Bench) -> None:
    bench.append(1, 5, 3, 3, index=bench.index + 1)


def no_seal(bench: Bench) -> None:
    bench.claim(2)
    bench.open(2, 1, seal=False)


def cut_behind_the_end(bench: Bench) -> None:
    bench.claim(2)
    bench.open(2, 1, end_byte=bench.end + 1)


def broken_chain(bench: Bench) -> None:
    bench.append(1, 5, 3, 3, previous=bytes([9]) * 16)


def forked(bench: Bench) -> None:
    for epoch in (2, 3):
        bench.claim(epoch)
    bench.open(2, 1)
    bench.open(3, 1)


def wrong_digest(bench: Bench) -> None:
    bench.append(1, 5, 3, 3, digest=1)


def strange_cache(bench: Bench) -> None:
    bench.steps.cache_at("p1", Head(Position(bench.lsn, bytes(16), 1, 3, 0), bench.digest))


def cache_of_nobody(bench: Bench) -> None:
    bench.steps.cache_at("p1", Head(Position(bench.lsn, bench.hash, 2, 3, 0), bench.digest))


def replica_goes_back(bench: Bench) -> None:
    before = bench.head()
    bench.append(1, 5, 3, 3)
    bench.steps.replica_at("r", bench.head())
    bench.steps.replica_at("r", before)


def replica_with_other_rows(bench: Bench) -> None:
    bench.steps.replica_at("r", bench.head()._replace(digest=bench.digest ^ 1))


def cache_with_other_rows_on_its_way(bench: Bench) -> None:
    """It does not stand at the end of history."""
    before = bench.head()
    bench.append(1, 5, 3, 3)
    bench.steps.cache_at("p1", before._replace(digest=before.digest ^ 1))


def lines_of(*pieces: tuple[int, bytes], **changes: Any) -> list[Line]:
    """Appends to segment 6, "b", that are one extent: at these offsets these bytes; the last one changed."""
    data, found = b"", list[Line]()
    for offset, piece in pieces:
        data += piece
        event = b"w", len(found) + 1, crc32c(piece)
        found.append(Line(6, offset, len(piece), crc32c(data), bool(found), b"b", event))
    return [*found[:-1], found[-1]._replace(**changes)]


def wrong_lines(changes: dict[str, Any], bench: Bench) -> None:
    bench.record(1, rows=[(b"Sb", SEGMENT)])
    bench.lines(1, lines_of((0, b"abc"), (3, b"de"), **changes), b"abcde")


def replica_ahead(bench: Bench) -> None:
    """It showed a record that the next owner cuts off."""
    end, lsn, identity = bench.end, bench.lsn, bench.hash
    bench.append(1, 5, 3, 3)
    bench.steps.replica_at("r", bench.head())
    bench.claim(2)
    bench.lsn, bench.hash, bench.end, bench.index = lsn, identity, end, bench.index - 1
    bench.open(2, 1)


def foreign_chunk(bench: Bench) -> None:
    bench.claim(2)
    bench.put("p2", bench.names.chunk(chunk_id(5, 1, 1, 7)), b"abc")


def replaced_chunk(bench: Bench) -> None:
    bench.put("p1", bench.names.chunk(with_chunk(bench)), b"xyz")


def deleted_live_chunk(bench: Bench) -> None:
    bench.steps.delete("p1", bench.names.chunk(with_chunk(bench)))


def deleted_before_it_was_decided(bench: Bench) -> None:
    identity, row = bench.chunk(5, 1, 1)
    bench.put("p1", bench.names.chunk(identity), b"abc")
    bench.record(1, [], [row])
    lsn, last, index, end, digest = bench.lsn, bench.hash, bench.index, bench.end, bench.digest
    garbage = GarbageRecord(identity, identity, 1, 3, lsn + 1, 0, 0)
    bench.record(1, [], [(garbage_key(lsn + 1, 0), encode_garbage(garbage))])
    bench.steps.delete("p1", bench.names.chunk(identity))
    bench.claim(2)
    bench.lsn, bench.hash, bench.index, bench.end, bench.digest = lsn, last, index, end, digest
    bench.open(2, 1)


def garbage_of_nothing(bench: Bench) -> None:
    identity = chunk_id(5, 1, 9, 7)
    garbage = GarbageRecord(identity, identity, 1, 3, bench.lsn + 1, 0, 0)
    bench.record(1, [], [(garbage_key(bench.lsn + 1, 0), encode_garbage(garbage))])


def zombie_sweeps(bench: Bench) -> None:
    bench.claim(2)
    bench.open(2, 1)
    name = bench.names.chunk(chunk_id(5, 2, 1, 7))
    bench.put("p2", name, b"abc")
    bench.steps.delete("p1", name)


def commits_what_it_deleted(bench: Bench) -> None:
    """A chunk of its own epoch, deleted before the record that names it."""
    identity, row = bench.chunk(5, 1, 1)
    bench.put("p1", bench.names.chunk(identity), b"abc")
    bench.steps.delete("p1", bench.names.chunk(identity))
    assert not bench.steps.violations
    bench.record(1, [], [row])


def deleted(name: Callable[[ContainerNames], str], bench: Bench) -> None:
    bench.claim(2)
    bench.open(2, 1)
    bench.steps.delete("p2", name(bench.names))


def changed_slot(bench: Bench) -> None:
    data = bytearray(bench.objects[bench.names.slot(1, 2)])
    data[-1] ^= 1
    bench.put("p1", bench.names.slot(1, 2), bytes(data))


def two_offers(bench: Bench) -> None:
    data = bench.append(1, 5, 3, 3)
    bench.put("p1", bench.names.slot(1, bench.index - 1), data[:-1] + b"?", done=False)


def foreign_stream(bench: Bench) -> None:
    bench.claim(2)
    bench.append(1, 5, 3, 3, process="p2")


def stolen_open(bench: Bench) -> None:
    bench.claim(2)
    bench.open(2, 1, token=bytes([77]) * 16)


def acknowledged_behind_a_claim(bench: Bench) -> None:
    """The check after the write would have seen the claim."""
    bench.claim(2)
    bench.append(1, 5, 3, 3)
    bench.told("a", 3, 1)


def back_in_time(bench: Bench) -> None:
    bench.append(1, 5, 3, 3, time_ms=5)


def claimed_twice(bench: Bench) -> None:
    bench.objects[bench.names.epoch(1)] = encode_claim(Claim(1, bytes([8]) * 16, "host", 1, "boot", 0))
    bench.steps.put("p9", bench.names.epoch(1), None, done=True)


def looked_behind_a_claim(outcome: Literal["ok", "failed"], kind: str, bench: Bench) -> None:
    """Neither a record nor bytes tell: only that the claim stood there before somebody asked."""
    bench.claim(2)
    event = bench.event(kind, "a", (0, 9), b"abc" if outcome == "ok" else "SegmentNotFound", 1)
    bench.steps.answered(replace(event, outcome=outcome))


def replica_behind_a_claim(bench: Bench) -> None:
    """It showed a record that its writer has not been told about, and that the claimant may cut off."""
    bench.claim(2)
    bench.append(1, 5, 3, 3)
    bench.steps.replica_at("r", bench.head())


def other_rows(spoil: Callable[[dict[bytes, bytes]], object], bench: Bench) -> None:
    """The digest that a cache keeps says nothing of the rows in it."""
    with_chunk(bench)
    rows = dict(bench.steps.history.rows)
    spoil(rows)
    position = Position(bench.lsn, bench.hash, 1, bench.index, 0)
    view: Any = SimpleNamespace(head=Head(position, bench.digest), scan=lambda start, stop: sorted(rows.items()))
    bench.steps.rows_at("p1", view)


def torn_chunk(bench: Bench) -> None:
    """The power went, and of a chunk that history refers to a part stayed; nobody has read it yet."""
    bench.objects[bench.names.chunk(with_chunk(bench))] = b"ab"
    bench.steps.power_cut()


CASES: list[tuple[int, Mode, str, Callable[[Bench], object]]] = [
    (1, "slot", "claimed twice", claimed_twice),
    (2, "slot", "undecided slot", undecided_slot),
    (3, "slot", "not void", not_void),
    (4, "slot", "hole", hole),
    (5, "slot", "no seal", no_seal),
    (5, "append", "cut behind the end", cut_behind_the_end),
    (6, "slot", "broken chain", broken_chain),
    (9, "slot", "forked", forked),
    (10, "slot", "wrong digest", wrong_digest),
    (10, "slot", "a row more", partial(other_rows, lambda rows: rows.update({b"Tx": b"y"}))),
    (10, "slot", "a row less", partial(other_rows, lambda rows: rows.popitem())),
    (12, "slot", "strange cache", strange_cache),
    (12, "slot", "cache of nobody", cache_of_nobody),
    (13, "slot", "replica goes back", replica_goes_back),
    (13, "append", "replica ahead", replica_ahead),
    (13, "append", "replica behind a claim", replica_behind_a_claim),
    (18, "slot", "foreign chunk", foreign_chunk),
    (18, "slot", "replaced chunk", replaced_chunk),
    (20, "slot", "torn chunk", torn_chunk),
    (21, "slot", "deleted live chunk", deleted_live_chunk),
    (21, "append", "deleted before it was decided", deleted_before_it_was_decided),
    (22, "slot", "garbage of nothing", garbage_of_nothing),
    (24, "slot", "zombie sweeps", zombie_sweeps),
    (24, "slot", "commits what it deleted", commits_what_it_deleted),
    (24, "append", "commits what it deleted, in a log", commits_what_it_deleted),
    (25, "slot", "deleted FORMAT", partial(deleted, lambda names: names.format)),
    (25, "slot", "deleted claim", partial(deleted, lambda names: names.epoch(1))),
    (25, "slot", "deleted slot 0", partial(deleted, lambda names: names.slot(1, 0))),
    (25, "slot", "deleted SEAL", partial(deleted, lambda names: names.slot(1, 3))),
    (26, "slot", "deleted own record", partial(deleted, lambda names: names.slot(2, 1))),
    (26, "slot", "changed slot", changed_slot),
    (26, "slot", "foreign stream", foreign_stream),
    (27, "slot", "two offers", two_offers),
    (28, "slot", "stolen open", stolen_open),
    (29, "append", "acknowledged behind a claim", acknowledged_behind_a_claim),
    (29, "slot", "read behind a claim", partial(looked_behind_a_claim, "ok", "read")),
    (29, "slot", "refused behind a claim", partial(looked_behind_a_claim, "failed", "read")),
    (29, "slot", "listed behind a claim", partial(looked_behind_a_claim, "ok", "list")),
    (30, "slot", "back in time", back_in_time),
    (10, "slot", "replica with other rows", replica_with_other_rows),
    (10, "append", "cache with other rows on its way", cache_with_other_rows_on_its_way),
    *(
        (10, "append", f"line with another {name}", partial(wrong_lines, {name: value}))
        for name, value in (
            ("segment_id", 7),
            ("offset", 2),
            ("length", 1),
            ("crc32c", 0),
            ("name", b"c"),
            ("event", (b"w", 2, 0)),
        )
    ),
]


@pytest.mark.parametrize(
    ("invariant", "mode", "what", "spoil"), CASES, ids=[f"{number}: {what}" for number, _, what, _ in CASES]
)
def test_each_is_found_by_its_number(invariant: int, mode: Mode, what: str, spoil: Callable[[Bench], object]) -> None:
    bench = started(mode)
    spoil(bench)
    bench.steps.finish()
    assert invariant in bench.found, bench.steps.violations


@pytest.mark.parametrize("there", [True, False])
def test_collecting_what_is_sealed_needs_a_snapshot_that_is_there(there: bool) -> None:
    bench = started()
    bench.claim(2)
    snapshot = SnapshotLink(
        bench.names.snapshot(bench.lsn, 1, "0" * 8), bench.lsn, bench.hash, bench.digest, 1, bench.index - 1, 0
    )
    if there:
        bench.objects[snapshot.name] = b"a snapshot"
    bench.open(2, 1, snapshot=snapshot)
    for index in (1, 2):
        del bench.objects[bench.names.slot(1, index)]
        bench.steps.delete("p2", bench.names.slot(1, index))
    bench.steps.finish()
    assert bench.found == (set() if there else {11})
