"""The S3 binding itself over a simulated server: its requests are the steps that are scheduled, and that fail.

The binding gets something in place of the SDK's client that answers and refuses as the SDK does. (With the SDK in between a request
costs fifty times as much; ``tests/s3`` has it.) Promises: everything that ``s3`` says of faults holds for requests here: 503 and 409
are answers, a lost reply is a timeout of the SDK's, and a body may end before its length. The server keeps metadata, looks at the
checksums that come with a body, and answers ranges and listings as S3 does.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from typing import Any, Final, NamedTuple

import pytest
from botocore.exceptions import BotoCoreError, ClientError, ReadTimeoutError
from botocore.response import StreamingBody

from chunkstore.checksum import BytesLike, crc32c
from chunkstore.errors import ChunkNotFound, StorageUnavailable
from chunkstore.storage import ChunkStorage
from chunkstore_bindings.s3 import client as s3_client
from chunkstore_bindings.s3.checksums import crc_text
from chunkstore_bindings.s3.options import S3Options
from chunkstore_bindings.s3.refusals import Refusal
from chunkstore_bindings.s3.storage import S3ChunkStorage
from tests.simulator.bound import Port
from tests.simulator.s3 import Object, S3Backend
from tests.simulator.virtual import EPOCH_MS
from tests.simulator.wire import Call, Surroundings, Wire, WiredProcess

_BUCKET: Final = "bucket"
_ENDPOINT: Final = "http://s3.simulated"
_CODES: Final = {
    400: "BadDigest",
    404: "NoSuchKey",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    416: "InvalidRange",
    503: "SlowDown",
}


class _Refused(Exception):
    """Answered with this status and code."""

    def __init__(self, status: int, code: str = "") -> None:
        super().__init__(status)
        self.status = status
        self.code = code or _CODES[status]


class _Cut(NamedTuple):
    """An answer whose body ends too early; ``share`` of it comes."""

    found: Object
    share: float


class _Sdk:
    """The operations of the SDK's client that the binding uses, with their parameters and answers."""

    def __init__(self, backend: BoundS3Backend, port: Port, *, checksums: bool) -> None:
        self._backend = backend
        self._port = port
        self._checksums = checksums

    def close(self) -> None:
        """As the SDK has it."""

    def _ask(self, operation: str, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            answer = call()
        except _Refused as refused:
            status, code = refused.status, refused.code
        except ChunkNotFound:
            # A HEAD's answer has no body, and so no code.
            status, code = 404, "404" if operation == "HeadObject" else _CODES[404]
        except StorageUnavailable as error:
            raise ReadTimeoutError(endpoint_url=_ENDPOINT, error=error) from error
        else:
            return {**answer, "ResponseMetadata": {"HTTPStatusCode": 200, "HTTPHeaders": {"server": "simulated"}}}
        told: Any = {
            "Error": {"Code": code, "Message": code},
            "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {"x-amz-request-id": "simulated"}},
        }
        raise ClientError(told, operation)

    def list_multipart_uploads(self, **_asked: Any) -> dict[str, Any]:
        """There are none: no run writes that much."""
        return self._ask("ListMultipartUploads", dict)

    def put_object(self, **asked: Any) -> dict[str, Any]:
        name, body = asked["Key"], asked["Body"]
        data = body if isinstance(body, bytes) else b"".join(iter(body.read, b""))
        exclusive = asked.get("IfNoneMatch") == "*"

        def put() -> dict[str, Any]:
            md5, crc = b64encode(_md5(data).digest()).decode(), crc_text(crc32c(data))
            if asked.get("ContentMD5", md5) != md5 or (self._checksums and asked.get("ChecksumCRC32C", crc) != crc):
                raise _Refused(400)
            if "IfMatch" in asked and asked["IfMatch"] != _etag(self._backend.get(name).data):
                raise _Refused(412)
            done = self._port.step(
                "PUT*" if exclusive else "PUT",
                name,
                lambda: self._backend.put(name, data, only_if_absent=exclusive, headers=asked.get("Metadata")),
                data=data,
                remote=True,
            )
            if not done:
                raise _Refused(412)
            kept = {"ChecksumCRC32C": crc} if self._checksums and "ChecksumCRC32C" in asked else {}
            return {"ETag": _etag(data), **kept}

        return self._ask("PutObject", put)

    def get_object(self, **asked: Any) -> dict[str, Any]:
        name = asked["Key"]

        def get() -> dict[str, Any]:
            found = self._port.step("GET", name, lambda: self._backend.get(name), changes=False, remote=True)
            share = 1.0
            if isinstance(found, _Cut):
                found, share = found
            size = len(found.data)
            answer = _head(found)
            if asked.get("IfMatch", answer["ETag"]) != answer["ETag"]:
                raise _Refused(412)
            start, stop = 0, size
            if "Range" in asked:
                first, _, last = asked["Range"].removeprefix("bytes=").partition("-")
                start, stop = int(first), min(size, int(last) + 1)
                if start >= size:
                    raise _Refused(416)
                answer["ContentRange"] = f"bytes {start}-{stop - 1}/{size}"
            length = stop - start
            raw = BytesIO(found.data[start : start + int(length * share)])
            return {**answer, "ContentLength": length, "Body": StreamingBody(raw, str(length))}

        return self._ask("GetObject", get)

    def head_object(self, **asked: Any) -> dict[str, Any]:
        name = asked["Key"]

        def head() -> dict[str, Any]:
            found: Object = self._port.step("HEAD", name, lambda: self._backend.get(name), changes=False, remote=True)
            return {**_head(found), "ContentLength": len(found.data)}

        return self._ask("HeadObject", head)

    def delete_object(self, **asked: Any) -> dict[str, Any]:
        name = asked["Key"]

        def delete() -> dict[str, Any]:
            self._port.step("DELETE", name, lambda: self._backend.delete(name), remote=True)
            return {}

        return self._ask("DeleteObject", delete)

    def list_objects_v2(self, **asked: Any) -> dict[str, Any]:
        prefix, after, limit = asked["Prefix"], asked.get("StartAfter"), asked["MaxKeys"]

        def look() -> dict[str, Any]:
            list_now = partial(self._backend.list, prefix, after, limit)
            page = self._port.step("LIST", prefix, list_now, changes=False, remote=True)
            found = [
                {"Key": item.name, "Size": item.length, "LastModified": _time(item.modified_ms or 0)}
                for item in page.items
            ]
            return {"Contents": found, "IsTruncated": page.next_after is not None}

        return self._ask("ListObjectsV2", look)

    def get_bucket_lifecycle_configuration(self, **_: Any) -> dict[str, Any]:
        def look() -> dict[str, Any]:
            self._port.step("LIFECYCLE", "", lambda: None, changes=False, remote=True)
            raise _Refused(404, "NoSuchLifecycleConfiguration")

        return self._ask("GetBucketLifecycleConfiguration", look)


class BoundS3Backend(S3Backend):
    """The server, and the binding's door to it. ``checksums``: whether it keeps those of its own kind."""

    causes = (Refusal, BotoCoreError, ClientError, OSError)

    def __init__(self, world: Surroundings, *, checksums: bool = True) -> None:
        super().__init__(world, remote=True)
        self._port = Port(world, self, {})
        self._options = S3Options(
            bucket=_BUCKET, endpoint_url=_ENDPOINT, tries_max=3, deadline_s=max(0.1, world.timeout_ns / 1e9 * 4)
        )
        sdk = _Sdk(self, self._port, checksums=checksums)
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(s3_client, "sdk_client", lambda _options, _connections: sdk)
        self.capabilities = S3ChunkStorage(self._options).capabilities

    def close(self) -> None:
        """Give the binding its SDK back."""
        self._patch.undo()

    def client(self, process: WiredProcess) -> ChunkStorage:
        """A storage of one process: the binding's own."""
        return self._port.bind(process, lambda: S3ChunkStorage(self._options))

    # Faults

    def refusal(self, call: Call, status: int) -> Exception:
        return _Refused(status)

    def suffer(self, wire: Wire, call: Call, fault: str) -> Any:
        if fault == "lost_reply" and call.step == "GET" and self._world.faults.random.random() < 0.5:
            found = wire.apply_after(call)
            wire.pause()
            return _Cut(found, self._world.faults.random.random())
        return super().suffer(wire, call, fault)


def _md5(data: BytesLike) -> Any:
    return hashlib.md5(data, usedforsecurity=False)


def _etag(data: bytes) -> str:
    return f'"{_md5(data).hexdigest()}"'


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp((EPOCH_MS + ms) / 1000, UTC)


def _head(found: Object) -> dict[str, Any]:
    return {
        "ETag": _etag(found.data),
        "LastModified": _time(found.modified_ns // 1_000_000),
        "Metadata": dict(found.headers),
    }
