"""Segments for tests of the PIP-76 codec: encoded in memory, and as Pulsar's own writer miscounts them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import pack

from chunkstore.codec.pulsar.arrow import read_batches
from chunkstore.codec.pulsar.encoding import EncodedBlock
from chunkstore.codec.pulsar.frames import DataSource, Entry
from chunkstore.codec.pulsar.offload_metadata import LedgerInfo, encode_metadata
from chunkstore.codec.pulsar.pip76 import SegmentEncoder, SegmentIndex, SegmentReader, read_index
from chunkstore.codec.pulsar.windows import BlockReader, iter_entries
from chunkstore.errors import Damaged


def source_of(data: bytes, name: str = "data") -> DataSource:
    return DataSource(name, len(data), lambda at, length: data[at : at + length])


class Sink:
    """Keeps the blocks of an encoder, and checks what it says of them."""

    def __init__(self) -> None:
        self.data = b""
        self.blocks: list[EncodedBlock] = []

    def __call__(self, block: EncodedBlock) -> None:
        joined = b"".join(bytes(piece) for piece in block.buffers)
        assert block.offset == len(self.data)
        assert block.length == len(joined)
        self.data += joined
        self.blocks.append(block)


@dataclass(frozen=True)
class Encoded:
    data: bytes
    index_bytes: bytes

    @property
    def index(self) -> SegmentIndex:
        return read_index(self.index_bytes)

    def reader(self, window_bytes: int = 1 << 20) -> SegmentReader:
        return SegmentReader(source_of(self.data), self.index, window_bytes=window_bytes)

    def entries(self, window_bytes: int = 1 << 20) -> list[Entry]:
        reader = self.reader(window_bytes)
        return [entry for ledger in reader.ledgers for entry in iter_entries(reader, ledger)]


def encode(entries: list[Entry], *, block_bytes_max: int = 8 << 20, block_bytes_min: int = 0) -> Encoded:
    sink = Sink()
    encoder = SegmentEncoder(sink, block_bytes_max=block_bytes_max, block_bytes_min=block_bytes_min)
    ledger = -1
    for entry in entries:
        if entry.ledger != ledger:
            encoder.begin_ledger(entry.ledger)
            ledger = entry.ledger
        encoder.append(entry.entry, entry.payload)
    index = encoder.finish()
    return Encoded(sink.data, index)


def read_both(reader_of: Callable[[], BlockReader]) -> list[Entry]:
    """All entries, one by one and by Arrow, which must agree on every entry and every error."""
    outcomes: list[tuple[list[Entry], tuple[str, int] | None]] = []
    last: Damaged | None = None
    for arrow in (False, True):
        found: list[Entry] = []
        error = None
        try:
            reader = reader_of()
            for ledger in reader.ledgers:
                if arrow:
                    for batch in read_batches(reader, ledger):
                        batch.validate(full=True)
                        found += [Entry(row["ledger"], row["entry"], row["payload"]) for row in batch.to_pylist()]
                else:
                    found += iter_entries(reader, ledger)
        except Damaged as caught:
            last = caught
            error = (caught.message, caught.position)
        outcomes.append((found, error))
    one, batched = outcomes
    assert one[1] == batched[1]
    assert one[0][: len(batched[0])] == batched[0]
    if last is not None:
        raise last
    assert one == batched
    return one[0]


def miscounted(blocks: list[list[Entry]], *, block_min: int) -> Encoded:
    """A segment whose blocks' lengths leave out their first entry, as Pulsar's writer has it (FORMAT.md, section 5)."""
    data = b""
    declared = 0
    groups: dict[int, list[tuple[int, int, int]]] = {}
    for number, block in enumerate(blocks):
        ledger, first = block[0].ledger, block[0].entry
        content = sum(12 + len(entry.payload) for entry in block)
        length = max(block_min, 128 + content - len(block[0].payload))
        piece = pack(">Iqqqq92x", 0x26A66D32, 128, length, first, ledger)
        for entry in block:
            if len(piece) < length:
                piece += pack(">iq", len(entry.payload), entry.entry) + entry.payload
        piece += (b"\xfe\xdc\xde\xad" * (length // 4 + 1))[: max(0, length - len(piece))]
        groups.setdefault(ledger, []).append((first, number + 1, declared))
        data += piece
        declared += length
    body = b""
    for ledger in sorted(groups, reverse=True):
        metadata = encode_metadata(LedgerInfo(ledger=ledger, entries=1, timestamp_ms=5))
        body += pack(">qii", ledger, len(groups[ledger]), len(metadata)) + metadata
        body += b"".join(pack(">qiq", *row) for row in groups[ledger])
    return Encoded(data, pack(">Iiqq", 0x3D1FB0BC, 24 + len(body), declared, 128) + body)
