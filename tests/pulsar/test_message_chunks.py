"""Chunked messages: across ledgers, interleaved, unfinished, sent again, out of order, more than there is room for."""

from __future__ import annotations

from typing import Any

import pytest

from chunkstore.codec.pulsar import message_entries
from chunkstore.codec.pulsar.frames import Entry
from chunkstore.codec.pulsar.messages import iter_messages
from chunkstore.errors import Damaged
from tests.support.pulsar_entries import CODECS, compressed, marker, metadata_bytes
from tests.support.pulsar_entries import entry_of as bare_entry

VALUE = b"a value that is cut " * 20


def chunk(
    at: tuple[int, int], number: int, piece: bytes, total: int, *, of: int = 3, uuid: str = "u", **values: Any
) -> Entry:
    """A chunk as it is stored; ``compression`` is that of the whole message."""
    head = metadata_bytes(uuid=uuid, chunks=of, chunk=number, chunked_bytes=total, **values)
    return Entry(*at, bare_entry(head, piece, broker=(1, 10 * at[0] + at[1])))


def chunks_of(value: bytes, places: list[tuple[int, int]], codec: str = "NONE", **values: Any) -> list[Entry]:
    """The chunks of a message, compressed before it was cut."""
    whole = compressed(codec, value)
    step = -(-len(whole) // len(places))
    return [
        chunk(at, number, whole[number * step : (number + 1) * step], len(whole), of=len(places),
              compression=CODECS.index(codec), uncompressed_size=len(value), **values)
        for number, at in enumerate(places)
    ]  # fmt: skip


@pytest.mark.parametrize("codec", CODECS)
def test_chunks_are_joined_across_ledgers(codec: str) -> None:
    first = chunks_of(VALUE, [(1, 0), (1, 2), (2, 1)], codec, key="k", properties=[("i", "1")])
    second = chunks_of(VALUE[::-1], [(1, 1), (2, 0), (3, 0)], codec, uuid="v")
    entries = sorted(first + second)
    found = iter_messages(entries)
    rows = list(found)
    assert [(row.ledger, row.entry, row.first_chunk, row.payload) for row in rows] == [
        (2, 1, (1, 0), VALUE),
        (3, 0, (1, 1), VALUE[::-1]),
    ]
    assert (rows[0].key, rows[0].properties, rows[0].index, rows[0].batch_index) == ("k", {"i": "1"}, 21, -1)
    assert rows[0].entry_uncompressed_size == len(VALUE)
    assert not found.summary.unfinished_count


def test_what_was_sent_again_is_one_message() -> None:
    """A producer that reconnects begins again with the first chunk; chunks that come twice are skipped."""
    parts = chunks_of(VALUE, [(1, 0), (1, 1), (1, 2)])
    found = iter_messages([parts[0], parts[1], parts[0], parts[1], parts[1], parts[2]])
    assert [row.payload for row in found] == [VALUE]
    assert found.summary.unfinished == [("u", 1, 0, 2, 3)]


def test_a_message_without_its_beginning_or_end_is_told_once() -> None:
    first, second = chunks_of(VALUE, [(1, 0), (1, 1), (1, 2)]), chunks_of(VALUE, [(2, 0), (2, 1), (2, 2)], uuid="v")
    found = iter_messages([*first[1:], *second[:2]])
    assert list(found) == []
    assert found.summary.unfinished == [("u", 1, 1, 2, 3), ("v", 2, 0, 2, 3)]
    assert found.summary.unfinished_count == 2


def test_chunks_out_of_order_are_damage() -> None:
    parts = chunks_of(VALUE, [(1, 0), (1, 1), (1, 2)])
    with pytest.raises(
        Damaged, match=r"ledger 1 entry 2 at byte \d+: chunk 2 of 3 is stored where chunk 1 is expected"
    ):
        list(iter_messages([parts[0], parts[2]]))
    found = iter_messages([parts[0], parts[2]], messages="lenient")
    [row] = found
    assert (row.entry, row.payload, row.damaged) == (2, parts[2].payload, True)
    assert found.summary.unfinished == [("u", 1, 0, 1, 3)]
    assert found.summary.damaged == 1


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"of": 4}, "says 4 chunks"),
        ({"total": len(VALUE) + 1}, "bytes, the first one did not"),
        ({"number": 3}, "chunk 3 of 3"),
        ({"number": -1}, "chunk -1 of 3"),
        ({"uuid": ""}, "the uuid b''"),
        ({"total": (1 << 27) + 1}, "at most 134217728"),
        ({"total": -1}, "a chunked message of -1 bytes"),
        ({"batch": 1}, "a chunk that is a batch"),
    ],
)
def test_chunks_that_contradict_themselves(change: dict[str, Any], what: str) -> None:
    first = chunks_of(VALUE, [(1, 0), (1, 1), (1, 2)])[0]
    second = {"number": 1, "total": len(VALUE), **change}
    with pytest.raises(Damaged, match=what):
        list(iter_messages([first, chunk((1, 1), piece=b"x", **second)]))


def test_chunks_whose_bytes_are_not_what_they_say() -> None:
    with pytest.raises(Damaged, match="chunks of 2 bytes together, the metadata says 5"):
        list(iter_messages([chunk((1, number), number, b"x", 5, of=2) for number in range(2)]))


def test_chunks_of_an_aborted_message_are_one_message_left_out() -> None:
    entries = [*chunks_of(VALUE, [(1, 0), (1, 1), (1, 2)], txn_most=1, txn_least=2), marker(22, (1, 2), (2, 0))]
    found = iter_messages(entries)
    assert list(found) == []
    assert (found.summary.messages_aborted, found.summary.unfinished_count) == (1, 0)


@pytest.mark.parametrize(("name", "most"), [("CHUNKED_BYTES_MAX", 2000), ("CHUNKED_MESSAGES_MAX", 4)])
def test_the_oldest_messages_are_given_up(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_entries, name, most)
    monkeypatch.setattr(message_entries, "UNFINISHED_NAMED_MAX", 6)
    entries = [chunk((1, number), 0, b"x" * 150, 200, of=2, uuid=f"u{number}") for number in range(20)]
    last = chunk((1, 20), 1, b"x" * 50, 200, of=2, uuid="u19")
    found = iter_messages([*entries, last])
    rows = []
    for row in found:
        rows.append(row)
        waiting = found.summary.unfinished_count
        assert waiting >= 14
    assert [row.payload for row in rows] == [b"x" * 200]
    assert found.summary.unfinished_count == 19
    assert [item.uuid for item in found.summary.unfinished] == [f"u{number}" for number in range(6)]
