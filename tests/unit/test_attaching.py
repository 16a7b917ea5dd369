"""What is staged together fits a record and a request, whatever the chunks are; and many chunks."""

from __future__ import annotations

import pytest

import chunkstore
from chunkstore import attaching
from chunkstore.asks import AskCommit, AskStage, Request
from chunkstore.attaching import Written, attach_written, find_session
from chunkstore.blocks import count_borders
from chunkstore.changes import Concat, Create, TablePut
from chunkstore.config import GIB, KIB, LIMITS, MIB
from chunkstore.metadata.blocks import border_rows
from chunkstore.names import session_chunk_id
from chunkstore.operations.written_chunks import chunks_of_session
from chunkstore.sessions import SessionChunk, staged_name, staged_session
from chunkstore_journal.asks import encode_request

SESSION = (1 << 62) + 5
CONTAINER = bytes(16)


def chunk(number: int, length: int) -> SessionChunk:
    crcs = ((1 << 32) - 1,) * count_borders(length)
    return SessionChunk(session_chunk_id(SESSION, (1 << 63) + number, number), length, (1 << 32) - 1, crcs)


@pytest.mark.parametrize("length", [1, 64 * KIB + 1, 4 * MIB, 4 * MIB + 1, 33 * MIB, 128 * MIB, GIB])
def test_what_is_reckoned_for_a_chunk_is_enough(length: int) -> None:
    one = chunk(1, length)
    reckoned = attaching._bytes_of_chunk(one)
    (new,) = chunks_of_session([one])
    rows = border_rows(*new)
    # Of a row, with the key: an envelope and the version; the row of the chunk itself and its place in the header.
    stored = sum(len(key) + len(row.value) + 24 for key, row in rows.items()) + 28 + 200 + 40
    asked = len(encode_request(Request(AskStage(SESSION, ((one,),)), 1, 1), CONTAINER))
    assert max(stored, asked) <= reckoned
    weight = 1 + sum(len(key) + len(row.value) for key, row in rows.items()) // 150
    assert attaching._COMMIT_BYTES // reckoned * weight <= LIMITS.commit_chunks_max


def test_a_change_of_the_last_commit_takes_no_more_than_is_reckoned() -> None:
    name = "é" * 127
    source = staged_name(SESSION, [b"id"])
    assert staged_session(source) == SESSION and staged_session(name) is None and staged_session("\0import/x") is None
    once = TablePut("sink", b"k", b"v", 0)
    nothing = len(encode_request(Request(AskCommit((), once), 1, 1), CONTAINER))
    for change in (Create(name), Concat(name, source, 1 << 62)):
        asked = len(encode_request(Request(AskCommit((change,), once), 1, 1), CONTAINER)) - nothing
        # Two rows of segments and two of chunks, and a header.
        assert asked < attaching._CHANGE_BYTES and attaching._CHANGE_BYTES > 2 * (256 + 100) + 2 * 120


def test_many_chunks() -> None:
    """Twenty thousand go in five commits and one that shows them."""
    root = "memory://attach-many"
    with (
        chunkstore.open(root, settings=chunkstore.Settings(ask_s=0.01)) as store,
        chunkstore.open_asker(root) as target,
    ):
        storage = store.read_context.storage
        session = find_session(target, "many")
        chunks = tuple(session.write_chunk(storage, number, b"%08d" % number) for number in range(20_000))
        store.create("a")
        written = [Written("a", chunks[:19_000]), Written("b", chunks[19_000:], Create("b"))]
        once = TablePut("sink", b"q", b"1", 0)
        attach_written(target, session.session_id, written, once, end_session=True)
        assert store.info("a").chunk_count == 19_000 and store.info("b").length == 8_000
        assert store.read("a", 8 * 18_999, 8) == b"00018999" and store.read("b", 0, 8) == b"00019000"
        assert [item for item in store.check("exists") if item.severity == "damage"] == []
