"""Pins: positions of history that stay restorable until they are given up (protocol 3.14.7, A14, decision 0017).

Promises
* A pin is a record of its own, and its position is that record: what the metadata say there stays restorable. So nothing that a
  collection has decided to delete is promised: whatever it saw removed was removed below the lsn of a pin it did not see.
* A pin with ``lasts_ms`` is there for at least as long: its end is a record that a collection makes, by our own clock (``is_older``).
* Planned one at a time: each sees what the one before came to.
"""

from __future__ import annotations

from collections.abc import Mapping

from chunkstore.config import LIMITS
from chunkstore.errors import Conflict
from chunkstore.journal import RecordKind
from chunkstore.metadata.codec import decode_pin
from chunkstore.metadata.keys import PIN, pin_key
from chunkstore.metadata.retained import pin_of, scan_pins
from chunkstore.operations.change_set import ChangeSet, commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.pending import RowRecord
from chunkstore.records.segments import Pin, PinRecord

__all__ = ["end_expired_pins", "pin", "unpin"]


def pin(container: OwnedContainer, name: str, wanted: PinRecord) -> Pin:
    """Commit a pin at the end of history, or find the same one, made before: then that one's position is.

    ``wanted.lsn`` and ``wanted.time_ms`` are not looked at. Raises ``Conflict`` (another pin of this name, or too many),
    and the errors of commits.
    """
    key = pin_key(name)

    def plan(changes: ChangeSet) -> Mapping[bytes, RowRecord]:
        raw = changes.settled(key, guard=PIN)
        if raw is not None:
            found = decode_pin(key, raw)
            if not _is_over(container, name, found):
                if found[2:] == wanted[2:]:
                    return {key: found}
                where = f"at lsn {found.lsn} for {found.holder!r}, note {found.note!r}"
                raise Conflict(f"pin {name!r}", expected="no other pin of this name", found=where)
        else:
            with changes.owned.store.view() as view:
                count = sum(1 for _ in view.scan(PIN, bytes((PIN[0] + 1,))))
            if count >= LIMITS.pins_max:
                raise Conflict("pins of this container", expected=f"fewer than {LIMITS.pins_max}", found=count)
        _change(changes, RecordKind.PIN, (name, wanted.holder), key, wanted)
        return changes.rows

    record = commit_changes(container, (), plan, tables=True, adds=0)[key]
    assert isinstance(record, PinRecord)
    return pin_of(name, record)


def unpin(container: OwnedContainer, name: str, *, lsn: int | None = None, why: str = "") -> bool:
    """Commit the end of a pin; whether it was there. ``lsn``: only if that very pin still is. A row that cannot be read goes, too: it holds
    up everything. Raises the errors of commits."""
    key = pin_key(name)

    def plan(changes: ChangeSet) -> bool:
        raw = changes.settled(key, guard=PIN)
        if raw is None or (lsn is not None and decode_pin(key, raw).lsn != lsn):
            return False
        _change(changes, RecordKind.UNPIN, (name, why), key, None)
        return True

    return commit_changes(container, (), plan, tables=True)


def end_expired_pins(container: OwnedContainer) -> None:
    """Commit the end of each pin that has lasted as long as it said. Raises the errors of commits."""
    for name, record in container.look(lambda view: list(scan_pins(view))):
        if isinstance(record, PinRecord) and _is_over(container, name, record):
            unpin(container, name, lsn=record.lsn, why="expired")


def _is_over(container: OwnedContainer, name: str, record: PinRecord) -> bool:
    """``name`` may be a pin's again, so what is noticed of a pin goes by its lsn, too."""
    noticed = b"%b\0%d" % (pin_key(name), record.lsn)
    return record.lasts_ms > 0 and container.is_older(noticed, record.lsn, record.time_ms, record.lasts_ms / 1000)


def _change(
    changes: ChangeSet, kind: RecordKind, notes: tuple[object, ...], key: bytes, record: PinRecord | None
) -> None:
    changes.op.kind, changes.op.notes = kind, notes
    changes.table_keys.append(PIN)
    changes.rows[key] = record
