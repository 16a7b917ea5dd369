"""A bucket on S3 and servers that speak it, or what is below a prefix of one.

Promises: a page of a listing, ``head``, ``read`` and ``put`` are one request each. A request, with its repetitions, ends after
``deadline_s`` of the root's options. User metadata is written as it is given; ``put_parts`` adds a token, which recognises a completion
whose answer was lost, and which ``head`` leaves out.
Leaves out: versions of objects; a begin of an upload whose answer was lost, which ``uploads`` lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from chunkstore import runtime
from chunkstore.checksum import BytesLike, crc32c
from chunkstore.deadline import until
from chunkstore.errors import AccessDenied, ChunkNotFound, InvalidArgument
from chunkstore_bindings.bucket.port import Bucket, ObjectHead, ObjectInfo, UnfinishedUpload, check_key, check_range
from chunkstore_bindings.s3.checksums import META_CRC, META_TOKEN, Body, new_token, object_headers
from chunkstore_bindings.s3.client import S3Client
from chunkstore_bindings.s3.listing import list_page
from chunkstore_bindings.s3.multipart import aborted_on_failure, begin, complete, send_part, unfinished
from chunkstore_bindings.s3.options import PART_BYTES_MIN, parse_root
from chunkstore_bindings.s3.reading import get_range, head
from chunkstore_bindings.s3.refusals import Kind, Refusal

__all__ = ["S3Bucket"]

T = TypeVar("T")
_CONNECTIONS: Final = 32
_PAGE_KEYS: Final = 1000
_END_MAX: Final = 1 << 53  # beyond what any object can be: servers need not understand larger numbers


class S3Bucket(Bucket):
    """See ``Bucket``. ``url``: ``s3://BUCKET/PREFIX?...``. Raises ``InvalidArgument`` for what is none."""

    keeps_metadata = True

    def __init__(self, url: str) -> None:
        self._options = parse_root(url)
        self.url = self._options.url
        self._client = S3Client(self._options, connections=_CONNECTIONS)

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        more = True
        while more:
            page = self._do("", partial(list_page, self._client, prefix, after, _PAGE_KEYS, every=True))
            for item in page.items:
                if item.name:  # else it is the prefix of the root itself
                    yield ObjectInfo(item.name, item.length, item.modified_ms or 0)
            after, more = page.next_after, page.next_after is not None

    def head(self, key: str) -> ObjectHead:
        check_key(key)
        found = self._do(key, lambda: head(self._client, key))
        names = {name.lower(): value for name, value in found.metadata.items()}
        kept = {name: value for name, value in names.items() if name not in (META_CRC, META_TOKEN)}
        return ObjectHead(found.length, found.modified_ms, kept)

    def read(self, key: str, offset: int, length: int) -> bytes:
        check_key(key)
        check_range(offset, length)
        length = min(length, _END_MAX - offset)
        if length <= 0:
            self.head(key)
            return b""
        return self._do(key, lambda: get_range(self._client, key, offset, length).data)

    def put(self, key: str, data: BytesLike, metadata: Mapping[str, str] | None = None) -> None:
        check_key(key)
        view = memoryview(data).cast("B")
        put = partial(
            self._client.repeat,
            "put_object",
            Body=Body(view),
            Key=self._options.key(key),
            **self._headers(metadata or {}),
            **self._client.integrity.headers(view, crc32c(view)),
        )
        self._do(key, put)

    def put_parts(self, key: str, parts: Iterable[BytesLike], metadata: Mapping[str, str] | None = None) -> int:
        check_key(key)
        client, token = self._client, new_token()
        headers = self._headers({**(metadata or {}), META_TOKEN: token})
        upload = self._do(key, lambda: begin(client, key, token, headers, exclusive=False))
        sent: list[dict[str, Any]] = []
        length, is_short = 0, False
        with aborted_on_failure(client, upload):
            for part in parts:
                with memoryview(part) as whole, whole.cast("B") as view:
                    if is_short:
                        text = f"{key!r}: part {len(sent)} is shorter than {PART_BYTES_MIN} bytes and not the last"
                        raise InvalidArgument(text, argument="parts")
                    sent.append(self._do(key, partial(send_part, client, upload, len(sent) + 1, view)))
                    length, is_short = length + len(view), len(view) < PART_BYTES_MIN
                del part  # before the next one is made: one is in memory
            if not sent:
                sent.append(self._do(key, partial(send_part, client, upload, 1, memoryview(b""))))
            self._do(key, lambda: complete(client, upload, sent, length))
        return length

    def delete(self, key: str) -> bool:
        """True also for what was missing: S3 answers the same either way."""
        check_key(key)
        try:
            self._do(key, lambda: self._client.repeat("delete_object", Key=self._options.key(key)))
        except ChunkNotFound:
            return False
        return True

    def uploads(self, prefix: str = "") -> Iterator[UnfinishedUpload]:
        root = len(self._options.key(""))
        found = unfinished(self._client, prefix)
        while (item := self._do("", lambda: next(found, None))) is not None:
            yield UnfinishedUpload(item.key[root:], item.id, item.started_ms)

    def abort_upload(self, key: str, upload_id: str) -> None:
        check_key(key)

        def abort() -> None:
            try:
                self._client.repeat("abort_multipart_upload", Key=self._options.key(key), UploadId=upload_id)
            except Refusal as refusal:
                if refusal.kind not in (Kind.NO_UPLOAD, Kind.NOT_FOUND):
                    raise

        self._do(key, abort)

    def close(self) -> None:
        self._client.close()

    def _headers(self, metadata: Mapping[str, str]) -> dict[str, Any]:
        given = {"Metadata": dict(metadata), "ContentType": "application/octet-stream"}
        return object_headers(self._options, None, "") | given

    def _do(self, key: str, call: Callable[[], T]) -> T:
        try:
            with until(runtime.monotonic_s() + self._options.deadline_s):
                return call()
        except Refusal as refusal:
            found = refusal.error(refusal.name or key)
            if refusal.kind is Kind.DENIED:
                found = AccessDenied(found.message, object=key)
            raise found from refusal
