"""Pins: positions of history that stay restorable until they are given up (protocol 3.14.7, A14, decision 0017).

Promises
* A pin is a record of its own, and its position is that record: what the metadata say there stays restorable. So nothing that a
  collection has decided to delete is promised: whatever it saw removed was removed below the lsn of a pin it did not see.
* A pin with ``lasts_ms`` is there for at least as long: its end is a record that a collection makes, by our own clock (``ageing``).
* Planned one at a time: each sees what the one before came to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from chunkstore.config import LIMITS
from chunkstore.errors import Conflict
from chunkstore.journal import RecordKind
from chunkstore.metadata.codec import decode_pin
from chunkstore.metadata.keys import PIN, pin_key
from chunkstore.metadata.pins import pin_of, scan_pins
from chunkstore.operations.change_set import ChangeSet, commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.pending import RowRecord
from chunkstore.records.segments import Pin, PinRecord

__all__ = ["end_expired_pins", "end_pins", "pin", "unpin"]

_EXPIRED = "expired"


def pin(container: OwnedContainer, name: str, wanted: PinRecord) -> Pin:
    """Commit a pin at the end of history, or find the same one, made before: then that one's position is.

    ``wanted.lsn`` and ``wanted.time_ms`` are not looked at. Raises ``Conflict`` (another pin of this name, or too many),
    and the errors of commits.
    """
    plan = partial(_plan_pin, container, name=name, wanted=wanted)
    record = commit_changes(container, (), plan, tables=True, adds=0)[pin_key(name)]
    assert isinstance(record, PinRecord)
    return pin_of(name, record)


def unpin(container: OwnedContainer, name: str) -> bool:
    """Commit the end of a pin; whether it was there. Raises the errors of commits."""
    return commit_changes(container, (), partial(_plan_unpin, name=name, lsn=None, why=""), tables=True)


def end_expired_pins(container: OwnedContainer) -> None:
    """Commit the end of each pin that has lasted as long as it said. Raises the errors of commits."""
    pins = container.look(lambda view: list(scan_pins(view)))
    known = ((name, record) for name, record in pins if isinstance(record, PinRecord))
    end_pins(container, ((name, pin.lsn) for name, pin in known if _is_over(container, name, pin)), _EXPIRED)


def end_pins(container: OwnedContainer, pins: Iterable[tuple[str, int]], why: str) -> None:
    """Commit the end of each pin, by name and position, unless it is gone. Raises the errors of commits."""
    for name, lsn in pins:
        commit_changes(container, (), partial(_plan_unpin, name=name, lsn=lsn, why=why), tables=True)


def _is_over(container: OwnedContainer, name: str, record: PinRecord) -> bool:
    """``name`` may be a pin's again, so what is noticed of a pin goes by its lsn, too."""
    noticed = b"%b\0%d" % (pin_key(name), record.lsn)
    return record.lasts_ms > 0 and container.is_older(noticed, record.lsn, record.time_ms, record.lasts_ms / 1000)


def _begin(changes: ChangeSet, kind: RecordKind, notes: tuple[object, ...]) -> None:
    changes.kind, changes.notes = kind, notes
    changes.table_keys.append(PIN)


def _plan_pin(
    container: OwnedContainer, changes: ChangeSet, *, name: str, wanted: PinRecord
) -> Mapping[bytes, RowRecord]:
    key = pin_key(name)
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
    _begin(changes, RecordKind.PIN, (name, wanted.holder))
    changes.rows[key] = wanted
    return changes.rows


def _plan_unpin(changes: ChangeSet, *, name: str, lsn: int | None, why: str) -> bool:
    """``lsn``: only if that pin is still there. A row that cannot be read goes, too: it holds up everything."""
    key = pin_key(name)
    raw = changes.settled(key, guard=PIN)
    if raw is None or (lsn is not None and decode_pin(key, raw).lsn != lsn):
        return False
    _begin(changes, RecordKind.UNPIN, (name, why))
    changes.rows[key] = None
    return True
