"""Entries that lie: typed errors with ledger, entry and offset, and no memory that the bytes do not justify."""

from __future__ import annotations

import builtins
import tracemalloc
from typing import Any

import pytest
import zstandard

from chunkstore.codec.pulsar import message_batches as arrow
from chunkstore.codec.pulsar import message_metadata
from chunkstore.codec.pulsar.compression import DECOMPRESSED_BYTES_MAX, decompress
from chunkstore.codec.pulsar.frames import Entry
from chunkstore.codec.pulsar.message_batches import message_batches
from chunkstore.codec.pulsar.messages import iter_messages
from chunkstore.config import MIB
from chunkstore.errors import Damaged, Unsupported
from tests.support.pulsar_entries import CODECS, compressed, entry_of, message, metadata_bytes, proto, single, varint
from tests.support.pulsar_messages import arrow_rows

GOOD = single(b"good", key="k")


def refused(entry: Entry, what: str, position: int | None = None) -> None:
    """Strict raises about this entry, one by one and in Arrow; lenient gives it raw."""
    for read, width_min in ((iter_messages, 0), (message_batches, 0), (message_batches, 8)):
        with pytest.MonkeyPatch.context() as patched, pytest.raises(Damaged, match=what) as caught:
            patched.setattr(arrow, "_WIDTH_MIN", width_min)
            list(read([entry]))
        assert caught.value.object == f"ledger {entry.ledger} entry {entry.entry}"
        assert position is None or caught.value.position == position
    rows = list(iter_messages([entry], messages="lenient"))
    assert (rows[-1].payload, rows[-1].damaged, rows[-1].raw, rows[-1].producer) == (entry.payload, True, True, None)
    assert arrow_rows(message_batches([entry], messages="lenient")) == rows


def of(payload: bytes) -> Entry:
    return Entry(3, 4, payload)


@pytest.mark.parametrize(
    ("payload", "what", "position"),
    [
        (b"", "0 bytes of metadata where 0 are left", 0),
        (b"\0\0\0\5abc", "5 bytes of metadata where 3 are left", 0),
        (b"\xff\xff\xff\xff", "4294967295 bytes of metadata", 0),
        (b"\x0e\x01\0\0", "the entry ends in its CRC32C", 2),
        (b"\x0e\x02\0\0\0\x09abc", "9 bytes of metadata where 3 are left", 2),
        (b"\x0e\x02\0\0\0\x02\xff\xff", "no BrokerEntryMetadata", 6),
        (b"\0\0\0\3abc", "no MessageMetadata", 4),
        (b"\0\0\0\0", "lacks producer_name", 4),
        (entry_of(b"\x0b" * 5000, b"", crc=False), "no MessageMetadata", 4),  # groups in groups
        (entry_of(metadata_bytes(producer=b"\xff"), b"", crc=False), "utf-8", None),
        (entry_of(metadata_bytes(key=b"\xff"), b"", crc=False), "utf-8", None),
        (entry_of(metadata_bytes(key="a", key_b64=1), b"", crc=False), "data characters", None),
        (entry_of(metadata_bytes(properties=[(b"\xff", "")]), b"", crc=False), "utf-8", None),
        (entry_of(metadata_bytes(batch=0), b"", crc=False), "a batch of 0 messages", None),
        (entry_of(metadata_bytes(batch=-1), b"", crc=False), "a batch of -1 messages", None),
    ],
)
def test_heads_that_are_none(payload: bytes, what: str, position: int | None) -> None:
    refused(of(payload), what, position)


def test_a_checksum_that_does_not_match() -> None:
    payload = bytearray(message(b"x" * 9, broker=(1, 2)).payload)
    payload[-1] ^= 1
    refused(of(bytes(payload)), "CRC32C [0-9a-f]{8} is stored", 12)


def test_metadata_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_metadata, "MESSAGE_METADATA_BYTES_MAX", 40)
    refused(message(b"", at=(3, 4), producer="p" * 60), "at most 40 are read")


@pytest.mark.parametrize(
    ("batch", "raw", "what"),
    [
        (3, GOOD * 2, "message 2 of 3, at byte 26 of 26: 0 bytes of metadata"),
        (1, GOOD * 2, "13 bytes after the 1 messages of a batch"),
        (1 << 30, GOOD, "a batch of 1073741824 messages in 13 bytes"),
        (1, GOOD[:-1], "message 0 of 1, at byte 9 of 12: 4 bytes of payload"),
        (1, b"\0\0\0\x09" + GOOD[4:7], "9 bytes of metadata"),
        (1, b"\0\0\0\2\x0a\0" + GOOD, "no SingleMessageMetadata: lacks"),
        (2, GOOD + b"\0\0\0\1\xff" + GOOD, "message 1 of 2, at byte 17: no SingleMessageMetadata"),
        (1, single(b"", payload_size=-1), "-1 bytes of payload"),
        (1, single(b"", payload_size=1 << 31), "bytes of payload"),
        (1, single(b"", key=b"\xff\xff"), "utf-8"),
        (1, single(b"", key="!", key_b64=1), "base64|padding|Only"),
    ],
)
@pytest.mark.parametrize("codec", CODECS)
def test_batches_that_are_none(batch: int, raw: bytes, what: str, codec: str) -> None:
    refused(message(raw, at=(3, 4), batch=batch, codec=codec), what)


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("size", [0, 1, 199, 201, 100_000_000, DECOMPRESSED_BYTES_MAX + 1, (1 << 32) - 1])
def test_sizes_that_lie(codec: str, size: int) -> None:
    entry = message(b"ab" * 100, at=(3, 4), codec=codec, uncompressed_size=size)
    head = entry.payload.index(compressed(codec, b"ab" * 100))
    tracemalloc.start()
    refused(entry, "bytes", head)
    assert tracemalloc.get_traced_memory()[1] < MIB
    tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("data", [b"", b"\0", b"\xff" * 7, b"\x05\x10", b"\x80" * 9])
def test_bytes_that_are_not_compressed(codec: str, data: bytes) -> None:
    for size in (5, 0) if len(data) > 1 else (5,):
        refused(
            of(entry_of(metadata_bytes(compression=CODECS.index(codec), uncompressed_size=size), data)), "bytes|not"
        )


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("value", [b"", b"a", bytes(200_000), bytes(range(256)) * 300], ids=len)
def test_what_is_compressed_comes_back(codec: str, value: bytes) -> None:
    for data in (compressed(codec, value), compressed(codec, value, finished=True)):
        assert decompress(CODECS.index(codec), data, len(value)) == value


def test_zstd_without_its_length_and_with_too_much() -> None:
    value = bytes(10 * MIB)
    packer = zstandard.ZstdCompressor().compressobj()
    unnamed = packer.compress(value) + packer.flush()
    assert decompress(3, unnamed, len(value)) == value
    for data in (unnamed, zstandard.compress(value)):
        with pytest.raises(ValueError, match="bytes"):
            decompress(3, data, MIB)
    with pytest.raises(ValueError, match="no ZSTD frame"):
        decompress(3, zstandard.compress(b"ab") + b"more", 2)
    with pytest.raises(ValueError, match="after the end"):
        decompress(2, compressed("ZLIB", b"ab", finished=True) + b"more", 2)


def test_snappy_that_claims_more_than_the_metadata() -> None:
    """The library would take memory for its claim."""
    with pytest.raises(ValueError, match="claim to hold 4294967295, the metadata says 5"):
        decompress(4, varint((1 << 32) - 1) + b"\x10hello", 5)


def test_an_unknown_compression_stays_raw() -> None:
    cases: list[tuple[bytes, dict[str, Any], int]] = [(b"raw", {}, 0), (GOOD, {"batch": 5}, 5)]
    for payload, values, size in cases:
        [row] = iter_messages([message(payload, at=(3, 4), compression=7, key="k", **values)])
        assert (row.payload, row.raw, row.encrypted, row.compression, row.batch_size) == (
            payload,
            True,
            False,
            "7",
            size,
        )
        assert row.key == (None if size else "k")
        assert arrow_rows(message_batches([message(payload, compression=7, key="k", **values)]))[0].raw


@pytest.mark.parametrize(("codec", "package"), [("LZ4", "lz4"), ("ZSTD", "zstandard"), ("SNAPPY", "cramjam")])
def test_a_missing_package_is_named_with_its_extra(codec: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = message(b"x", codec=codec)
    real = builtins.__import__

    def importing(name: str, *rest: Any, **named: Any) -> Any:
        if name == package:
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(Unsupported, match=rf"{package}: pip install 'chunkstore-engine\[messages\]'"):
        list(iter_messages([entry], messages="lenient"))


def test_fields_that_are_not_known_are_skipped() -> None:
    more = proto({"new": 99, "text": 98, "schema_id": 32}, {"new": 5, "text": "x", "schema_id": b"s"})
    [row] = iter_messages([of(entry_of(metadata_bytes(key="k") + more, b"x"))])
    assert (row.key, row.payload) == ("k", b"x")
    raw = proto({"payload_size": 3}, {"payload_size": 1}) + more
    batch = len(raw).to_bytes(4, "big") + raw + b"x"
    entries = [message([batch, GOOD], at=(1, at)) for at in range(20)]
    assert [row.payload for row in arrow_rows(message_batches(entries))] == [b"x", b"good"] * 20


def test_bombs_take_little_memory() -> None:
    """Thousands of submessages, counts and lengths without anything in them."""
    bombs = [
        entry_of(metadata_bytes() + b"\x22\x00" * 20_000, b""),
        entry_of(metadata_bytes() + b"\x6a\x00" * 20_000, b""),
        entry_of(metadata_bytes(batch=1 << 30, uncompressed_size=1 << 30), b"\0" * 40_000),
        entry_of(metadata_bytes(batch=6000), b"\0\0\0\0" * 10_000),
        entry_of(metadata_bytes() + b"\x0a" + varint(1 << 40), b""),
    ]
    for bomb in bombs:
        tracemalloc.start()
        refused(of(bomb), "bytes|lacks|no MessageMetadata")
        assert tracemalloc.get_traced_memory()[1] < 3 * MIB
        tracemalloc.stop()
