"""A genuine bucket, plain, zstd and encrypted: manifests, chunks and indexes, against what an independent reader got of them."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from hashlib import sha256
from typing import Any

import pytest
import zstandard

from chunkstore.codec.kafka import encryption
from chunkstore.codec.kafka.encryption import ChunkDecoder, load_private_key
from chunkstore.codec.kafka.manifest import MANIFEST_BYTES_MAX, IndexType, Manifest, read_manifest
from chunkstore.codec.kafka.names import uuid_text
from chunkstore.errors import Damaged, InvalidArgument
from tests.kafka.support_logdir import FIXTURES

BUCKET = FIXTURES / "aiven-bucket"
EXPECTED: dict[str, Any] = json.loads((FIXTURES / "aiven.segments.json").read_text())
PEM = (FIXTURES / "aiven-keys" / "key1-private.pem").read_bytes()
KEYS = [load_private_key(PEM)]
ENCRYPTED = next(key for key in EXPECTED if key.startswith("encrypted"))
PLAIN = next(key for key in EXPECTED if key.startswith("plain"))


def manifest_of(key: str) -> tuple[Manifest, bytes, bytes]:
    path = BUCKET / key
    return (
        read_manifest(path.read_bytes()),
        path.with_suffix(".log").read_bytes(),
        path.with_suffix(".indexes").read_bytes(),
    )


def log_of(manifest: Manifest, stored: bytes, start: int, stop: int) -> bytes:
    decoder = ChunkDecoder(manifest, KEYS)
    pieces = [
        (
            chunk.position,
            decoder.chunk(chunk, stored[chunk.stored_position : chunk.stored_position + chunk.stored_bytes]),
        )
        for chunk in manifest.chunks.chunks(start, stop)
    ]
    return b"".join(piece[max(0, start - at) : stop - at] for at, piece in pieces)


@pytest.mark.parametrize("key", EXPECTED, ids=lambda key: key.split("/")[0] + key[-45:-13])
def test_every_segment_is_read(key: str) -> None:
    expected = EXPECTED[key]
    manifest, log, indexes = manifest_of(key)
    chunks = list(manifest.chunks.chunks(0, manifest.chunks.log_bytes))
    assert [chunk.stored_bytes for chunk in chunks] == expected["chunk_sizes"]
    assert manifest.chunks.stored_bytes == len(log)
    plain = log_of(manifest, log, 0, manifest.chunks.log_bytes)
    assert (len(plain), sha256(plain).hexdigest()) == (expected["log"]["len"], expected["log"]["sha256"])
    for start, stop in ((0, 1), (16383, 16385), (20000, 20000), (19999, 40001), (len(plain) - 1, len(plain))):
        assert log_of(manifest, log, start, stop) == plain[start:stop]
    decoder = ChunkDecoder(manifest, KEYS)
    for name in IndexType:
        place = manifest.indexes[name]
        found = decoder.index(name, indexes[place[0] : sum(place)] if place else b"")
        assert (len(found), sha256(found).hexdigest()) == (
            (expected["indexes"][name]["len"], expected["indexes"][name]["sha256"])
            if expected["indexes"].get(name)
            else (0, sha256(b"").hexdigest())
        ), name
    segment = manifest.segment
    assert segment is not None
    assert (segment.topic, segment.partition, uuid_text(segment.topic_id), uuid_text(segment.segment_id)) == tuple(
        expected[name] for name in ("topic", "partition", "topic_id", "segment_id")
    )
    assert (segment.start_offset, segment.end_offset) == (expected["start"], expected["end"])
    assert {str(epoch): start for epoch, start in segment.leader_epochs} == expected["epochs"]


@pytest.mark.parametrize("kind", ["plain", "zstd", "encrypted"])
def test_stored_bytes_that_are_changed_or_cut_are_damage(kind: str) -> None:
    manifest, log, _ = manifest_of(next(key for key in EXPECTED if key.startswith(kind)))
    chunk = list(manifest.chunks.chunks(0, manifest.chunks.log_bytes))[1]
    stored = log[chunk.stored_position : chunk.stored_position + chunk.stored_bytes]
    for wrong in [stored[:-1], stored + b"\0", b""] + [stored[:9] + b"\0" + stored[10:]] * (kind == "encrypted"):
        with pytest.raises(Damaged) as caught:
            ChunkDecoder(manifest, KEYS, stem="s").chunk(chunk, wrong)
        assert (caught.value.object, caught.value.position) == ("s.log", chunk.stored_position)


def test_a_data_key_that_is_not_wrapped_so_is_refused() -> None:
    manifest, _, _ = manifest_of(ENCRYPTED)
    assert manifest.data_key is not None
    raw = b64decode(manifest.data_key.removeprefix("key1:"))
    text = bytes(158) + b"\1" + bytes(32)  # a padded key of 32 bytes, but for its label
    masked = encryption._masked(text, bytes(64))
    block = int.from_bytes(encryption._masked(bytes(64), masked) + masked, "big")
    unlabelled = pow(block, 65537, KEYS[0].modulus).to_bytes(256, "big")
    for wrong in (unlabelled, b"\0" + raw, b"", raw[:-1], raw[:-1] + bytes((raw[-1] ^ 1,)), b"\xff" * len(raw)):
        path = (BUCKET / ENCRYPTED).read_bytes().replace(manifest.data_key.encode(), b"key1:" + b64encode(wrong))
        with pytest.raises(InvalidArgument, match="key1"):
            ChunkDecoder(read_manifest(path), KEYS)


def changed(key: str, **fields: object) -> bytes:
    """The manifest with fields of ``chunkIndex``, or of the whole, set anew."""
    tree = json.loads((BUCKET / key).read_bytes())
    for name, value in fields.items():
        (tree["chunkIndex"] if name in tree["chunkIndex"] else tree)[name] = value
    return json.dumps(tree).encode()


def sizes(raw: bytes, more: bytes = b"") -> str:
    return b64encode(zstandard.compress(raw) + more).decode()


ZSTD = next(key for key in EXPECTED if key.startswith("zstd"))


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        (PLAIN, {"version": "2"}), (PLAIN, {"version": None}), (PLAIN, {"originalChunkSize": 0}), (PLAIN, {"originalFileSize": 1 << 31}),
        (PLAIN, {"transformedChunkSize": True}), (PLAIN, {"transformedChunkSize": -1}), (PLAIN, {"finalTransformedChunkSize": 1 << 40}),
        (PLAIN, {"type": "sparse"}), (PLAIN, {"compression": 0}), (PLAIN, {"segmentIndexes": []}),
        (PLAIN, {"encryption": {"dataKey": "k", "aad": "?"}}), (ZSTD, {"originalChunkSize": 1}), (ZSTD, {"originalFileSize": 1}),
        (PLAIN, {"segmentIndexes": {"offset": {"position": -1, "size": 1}}}), (PLAIN, {"encryption": {"aad": ""}}),
        (ZSTD, {"transformedChunks": "*"}), (ZSTD, {"transformedChunks": sizes(b"")}), (ZSTD, {"transformedChunks": sizes(bytes(1 << 20))}),
        (ZSTD, {"transformedChunks": sizes(bytes.fromhex("00000003 00000001 05") + bytes(14))}),
        (ZSTD, {"transformedChunks": sizes(bytes.fromhex("00000003 80000000 01 0000 00000001"))}),
        (ZSTD, {"transformedChunks": sizes(bytes.fromhex("00000003 00000001 01 0000 00000000"))}),
        (ZSTD, {"transformedChunks": sizes(bytes.fromhex("00000003 00000001 01 0000 00000001 00"))}),
        (ZSTD, {"transformedChunks": sizes(bytes.fromhex("00000003 00000001 01 0000 00000001"), b"x")}),
        (ZSTD, {"originalFileSize": (1 << 31) - 1, "originalChunkSize": 1, "transformedChunks": sizes(b"\x7f" * (11 << 20))}),
    ],
)  # fmt: skip
def test_manifests_that_are_wrong_are_damage(key: str, fields: dict[str, object]) -> None:
    data = changed(key, **fields)
    with pytest.raises(Damaged) as caught:
        read_manifest(data, object="m")
    assert caught.value.object == "m"
    assert 0 <= caught.value.position < len(data)


def test_hostile_json_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (
        b"",
        b"[]",
        b"{",
        b"[" * 100_000,
        b"\xff",
        b'{"version":' + b"9" * 5000 + b"}",
        b" " * (MANIFEST_BYTES_MAX + 1),
    ):
        with pytest.raises(Damaged, match=r"^m at byte"):
            read_manifest(data, object="m")
    manifest, log, _ = manifest_of(ZSTD)
    monkeypatch.setattr("chunkstore.codec.kafka.encryption.CHUNK_BYTES_MAX", 19_999)
    with pytest.raises(Damaged, match="at most 19999 are"):
        log_of(manifest, log, 0, 1)
