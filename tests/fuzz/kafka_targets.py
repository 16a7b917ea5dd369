"""The decoders of Kafka's files: indexes, text files, metadata records, manifests. The first byte of a file says which it is."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any

import zstandard

from chunkstore.codec.kafka import checkpoints, indexes, remote_metadata
from chunkstore.codec.kafka.manifest import read_manifest
from chunkstore.codec.kafka.remote_metadata import MetadataRecord, RecordKind
from chunkstore.config import MIB
from chunkstore.errors import Damaged
from tests.fuzz.chance import Chance, mangled
from tests.fuzz.target import Gate, Target
from tests.kafka.support_records import SEGMENT

__all__ = ["KAFKA_TARGETS"]


def _record(data: bytes) -> MetadataRecord:
    found = remote_metadata.decode_metadata_record(data)
    return found._replace(broker_leader_epoch=-1, end_offset=found.end_offset if found.leader_epochs else -1)


_FILES: tuple[tuple[Callable[[bytes], Any], Callable[[Any], bytes] | None, bytes], ...] = (
    (lambda data: indexes.OffsetIndex(data, 5), None, b"".join(indexes.OffsetIndex.row.pack(at * 9, at * 900) for at in range(9))),
    (lambda data: indexes.TimeIndex(data, 5), None, b"".join(indexes.TimeIndex.row.pack(1 << 40 | at, at * 9) for at in range(9))),
    (indexes.read_transaction_index, indexes.write_transaction_index, bytes.fromhex("0000" + f"{5:016x}" * 4)),
    (indexes.read_producer_snapshot, indexes.write_producer_snapshot, indexes.write_producer_snapshot([indexes.ProducerEntry(1)])),
    (checkpoints.read_leader_epochs, checkpoints.write_checkpoint, b"0\n2\n0 0\n4 141\n"),
    (checkpoints.read_offset_checkpoint, checkpoints.write_checkpoint, b"0\n2\nt.x 0 5\nt-y 3 7\n"),
    (checkpoints.read_partition_metadata, checkpoints.write_partition_metadata, b"version: 0\ntopic_id: " + b"A" * 22),
    (checkpoints.read_properties, lambda found: checkpoints.write_properties(*found), b"#\n#Sat\nversion=1\nnode.id=1\n"),
    *((_record, remote_metadata.encode_metadata_record, remote_metadata.encode_metadata_record(SEGMENT._replace(kind=kind)))
      for kind in RecordKind if kind != RecordKind.PARTITION_DELETE),
)  # fmt: skip
_MANIFEST = (
    '{"version":"1","compression":true,"segmentIndexes":{"offset":null,"timestamp":null,"producerSnapshot":null,"leaderEpoch":null,'
    '"transaction":null},"chunkIndex":{"type":"%s","originalChunkSize":16,"originalFileSize":60,'
    '"transformedChunkSize":9,"finalTransformedChunkSize":7,"transformedChunks":"%s"},"encryption":{"dataKey":"k:AA==","aad":"AA=="}}'
)


def _make_file(chance: Chance) -> bytes:
    number = chance.below(len(_FILES))
    return bytes((number,)) + mangled(chance, _FILES[number][2], chance.one_of(_FILES)[2])


def _decode_file(data: bytes, gate: Gate) -> Callable[[], None]:
    read, write, _ = _FILES[data[0]]
    found = read(data[1:])
    gate.past()

    def again() -> None:
        assert write is None or read(write(found)) == found

    return again


def _make_manifest(chance: Chance) -> bytes:
    sizes = bytes.fromhex("00000004 00000005 01 000102 00000009")
    packed = b64encode(zstandard.compress(mangled(chance, sizes) if chance.random() < 0.5 else sizes)).decode()
    text = (_MANIFEST % (chance.one_of(("fixed", "variable")), packed)).encode()
    return chance.one_of((mangled(chance, text), text.replace(b"16", str(chance.number()).encode())))


def _decode_manifest(data: bytes, gate: Gate) -> None:
    found = read_manifest(data)
    gate.past()
    assert all(chunk.stored_bytes > 0 for chunk in found.chunks.chunks(0, min(found.chunks.log_bytes, 99)))


KAFKA_TARGETS: tuple[Target, ...] = (
    Target("kafka-file", "all of the file", _make_file, _decode_file, (Damaged,)),
    Target("kafka-manifest", "all of the manifest", _make_manifest, _decode_manifest, (Damaged,), memory_bytes=4 * MIB),
)
