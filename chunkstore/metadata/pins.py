"""What the rows of pins say together: which position is the lowest that has to stay restorable (protocol 3.14.7).

Promises: read from one view; a pin whose row cannot be read may mean any position, so it counts as the lowest: who looks
for something to delete finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from chunkstore import runtime
from chunkstore.errors import Damaged
from chunkstore.metadata.codec import decode_pin
from chunkstore.metadata.keys import PIN
from chunkstore.metadata.port import MetadataView
from chunkstore.records.segments import Pin, PinRecord

__all__ = ["pin_holder", "pin_of", "pinned_lsn", "pins_at", "read_pins", "scan_pins"]

_HOST_CHARACTERS_MAX: Final = 200


def scan_pins(view: MetadataView) -> Iterator[tuple[str, PinRecord | Damaged]]:
    """Every pin by its name, in order of the names' UTF-8 bytes: its record, or why its row cannot be read."""
    for key, raw in view.scan(PIN, bytes((PIN[0] + 1,))):
        name = key[1:].decode("utf-8", "replace")
        try:
            yield name, decode_pin(key, raw)
        except Damaged as damage:
            yield name, damage


def pinned_lsn(view: MetadataView) -> int | None:
    """The lowest lsn that a pin names; 0 where one cannot be read, None where there is none."""
    found = (record.lsn if isinstance(record, PinRecord) else 0 for _, record in scan_pins(view))
    return min(found, default=None)


def pins_at(view: MetadataView, lsn: int) -> str:
    """The names of the pins at ``lsn``, for a message."""
    found = (name for name, record in scan_pins(view) if isinstance(record, PinRecord) and record.lsn == lsn)
    return ", ".join(map(repr, islice(found, 3)))


def read_pins(view: MetadataView) -> list[Pin]:
    """Every pin, by name. Raises ``Damaged``."""
    pins = []
    for name, record in scan_pins(view):
        if isinstance(record, Damaged):
            raise record
        pins.append(pin_of(name, record))
    return pins


def pin_holder() -> str:
    """A new holder. The random part makes it ours: processes in containers share host names and process numbers."""
    who = runtime.identity()
    return f"{who.host[:_HOST_CHARACTERS_MAX]}:{who.pid} {runtime.token(8).hex()}"


def pin_of(name: str, record: PinRecord) -> Pin:
    """The public face of a pin's record."""
    expires_at = record.time_ms + record.lasts_ms if record.lasts_ms else None
    return Pin(name, record.lsn, record.holder, record.note, record.time_ms, expires_at)
