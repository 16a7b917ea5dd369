"""The store and its views on an ordered map (``ordered_map``): rows and index entries, each with its CRC, and one row for the head.

A commit is applied in one write transaction, conditional on the head read inside it, and costs its row puts and one more. An owner's
appends wait for company (``WriteBuffer``). Every value that is read is checked (``rows``), in write transactions, too; ``audit`` finds
what a look-up cannot see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import TypeVar

from chunkstore.checksum import crc32c_of_bytes
from chunkstore.config import MIB
from chunkstore.errors import ChunkstoreError, Closed, Damaged, StorageUnavailable
from chunkstore.metadata.fold import Fold, may_follow
from chunkstore.metadata.index import count_chunks, locate
from chunkstore.metadata.ordered_map import FIRST_ROW, Cursor, OrderedMap, StoredHead, Transaction
from chunkstore.metadata.port import Commit, Head, MetadataStore, MetadataView, Position, Totals
from chunkstore.metadata.rows import (
    NOTHING,
    RESIDUE,
    SEAL_BYTES,
    SUM_MODULUS,
    RowDamaged,
    Tally,
    changed,
    grown,
    sealed,
    tally,
    unsealed,
)
from chunkstore.metadata.transaction import floor_in, scan_rows, scan_stored
from chunkstore.runtime import defer_interrupt

__all__ = ["HEAD_KEY", "RowStore", "RowView", "pack_head", "read_head"]

T = TypeVar("T")

HEAD_KEY = b"\0head"
_HEAD = Struct(">B16sQ16sQQQ32sQQQQQQQ")
_HEAD_VERSION = 4
_LOAD_PAIRS = 32_768
_LOAD_BYTES = 8 * MIB


def pack_head(container_uuid: bytes, head: Head, tallied: Tally) -> bytes:
    """The head row as it is stored (FORMAT.md of the metadata folder)."""
    lsn, record_hash, epoch, index, end = head.position
    entries, crc_sum, totals = tallied
    digest = head.digest.to_bytes(32, "big")
    value = _HEAD.pack(
        _HEAD_VERSION, container_uuid, lsn, record_hash, epoch, index, end, digest, entries, crc_sum, *totals
    )
    return value + crc32c_of_bytes(HEAD_KEY + value).to_bytes(SEAL_BYTES, "little")


def read_head(txn: Transaction, container_uuid: bytes, known: StoredHead | None = None) -> tuple[Head, Tally]:
    """The head row of a store. Raises ``RowDamaged``, ``StorageUnavailable``."""
    raw = txn.get(HEAD_KEY)
    if raw is None:
        raise RowDamaged(HEAD_KEY)
    # The head is nearly always what this process wrote last: comparing bytes is cheaper than decoding them.
    if known is not None and raw == known.raw:
        return known.head, known.tallied
    value = unsealed(HEAD_KEY, raw)
    if len(value) != _HEAD.size or value[0] != _HEAD_VERSION or value[1:17] != container_uuid:
        raise StorageUnavailable("the metadata cache is not of this container or version; delete it", object="head")
    _, _, lsn, record_hash, epoch, index, end, digest, entries, crc_sum, *totals = _HEAD.unpack(value)
    head = Head(Position(lsn, record_hash, epoch, index, end), int.from_bytes(digest, "big"))
    return head, Tally(entries, crc_sum, Totals(*totals))


class RowView(MetadataView):
    """One read transaction; opened as ``_OpenView``."""

    __slots__ = ("_cursor", "_environment", "_head", "_tallied", "_txn", "_uuid")

    def __init__(self, environment: OrderedMap, container_uuid: bytes) -> None:
        self._environment = environment
        self._txn: Transaction | None = None
        self._txn = environment.begin_read(id(self))
        self._uuid = container_uuid
        self._cursor: Cursor | None = None
        self._head: Head | None = None
        self._tallied = NOTHING

    def _error(self, error: Exception) -> ChunkstoreError:
        if self._txn is None:
            return Closed("this metadata view")
        assert not isinstance(error, AttributeError)
        self._environment.check()
        return self._environment.translate(error)

    @property
    def head(self) -> Head:
        if self._head is None:
            try:
                known = self._environment.last_head
                self._head, self._tallied = read_head(self._txn, self._uuid, known)  # type: ignore[arg-type]
            except self._environment.errors as error:
                raise self._error(error) from error
        return self._head

    @property
    def totals(self) -> Totals:
        assert self.head  # read with them
        return self._tallied.totals

    def get(self, key: bytes) -> bytes | None:
        try:
            raw = self._txn.get(key)  # type: ignore[union-attr]
            if raw is None:
                return None
            if crc32c_of_bytes(key + raw) != RESIDUE:
                raise RowDamaged(key)
            return raw[:-SEAL_BYTES]
        except self._environment.errors as error:
            raise self._error(error) from error

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from scan_rows(self._txn, start, stop)  # type: ignore[arg-type]
        except self._environment.errors as error:
            raise self._error(error) from error

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        try:
            if self._cursor is None:
                self._cursor = self._txn.cursor()  # type: ignore[union-attr]
            found = floor_in(self._cursor, key)
        except self._environment.errors as error:
            raise self._error(error) from error
        return found if found is not None and found[0] >= FIRST_ROW else None

    def locate(self, segment_id: int, offset: int) -> tuple[bytes, int] | None:
        return locate(self, segment_id, offset)

    def count_chunks(self, segment_id: int, start: int, stop: int) -> int:
        return count_chunks(self, segment_id, start, stop)

    def audit(self) -> None:
        try:
            _, expected = read_head(self._txn, self._uuid)  # type: ignore[arg-type]
            found = tally(scan_stored(self._txn, FIRST_ROW), self._txn.get)  # type: ignore[arg-type, union-attr]
            if found != expected:
                raise RowDamaged(HEAD_KEY, f"says {expected}, and {found} is stored")
        except self._environment.errors as error:
            raise self._error(error) from error

    def close(self) -> None:
        txn = self._txn
        if txn is not None:
            self._txn = self._cursor = None
            if not self._environment.inherited:
                txn.abort()
                self._environment.views.discard(id(self))
        self.__class__ = RowView


class _OpenView(RowView):
    """A view that is not closed yet. Only it has a finalizer, because Python drops an interrupt that it raises inside one."""

    __slots__ = ()

    def __del__(self) -> None:
        # Interrupted at its first step, it has nothing to close.
        if hasattr(self, "_txn"):
            self.close()


class RowStore(MetadataStore):
    """See the module's text. Made by a ``MetadataCache``."""

    def __init__(self, environment: OrderedMap, container_uuid: bytes, *, deadline_s: float) -> None:
        self._environment = environment
        self._uuid = container_uuid
        self._deadline_s = deadline_s
        self._open = True
        self._loaded = NOTHING

    @property
    def environment(self) -> OrderedMap:
        """What it is a handle on; other handles may share it."""
        return self._environment

    @property
    def path(self) -> str:
        """The store's directory, or a name."""
        return self._environment.path

    def _check(self) -> OrderedMap:
        if not self._open:
            raise Closed("this metadata store")
        return self._environment

    def _write(self, body: Callable[[Transaction], T]) -> T:
        environment = self._check()

        def whole(txn: Transaction) -> T:
            self._apply_buffer(txn)
            return body(txn)

        return environment.write(whole, self._deadline_s)

    def _apply_buffer(self, txn: Transaction) -> None:
        buffer = self._environment.buffer
        if buffer.commits and not self._apply(txn, buffer.commits, False, buffer.totals):
            raise StorageUnavailable("the metadata cache differs from its last state; it is rebuilt", object="head")

    def settle(self) -> None:
        """Write what waits, for views. Raises as ``apply``."""
        environment = self._check()
        if environment.buffer.commits:
            environment.write(self._apply_buffer, self._deadline_s)

    def head(self) -> Head:
        environment = self._check()
        environment.check()
        buffer = environment.buffer
        if buffer.commits:
            # Asked of one commit: others may come meanwhile.
            if (head := buffer.head) is not None:
                return head
            self.settle()
        if environment.at is None:
            with defer_interrupt(), environment.writing, _OpenView(environment, self._uuid) as view:
                if not environment.buffer.commits:
                    environment.at = view.head.position
        with _OpenView(environment, self._uuid) as view:
            return view.head

    @property
    def position(self) -> Position | None:
        return self._environment.at if self._open else None

    def view(self) -> MetadataView:
        environment = self._check()
        if environment.buffer.commits:
            self.settle()
        return _OpenView(environment, self._uuid)

    def get(self, key: bytes) -> bytes | None:
        environment = self._check()
        # Looked at first: what does not wait any more when the transaction begins is in it.
        if environment.buffer.lines:
            self.settle()
        rows = environment.buffer.rows
        if key in rows:
            environment.check()
            return rows[key]
        with _OpenView(environment, self._uuid) as view:
            return view.get(key)

    def apply(self, commits: Sequence[Commit], *, verify: bool) -> bool:
        environment = self._environment
        if len(commits) == 1 and not verify and self._open and not environment.inherited and environment.damage is None:
            # Appends wait for others, if the store is where they follow.
            if environment.buffer.full:
                self.settle()
            with environment.writing:
                environment.at = None
                if environment.buffer.add(commits[0]):
                    environment.at = commits[0].position
                    return True
        return not commits or self._write(lambda txn: self._apply(txn, commits, verify, None))

    def _apply(self, txn: Transaction, commits: Sequence[Commit], verify: bool, after: Totals | None) -> bool:
        """``after``: the totals after them, if they are known."""
        environment = self._environment
        head, tallied = read_head(txn, self._uuid, environment.written_head or environment.last_head)
        if not may_follow(head, commits):
            return False
        entries, crc_sum, totals = tallied
        # Records of others may say one thing in their headers and another in their rows: replays count rows.
        if after is None and not verify and len(commits) == 1:
            after = grown(totals, commits[0].ops)
        changes = Fold(txn, head, verify=verify, counts=after is None)
        head = changes.apply(commits)
        totals = changed(totals, changes.counted) if after is None else after
        tallied = Tally(entries + changes.entries, (crc_sum + changes.crcs) % SUM_MODULUS, totals)
        self._put_head(txn, head, tallied)
        return True

    def jump(self, position: Position, digest: int) -> bool:
        def body(txn: Transaction) -> bool:
            head, tallied = read_head(txn, self._uuid)
            if head.digest != digest or position.lsn < head.position.lsn:
                return False
            self._put_head(txn, head._replace(position=position), tallied)
            return True

        return self._write(body)

    def _put_head(self, txn: Transaction, head: Head, tallied: Tally) -> None:
        raw = pack_head(self._uuid, head, tallied)
        txn.put(HEAD_KEY, raw)
        self._environment.written_head = StoredHead(raw, head, tallied)

    def load(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        batch: list[tuple[bytes, bytes]] = []
        size_bytes = 0
        for key, value in pairs:
            batch.append((key, sealed(key, value)))
            size_bytes += len(value)
            if len(batch) >= _LOAD_PAIRS or size_bytes >= _LOAD_BYTES:
                self._load_batch(batch)
                batch = []
                size_bytes = 0
        if batch:
            self._load_batch(batch)

    def _load_batch(self, batch: Sequence[tuple[bytes, bytes]]) -> None:
        def body(txn: Transaction) -> None:
            if batch[0][0] < FIRST_ROW or txn.cursor().putmulti(batch, append=True)[1] != len(batch):
                raise Damaged(
                    "rows to load are not in ascending key order, or the store is not empty",
                    object=f"metadata row {batch[0][0]!r} and the following ones",
                )

        self._write(body)
        self._loaded = tally(batch, before=self._loaded)

    def finish_load(self, head: Head) -> None:
        self._write(lambda txn: txn.put(HEAD_KEY, pack_head(self._uuid, head, self._loaded)))

    def entry_count(self) -> int:
        return self._check().entry_count()

    def free_bytes(self) -> int | None:
        environment = self._check()
        if environment.buffer.commits:
            with suppress(ChunkstoreError):
                self.settle()  # asked now and then: what waits takes its room while there is some
        return environment.free_bytes()

    def close(self, *, clean: bool) -> None:
        if self._open:
            self._open = False
            if self._environment.buffer.commits and not self._environment.inherited:
                with suppress(ChunkstoreError):
                    self._environment.write(self._apply_buffer, self._deadline_s)
            self._environment.release(clean=clean)
