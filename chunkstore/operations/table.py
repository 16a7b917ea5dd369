"""Tables: journaled key-value rows for the layers above (``store.table(namespace)``).

Promises: rows are journaled, snapshotted and exported like all metadata; ``put`` and ``delete`` may expect a version (the lsn
of the row's last change; 0 means "absent"), and several changes can share one record with segment changes. Changes of
different keys share group commits; a conditional change of a key waits for an undecided change of the same key.
Leaves out: secondary indexes, ranges deletes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from chunkstore import runtime
from chunkstore.config import LIMITS
from chunkstore.errors import Conflict, InvalidArgument
from chunkstore.journal import OpCode
from chunkstore.metadata.codec import decode_table
from chunkstore.metadata.keys import table_key, table_prefix
from chunkstore.metadata.port import MetadataView
from chunkstore.names import utf8_bytes
from chunkstore.operations.pending import PendingOp
from chunkstore.records import TableRecord

if TYPE_CHECKING:
    from chunkstore.operations.draft import Draft

__all__ = [
    "KeyBusy",
    "PendingTables",
    "TableEntry",
    "check_key",
    "check_namespace",
    "check_value",
    "check_version",
    "plan_delete",
    "plan_put",
    "read_entry",
    "scan_entries",
]


class TableEntry(NamedTuple):
    """One row: its key, its value and the version to expect when changing it."""

    key: bytes
    value: bytes
    version: int


class KeyBusy(Exception):
    """Internal: the key has an undecided change; wait for ``op`` and plan again."""

    def __init__(self, op: PendingOp) -> None:
        super().__init__("undecided")
        self.op = op


class PendingTables:
    """Which table rows and sessions have undecided changes. ``lock`` orders planning and entering of such changes."""

    def __init__(self) -> None:
        self.lock = runtime.lock()
        self._guard = runtime.lock()
        self._pending: dict[bytes, list[PendingOp]] = {}

    def remember(self, op: PendingOp) -> None:
        """Called with ``lock`` held when ``op`` enters the queue."""
        with self._guard:
            for key in op.table_keys:
                self._pending.setdefault(key, []).append(op)

    def forget(self, op: PendingOp) -> None:
        """Called when ``op`` has been decided."""
        with self._guard:
            for key in op.table_keys:
                ops = self._pending.get(key, [])
                if op in ops:
                    ops.remove(op)
                if not ops:
                    self._pending.pop(key, None)

    def check(self, key: bytes) -> None:
        """Raise ``KeyBusy`` while a change of the key is undecided."""
        with self._guard:
            undecided = [op for op in self._pending.get(key, ()) if not op.decided]
        if undecided:
            raise KeyBusy(undecided[-1])


def check_namespace(namespace: object) -> str:
    """1 to 64 bytes of UTF-8; names beginning with ``!`` are chunkstore's own. Raises ``InvalidArgument``."""
    if not isinstance(namespace, str) or not 1 <= utf8_bytes(namespace) <= LIMITS.table_namespace_bytes_max:
        raise InvalidArgument(
            f"a table namespace is a str of 1 to {LIMITS.table_namespace_bytes_max} bytes, not {namespace!r}",
            argument="namespace",
        )
    if namespace.startswith("!"):
        raise InvalidArgument("table namespaces that begin with '!' are reserved", argument="namespace")
    return namespace


def check_key(key: object) -> bytes:
    """1 to 400 bytes. Raises ``InvalidArgument``."""
    if not isinstance(key, bytes) or not 1 <= len(key) <= LIMITS.table_key_bytes_max:
        raise InvalidArgument(
            f"a table key is bytes, 1 to {LIMITS.table_key_bytes_max} of them, not {key!r}", argument="key"
        )
    return key


def check_value(value: object) -> bytes:
    """Bytes up to the row limit. Raises ``InvalidArgument``."""
    if not isinstance(value, bytes) or len(value) > LIMITS.row_bytes_max - 64:
        raise InvalidArgument(
            f"a table value is bytes, at most {LIMITS.row_bytes_max - 64} of them; keep more in a segment",
            argument="value",
        )
    return value


def check_version(version: object) -> None:
    """None, or a whole number from 0 on. Raises ``InvalidArgument``."""
    if version is not None and (type(version) is not int or version < 0):
        raise InvalidArgument(
            f"expected_version must be a whole number from 0 on, not {version!r}", argument="expected_version"
        )


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


def _successor(prefix: bytes) -> bytes:
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes((trimmed[-1] + 1,))


def plan_put(draft: Draft, namespace: str, key: bytes, value: bytes, expected_version: int | None) -> None:
    """Plan a put. Raises ``Conflict`` when the version is not the expected one."""
    full = table_key(namespace, key)
    _expect(draft, namespace, key, full, expected_version)
    draft.rows[full] = TableRecord(0, value)
    draft.headers.append((int(OpCode.TABLE_PUT), namespace, key))
    draft.table_keys.append(full)


def plan_delete(draft: Draft, namespace: str, key: bytes, expected_version: int | None) -> None:
    """Plan a delete; deleting an absent row is no change. Raises ``Conflict``."""
    full = table_key(namespace, key)
    committed = draft.settled(full)
    _expect(draft, namespace, key, full, expected_version)
    present = draft.rows[full] is not None if full in draft.rows else committed is not None
    if not present:
        return
    draft.rows[full] = None
    draft.headers.append((int(OpCode.TABLE_DELETE), namespace, key))
    draft.table_keys.append(full)


def _expect(draft: Draft, namespace: str, key: bytes, full: bytes, expected_version: int | None) -> None:
    # Whatever was found there: whether a commit is refused for its arguments does not depend on what is stored.
    if full in draft.conditional_keys or (expected_version is not None and full in draft.mentioned_keys):
        raise InvalidArgument(
            f"table {namespace!r}: key {key!r} is changed twice in one commit, and a version is expected",
            argument="changes",
        )
    draft.mentioned_keys.add(full)
    if expected_version is None:
        return
    draft.conditional_keys.add(full)
    raw = draft.settled(full)
    found = 0 if raw is None else decode_table(f"table {namespace}", raw).version
    if found != expected_version:
        raise Conflict(f"table {namespace!r}, key {key!r}: version", expected=expected_version, found=found)
