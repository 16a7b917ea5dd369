"""Backups into a bucket, and of a container that lies in one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import chunkstore
from chunkstore import backup, errors
from chunkstore_bindings.s3.storage import S3ChunkStorage
from tests.s3.conftest import Proxied
from tests.support.servers.s3server import S3Server

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]


def test_encryption_and_storage_class_go_with_every_object(
    moto: S3Server, proxied: Proxied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small objects, chunks in parts, and what is composed of pieces: all that makes an object says so."""
    for name, size in (("_BATCH_BYTES", 6 << 20), ("_PIECE_BYTES", 5 << 20)):
        monkeypatch.setattr(f"chunkstore.backup.copies.{name}", size)
    proxy = proxied(moto)
    bucket = moto.make_bucket()
    options = {"sse": "aws:kms", "sse_kms_key_id": "key-1", "storage_class": "STANDARD_IA"}
    limits = {"part_size_bytes": 5 << 20, "multipart_bytes_min": 5 << 20}
    target = moto.root(bucket, "backups", port=proxy.port, **options, **limits)
    settings = chunkstore.Settings(cache_dir=str(tmp_path / "cache"), lease_s=0)
    with chunkstore.open((tmp_path / "root").as_uri(), settings=settings) as store:
        for name, size in (("small", 100), ("large", 6 << 20), ("pieces", 11 << 20)):
            store.create(name)
            store.append(name, os.urandom(size))
            store.seal(name)
        backup.backup(store, target, pin=False)
    made = [
        request
        for request in proxy.requests
        if (request.method == "PUT" and "partNumber" not in request.target)
        or (request.method == "POST" and "uploads" in request.target)
    ]
    assert {request.method for request in made} == {"PUT", "POST"}
    for request in made:
        assert request.headers["x-amz-server-side-encryption"] == "aws:kms", request
        assert request.headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key-1"
        assert request.headers["x-amz-storage-class"] == "STANDARD_IA"
    for item in moto.client.list_objects_v2(Bucket=bucket)["Contents"]:
        assert item["StorageClass"] == "STANDARD_IA", item["Key"]
    with chunkstore.open_replica(target, settings=settings) as replica:
        assert replica.check("deep") == []


@pytest.mark.parametrize("verify", [True, False])
def test_a_server_copies_from_bucket_to_bucket(server: S3Server, tmp_path: Path, verify: bool) -> None:
    """No byte of a large closed chunk is sent; what is rotten is found before it is copied, unless nobody is to look."""
    settings = chunkstore.Settings(cache_dir=str(tmp_path / "cache"), lease_s=0)
    target, rotten = (server.root(server.make_bucket(), name) for name in ("backups", "rotten"))
    large, bucket = os.urandom(2 << 20), server.make_bucket()
    sent: list[int] = []
    real = S3ChunkStorage.close

    def close(self: S3ChunkStorage) -> None:
        if self.options.prefix in ("backups", "rotten"):
            sent.append(self.request_counts()["sent_bytes"])
        real(self)

    with (
        chunkstore.open(server.root(bucket, "root"), settings=settings) as store,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(S3ChunkStorage, "close", close)
        for name, data in (("large", large), ("small", b"small")):
            store.create(name)
            store.append(name, data)
            store.seal(name)
        made = backup.backup(store, target, verify=verify).backup
        assert made.copied_bytes == len(large) + 5 and sent.pop() < 100_000
        [chunk] = store.layout("large")
        key = f"root/{chunk.name}"
        server.client.put_object(Bucket=bucket, Key=key, Body=b"x" + large[1:])
        if verify:
            with pytest.raises(errors.Damaged, match="CRC32C"):
                backup.backup(store, rotten)
            assert list(backup.list_backups(rotten, settings=settings)) == []
        else:
            backup.backup(store, rotten, verify=False)
            with chunkstore.open_replica(rotten, settings=settings) as replica:
                assert replica.check("deep") != [], "whoever trusts the server finds it later"
    with chunkstore.open_replica(target, settings=settings) as replica:
        assert replica.read("large", 0, len(large)) == large and replica.check("deep") == []
