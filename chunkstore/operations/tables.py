"""``store.table(namespace)``: journaled key-value rows, for the owner and for replicas; ``store.session(...)`` as the owner holds it.

Promises: every read shows one point of history; a change is one record, durable and fenced when it returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple, Self

from chunkstore.changes import TablePut
from chunkstore.changes.sessions import check_chunk_number
from chunkstore.errors import Conflict, InvalidArgument
from chunkstore.journal import OpCode
from chunkstore.metadata.codec import decode_table
from chunkstore.metadata.keys import table_key, table_prefix
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.attach import plan_end_session
from chunkstore.operations.change_set import ChangeSet, commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.read import ReadContext
from chunkstore.operations.session_writer import SessionWriter
from chunkstore.records.arguments import check_key, check_namespace, check_value, check_version
from chunkstore.records.segments import TableRecord

__all__ = [
    "Session",
    "Table",
    "TableEntry",
    "TableReader",
    "floor_entry",
    "plan_delete_row",
    "plan_put_row",
    "read_entry",
    "scan_entries",
    "version_put",
]


class TableEntry(NamedTuple):
    """One row: its key, its value and the version to expect when changing it."""

    key: bytes
    value: bytes
    version: int


def read_entry(view: MetadataView, namespace: str, key: bytes) -> TableEntry | None:
    """One row, or None."""
    raw = view.get(table_key(namespace, key))
    if raw is None:
        return None
    record = decode_table(f"table {namespace}", raw)
    return TableEntry(key, record.value, record.version)


def scan_entries(view: MetadataView, namespace: str, prefix: bytes, after: bytes | None) -> Iterator[TableEntry]:
    """Rows whose key begins with ``prefix``, in key order, those above ``after`` only."""
    base = table_prefix(namespace)
    start = base + prefix if after is None else max(base + prefix, base + after + b"\0")
    for key, raw in view.scan(start, _successor(base + prefix)):
        record = decode_table(f"table {namespace}", raw)
        yield TableEntry(key[len(base) :], record.value, record.version)


def floor_entry(view: MetadataView, namespace: str, key: bytes, prefix: bytes) -> TableEntry | None:
    """The last row at or below ``key`` whose key begins with ``prefix``, or None."""
    base = table_prefix(namespace)
    found = view.floor(base + key)
    if found is None or not found[0].startswith(base + prefix):
        return None
    record = decode_table(f"table {namespace}", found[1])
    return TableEntry(found[0][len(base) :], record.value, record.version)


def _successor(prefix: bytes) -> bytes:
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes((trimmed[-1] + 1,))


def plan_put_row(changes: ChangeSet, namespace: str, key: bytes, value: bytes, expected_version: int | None) -> None:
    """Plan a put. Raises ``Conflict`` when the version is not the expected one."""
    full = table_key(namespace, key)
    _expect(changes, namespace, key, full, expected_version)
    changes.rows[full] = TableRecord(0, value)
    changes.headers.append((int(OpCode.TABLE_PUT), namespace, key))
    changes.table_keys.append(full)


def plan_delete_row(changes: ChangeSet, namespace: str, key: bytes, expected_version: int | None) -> bool:
    """Plan a delete; whether there is such a row: deleting an absent one is no change. Raises ``Conflict``."""
    full = table_key(namespace, key)
    present = changes.is_present(full)
    _expect(changes, namespace, key, full, expected_version)
    if present:
        changes.rows[full] = None
        changes.headers.append((int(OpCode.TABLE_DELETE), namespace, key))
        changes.table_keys.append(full)
    return present


def _expect(changes: ChangeSet, namespace: str, key: bytes, full: bytes, expected_version: int | None) -> None:
    # Whatever was found there: whether a commit is refused for its arguments does not depend on what is stored.
    if full in changes.conditional_keys or (expected_version is not None and full in changes.mentioned_keys):
        what = f"table {namespace!r}: key {key!r} is changed twice in one commit, and a version is expected"
        raise InvalidArgument(what, argument="changes")
    changes.mentioned_keys.add(full)
    if expected_version is None:
        return
    changes.conditional_keys.add(full)
    raw = changes.settled(full)
    found = 0 if raw is None else decode_table(f"table {namespace}", raw).version
    if found != expected_version:
        raise Conflict(f"table {namespace!r}, key {key!r}: version", expected=expected_version, found=found)


def version_put(entry: TableEntry | None, once: TablePut) -> int | None:
    """The version of a row if it is there as ``once`` puts it: then that has been committed."""
    if entry is None or entry.version == once.expected_version or entry.value != bytes(once.value):
        return None
    return entry.version


class TableReader:
    """The reading half of ``table(namespace)``."""

    def __init__(self, context: ReadContext, namespace: str) -> None:
        self._context = context
        self.namespace: str = check_namespace(namespace)

    def get(self, key: bytes) -> TableEntry | None:
        """One row (key, value, version), or None.

        Raises ``InvalidArgument``, ``NotOwner``, ``Closed``, ``Damaged``, ``StorageUnavailable``, ``DeadlineExceeded``,
        ``StorageFull`` (where a stat may be stale). Retry: safe.
        """
        check_key(key)
        self._context.check_open()
        entry = self._context.look(lambda view: read_entry(view, self.namespace, key))
        self._context.check()
        return entry

    def floor(self, key: bytes, prefix: bytes = b"") -> TableEntry | None:
        """The last row at or below ``key`` if its key begins with ``prefix``, or None: one look-up. Raises and retry as ``get``."""
        check_key(key)
        if not isinstance(prefix, bytes):
            raise InvalidArgument(f"prefix must be bytes, not {type(prefix).__name__}", argument="prefix")
        self._context.check_open()
        entry = self._context.look(lambda view: floor_entry(view, self.namespace, key, prefix))
        self._context.check()
        return entry

    def scan(self, prefix: bytes = b"", *, after: bytes | None = None) -> Iterator[TableEntry]:
        """Rows whose key begins with ``prefix``, in key order, those above ``after`` only.

        From one view that stays open while iterating. Raises as ``get``, also while iterating. Retry: safe.
        """
        for value, argument in ((prefix, "prefix"), (b"" if after is None else after, "after")):
            if not isinstance(value, bytes):
                raise InvalidArgument(f"{argument} must be bytes, not {type(value).__name__}", argument=argument)
        self._context.check_open()
        return self._scan(prefix, after)

    def _scan(self, prefix: bytes, after: bytes | None) -> Iterator[TableEntry]:
        def scanned(view: MetadataView) -> Iterator[TableEntry]:
            self._context.check()
            return scan_entries(view, self.namespace, prefix, after)

        return self._context.iterate_view(scanned)


class Table(TableReader):
    """``store.table(namespace)``: journaled key-value rows. Versions are lsns; 0 as an expectation means "absent"."""

    def __init__(self, container: OwnedContainer, context: ReadContext, namespace: str, store: object) -> None:
        super().__init__(context, namespace)
        self._store = store  # it goes on while this is used
        self._container = container

    def put(self, key: bytes, value: bytes, *, expected_version: int | None = None) -> None:
        """Set a row. Atomic, durable.

        Raises ``InvalidArgument``, ``Conflict`` (``expected_version`` is given and differs; nothing changed), ``Closed``,
        ``NotOwner``, ``OutcomeUnknown``, ``StorageFull``, ``StorageUnavailable``, ``DeadlineExceeded``, ``Damaged``. Retry:
        safe (``Conflict`` may be your own change).
        """
        check_key(key)
        check_value(value)
        check_version(expected_version)
        commit_changes(
            self._container,
            (),
            lambda changes: plan_put_row(changes, self.namespace, key, value, expected_version),
            tables=True,
            adds=0,
        )

    def delete(self, key: bytes, *, expected_version: int | None = None) -> None:
        """Delete a row; deleting an absent one is no change. Atomic, durable. Raises and retry as ``put``."""
        check_key(key)
        check_version(expected_version)
        commit_changes(
            self._container,
            (),
            lambda changes: plan_delete_row(changes, self.namespace, key, expected_version),
            tables=True,
        )


class Session:
    """An open session for writers outside the owner (protocol A9). A context manager that ends it if it is open."""

    def __init__(self, container: OwnedContainer, session_id: int, holder: str, store: object) -> None:
        self._container = container
        self._store = store  # it goes on while this is used
        self.id = session_id
        self.holder = holder
        self._ended = False

    def writer(self, first_number: int = 0) -> SessionWriter:
        """Plain data for an executor: what it needs to write chunks of this session. Raises ``InvalidArgument``."""
        check_chunk_number(first_number, "first_number")
        return SessionWriter(self._container.names.container, self.id, first_number)

    def mark_ended(self) -> None:
        """Say that a commit of yours contained ``EndSession`` for it. Raises nothing."""
        self._ended = True

    def end(self) -> None:
        """End it without attaching anything more. Atomic, durable.

        Raises ``Conflict`` (it has been ended), ``Closed``, ``NotOwner``, ``OutcomeUnknown``, ``StorageFull``,
        ``StorageUnavailable``, ``DeadlineExceeded``, ``Damaged``. Retry: safe (``Conflict`` if it had happened).
        """
        commit_changes(self._container, (), lambda changes: plan_end_session(changes, self.id), tables=True)
        self._ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended:
            self.end()
