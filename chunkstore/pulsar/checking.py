"""Checking a bucket's objects: which are there, index against data, every block and frame, and the CRC32C of every message.

Promises: one damaged object does not end it; memory is one window, and a row for each object; no message is built. Leaves out: what
messages hold, and cleaning (``orphans``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple

from chunkstore.checksum import crc32c_of_bytes
from chunkstore.codec.pulsar.block_index import BlockSpan
from chunkstore.codec.pulsar.frames import (
    BLOCK_HEADER_BYTES,
    ENTRY_HEADER_BYTES,
    LEDGER_UNKNOWN,
    BlockHeader,
    entry_id_at,
)
from chunkstore.codec.pulsar.message_metadata import BROKER_ENTRY_MAGIC, CRC32C_MAGIC, parse_head
from chunkstore.codec.pulsar.windows import BlockReader, Window, entry_ids
from chunkstore.errors import ChunkNotFound, Damaged
from chunkstore.pulsar.bucket_objects import FORMAT_VERSION_KEY, Attempt, BucketObjects, Facts, Said
from chunkstore.pulsar.live import LiveFiles

__all__ = ["BucketCheck", "Finding", "PartCheck"]

_START = Struct(">qHI").unpack_from
_CHECKSUM = Struct(">HI").unpack_from
_BROKER: Final = int.from_bytes(BROKER_ENTRY_MAGIC, "big")
_CRC32C: Final = int.from_bytes(CRC32C_MAGIC, "big")
_BROKER_FIELDS = re.compile(rb"(?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?(?:\x10[\x80-\xff]{0,9}[\x00-\x7f])?").fullmatch
"""Sound broker metadata, which no checksum covers; whatever else it may be is left to protobuf, which takes ten times as long."""
_SUM_BYTES: Final = 6
"""A magic, and the checksum or the length after it."""
_DOUBTED_MAX: Final = 1_000


class Finding(NamedTuple):
    """What is wrong with an object. ``position``: a byte of it; ``ledger`` and ``entry`` are None where it is about no certain one.

    ``kind``: "index", "length" (of the data object), "frame", "message", "count", "metadata", "data-without-index",
    "index-without-data", "gone" (deleted meanwhile) or "unsupported".
    """

    kind: str
    object: str
    ledger: int | None
    entry: int | None
    position: int
    message: str


@dataclass(slots=True)
class PartCheck:
    """The check of ``ledger`` in one data object. After ``findings``: its ``entries`` and ``payload_bytes``, right if it is ``whole``."""

    reader: BlockReader
    ledger: int
    entries: int = 0
    payload_bytes: int = 0
    whole: bool = True
    has_messages: bool = False

    def findings(self, spans: Sequence[BlockSpan]) -> Iterator[Finding]:
        """All that is wrong in the blocks ``spans``, in their order. Raises what reading raises but ``Damaged``.

        An entry that is no message is damage where others of the same part are messages; else nothing says what it should be.
        """
        number, doubted = 0, list[Finding]()
        while number < len(spans):
            try:
                for window in self.reader.windows(self.ledger, spans[number].first_entry):
                    while number + 1 < len(spans) and window.position >= spans[number + 1].start:
                        number += 1
                    doubted += self._wrong_in(window, spans[number])
                    if self.has_messages:
                        yield from doubted
                    del doubted[0 if self.has_messages else _DOUBTED_MAX :]
                return
            except Damaged as error:
                self.whole = False
                yield _finding("frame", self.ledger, error)
                while number < len(spans) and spans[number].end <= error.position:
                    number += 1
                number += 1

    def _wrong_in(self, window: Window, span: BlockSpan) -> list[Finding]:
        """Messages, and the reserved bytes of the block's header, all else of which the reader checks. Raises ``Damaged`` where ids do not
        ascend."""
        data, floor, found = bytes(window.data), window.floor, list[Finding]()
        if window.position == span.start:
            ledger = span.ledger if self.reader.format.has_ledger else LEDGER_UNKNOWN
            header = BlockHeader(span.end - span.start, span.first_entry, ledger)
            if data[:BLOCK_HEADER_BYTES] != self.reader.format.pack(header):
                text = "reserved bytes of the block's header are not 0"
                found.append(Finding("frame", window.name, self.ledger, None, span.start, text))
        for mark, end in pairwise(window.marks):
            begin = mark + ENTRY_HEADER_BYTES
            if end - begin < _SUM_BYTES:
                entry, magic, stored = entry_id_at(data, mark), 0, 0
            else:
                entry, magic, stored = _START(data, mark + 4)
            if entry < floor or (window.dense and entry != floor):
                entry_ids(window)  # raises
            floor = entry + 1
            at = begin + _SUM_BYTES
            if magic == _BROKER and at + stored + _SUM_BYTES <= end and _BROKER_FIELDS(data, at, at + stored):
                at += stored + _SUM_BYTES
                magic, stored = _CHECKSUM(data, at - _SUM_BYTES)
            if magic == _CRC32C:
                self.has_messages = True
                if crc32c_of_bytes(data[at:end]) == stored:
                    continue
            try:
                parse_head(self.ledger, entry, data[begin:end])
            except Damaged as error:
                position = window.position + begin + error.position
                found.append(Finding("message", window.name, self.ledger, entry, position, error.message))
        count = len(window.marks) - 1
        self.entries += count
        self.payload_bytes += window.marks[-1] - window.marks[0] - ENTRY_HEADER_BYTES * count
        return found


class _Counted(NamedTuple):
    object: str
    first: int
    whole: bool
    found: tuple[int, int]
    says: Said


@dataclass(slots=True)
class BucketCheck:
    """The check of a bucket, or of one ``topic`` or ``ledger`` (None: all); see ``PulsarBucket.verify``. ``matched``: attempts of those."""

    objects: BucketObjects
    live: LiveFiles
    topic: str | None
    ledger: int | None
    matched: int = 0
    segments: dict[int, list[_Counted]] = field(default_factory=dict)

    def findings(self) -> Iterator[Finding]:
        """All that is wrong. Raises what reading raises but ``Damaged``."""
        attempts = list(self.objects.attempts())
        complete = {attempt.ledger for attempt in attempts if attempt.is_complete}
        for attempt in attempts:
            if self.ledger is not None and attempt.ledger not in (None, self.ledger):
                continue
            try:
                facts = self.objects.facts(attempt)
                if self.topic not in (None, facts.topic) or self.ledger not in (None, *facts.ledgers(attempt)):
                    continue
                self.matched += 1
                yield from self._pair(attempt, facts) if attempt.is_complete else self._half(attempt, facts, complete)
            except ChunkNotFound as error:
                yield Finding("gone", error.chunk, attempt.ledger, None, 0, "it was deleted while the check ran")
        for number, parts in self.segments.items():
            yield from _wrong_counts(number, parts)

    def _half(self, attempt: Attempt, facts: Facts, complete: set[int | None]) -> Iterator[Finding]:
        """An object without its other half: damage, unless it is foreign, or of an attempt that is under way or was given up."""
        ledger, live = attempt.ledger, self.live
        if ledger is None and facts.error is not None:
            return
        if attempt.data is None:
            yield Finding("index-without-data", f"{attempt.key}-index", ledger, None, 0, "the data object is missing")
            return
        is_live = ledger is not None and live.uuids.get(ledger) == attempt.uuid and live.complete.get(ledger, True)
        if is_live or (not live.documents and (ledger is None or ledger not in complete)):
            text = "the index is missing, or is being written"
            yield Finding("data-without-index", attempt.key, ledger, None, 0, text)

    def _pair(self, attempt: Attempt, facts: Facts) -> Iterator[Finding]:
        assert attempt.data is not None
        assert attempt.index is not None
        if attempt.format == "mapfile":
            text = "a MapFile of Pulsar's filesystem offloader, which cannot be checked"
            yield Finding("unsupported", attempt.key, attempt.ledger, None, 0, text)
            return
        if facts.error is not None:
            yield _finding("index", attempt.ledger, facts.error)
            return
        for item in (attempt.data, attempt.index) if self.objects.bucket.keeps_metadata else ():
            version = self.objects.bucket.head(item.key).metadata.get(FORMAT_VERSION_KEY)
            if version != "1":
                text = f"its user metadata names format version {version}, 1 expected: brokers refuse it"
                yield Finding("metadata", item.key, attempt.ledger, None, 0, text)
        try:
            reader = self.objects.reader(attempt, facts)
        except Damaged as error:
            yield _finding("length", attempt.ledger, error)
            return
        for ledger in reader.ledgers:
            spans = facts.spans(ledger)
            if spans and self.ledger in (None, ledger):
                part = PartCheck(reader, ledger)
                yield from part.findings(spans)
                sums = part.entries, part.payload_bytes
                counted = _Counted(attempt.data.key, spans[0].first_entry, part.whole, sums, facts.says(ledger))
                if attempt.format == "v1":
                    yield from _wrong_counts(ledger, [counted])
                else:
                    self.segments.setdefault(ledger, []).append(counted)


def _finding(kind: str, ledger: int | None, error: Damaged) -> Finding:
    return Finding(kind, error.object, ledger, None, error.position, error.message)


def _wrong_counts(ledger: int, parts: list[_Counted]) -> Iterator[Finding]:
    """Entries and bytes of a ledger's objects against what one says that knows it closed; not if blocks are damaged, or there twice."""
    closed = next((part for part in parts if part.says.closed), None)
    if closed is None or not all(part.whole for part in parts) or len({part.first for part in parts}) < len(parts):
        return
    for at, what in enumerate(("entries", "bytes")):
        count, said = sum(part.found[at] for part in parts), closed.says[at]
        if said not in (None, count):
            text = f"{count} {what} of ledger {ledger} are in its objects, but its metadata has {said}"
            yield Finding("count", closed.object, ledger, None, 0, text)
