"""Tables: journaled key-value rows for the layers above (``store.table(namespace)``).

Promises: rows are journaled, snapshotted and exported like all metadata; changes may expect a version (the lsn of the row's
last change; 0 means "absent"). Changes of different keys share group commits; a conditional one waits for an undecided change
of the same key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from chunkstore.errors import Conflict, InvalidArgument
from chunkstore.journal import OpCode
from chunkstore.metadata.codec import decode_table
from chunkstore.metadata.keys import table_key, table_prefix
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.change_set import ChangeSet
from chunkstore.records.segments import TableRecord

__all__ = ["TableEntry", "floor_entry", "plan_delete_row", "plan_put_row", "read_entry", "scan_entries"]


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
