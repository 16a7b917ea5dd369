"""The whole storage contract on S3: over moto, and over a real gateway under a prefix with chunks that go up in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from chunkstore.storage import ChunkStorage
from chunkstore.testing.storage_basics import ODD_NAMES
from chunkstore.testing.storage_contract import ChunkStorageContract
from chunkstore_bindings.s3.options import S3Options
from chunkstore_bindings.s3.storage import S3ChunkStorage
from tests.support.servers.s3server import S3Server

MIB = 1 << 20


class S3Contract(ChunkStorageContract):
    """Every test has a bucket of its own; ``raw_*`` look at it with a plain client."""

    deletes_silently = True
    server: S3Server
    root = ""
    options: ClassVar[dict[str, Any]] = {}

    def make_storage(self, folder: Path) -> ChunkStorage:
        self.bucket = self.server.make_bucket()
        return S3ChunkStorage(
            S3Options(bucket=self.bucket, prefix=self.root, endpoint_url=self.server.url, **self.options)
        )

    def key(self, name: str) -> str:
        return f"{self.root}/{name}" if self.root else name

    def raw_read(self, name: str) -> bytes:
        data = self.server.client.get_object(Bucket=self.bucket, Key=self.key(name))["Body"].read()
        assert isinstance(data, bytes)
        return data

    def raw_write(self, name: str, data: bytes) -> None:
        self.server.client.put_object(Bucket=self.bucket, Key=self.key(name), Body=data)


class TestMoto(S3Contract):
    @pytest.fixture(autouse=True)
    def serve(self, moto: S3Server) -> None:
        self.server = moto

    @pytest.mark.parametrize("odd", [name for name in ODD_NAMES if "\n" not in name])
    def test_odd_names(self, storage: ChunkStorage, odd: str) -> None:
        super().test_odd_names(storage, odd)  # moto's router has no keys with line breaks; the gateway has


@pytest.mark.proof
class TestRgwUnderAPrefixInParts(S3Contract):
    root = "some where/röot"
    options: ClassVar[dict[str, Any]] = {"part_size_bytes": 5 * MIB, "multipart_bytes_min": 5 * MIB}

    @pytest.fixture(autouse=True)
    def serve(self, rgw: S3Server) -> None:
        self.server = rgw
