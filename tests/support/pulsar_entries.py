"""A small encoder of Pulsar's entries, from the byte tables alone: it shares nothing with the code that reads them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import google_crc32c
import zstandard
from cramjam import snappy
from lz4 import block

from chunkstore.codec.pulsar.frames import Entry

METADATA = {
    "producer": 1, "sequence_id": 2, "publish_time": 3, "properties": 4, "key": 6, "compression": 8, "uncompressed_size": 9,
    "batch": 11, "event_time": 12, "encryption_keys": 13, "schema_version": 16, "key_b64": 17, "ordering_key": 18, "deliver_at": 19,
    "marker": 20, "txn_least": 22, "txn_most": 23, "null_value": 25, "uuid": 26, "chunks": 27, "chunked_bytes": 28, "chunk": 29,
    "null_key": 30,
}  # fmt: skip
SINGLE = {
    "properties": 1, "key": 2, "payload_size": 3, "compacted_out": 4, "event_time": 5, "key_b64": 6, "ordering_key": 7, "sequence_id": 8,
    "null_value": 9, "null_key": 10,
}  # fmt: skip
CODECS = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def proto(numbers: dict[str, int], values: dict[str, Any]) -> bytes:
    """Fields by number; ``None`` is left out. Properties are pairs of text or bytes, encryption keys a count."""
    out = bytearray()
    for name, number in numbers.items():
        value = values.get(name)
        if value is None:
            continue
        if name == "properties":
            value = [proto({"k": 1, "v": 2}, {"k": key, "v": text}) for key, text in value]
        elif name == "encryption_keys":
            value = [proto({"k": 1, "v": 2}, {"k": "key", "v": b"sealed"})] * value
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, int):
                out += varint(number << 3) + varint(item)
            else:
                raw = item.encode() if isinstance(item, str) else item
                out += varint(number << 3 | 2) + varint(len(raw)) + raw
    return bytes(out)


def metadata_bytes(**values: Any) -> bytes:
    """A ``MessageMetadata``."""
    return proto(METADATA, {"producer": "p", "sequence_id": 0, "publish_time": 1_700_000_000_000, **values})


def compressed(codec: str, data: bytes, *, finished: bool = False) -> bytes:
    """``data`` as Pulsar's clients compress it; ZLIB as the Java client, unless it shall be finished."""
    if codec == "LZ4":
        return bytes(block.compress(data, store_size=False))
    if codec == "ZLIB":
        stream = zlib.compressobj()
        return stream.compress(data) + stream.flush(zlib.Z_FINISH if finished else zlib.Z_SYNC_FLUSH)
    if codec == "ZSTD":
        return zstandard.compress(data)
    return bytes(snappy.compress_raw(data)) if codec == "SNAPPY" else data


def entry_of(metadata: bytes, payload: bytes, *, broker: tuple[int, int] | None = None, crc: bool = True) -> bytes:
    """An entry: broker entry metadata (time, index), CRC32C, metadata, payload."""
    rest = len(metadata).to_bytes(4, "big") + metadata + payload
    if crc:
        rest = b"\x0e\x01" + google_crc32c.value(rest).to_bytes(4, "big") + rest
    if broker is not None:
        head = proto({"time": 1, "index": 2}, {"time": broker[0], "index": broker[1]})
        rest = b"\x0e\x02" + len(head).to_bytes(4, "big") + head + rest
    return rest


def single(payload: bytes, **values: Any) -> bytes:
    """A message of a batch, with its metadata and their length."""
    metadata = proto(SINGLE, {"payload_size": len(payload), **values})
    return len(metadata).to_bytes(4, "big") + metadata + payload


def message(
    content: bytes | Sequence[bytes],
    *,
    at: tuple[int, int] = (1, 0),
    codec: str = "NONE",
    broker: tuple[int, int] | None = None,
    crc: bool = True,
    **values: Any,
) -> Entry:
    """An entry at (ledger, entry): a message's payload, or the messages of a batch as ``single`` makes them."""
    if not isinstance(content, bytes):
        values.setdefault("batch", len(content))
        content = b"".join(content)
    values.setdefault("uncompressed_size", len(content))
    if codec != "NONE":
        values.setdefault("compression", CODECS.index(codec))
    return Entry(*at, entry_of(metadata_bytes(**values), compressed(codec, content), broker=broker, crc=crc))


def marker(kind: int, txn: tuple[int, int], at: tuple[int, int]) -> Entry:
    """The end of a transaction: 21 is commit, 22 abort."""
    return message(
        b"", at=at, producer="pulsar.txn.marker", sequence_id=-1, marker=kind, txn_most=txn[0], txn_least=txn[1]
    )
