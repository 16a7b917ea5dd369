"""What a backup root holds, looked at whenever something in it changes: a backup that counts is whole, and stays so.

Promises: it knows the copies that a backup needs from the rows of its export, by the format (``chunkstore/backup/FORMAT.md``), not by the
code that chose them; fed with every name that was put or deleted, it reports what counts before it is whole, a copy that is not what
its chunk is, and whatever is deleted under a backup that counts. Leaves out: what the rows say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from chunkstore.backup.files import Export
from chunkstore.errors import ChunkNotFound, Damaged
from chunkstore.metadata.keys import CHUNK
from chunkstore.names import BackupNames, ContainerNames, parse_run
from chunkstore_journal.frame import FRAME_HEADER_BYTES
from chunkstore_journal.wire import unpack
from tests.judges.stored_records import CHUNK_FIELDS, decode_row

__all__ = ["BackupRoot"]

_CLOSED = 2


class _Copy(NamedTuple):
    """``name`` holds the first ``length`` bytes of the object ``chunk``; no others, if it is ``exact``."""

    name: str
    chunk: str
    length: int
    exact: bool


class BackupRoot:
    """See the module. ``content``: an object of the backup root; ``source``: one of the container's root; ``report``: what is wrong."""

    def __init__(
        self,
        container: str,
        content: Callable[[str], bytes | None],
        source: Callable[[str], bytes | None],
        report: Callable[[str], None],
    ) -> None:
        self._names = BackupNames(container)
        self._own = ContainerNames(container)
        self._content = content
        self._source = source
        self._report = report
        self.counting: dict[str, tuple[int, frozenset[str]]] = {}
        """Runs that count: the lsn, and every object that is needed."""

    def put(self, name: str) -> None:
        """An object has appeared, or has changed."""
        run = parse_run(name, self._names.done(""))
        data = self._content(name) if run is not None else None
        if run is None or data is None:
            return
        fields: Any = unpack(data[FRAME_HEADER_BYTES:], name, 0)
        if not fields[0]:
            self.counting.pop(run, None)
        elif run not in self.counting:
            needed = frozenset(self._needed(fields[1], run, f"backup {run} of lsn {fields[1]} counts"))
            self.counting[run] = fields[1], needed

    def deleted(self, name: str) -> None:
        """An object has gone."""
        run = parse_run(name, self._names.done(""))
        if run is not None:
            self.counting.pop(run, None)
            return
        for run, (lsn, needed) in self.counting.items():
            if name in needed:
                self._report(f"{name} was deleted, which backup {run} of lsn {lsn} needs, and that counts")

    def look_again(self, names: list[str]) -> None:
        """Much may have changed: these are the names that are there now."""
        there = {run for run in (parse_run(name, self._names.done("")) for name in names) if run is not None}
        for run in self.counting.keys() - there:
            del self.counting[run]
        for run, (lsn, needed) in self.counting.items():
            if gone := sorted(needed - set(names)):
                self._report(f"after a power cut {gone[:3]} are gone, which backup {run} of lsn {lsn} needs")
        for run in there:
            self.put(self._names.done(run))

    def _needed(self, lsn: int, run: str, what: str) -> Iterator[str]:
        stored = self._names.stored(lsn, run)
        yield stored
        try:
            for copy in self._copies(stored):
                yield copy.name
                self._compare(copy, what)
        except (Damaged, ChunkNotFound) as error:
            self._report(f"{what}, and its export is not whole: {error!r}")

    def _copies(self, stored: str) -> Iterator[_Copy]:
        def read(name: str, offset: int, length: int) -> bytes:
            data = self._content(name)
            if data is None:
                raise ChunkNotFound(name)
            return data[offset : offset + length]

        export = Export(read, stored)
        for key, raw in export.of_kind(CHUNK):
            fields = decode_row(raw, CHUNK_FIELDS)
            length, epoch, state = fields[2], fields[7], fields[8]
            growing = state != _CLOSED and epoch == export.header.position.epoch
            name = self._names.copy(key[1:], length if growing else None)
            yield _Copy(name, self._own.chunk(key[1:]), length, growing)

    def _compare(self, copy: _Copy, what: str) -> None:
        data, original = self._content(copy.name), self._source(copy.chunk)
        if data is None or len(data) < copy.length or (copy.exact and len(data) != copy.length):
            found = "absent" if data is None else f"{len(data)} bytes long"
            self._report(f"{what}, and {copy.name} is {found}: {copy.length} belong there")
        elif original is not None and data[: copy.length] != original[: copy.length]:
            self._report(f"{what}, and {copy.name} holds other bytes than its chunk")
