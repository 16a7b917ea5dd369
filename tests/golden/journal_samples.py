"""One fixed value of every record kind, small object and snapshot frame, beside its stored bytes in ``journal.json``.

The bytes are part of the format: they change only together with a version (FORMAT.md of ``chunkstore_journal``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgpack

from chunkstore import changes
from chunkstore.changes.asks import Answer, AskCommit, AskJob, AskPin, AskSession, Event, Request, Stage
from chunkstore.changes.sessions import SessionChunk
from chunkstore.checksum import crc32c
from chunkstore.config import RollingPolicy
from chunkstore.errors import BadOffset
from chunkstore.journal import LeaseInfo, OpCode, RecordKind, SnapshotReport
from chunkstore.metadata.port import GENESIS, Line, Op, Position, RowChange
from chunkstore.records.names import session_chunk_id
from chunkstore.records.reports import CollectReport, DefragAction, DefragReport
from chunkstore.records.segments import Pin, PinRecord
from chunkstore_journal import objects, payloads
from chunkstore_journal.extents import encode_lines
from chunkstore_journal.record import FLAG_LINES, RecordHeader, encode_record

__all__ = [
    "ANSWERS",
    "ASKS",
    "BLOB",
    "CONTAINER",
    "GOLDEN",
    "INLINE_OPS",
    "LINES",
    "LINK",
    "OBJECTS",
    "OPS",
    "PAIRS",
    "RECORDS",
    "ROWS",
    "ObjectSample",
    "RecordSample",
]

CONTAINER = bytes(range(16))
TOKEN = bytes(range(0x20, 0x30))
HASH = bytes(range(0x40, 0x50))
CHUNK = bytes(range(28))
DIGEST = (0xD1 << 248) | 0x1234

OPS: Sequence[Op] = (
    (OpCode.CREATE, 7, "orders-0"),
    (OpCode.APPEND, 7, 0, 300, ((0, CHUNK), (256, CHUNK[::-1]))),
    (OpCode.APPEND, 7, 300, 5, ()),
    (OpCode.SEAL, 7),
    (OpCode.UNSEAL, 7),
    (OpCode.DELETE, 8),
    (OpCode.TRUNCATE, 7, 128),
    (OpCode.CONCAT, 7, 305, 9),
    (OpCode.ATTRIBUTES, 7),
    (OpCode.ATTACH, 7, 305, 1 << 40, ((305, CHUNK),)),
    (OpCode.TABLE_PUT, "ledgers", b"\x00key"),
    (OpCode.TABLE_DELETE, "ledgers", b"other"),
    (OpCode.SESSION_OPEN, 3),
    (OpCode.SESSION_END, 3),
    (OpCode.COLLECT, b"G" + bytes(10), 2),
    (OpCode.REPLACE, 7, 0, 300, ((0, CHUNK),)),
)
BLOB = b"bytes of two extents"
INLINE_OPS: Sequence[Op] = (
    (OpCode.APPEND, 7, 300, 20, ((300, CHUNK), (311, CHUNK[::-1])), 1),
    (OpCode.APPEND, 7, 320, 4, ()),
    (OpCode.SPILL, 7, 300, 324, ((300, CHUNK),)),
    (OpCode.SPILL, 7, 324, 330, ()),
)
"""Of payload version 2, and what it leads to."""
LINES: Sequence[Line] = (
    Line(7, 300, 5, crc32c(BLOB[:5]), False, b"orders-0"),
    Line(7, 305, 6, crc32c(BLOB[:11]), True, b"orders-0", (b"writer", 9, crc32c(BLOB[5:11]))),
    Line(8, 1 << 40, 9, crc32c(BLOB[11:]), False, "p\u00e4rchen".encode(), (b"w" * 64, 1, crc32c(BLOB[11:]))),
)
"""Of payload version 3."""
ROWS: Sequence[RowChange] = ((b"Sorders-0", b"segment"), (b"C" + CHUNK, b"chunk"), (b"Sgone", None), (b"Tempty", b""))
PAIRS: Sequence[tuple[bytes, bytes]] = (
    (b"C" + bytes(28), b"chunk 0"),
    (b"C" + bytes(27) + b"\1", b""),
    (b"Sorders-0", b"segment"),
    (b"T\x01nkey", b"value"),
    (b"r" + bytes(16), bytes(16)),
    (b"x" + bytes(16), bytes(28)),
)
"""What the snapshots hold."""
LINK = payloads.SnapshotLink("orders/snap/x.sn", 41, HASH, DIGEST, 3, 5, 4096)
OPEN = payloads.OpenPayload(
    4, TOKEN, 3, 6, 5000, 42, HASH, b"whole record", Position(30, HASH, 2, 9, 0), LINK, "append", "host-a", 77,
    "boot-1", payloads.FLAG_GIVEN_UP, list(ROWS[:1]),
)  # fmt: skip
FIRST_OPEN = payloads.OpenPayload(1, TOKEN, 0, 0, 0, 0, bytes(16), b"", GENESIS, None, "slot", "h", 1, "")
SEAL = payloads.SealPayload(5, TOKEN, "host-b", 78)


class RecordSample(NamedTuple):
    """``payload`` in, the same out of ``decode``."""

    header: RecordHeader
    payload: bytes


def _record(kind: RecordKind, lsn: int, payload: bytes, at: int = 0) -> RecordSample:
    header = RecordHeader(kind, 0, CONTAINER, 4, lsn, lsn, max(lsn - 1, 0), HASH, DIGEST, TOKEN, 1_700_000_000_000, at)
    return RecordSample(header, payload)


RECORDS: dict[str, RecordSample] = {
    "open": _record(RecordKind.OPEN, 43, payloads.encode_open(OPEN)),
    "open-genesis": _record(RecordKind.OPEN, 1, payloads.encode_open(FIRST_OPEN)),
    "seal": _record(RecordKind.SEAL, 0, payloads.encode_seal(SEAL)),
    "ops": _record(RecordKind.OPS, 44, payloads.encode_ops(OPS, ROWS)),
    "ops-inline": _record(RecordKind.OPS, 44, payloads.encode_ops(INLINE_OPS, ROWS, BLOB), 5000),
    "snapshot-note": _record(RecordKind.SNAPSHOT_NOTE, 45, payloads.encode_note(RecordKind.SNAPSHOT_NOTE, LINK)),
    "heartbeat": _record(RecordKind.HEARTBEAT, 47, payloads.encode_ops((), ())),
    "close": _record(RecordKind.CLOSE, 48, payloads.encode_ops((), ())),
    "lines": RecordSample(
        RecordHeader(RecordKind.OPS, FLAG_LINES, CONTAINER, 4, 45, 45, 44, HASH, 0, TOKEN, 1_700_000_000_000, 5000),
        payloads.LINES_HEAD + len(BLOB).to_bytes(4) + BLOB + msgpack.packb(encode_lines(LINES)),
    ),
    "pin": _record(RecordKind.PIN, 49, payloads.encode_note(RecordKind.PIN, ("backup", 44), (), ROWS[:1])),
    "unpin": _record(RecordKind.UNPIN, 50, payloads.encode_note(RecordKind.UNPIN, ("backup",))),
}


class ObjectSample(NamedTuple):
    """A small object, and how it is read."""

    value: object
    raw: bytes
    decode: Callable[..., object]


_FORMAT = objects.ContainerFormat(
    CONTAINER, 2, "slot", "s3", {"if_none_match": True, "winners": (1, 1), "server": {"name": "x"}}, 5, "orders"
)
_IMPORTED = _FORMAT._replace(imports=True)
_CLAIM = objects.Claim(4, TOKEN, "host-a", 77, "boot-1", 1_700_000_000_000)
_VOIDED = objects.VoidedHint(3, 7)
_LATEST = objects.LatestHint(LINK, 4)
_LEASE = LeaseInfo(4, 12, "host-a", 77, "boot-1", False)
_RELEASED = LeaseInfo(4, 13, "host-a", 77, "boot-1", True, 40, bytes(range(16)))

OBJECTS: dict[str, ObjectSample] = {
    "format": ObjectSample(_FORMAT, objects.encode_format(_FORMAT), objects.decode_format),
    "format_of_import": ObjectSample(_IMPORTED, objects.encode_format(_IMPORTED), objects.decode_format),
    "claim": ObjectSample(_CLAIM, objects.encode_claim(_CLAIM), objects.decode_claim),
    "voided": ObjectSample(_VOIDED, objects.encode_voided(_VOIDED), objects.decode_voided),
    "latest": ObjectSample(_LATEST, objects.encode_latest(_LATEST), objects.decode_latest),
    "lease": ObjectSample(_LEASE, objects.encode_lease(_LEASE), objects.decode_lease),
    "released": ObjectSample(_RELEASED, objects.encode_lease(_RELEASED), objects.decode_lease),
}

_CHUNKS = (SessionChunk(session_chunk_id(9, 0, 7), 70_000, 5, (1,)), SessionChunk(session_chunk_id(9, 1, 8), 3, 6))
_PUT = changes.TablePut("sink", b"query", b"\0\1", 0)
_CHANGES: tuple[changes.Change, ...] = (
    changes.Create("orders-1", RollingPolicy(chunk_size_bytes_max=99), {"a": 1, "b": b"x", "c": "y"}),
    changes.Create("orders-2"),
    changes.Attach("orders-1", 9, _CHUNKS, 0),
    changes.Replace("orders-0", 0, 70_003, (bytes(range(28)), bytes(28)), _CHUNKS, 9),
    changes.Seal("orders-1"),
    changes.Concat("orders-0", "orders-1", 70_003),
    changes.EndSession(9),
    changes.TablePut("notes", b"k", b"v"),
    changes.Append("orders-2", b"bytes", 7),
    changes.Unseal("orders-1"),
    changes.Truncate("orders-0", 5),
    changes.Delete("orders-3"),
    changes.UpdateAttributes("orders-2", {"a": 2, "b": None}, {"a": 1}),
    changes.TableDelete("notes", b"l", 6),
)
ASKS: dict[str, Request] = {
    name: Request(ask, 1_700_000_000_000, 60_000)
    for name, ask in (
        ("session", AskSession("query-1", 86_400_000)),
        ("end-session", AskCommit((changes.EndSession(9),), None)),
        ("commit", AskCommit(_CHANGES, _PUT)),
        ("pin", AskPin("nightly", PinRecord(0, 0, 5000, "host-a:77", "note"))),
        ("unpin", AskPin("nightly", None)),
        ("collect", AskJob("collect")),
        ("defrag", AskJob("defrag", "orders-0")),
        ("stage", AskCommit((), Stage(9, (_CHUNKS[:1], _CHUNKS[1:])))),
        ("append", AskCommit((changes.Append("orders-0", b"bytes", 3),), Event(7, b"writer", 7))),
        ("append-anywhere", AskCommit((changes.Append("orders-0", b""),), Event(0, b"w", 1))),
    )
}
ANSWERS: dict[str, Answer] = {
    "done": Answer(4, None, 7),
    "nothing": Answer(4, None, None),
    "pinned": Answer(4, None, Pin("nightly", 7, "host-a:77", "note", 1, None)),
    "unpinned": Answer(4, None, True),
    "collected": Answer(4, None, CollectReport(1, 2, 3, 4, 5, 6, 7)),
    "merged": Answer(4, None, DefragReport(1, 9, 1, 90, 3, 90, (DefragAction("merge", "a", 0, 90, 9, 3),), ("b",))),
    "snapshot": Answer(4, None, SnapshotReport("c/snap/1", Position(7, HASH, 4, 2, 900), DIGEST, 5, 600)),
    "refused": Answer(4, BadOffset("orders-0", expected=3, given=4), None),
}

GOLDEN: dict[str, bytes] = {
    name: bytes.fromhex(text)
    for name, text in json.loads((Path(__file__).parent / "journal.json").read_text(encoding="ascii")).items()
}


def encoded_record(name: str) -> bytes:
    """The sample as this program writes it."""
    header, payload = RECORDS[name]
    return encode_record(header, payload)[0]
