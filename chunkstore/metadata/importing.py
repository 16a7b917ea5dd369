"""How far imports have come: rows of the reserved table namespace ``!import`` (FORMAT.md beside this file, "Imports").

Promises: the rows, by the ids of imports, are of what is merged into a container that works: their segments bear ``hidden_name``s until
they are whole. Leaves out: importing (``chunkstore.backup.importing``).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from chunkstore.errors import Damaged
from chunkstore.metadata.codec import decode_table
from chunkstore.metadata.keys import IMPORT_KEY, IMPORT_NAMESPACE, VISIBLE_SEGMENTS, segment_key, table_key
from chunkstore.metadata.port import MetadataView

__all__ = [
    "IMPORT_ID_BYTES",
    "ImportMark",
    "ImportPhase",
    "Origin",
    "decode_import",
    "encode_import",
    "find_merge",
    "hidden_name",
    "hidden_prefix",
    "scan_forgotten",
    "scan_merges",
]

_HEADER = Struct(">B16sQ16sB")
_VERSION: Final = 1
_AFTER_BYTES_MAX: Final = 600
IMPORT_ID_BYTES: Final = 16
_HIDDEN: Final = "\0import/"


class Origin(NamedTuple):
    """Which state of which container is taken in: its uuid, and the record that left it."""

    container: bytes
    lsn: int
    hash: bytes


class ImportPhase(IntEnum):
    """What is being taken in. Zero is never valid."""

    SEGMENTS = 1
    TABLES = 2
    NAMES = 3
    """Only of merges, between the two: segments get their names."""
    DROPPED = 4
    """Only of merges: what has no name yet goes again."""


class ImportMark(NamedTuple):
    """Everything up to ``after`` has been taken in: a segment's name in UTF-8, or a table row's key; empty: nothing of this phase."""

    origin: Origin
    phase: ImportPhase
    after: bytes


def encode_import(mark: ImportMark) -> bytes:
    """The value of the row."""
    return _HEADER.pack(_VERSION, *mark.origin, mark.phase) + mark.after


def decode_import(raw: bytes, key: bytes) -> ImportMark:
    """What the row says. Raises ``Damaged``."""
    value = decode_table(key, raw).value
    if _HEADER.size <= len(value) <= _HEADER.size + _AFTER_BYTES_MAX:
        version, container, lsn, identity, phase = _HEADER.unpack_from(value)
        if version == _VERSION and phase in tuple(ImportPhase):
            return ImportMark(Origin(container, lsn, identity), ImportPhase(phase), value[_HEADER.size :])
    raise Damaged("not an import of a known version; use a newer program", object=f"metadata row {key!r}")


def find_merge(view: MetadataView, identity: bytes) -> tuple[ImportMark, int] | None:
    """How far the merge of this id has come, and the version of its row; None: it has not begun, or it has ended. Raises ``Damaged``."""
    key = table_key(IMPORT_NAMESPACE, identity)
    raw = view.get(key)
    return None if raw is None else (decode_import(raw, key), decode_table(key, raw).version)


def scan_merges(view: MetadataView) -> Iterator[tuple[bytes, ImportMark]]:
    """The merges that have not ended, by their ids. Raises ``Damaged``."""
    for key, raw in view.scan(IMPORT_KEY + b"\0" * IMPORT_ID_BYTES, IMPORT_KEY + b"\xff" * (IMPORT_ID_BYTES + 1)):
        yield key[len(IMPORT_KEY) :], decode_import(raw, key)


def scan_forgotten(view: MetadataView) -> Iterator[bytes]:
    """The ids of merges with hidden segments, of which no row speaks: a repair leaves them that cuts in front of their first record."""
    start, stop = segment_key(_HIDDEN), VISIBLE_SEGMENTS
    while (found := next(view.scan(start, stop), None)) is not None:
        digits = found[0][len(segment_key(_HIDDEN)) :][: 2 * IMPORT_ID_BYTES]
        start = segment_key(_HIDDEN) + digits + b"\xff"
        identity = _id_of(digits)
        if identity and view.get(table_key(IMPORT_NAMESPACE, identity)) is None:
            yield identity


def _id_of(digits: bytes) -> bytes:
    try:
        return bytes.fromhex(digits.decode())
    except ValueError:
        return b""


def hidden_prefix(identity: bytes) -> str:
    """How the names begin of what a merge has not ended. Nobody can give a segment such a name: see ``VISIBLE_SEGMENTS``."""
    return f"{_HIDDEN}{identity.hex()}/"


def hidden_name(identity: bytes, name: str) -> str:
    """What a segment is called until the merge of this id gives it its name; ``name``: the one that it has where it comes from."""
    return hidden_prefix(identity) + blake2b(name.encode(), digest_size=16).hexdigest()
