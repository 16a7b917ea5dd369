"""The binding on honest servers: what it stores beside the bytes, what it costs, what it refuses."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

import pytest

import chunkstore
from chunkstore.checksum import crc32c
from chunkstore.config import Settings
from chunkstore.errors import (
    ChunkExists,
    Damaged,
    InvalidArgument,
    StorageUnavailable,
    Unsupported,
)
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkHandle
from chunkstore.testing.storage_basics import pattern
from tests.s3.conftest import Connect
from tests.support.servers.s3server import CREDENTIALS, S3Server

MIB = 1 << 20
SMALL_PARTS = {"part_size_bytes": 5 * MIB, "multipart_bytes_min": 5 * MIB}


def test_checksums_are_kept_and_looked_at(server: S3Server, connect: Connect) -> None:
    storage = connect(server, **SMALL_PARTS)
    small, large = pattern(1000), pattern(65_521) * 200
    storage.create("small", small)
    storage.create("large", large)
    storage.put("hint", small)
    for name, data in (("small", small), ("large", large), ("hint", small)):
        kept = server.client.head_object(Bucket=storage.options.bucket, Key=name)["Metadata"]
        assert kept["chunkstore-crc32c"] == f"{crc32c(data):08x}"
        assert storage.read(ChunkHandle(name, False), 0, 1 << 30) == data
    # Somebody changes the bytes and keeps the metadata: a whole read notices, in one piece and in many.
    for name, data in (("small", small), ("large", large)):
        kept = server.client.head_object(Bucket=storage.options.bucket, Key=name)["Metadata"]
        other = data[:-1] + bytes([data[-1] ^ 1])
        server.client.put_object(Bucket=storage.options.bucket, Key=name, Body=other, Metadata=kept)
        with pytest.raises(Damaged) as caught:
            storage.read(ChunkHandle(name, False), 0, 1 << 30)
        assert caught.value.object == name
        with pytest.raises(Damaged):
            storage.read_into(ChunkHandle(name, False), 0, bytearray(len(data) + 10))
        assert storage.read(ChunkHandle(name, False), 1, 100) == data[1:101]


def test_the_server_checks_what_arrives(rgw: S3Server, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = connect(rgw)
    storage.put("first", b"teaches which checksum the server looks at")
    real = hashlib.md5
    monkeypatch.setattr(hashlib, "md5", lambda data=b"", **more: real(bytes(data) + b"!", **more))
    for call in (storage.put, storage.create, storage.create_if_absent):
        with pytest.raises(StorageUnavailable, match="BadDigest"):
            call("x", b"damaged on the way")
    monkeypatch.undo()
    assert not storage.exists("x")


def test_large_chunks_go_up_in_parts_and_leave_nothing(server: S3Server, connect: Connect) -> None:
    storage = connect(server, concurrency=3, **SMALL_PARTS)
    data = pattern(65_521) * 260
    storage.create("large", memoryview(data))
    assert storage.request_counts()["PUT"] == -(-len(data) // (5 * MIB))
    with pytest.raises(ChunkExists):
        storage.create("large", data)
    assert storage.request_counts()["sent_bytes"] == len(data)
    buffer = bytearray(len(data) - 5)
    assert storage.read_into(ChunkHandle("large", False), 3, buffer) == len(buffer)
    assert buffer == data[3:-2]
    assert "Uploads" not in server.client.list_multipart_uploads(Bucket=storage.options.bucket)


def test_stale_uploads_are_swept_and_young_ones_spared(rgw: S3Server, connect: Connect) -> None:
    server = rgw  # in moto every upload began in 2010
    storage = connect(server, stale_upload_s=60)
    bucket = storage.options.bucket
    nested = connect(server, bucket=bucket)
    server.client.create_multipart_upload(Bucket=bucket, Key="c/d/00/left-behind")
    assert storage.sweep_uploads() == 0
    assert len(server.client.list_multipart_uploads(Bucket=bucket)["Uploads"]) == 1
    assert nested.sweep_uploads(-1) == 1
    assert "Uploads" not in server.client.list_multipart_uploads(Bucket=bucket)


# The probe


@pytest.mark.parametrize("look_alike", ["ignores", "races"], indirect=True)
def test_a_look_alike_is_refused_and_can_be_read(look_alike: S3Server, moto: S3Server, tmp_path: Any) -> None:
    bucket = look_alike.make_bucket()
    root = look_alike.root(bucket)
    settings = Settings(cache_dir=str(tmp_path), lease_s=0)
    with pytest.raises(Unsupported, match="put-if-absent does not hold here") as caught:
        chunkstore.open(root, settings=settings)
    assert caught.value.feature == "create_if_absent"
    assert "read-only" in str(caught.value)
    assert look_alike.client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    # A container that was made while the server was honest is found out at the next open, and is still readable.
    made = moto.make_bucket()
    with chunkstore.open(moto.root(made), settings=settings) as store:
        store.create("s")
        store.append("s", b"data")
    for item in moto.client.list_objects_v2(Bucket=made)["Contents"]:
        body = moto.client.get_object(Bucket=made, Key=item["Key"])["Body"].read()
        look_alike.client.put_object(Bucket=bucket, Key=item["Key"], Body=body)
    with pytest.raises(Unsupported, match="put-if-absent does not hold here"):
        chunkstore.open(root, settings=settings)
    with chunkstore.open_replica(root, settings=settings) as replica:
        assert replica.read("s", 0, 10) == b"data"


def test_a_versioned_bucket_is_served_or_refused_and_never_trusted_blindly(server: S3Server, tmp_path: Any) -> None:
    bucket = server.make_bucket()
    root = server.root(bucket)
    settings = Settings(cache_dir=str(tmp_path), lease_s=0)
    with chunkstore.open(root, settings=settings) as store:
        store.create("s")
        store.append("s", b"data")
    server.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    server.client.put_object(Bucket=bucket, Key="beside", Body=b"first")
    try:
        server.client.put_object(Bucket=bucket, Key="beside", Body=b"second", IfNoneMatch="*")
        holds = False  # Ceph 16
    except server.client.exceptions.ClientError:
        holds = True
    if not holds:
        with pytest.raises(Unsupported, match="put-if-absent does not hold here"):
            chunkstore.open(root, settings=settings)
        with chunkstore.open_replica(root, settings=settings) as replica:
            assert replica.read("s", 0, 10) == b"data"
        return
    for _ in range(2):
        with chunkstore.open(root, settings=settings) as store:
            store.append("s", b"+")
            store.create("t")
            store.delete("t")
    with chunkstore.open_replica(root, settings=settings) as replica:
        assert replica.read("s", 0, 10) == b"data++"
        assert not replica.exists("t")


@pytest.mark.parametrize("look_alike", ["corrupts"], indirect=True)
def test_bytes_that_change_on_the_way(look_alike: S3Server, connect: Connect) -> None:
    storage = connect(look_alike)
    storage.create("corrupt-once", b"0123456789")
    storage.create("corrupt", b"0123456789")
    assert storage.read(ChunkHandle("corrupt-once", False), 0, 100) == b"0123456789"
    with pytest.raises(Damaged):
        storage.read(ChunkHandle("corrupt", False), 0, 100)


# Mistakes, and secrets


def test_mistakes_are_named_with_a_remedy(server: S3Server, rgw: S3Server, tmp_path: Any, monkeypatch: Any) -> None:
    settings = Settings(cache_dir=str(tmp_path), lease_s=0, retry_s_max=0)
    with pytest.raises(InvalidArgument, match="NoSuchBucket"):
        chunkstore.open(server.root("no-such-bucket"), settings=settings)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sesame-open")
    with pytest.raises(StorageUnavailable, match="check credentials") as caught:
        chunkstore.open(rgw.root("bucket"), settings=settings)
    assert "sesame" not in str(caught.value)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(StorageUnavailable, match="no usable credentials"):
        chunkstore.open(rgw.root("bucket"), settings=settings)


def test_no_credential_in_logs_objects_or_names(
    server: S3Server, tmp_path: Any, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session-token-sesame")
    bucket = server.make_bucket()
    root = server.root(bucket)
    secrets = [CREDENTIALS["AWS_SECRET_ACCESS_KEY"], CREDENTIALS["AWS_ACCESS_KEY_ID"], "session-token-sesame"]
    with caplog.at_level(logging.DEBUG):
        try:
            with chunkstore.open(root, settings=Settings(cache_dir=str(tmp_path), lease_s=0, retry_s_max=0)) as store:
                store.create("s")
                store.append("s", b"data")
        except chunkstore.ChunkstoreError as error:  # a server that checks the token refuses it
            assert not any(secret in f"{error} {error!r}" for secret in secrets)
        storage = open_storage(root, Settings())
        assert not any(secret in f"{storage!r} {storage.url} {vars(storage)}" for secret in secrets)
        storage.close()
    for record in caplog.records:
        assert not any(secret in record.getMessage() for secret in secrets), record.name
    for item in server.client.list_objects_v2(Bucket=bucket).get("Contents", []):
        answer = server.client.get_object(Bucket=bucket, Key=item["Key"])
        for secret in secrets:
            assert secret.encode() not in answer["Body"].read()
            assert secret not in repr(answer["Metadata"])
