"""Of which records nothing but bytes of appends is damaged: every single byte, one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.changes import Append, Create, TablePut
from chunkstore_journal.history import open_streams
from chunkstore_journal.inspect import iter_records
from chunkstore_journal.salvage import damaged_record
from tests.support.worlds import World


@pytest.mark.parametrize("mode", ["slot", "append"])
@pytest.mark.parametrize("lines", [False, True], ids=["changes", "lines"])
def test_a_record_with_one_damaged_byte(mode: str, lines: bool, tmp_path: Path) -> None:
    world = World("filesystem", mode, tmp_path)  # type: ignore[arg-type]
    a, b = b"bytes of a", b"bytes of another"
    with world.open(inline_bytes_max=None) as store:
        store.commit([Create("a"), Create("b")])
        if lines:
            store.append_many("a", [a, b])
        else:
            store.commit([Append("a", a), TablePut("t", b"key", b"a row beside"), Append("b", b)])
        lsn = store._container.current.queue.head.lsn
    streams = open_streams(world.raw_storage(), world.names())
    item = next(found for found in iter_records(streams) if found.lsn == lsn)
    whole, begin, end = world.content(item.object), item.position, item.position + item.size
    first, second = whole.index(a, begin, end), whole.index(b, begin, end)
    extents = {*range(first, first + len(a)), *range(second, second + len(b))}
    at = None if mode == "slot" else begin
    assert damaged_record(streams, item.object, at) is None, "it is whole"
    for number in range(begin, end):
        raw = bytearray(whole)
        raw[number] ^= 1 << number % 8
        world.overwrite(item.object, bytes(raw))
        found = damaged_record(streams, item.object, at)
        assert (found is not None) == (number in extents), f"byte {number - begin} of {end - begin}"
        if found is not None:
            assert (found.header.lsn, found.size) == (lsn, item.size)
    world.close()
