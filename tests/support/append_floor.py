"""The floor under an append: the bytes that the engine stores, made by hand in a plain loop without engine and locks.

An append of one or more segments costs the same calls of the chunk storage (write to the chunks, sync them, look at the fence,
write the record, sync it, look at the fence), one msgpack record with CRCs and hash, and one LMDB transaction of the same rows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import google_crc32c
import lmdb
import msgpack

from chunkstore.config import Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.journal import OpCode, RecordKind
from chunkstore.metadata.keys import chunk_key, segment_key
from chunkstore.metadata.lmdb import LmdbMetadataStore
from chunkstore.metadata.lmdb.rows import Tally
from chunkstore.metadata.lmdb.store import HEAD_KEY, pack_head
from chunkstore.metadata.port import MetadataStore
from chunkstore.names import ContainerNames
from chunkstore.storage import ChunkHandle, ChunkStorage, iter_listing
from chunkstore_journal.container import read_format
from chunkstore_journal.history import Streams

__all__ = ["Floor", "Tail", "settle_cache"]

_HEADER = struct.Struct(">4sBBBBII16sQQQQQ16s32s16sQI")
_HEAD = struct.Struct(">B16sQ16sQQQ32s7Q")
_U32 = struct.Struct(">I")
_HEAD_VERSION = 4
_APPEND, _OPS = int(OpCode.APPEND), int(RecordKind.OPS)
_SEGMENT_ID, _SEGMENT_LENGTH, _LAST_CHUNK, _MODIFIED_MS = 3, 6, 8, 16
_CHUNK_LENGTH, _CHUNK_CRC = 4, 5
_pack = msgpack.Packer(autoreset=True).pack
_extend, _crc = google_crc32c.extend, google_crc32c.value


def settle_cache(store: ChunkedSegmentStorage) -> None:
    """Have what waits in the store's metadata cache written."""
    cache = store._container.current.store
    assert isinstance(cache, LmdbMetadataStore)
    cache.settle()


def _row_digest(key: bytes, value: bytes) -> int:
    return int.from_bytes(blake2b(key + len(key).to_bytes(4, "little") + value, digest_size=32).digest(), "big")


class Tail:
    """The rows of one segment and of its growing chunk, decoded, and the chunk's handle."""

    def __init__(self, name: str, rows: dict[bytes, bytes], names: ContainerNames) -> None:
        self.segment_key = segment_key(name)
        self.segment: list[Any] = msgpack.unpackb(rows[self.segment_key])
        identity = self.segment[_LAST_CHUNK]
        self.chunk_key = chunk_key(identity)
        self.chunk: list[Any] = msgpack.unpackb(rows[self.chunk_key])
        self.handle = ChunkHandle(names.chunk(identity), True)
        self.digests = (
            _row_digest(self.segment_key, rows[self.segment_key]),
            _row_digest(self.chunk_key, rows[self.chunk_key]),
        )


class Floor:
    """Goes on from what an open store in APPEND mode has stored, on a copy of it: ``storage``, and LMDB at ``path``.
    ``cache``: its metadata store."""

    def __init__(self, source: ChunkStorage, storage: ChunkStorage, cache: MetadataStore, path: Path) -> None:
        for item in iter_listing(source):
            storage.put(item.name, source.read(ChunkHandle(item.name, False), 0, item.length))
        self.storage = storage
        self._names = ContainerNames("default")
        format_ = read_format(storage, self._names)
        self._uuid = format_.uuid
        with cache.view() as view:
            head = view.head
            self.rows = dict(view.scan(b"\x01", b"\xff"))
        self._lsn, self._hash, self._epoch, self._index, self._end = head.position
        self._digest = head.digest
        *_, last = Streams(storage, self._names, format_).log_reader(self._epoch, 0)
        self._token = last.header.token
        self._log = ChunkHandle(self._names.log(self._epoch), True)
        self._fence = self._names.epoch(self._epoch + 1)
        self.lmdb = lmdb.open(
            str(path), map_size=Settings().lmdb_map_bytes, metasync=False, sync=False, readahead=False, max_spare_txns=1
        )
        with self.lmdb.begin(write=True) as txn:
            for key, value in self.rows.items():
                txn.put(key, value)
            txn.put(HEAD_KEY, pack_head(self._uuid, head, Tally(0, 0)))

    def tail(self, name: str) -> Tail:
        """What ``append`` takes for the segment ``name``, which has a growing chunk with room enough."""
        return Tail(name, self.rows, self._names)

    def append(self, tails: Sequence[Tail], data: bytes, time_ms: int) -> None:
        """Append ``data`` to each segment in one record."""
        storage, length = self.storage, len(data)
        ops, rows, digest = [], [], self._digest
        for tail in tails:
            segment, chunk = tail.segment, tail.chunk
            storage.write(tail.handle, chunk[_CHUNK_LENGTH], data)
            ops.append((_APPEND, segment[_SEGMENT_ID], segment[_SEGMENT_LENGTH], length, ()))
            segment[_SEGMENT_LENGTH] += length
            segment[_MODIFIED_MS] = time_ms
            chunk[_CHUNK_LENGTH] += length
            chunk[_CHUNK_CRC] = _extend(chunk[_CHUNK_CRC], data)
            new_segment, new_chunk = _pack(segment), _pack(chunk)
            rows.append((tail.segment_key, new_segment))
            rows.append((tail.chunk_key, new_chunk))
            digests = _row_digest(tail.segment_key, new_segment), _row_digest(tail.chunk_key, new_chunk)
            digest += sum(digests) - sum(tail.digests)
            tail.digests = digests
        storage.sync([tail.handle.name for tail in tails])
        self._digest = digest = digest % (1 << 256)
        self._write_record(_pack((1, ops, rows)), digest.to_bytes(32, "big"), time_ms)
        with self.lmdb.begin(write=True) as txn:
            for key, value in rows:
                txn.put(key, value)
            txn.put(
                HEAD_KEY,
                _HEAD.pack(
                    _HEAD_VERSION, self._uuid, self._lsn, self._hash, self._epoch, self._index, self._end,
                    digest.to_bytes(32, "big"), 0, 0, *bytes(5),
                ),
            )  # fmt: skip

    def _write_record(self, payload: bytes, digest: bytes, time_ms: int) -> None:
        storage = self.storage
        raw = _HEADER.pack(
            b"CKSJ", 1, _OPS, 1, 0, len(payload), 0, self._uuid, self._epoch, self._index, self._end,
            self._lsn + 1, self._lsn, self._hash, digest, self._token, time_ms, _crc(payload),
        )  # fmt: skip
        front, rest = raw[:12], raw[16:]
        raw = front + _U32.pack(_extend(_crc(front), rest)) + rest + payload
        identity = blake2b(raw, digest_size=16).digest()
        if storage.exists(self._fence):
            raise RuntimeError("fenced")
        storage.write(self._log, self._end, raw + identity)
        storage.sync((self._log.name,))
        if storage.exists(self._fence):
            raise RuntimeError("fenced")
        self._end += len(raw) + len(identity)
        self._hash = identity
        self._lsn += 1
        self._index += 1
