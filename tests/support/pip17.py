"""PIP-17 pairs for tests: genuine ones, encoded in memory, and a reader of their bytes that shares nothing with the codec."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from struct import unpack_from
from typing import Any

from chunkstore.codec.pulsar.frames import LEDGER_UNKNOWN, Entry
from chunkstore.codec.pulsar.offload_metadata import LedgerMetadata
from chunkstore.codec.pulsar.pip17 import (
    BLOCK_BYTES_MAX,
    LedgerEncoder,
    LedgerIndex,
    LedgerObjectReader,
    read_ledger_index,
)
from chunkstore.codec.pulsar.windows import iter_entries
from tests.support.paths import ROOT
from tests.support.pip76 import Sink, source_of

FOLDER = ROOT / "tests" / "fixtures" / "pulsar"
METADATA = LedgerMetadata(write_quorum=2, ensemble_size=3)


@dataclass(frozen=True)
class Pair:
    """The two objects of a ledger."""

    data: bytes
    index_bytes: bytes

    @property
    def index(self) -> LedgerIndex:
        return read_ledger_index(self.index_bytes)

    def reader(self, window_bytes: int = 1 << 20, ledger: int = LEDGER_UNKNOWN) -> LedgerObjectReader:
        return LedgerObjectReader(source_of(self.data), self.index, ledger=ledger, window_bytes=window_bytes)

    def entries(self, window_bytes: int = 1 << 20) -> list[Entry]:
        return list(iter_entries(self.reader(window_bytes), LEDGER_UNKNOWN))


@dataclass(frozen=True)
class Fixture(Pair):
    """A pair that Pulsar's own classes wrote."""

    name: str
    manifest: dict[str, Any]


def fixtures() -> list[Fixture]:
    found = []
    for path in sorted(FOLDER.glob("v1-*.json")):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        data, index = path.with_suffix(".data").read_bytes(), path.with_suffix(".index").read_bytes()
        assert hashlib.sha256(data).hexdigest() == manifest["data_sha256"]
        assert hashlib.sha256(index).hexdigest() == manifest["index_sha256"]
        found.append(Fixture(data, index, path.stem, manifest))
    return found


def encode_ledger(
    payloads: Iterable[bytes], *, metadata: LedgerMetadata = METADATA, block_bytes_max: int = BLOCK_BYTES_MAX
) -> Pair:
    sink = Sink()
    encoder = LedgerEncoder(sink, metadata, block_bytes_max=block_bytes_max)
    for entry, payload in enumerate(payloads):
        encoder.append(entry, payload)
    index = encoder.finish()
    assert [block.first_entry for block in sink.blocks] == [
        block.first_entry for block in read_ledger_index(index).blocks
    ]
    return Pair(sink.data, index)


def minimal_read(data: bytes, index: bytes) -> list[tuple[int, bytes]]:
    """Entries of a pair, from the byte tables of FORMAT.md alone."""
    magic, index_length, data_length, header_length, count, metadata_length = unpack_from(">Iiqqii", index)
    assert (magic, index_length, data_length, header_length) == (0xDE47DE47, len(index), len(data), 128)
    assert index_length == 32 + metadata_length + 20 * count
    rows = [unpack_from(">qiq", index, 32 + metadata_length + 20 * number) for number in range(count)]
    assert [row[1] for row in rows] == list(range(1, count + 1))
    entries: list[tuple[int, bytes]] = []
    for (first, _, offset), end in zip(rows, [*(row[2] for row in rows[1:]), len(data)], strict=True):
        assert unpack_from(">Iqqq", data, offset) == (0xFBDBABCB, 128, end - offset, first)
        assert data[offset + 28 : offset + 128] == bytes(100)
        assert first == len(entries)
        at = offset + 128
        while end - at >= 12 and data[at] < 128:
            length, entry = unpack_from(">iq", data, at)
            assert entry == len(entries)
            assert at + 12 + length <= end
            entries.append((entry, data[at + 12 : at + 12 + length]))
            at += 12 + length
        assert data[at:end] == (b"\xfe\xdc\xde\xad" * (end - at))[: end - at]
    return entries
