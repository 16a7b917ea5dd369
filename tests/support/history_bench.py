"""A container written by hand, record by record, for what watches the steps of owners (``step_invariants``)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

from chunkstore.checksum import DIGEST_MODULUS, crc32c, row_digest
from chunkstore.errors import Damaged
from chunkstore.journal import OpCode, RecordKind
from chunkstore.metadata.codec import encode_chunk
from chunkstore.metadata.keys import chunk_key
from chunkstore.metadata.lines import LineFold
from chunkstore.metadata.port import Head, Line, Lines, Op, Position, RowChange
from chunkstore.names import ContainerNames, chunk_id, journal_place
from chunkstore.records import CLOSED, KIND_OBJECT, ChunkRecord
from chunkstore_journal.extents import encode_lines
from chunkstore_journal.objects import Claim, ContainerFormat, encode_claim
from chunkstore_journal.payloads import (
    BLOB_AT,
    BaseLink,
    OpenPayload,
    SealPayload,
    encode_open,
    encode_ops,
    encode_seal,
)
from chunkstore_journal.record import HEADER_BYTES, RecordHeader, encode_lines_record, encode_record
from tests.judges.events import Event
from tests.judges.step_invariants import StepInvariants

__all__ = ["Bench", "Mode", "started", "with_chunk"]

UUID = bytes(range(16))
NO_BASE = BaseLink(0, 0, 0, 0, bytes(16))
Mode = Literal["slot", "append"]


class Bench:
    """A container written by hand: every method does what a right process would do, unless it is told otherwise."""

    def __init__(self, mode: Mode = "slot") -> None:
        self.mode: Mode = mode
        self.names = ContainerNames("c")
        self.objects: dict[str, bytes] = {}
        format_ = ContainerFormat(UUID, 1, mode, "bench", {}, 0, "c")
        self.steps = StepInvariants(self.names, format_, self.objects.get, now=lambda: self.clock)
        self.lsn, self.hash, self.digest, self.time_ms = 0, bytes(16), 0, 1000
        self.index, self.end = 0, 0
        self.rows: dict[bytes, bytes] = {}
        self.clock = 0

    @property
    def found(self) -> set[int]:
        return {violation.invariant for violation in self.steps.violations}

    def token(self, epoch: int) -> bytes:
        return bytes([epoch]) * 16

    def claim(self, epoch: int, process: str | None = None) -> None:
        name = self.names.epoch(epoch)
        self.objects[name] = encode_claim(Claim(epoch, self.token(epoch), "host", 1, "boot", 0))
        self.steps.put(process or f"p{epoch}", name, self.objects[name], done=True)

    def put(self, process: str, name: str, data: bytes, *, done: bool = True) -> None:
        if done:
            self.objects[name] = data
        self.steps.put(process, name, data, done=done)

    def seal(self, epoch: int, index: int, by: int) -> None:
        header = RecordHeader(RecordKind.SEAL, 0, UUID, epoch, index, 0, 0, bytes(16), 0, self.token(by), self.time_ms)
        data, _ = encode_record(header, encode_seal(SealPayload(by, self.token(by), "host", 1)))
        self.put(f"p{by}", self.names.slot(epoch, index), data)

    def open(self, epoch: int, previous: int, *, process: str | None = None, seal: bool = True, **changes: Any) -> None:
        """Take over: void, seal, OPEN."""
        for between in range(previous + 1, epoch):
            if self.names.slot(between, 0) not in self.objects and changes.pop("void", True):
                self.seal(between, 0, epoch)
        end_index = changes.pop("end_index", self.index if previous else 0)
        if previous and seal and self.mode == "slot":
            self.seal(previous, end_index, epoch)
        token = changes.pop("token", self.token(epoch))
        end_byte = changes.pop("end_byte", self.end if self.mode == "append" and previous else 0)
        payload = OpenPayload(
            epoch,
            token,
            previous,
            end_index,
            end_byte,
            self.lsn,
            self.hash,
            b"",
            NO_BASE,
            changes.pop("snapshot", None),
            self.mode,
            "host",
            1,
            "b",
        )
        header = self.header(RecordKind.OPEN, epoch, 0, token=token)
        data, self.hash = encode_record(header, encode_open(payload))
        self.lsn, self.index, self.end = self.lsn + 1, 1, 0
        self.put(process or f"p{epoch}", self.names.slot(epoch, 0), data)

    def header(self, kind: RecordKind, epoch: int, index: int, **changes: Any) -> RecordHeader:
        self.time_ms = changes.get("time_ms", self.time_ms + 1)
        return RecordHeader(
            kind, 0, UUID, epoch, index, changes.get("lsn", self.lsn + 1), self.lsn,
            changes.get("previous", self.hash), changes.get("digest", self.digest),
            changes.get("token", self.token(epoch)), self.time_ms,
            self.end if self.mode == "append" and kind != RecordKind.OPEN else 0,
        )  # fmt: skip

    def record(self, epoch: int, ops: Sequence[Op] = (), rows: Sequence[RowChange] = (), **changes: Any) -> bytes:
        """Write the next record of a stream; returns its bytes."""
        for key, value in rows:
            if key in self.rows:
                self.digest -= row_digest(key, self.rows.pop(key))
            if value is not None:
                self.rows[key] = value
                self.digest += row_digest(key, value)
        self.digest %= DIGEST_MODULUS
        index = changes.pop("index", self.index)
        process = changes.pop("process", f"p{epoch}")
        data, identity = encode_record(self.header(RecordKind.OPS, epoch, index, **changes), encode_ops(ops, rows))
        return self._store(epoch, index, process, data, identity)

    def lines(self, epoch: int, lines: Sequence[Line], data: bytes) -> bytes:
        """Write the next record, of appends; returns its bytes."""
        header = self.header(RecordKind.OPS, epoch, self.index)
        stream, place = (UUID, epoch, self.token(epoch)), (self.index, header.at, self.lsn, self.hash)
        raw, identity = encode_lines_record(stream, place, header.time_ms, [data], encode_lines(lines))
        log = self.mode == "append"
        placed = Lines(
            epoch, self.lsn + 1, header.time_ms, journal_place(epoch, None if log else self.index),
            header.at + HEADER_BYTES + BLOB_AT, lines,
        )  # fmt: skip
        fold = LineFold(self.rows.get)
        with suppress(Damaged):
            fold.add(placed)
            for key, value, old in fold.take().rows:
                self.rows[key] = value
                self.digest += row_digest(key, value) - (0 if old is None else row_digest(key, old))
            self.digest %= DIGEST_MODULUS
        return self._store(epoch, self.index, f"p{epoch}", raw, identity)

    def _store(self, epoch: int, index: int, process: str, data: bytes, identity: bytes) -> bytes:
        if self.mode == "slot":
            self.put(process, self.names.slot(epoch, index), data)
        else:
            name = self.names.log(epoch)
            self.objects[name] = self.objects.get(name, b"") + data
            self.steps.write(process, name, data)
        self.lsn, self.hash, self.index, self.end = self.lsn + 1, identity, index + 1, self.end + len(data)
        return data

    def head(self, epoch: int = 1) -> Head:
        """Where whoever has applied everything stands."""
        return Head(Position(self.lsn, self.hash, epoch, self.index, self.end), self.digest)

    def create(self, epoch: int, identity: int, name: str) -> None:
        self.record(epoch, [(OpCode.CREATE, identity, name)])

    def append(self, epoch: int, identity: int, offset: int, length: int, **changes: Any) -> bytes:
        return self.record(epoch, [(OpCode.APPEND, identity, offset, length, ())], **changes)

    def chunk(self, segment: int, epoch: int, number: int) -> tuple[bytes, RowChange]:
        identity = chunk_id(segment, epoch, number, 7)
        row = ChunkRecord("", 0, 3, crc32c(b"abc"), b"", b"", segment, epoch, CLOSED, KIND_OBJECT, 0)
        return identity, (chunk_key(identity), encode_chunk(row))

    def event(self, kind: str, name: str, args: tuple[Any, ...], result: Any, epoch: int, **changes: Any) -> Event:
        self.clock += 10
        invoked = changes.get("invoked", self.clock)
        return Event(f"client{epoch}", kind, name, args, invoked, self.clock + 1, "ok", result, epoch)

    def told(self, name: str, result: int, epoch: int, **changes: Any) -> None:
        """A client was told the offset of an append, which is the last record's."""
        event = self.event("append", name, (b"abc", None, None, None), result, epoch, **changes)
        self.steps.acknowledged(event, self.steps.history.lsn)


def started(mode: Mode = "slot") -> Bench:
    """Epoch 1 serves; segment 5 is "a" and has three bytes."""
    bench = Bench(mode)
    bench.claim(1)
    bench.open(1, 0)
    bench.create(1, 5, "a")
    bench.append(1, 5, 0, 3)
    bench.clock = 10
    return bench


def with_chunk(bench: Bench) -> bytes:
    """Make the state refer to a chunk; answers its id."""
    identity, row = bench.chunk(5, 1, 1)
    bench.put("p1", bench.names.chunk(identity), b"abc")
    bench.record(1, [], [row])
    return identity
