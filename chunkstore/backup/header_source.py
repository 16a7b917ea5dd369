"""Where header files of PDP-34's old layout lie, and the bytes of the segments that they list.

Promises: what is read is bounded before it is read, and what the files do not bear out is ``Damaged``, with the file and the position.
Nothing is written. Leaves out: what is made of it (``header_import``, ``header_keeper``, ``header_replica``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from chunkstore.backup.header_plan import ImportPlan, plan_import
from chunkstore.codec.rolling_header import HEADER_BYTES_MAX, HEADER_SUFFIX, ChunkEntry, Header, decode_header
from chunkstore.config import MIB
from chunkstore.errors import ChunkNotFound, Damaged, InvalidArgument, SegmentNotFound
from chunkstore.names import check_segment_name
from chunkstore.storage import ChunkHandle, ChunkInfo, ChunkStorage, iter_listing

__all__ = ["PIECE_BYTES", "HeaderSource", "files_outside", "find_old_root", "header_names", "read_header"]

PIECE_BYTES: Final = 16 * MIB


def files_outside(storage: ChunkStorage, containers: list[str] | None = None) -> Iterator[ChunkInfo]:
    """All files but those of containers and backups, whose names go into ``containers``, in the order of their names. One question for
    each folder of the first level."""
    after: str | None = None
    while True:
        folder = ""
        for item in iter_listing(storage, after=after):
            part, slash, _ = item.name.partition("/")
            if slash and part != folder:
                folder = part
                if any(storage.exists(f"{part}/{name}") for name in ("FORMAT", "BACKUP")):
                    if containers is not None:
                        containers.append(part)
                    after = f"{part}/\U0010ffff"
                    break
            yield item
        else:
            return


def find_old_root(storage: ChunkStorage, container: str) -> str | None:
    """The name of some header where no container lies but this one, so that nothing can have to do with it; else None. Lists the root."""
    found: str | None = None
    containers: list[str] = []
    for item in files_outside(storage, containers):
        if found is None and item.name.endswith(HEADER_SUFFIX):
            found = item.name
        if any(name != container for name in containers):
            return None
    return found if not any(name != container for name in containers) else None


def header_names(storage: ChunkStorage) -> Iterator[str]:
    """The names of header files outside of containers, without what all of them end with: of segments, if somebody checks them."""
    ends = HEADER_SUFFIX
    return (item.name[: -len(ends)] for item in files_outside(storage) if item.name.endswith(ends))


def read_header(storage: ChunkStorage, segment: str) -> bytes | None:
    """The bytes of a segment's header; None: there is none. Raises ``Damaged`` where it is too long."""
    name = segment + HEADER_SUFFIX
    try:
        length = storage.stat(name).length
        if length > HEADER_BYTES_MAX:
            raise Damaged(
                f"{length} bytes; a header has at most {HEADER_BYTES_MAX}", object=name, position=HEADER_BYTES_MAX
            )
        return storage.read(ChunkHandle(name, False), 0, length) if length else b""
    except ChunkNotFound:
        return None


class HeaderSource:
    """Files of the old layout: headers in ``directory``, chunks there or in ``chunks``."""

    def __init__(self, directory: ChunkStorage, chunks: ChunkStorage, known: Mapping[str, int] | None = None) -> None:
        """``known``: lengths of files that need not be asked for."""
        self._directory = directory
        self._chunks = chunks
        self._known = {} if known is None else known

    @property
    def address(self) -> str:
        """Of the folder with the headers."""
        return self._directory.address

    def names(self) -> list[str]:
        """The segments that have a header. Raises ``InvalidArgument`` where its name is none of a segment, or there is none."""
        found = list(header_names(self._directory))
        for name in found:
            check_segment_name(name, "directory")
        if not found:
            text = f"no file in {self._directory.url} has a name that ends with {HEADER_SUFFIX!r}: name segments that have no header"
            raise InvalidArgument(text, argument="directory")
        return found

    def plan(self, segment: str, *, named: bool = True) -> ImportPlan | None:
        """What is to be imported of a segment; None where its creation did not finish. Raises ``SegmentNotFound``, ``Damaged``."""
        name, data = segment + HEADER_SUFFIX, read_header(self._directory, segment)
        if data == b"" and not named:
            return None
        if data == b"":
            raise SegmentNotFound(segment, f"the creation of segment {segment!r} did not finish: {name!r} is empty")
        if data is None:
            name, header = segment, Header(None, (ChunkEntry(0, segment),))
        else:
            header = decode_header(data, object=name)
        found = {entry.name: have for entry in header.chunks if (have := self._length(entry.name)) is not None}
        if data is None and not found:
            raise SegmentNotFound(
                segment, f"neither {segment + HEADER_SUFFIX!r} nor {segment!r} is in {self._directory.url}"
            )
        sealed = not self._of(name).open_write(name).writable
        return plan_import(segment, header, found, sealed=sealed)

    def read(self, plan: ImportPlan) -> Iterator[tuple[int, list[bytes]]]:
        """The bytes of a segment: offsets, and buffers of ``PIECE_BYTES`` together at most. Raises ``Damaged``, ``ChunkNotFound``."""
        held: list[bytes] = []
        size, offset = 0, plan.start_offset
        for chunk in plan.chunks:
            handle, done = ChunkHandle(chunk.name, False), 0
            storage = self._of(chunk.name)
            while done < chunk.length:
                wanted = min(PIECE_BYTES - size, chunk.length - done)
                data = storage.read(handle, done, wanted)
                done += len(data)
                if len(data) != wanted:
                    raise Damaged(f"it ends here; {chunk.length} bytes belong to it", object=chunk.name, position=done)
                held.append(data)
                size += wanted
                if size == PIECE_BYTES:
                    yield offset, held
                    offset, held, size = offset + size, [], 0
        if held:
            yield offset, held

    def _length(self, name: str) -> int | None:
        if name in self._known:
            return self._known[name]
        for storage in (self._directory, self._chunks):
            with suppress(ChunkNotFound):
                return storage.stat(name).length
        return None

    def _of(self, name: str) -> ChunkStorage:
        if self._directory is self._chunks or self._directory.exists(name):
            return self._directory
        return self._chunks
