"""Ledgers in objects of both formats for tests of the read handle, and a source that counts requests."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import NamedTuple

from chunkstore.codec.pulsar.frames import DataSource, Entry
from chunkstore.codec.pulsar.pip17 import LedgerObjectReader
from chunkstore.codec.pulsar.pip76 import SegmentReader
from chunkstore.errors import StorageUnavailable
from chunkstore.pulsar.read_handle import LedgerPart, StoredLedger
from tests.support.pip17 import encode_ledger
from tests.support.pip76 import encode

__all__ = ["LEDGER", "Counted", "handle_of", "v1_part", "v2_part"]

LEDGER = 7


class Counted:
    """The bytes of an object, and which ranges of it were requested. ``fail_at``: requests from there on fail."""

    def __init__(self, data: bytes, name: str = "data") -> None:
        self.data = data
        self.requests: list[tuple[int, int]] = []
        self.fail_at: int | None = None
        self.source = DataSource(name, len(data), self.read)
        self._lock = Lock()

    def read(self, offset: int, length: int) -> bytes:
        with self._lock:
            self.requests.append((offset, min(offset + length, len(self.data))))
        if self.fail_at is not None and offset + length > self.fail_at:
            raise StorageUnavailable("down", object=self.source.name)
        return self.data[offset : offset + length]


class Part(NamedTuple):
    part: LedgerPart
    counted: Counted


def v1_part(payloads: Iterable[bytes], *, block_bytes_max: int, window_bytes: int = 1 << 20) -> Part:
    pair = encode_ledger(payloads, block_bytes_max=block_bytes_max)
    counted = Counted(pair.data, f"v1 {id(pair)}")
    reader = LedgerObjectReader(counted.source, pair.index, ledger=LEDGER, window_bytes=window_bytes)
    return Part(LedgerPart(reader, 0, pair.index.metadata.last_entry or 0), counted)


def v2_part(entries: list[Entry], *, block_bytes_max: int, window_bytes: int = 1 << 20) -> Part:
    """Of a segment that may hold other ledgers, too."""
    segment = encode(entries, block_bytes_max=block_bytes_max)
    counted = Counted(segment.data, f"v2 {id(segment)}")
    reader = SegmentReader(counted.source, segment.index, window_bytes=window_bytes)
    ids = [entry.entry for entry in entries if entry.ledger == LEDGER]
    return Part(LedgerPart(reader, ids[0], ids[-1]), counted)


def handle_of(*parts: Part) -> StoredLedger:
    return StoredLedger(LEDGER, [part.part for part in parts], last_add_confirmed=max(part.part.last for part in parts))
