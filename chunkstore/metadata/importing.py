"""How far an import has come: one row without a key in the reserved table namespace ``!import`` (FORMAT.md beside this file, "Imports").

Promises: a row that cannot be read stops the import, and everybody else. Leaves out: importing (``chunkstore.backup.importing``).
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from chunkstore.errors import Damaged
from chunkstore.metadata.codec import decode_table
from chunkstore.metadata.keys import IMPORT_KEY
from chunkstore.metadata.port import MetadataView

__all__ = ["ImportMark", "ImportPhase", "Origin", "decode_import", "encode_import", "find_import"]

_HEADER = Struct(">B16sQ16sB")
_VERSION: Final = 1
_AFTER_BYTES_MAX: Final = 600


class Origin(NamedTuple):
    """Which state of which container is taken in: its uuid, and the record that left it."""

    container: bytes
    lsn: int
    hash: bytes


class ImportPhase(IntEnum):
    """What is being taken in. Zero is never valid."""

    SEGMENTS = 1
    TABLES = 2


class ImportMark(NamedTuple):
    """Everything up to ``after`` has been taken in: a segment's name in UTF-8, or a table row's key; empty: nothing of this phase."""

    origin: Origin
    phase: ImportPhase
    after: bytes


def encode_import(mark: ImportMark) -> bytes:
    """The value of the row."""
    return _HEADER.pack(_VERSION, *mark.origin, mark.phase) + mark.after


def decode_import(raw: bytes) -> ImportMark:
    """What the row says. Raises ``Damaged``."""
    value = decode_table(IMPORT_KEY, raw).value
    if _HEADER.size <= len(value) <= _HEADER.size + _AFTER_BYTES_MAX:
        version, container, lsn, identity, phase = _HEADER.unpack_from(value)
        if version == _VERSION and phase in tuple(ImportPhase):
            return ImportMark(Origin(container, lsn, identity), ImportPhase(phase), value[_HEADER.size :])
    raise Damaged("not an import of a known version; use a newer program", object=f"metadata row {IMPORT_KEY!r}")


def find_import(view: MetadataView) -> ImportMark | None:
    """How far an import has come that has not ended; None: there is none. Raises ``Damaged``."""
    raw = view.get(IMPORT_KEY)
    return None if raw is None else decode_import(raw)
