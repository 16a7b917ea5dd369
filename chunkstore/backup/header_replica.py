"""A root of PDP-34's old layout that is read without a container (``Settings.layout`` "NO_UPGRADE"): what a replica follows there.

Promises: nothing is written, locally or at the root. What is shown is what the headers and the lengths of their files said at the last
``catch_up``, which asks one listing and reads the headers again when names or lengths have changed. A segment whose header or files are
damaged is not shown; whoever asks for it gets ``Damaged``, and so does ``check``.
Leaves out: segments without a header; CRCs, which the old layout does not have; whoever writes meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from chunkstore.backup.header_plan import ImportPlan, rolling_of
from chunkstore.backup.header_source import HeaderSource, files_outside
from chunkstore.checksum import DIGEST_MODULUS, row_digest
from chunkstore.codec.rolling_header import HEADER_SUFFIX
from chunkstore.errors import ChunkNotFound, ContainerNotFound, Damaged, InvalidArgument
from chunkstore.invariants import Finding
from chunkstore.metadata.codec import encode_chunk, encode_segment
from chunkstore.metadata.index import rebuild_index
from chunkstore.metadata.keys import chunk_key, segment_key
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.metadata.port import Head, MetadataStore, MetadataView, Position
from chunkstore.names import NO_CHUNK, ContainerNames, check_segment_name, chunk_id
from chunkstore.operations.check import CheckLevel
from chunkstore.records import CLOSED, FLAG_SEALED, KIND_OBJECT, ChunkRecord, SegmentRecord
from chunkstore.storage import ChunkStorage

__all__ = ["HeaderFollower", "HeaderNames"]

_EPOCH = 1


class HeaderNames(ContainerNames):
    """Names of chunks are those in headers. ``files``: by chunk id."""

    __slots__ = ("files",)

    def __init__(self, container: str) -> None:
        super().__init__(container)
        self.files: dict[bytes, str] = {}

    def chunk(self, identity: bytes) -> str:
        return self.files.get(identity) or super().chunk(identity)


class HeaderFollower:
    """Shows the segments of the headers at a root. Not thread-safe; views of ``store`` may be used by other threads."""

    def __init__(self, storage: ChunkStorage, names: HeaderNames) -> None:
        self._storage = storage
        self._names = names
        self._cache = MemoryMetadataCache(bytes(16), storage.address, "replica", shelf=MemoryShelf())
        self._store: MetadataStore | None = None
        self._retired: MetadataStore | None = None
        self._seen = b""
        self._former: dict[bytes, str] = {}
        self._damaged: dict[str, Damaged] = {}

    @property
    def store(self) -> MetadataStore:
        """The rows that ``catch_up`` made."""
        if self._store is None:
            raise ContainerNotFound(self._names.container, root=self._storage.url)
        return self._store

    def catch_up(self) -> Head:
        """Show what lies there now. Raises ``ContainerNotFound`` (no header at all), ``StorageUnavailable``. Retry: safe."""
        lengths: dict[str, int] = {}
        listing = blake2b(digest_size=16)
        for item in files_outside(self._storage):
            lengths[item.name] = item.length
            listing.update(b"%b\0%d\0" % (item.name.encode(), item.length))
        if self._store is None or listing.digest() != self._seen:
            self._show(lengths, listing.digest())
        return self.store.head()

    def refuse(self, name: str) -> bool:
        """Raise ``Damaged`` for a segment that is not shown because of that; else False: there is none."""
        if name in self._damaged:
            raise self._damaged[name].copy()
        return False

    def findings(self, _level: CheckLevel, _view: MetadataView, _pinned_lsn: int | None) -> list[Finding]:
        """What is damaged."""
        return [
            Finding(0, "damage", name, "", error.object, error.position, error.message)
            for name, error in self._damaged.items()
        ]

    def close(self) -> None:
        """Release the stores."""
        self._cache.close()

    def _show(self, lengths: dict[str, int], seen: bytes) -> None:
        ends = HEADER_SUFFIX
        names = [name[: -len(ends)] for name in lengths if name.endswith(ends)]
        if not names:
            raise ContainerNotFound(self._names.container, root=self._storage.url)
        lsn = 1 if self._store is None else self._store.head().position.lsn + 1
        source = HeaderSource(self._storage, self._storage, lengths)
        damaged: dict[str, Damaged] = {}
        files: dict[bytes, str] = {}
        digest = 0
        rows: list[tuple[bytes, bytes]] = []
        for number, name in enumerate(names, 1):
            plan = self._plan(source, name, damaged)
            if plan is not None:
                rows += _rows(plan, lsn << 32 | number, files)
        rows.sort()
        for key, raw in rows:
            digest += row_digest(key, raw)
        store = self._cache.create()
        store.load(rows)
        with store.view() as view:
            store.load(rebuild_index(view))
        store.finish_load(Head(Position(lsn, seen, _EPOCH, 0, 0), digest % DIGEST_MODULUS))
        if self._retired is not None:
            self._cache.discard(self._retired)
        # Readers of the store before this one end long before the next: its names stay as long.
        self._names.files, self._former = self._former | files, files
        self._retired, self._store, self._seen, self._damaged = self._store, store, seen, damaged

    def _plan(self, source: HeaderSource, name: str, damaged: dict[str, Damaged]) -> ImportPlan | None:
        try:
            check_segment_name(name)
            plan = source.plan(name, named=False)
        except (InvalidArgument, ChunkNotFound):
            return None  # no segment's, or gone meanwhile
        except Damaged as error:
            damaged[name] = error
            return None
        if plan is not None and plan.damage is not None:
            fault = plan.damage
            damaged[name] = Damaged(fault.message, object=fault.object, position=fault.position, segment=name)
            return None
        return plan


def _rows(plan: ImportPlan, segment_id: int, files: dict[bytes, str]) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a segment; puts into ``files`` where its chunks lie."""
    ids = [chunk_id(segment_id, _EPOCH, number, 0) for number in range(len(plan.chunks))]
    files.update(zip(ids, (chunk.name for chunk in plan.chunks), strict=True))
    neighbours = [NO_CHUNK, *ids, NO_CHUNK]
    for at, chunk in enumerate(plan.chunks):
        record = ChunkRecord(
            "", 0, chunk.length, None, neighbours[at], neighbours[at + 2], segment_id, _EPOCH, CLOSED, KIND_OBJECT, 0
        )
        yield chunk_key(ids[at]), encode_chunk(record)
    segment = SegmentRecord(
        name=plan.segment,
        id=segment_id,
        flags=FLAG_SEALED if plan.sealed else 0,
        start_offset=plan.start_offset,
        length=plan.length,
        first_chunk=neighbours[1] if ids else NO_CHUNK,
        last_chunk=ids[-1] if ids else NO_CHUNK,
        last_chunk_offset=plan.chunks[-1].offset if ids else plan.length,
        first_chunk_skip=0,
        chunk_size_bytes_max=rolling_of(plan.size_bytes_max).chunk_size_bytes_max,
        owner_epoch=_EPOCH,
        chunk_count=len(ids),
        attributes={},
        created_ms=0,
        modified_ms=0,
    )
    yield segment_key(plan.segment), encode_segment(segment)
