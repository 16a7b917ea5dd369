"""Of which records nothing but bytes of appends is damaged: every single byte, one after the other."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from chunkstore.changes import Append, Create, TablePut
from chunkstore.names import ContainerNames
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_journal.history import open_streams
from chunkstore_journal.spoilt import spoilt_record
from tests.support.repairing import Place


@pytest.mark.parametrize("mode", ["slot", "append"])
def test_a_record_with_one_damaged_byte(mode: str, tmp_path: Path) -> None:
    place = Place(mode, tmp_path, inline=True)
    a, b = b"bytes of a", b"bytes of another"
    with place.open() as store:
        store.commit([Create("a"), Create("b")])
        store.commit([Append("a", a), TablePut("t", b"key", b"a row beside"), Append("b", b)])
        lsn = store._container.current.queue.head.lsn
    path, begin, end = place.record_at(lsn)
    whole = path.read_bytes()
    first, second = whole.index(a, begin, end), whole.index(b, begin, end)
    extents = {*range(first, first + len(a)), *range(second, second + len(b))}
    with closing(FilesystemChunkStorage(place.folder / "root")) as storage:
        streams = open_streams(storage, ContainerNames("default"))
        name, at = str(path.relative_to(place.folder / "root")), None if mode == "slot" else begin
        assert spoilt_record(streams, name, at) is None, "it is whole"
        for number in range(begin, end):
            raw = bytearray(whole)
            raw[number] ^= 1 << number % 8
            path.write_bytes(raw)
            found = spoilt_record(streams, name, at)
            assert (found is not None) == (number in extents), f"byte {number - begin} of {end - begin}"
            if found is not None:
                assert found[0].header.lsn == lsn and found[1].position == begin
