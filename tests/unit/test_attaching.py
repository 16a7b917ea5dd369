"""What is staged together fits a record and a request, whatever the chunks are; and many chunks."""

from __future__ import annotations

import pytest

from chunkstore import owner
from chunkstore.asks import AskCommit, Request, Stage
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
    reckoned = owner._bytes_of_chunk(one)
    (new,) = chunks_of_session([one])
    rows = border_rows(*new)
    # Of a row, with the key: an envelope and the version; the row of the chunk itself and its place in the header.
    stored = sum(len(key) + len(row.value) + 24 for key, row in rows.items()) + 28 + 200 + 40
    asked = len(encode_request(Request(AskCommit((), Stage(SESSION, ((one,),))), 1, 1), CONTAINER))
    assert max(stored, asked) <= reckoned
    weight = 1 + sum(len(key) + len(row.value) for key, row in rows.items()) // 150
    assert owner._COMMIT_BYTES // reckoned * weight <= LIMITS.commit_chunks_max


def test_a_change_of_the_last_commit_takes_no_more_than_is_reckoned() -> None:
    name = "é" * 127
    source = staged_name(SESSION, [b"id"])
    assert staged_session(source) == SESSION and staged_session(name) is None and staged_session("\0import/x") is None
    once = TablePut("sink", b"k", b"v", 0)
    nothing = len(encode_request(Request(AskCommit((), once), 1, 1), CONTAINER))
    for change in (Create(name), Concat(name, source, 1 << 62)):
        asked = len(encode_request(Request(AskCommit((change,), once), 1, 1), CONTAINER)) - nothing
        # Two rows of segments and two of chunks, and a header.
        assert asked < owner._CHANGE_BYTES and owner._CHANGE_BYTES > 2 * (256 + 100) + 2 * 120
