"""The chunk storage on S3: the port's calls, each made of the requests that its neighbours know how to make.

Promises
* A chunk is one immutable object; what a call has written when it returns is durable, as far as the server is.
* ``create_if_absent`` is decided by the server alone (protocol 2.3). Whether a server can be trusted with that is probed
  before a container is made, and asked again at every open (``chunkstore_bindings.wrappers.probe``).
* A call, with all its requests, ends after ``deadline_s``, or with the operation that it is made for.
* Every error of the SDK is translated; none names a credential.

Leaves out: appending and truncating (``Unsupported``); retries over the whole of a call (``retrying`` goes around it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.deadline import until
from chunkstore.errors import (
    AccessDenied,
    ChunkExists,
    ChunkstoreError,
    StorageUnavailable,
    Unsupported,
)
from chunkstore.storage import (
    BaseChunkStorage,
    Capabilities,
    ChunkInfo,
    ChunkRange,
    Composed,
    ConcatArgument,
    ListPage,
)
from chunkstore_bindings.s3.client import S3Client
from chunkstore_bindings.s3.joining import join
from chunkstore_bindings.s3.lifecycle import check_lifecycle
from chunkstore_bindings.s3.listing import list_page
from chunkstore_bindings.s3.multipart import sweep, upload
from chunkstore_bindings.s3.options import S3Options
from chunkstore_bindings.s3.reading import exists, head, read_into, read_range
from chunkstore_bindings.s3.refusals import Kind, Refusal
from chunkstore_bindings.s3.sending import put_if_absent, put_object

__all__ = ["S3ChunkStorage"]

T = TypeVar("T")
_Pieces = list[bytes]

_CONNECTIONS_MIN: Final = 32
"""The threads of the embedder write their own chunks, and the probe sends 16 requests at once."""

_CAPABILITIES: Final = Capabilities(
    append=False,
    append_journal=False,
    create_if_absent=True,
    compose="storage",
    concat=True,
    sync_repeatable=True,
    remote=True,
    medium="s3",
)


class S3ChunkStorage(BaseChunkStorage):
    """See the module. Thread-safe.

    Arguments: ``options``; ``callers``: how many threads will use it at once (the engine's ``io_workers``): the connection
    pool is made for all of them.

    Raises ``InvalidArgument`` where the SDK refuses the options. Makes no request.
    """

    def __init__(self, options: S3Options, *, callers: int = 8) -> None:
        self.options = options
        self._client = S3Client(options, connections=max(_CONNECTIONS_MIN, callers + options.concurrency + 16))
        self._pool = runtime.pool("chunkstore-s3", options.concurrency - 1 or 1)
        self._swept = False

    @property
    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    @property
    def url(self) -> str:
        return self.options.url

    @property
    def address(self) -> str:
        options = self.options
        return f"s3 {options.endpoint_url or 'aws'} {options.bucket} {options.prefix}"

    # What only this binding has

    def request_counts(self) -> dict[str, int]:
        """Requests by verb (every attempt), ``sent_bytes`` and ``received_bytes`` of users' data, since it was opened."""
        return self._client.counts()

    def sweep_uploads(self, older_than_s: float | None = None) -> int:
        """Abort unfinished uploads under the root that are older than this (default: the option ``stale_upload_s``).

        Returns how many. Raises ``StorageUnavailable``. Retry: safe. Uploads of others that last longer than that fail.
        """
        self._check_open()
        return self._do(
            "", lambda: sweep(self._client, self.options.stale_upload_s if older_than_s is None else older_than_s)
        )

    # For the probe (chunkstore_bindings.wrappers.probe)

    def server_identity(self) -> dict[str, str]:
        """What must not change under a container without a new probe."""
        return {"endpoint": self.options.endpoint_url or "aws", "server": self._client.server}

    def check_root(self) -> str:
        """Look at the bucket's own rules. Raises ``Unsupported`` naming a rule that may expire keys here."""
        self._check_open()
        return self._do("", lambda: check_lifecycle(self._client))

    # The port

    def do_exists(self, name: str) -> bool:
        return self._do(name, lambda: exists(self._client, name))

    def do_create(self, name: str, data: BytesLike | None) -> None:
        content = data if data is not None else b""
        if memoryview(content).nbytes < self.options.multipart_bytes_min:
            if not self._do(name, lambda: put_if_absent(self._client, name, content)):
                raise ChunkExists(name)
            return
        self._do(name, lambda: upload(self._client, name, content, self._pool))
        self._sweep_once()

    def _sweep_once(self) -> None:
        """Look once, next to the first upload in parts, for what earlier processes left behind."""
        if not self._swept:
            self._swept = True
            runtime.spawn(self._sweep_quietly, "chunkstore-s3-sweep")

    def _sweep_quietly(self) -> None:
        # They cost money, not safety; the next process looks again.
        with suppress(ChunkstoreError):
            self.sweep_uploads()

    def do_create_if_absent(self, name: str, data: BytesLike) -> bool:
        return self._do(name, lambda: put_if_absent(self._client, name, data))

    def do_put(self, name: str, data: BytesLike) -> None:
        self._do(name, lambda: put_object(self._client, name, data))

    def do_open(self, name: str) -> bool:
        self._do(name, lambda: head(self._client, name))
        return True

    def do_read(self, name: str, offset: int, length: int) -> bytes:
        return self._do(name, lambda: read_range(self._client, name, offset, length, self._pool))

    def do_read_into(self, name: str, offset: int, buffer: bytearray | memoryview) -> int:
        with memoryview(buffer) as whole, whole.cast("B") as view:
            return self._do(name, lambda: read_into(self._client, name, offset, view, self._pool))

    def do_write(self, name: str, offset: int, data: BytesLike) -> int:
        raise Unsupported(f"{self.url} cannot append to {name!r}", feature="append")

    def do_sync(self, names: Sequence[str]) -> None:
        return None

    def do_harden(self, name: str) -> None:
        """Nothing to do: what can be seen is durable."""

    def do_delete(self, name: str) -> None:
        try:
            self._do(name, lambda: self._client.repeat("delete_object", Key=self.options.key(name)))
        except StorageUnavailable as error:
            if isinstance(error.__cause__, Refusal) and error.__cause__.kind is Kind.DENIED:
                raise AccessDenied(error.message, object=name) from error
            raise

    def do_list(self, prefix: str, after: str | None, limit: int) -> ListPage:
        return self._do(prefix, lambda: list_page(self._client, prefix, after, limit))

    def do_stat(self, name: str) -> ChunkInfo:
        found = self._do(name, lambda: head(self._client, name))
        return ChunkInfo(name, found.length, found.modified_ms)

    def do_compose(self, name: str, ranges: Sequence[ChunkRange]) -> Composed:
        return self._join(name, ranges, exclusive=True)

    def do_concat(self, arguments: Sequence[ConcatArgument]) -> int:
        ranges = [ChunkRange(item.name, 0, item.length) for item in arguments]
        return self._join(ranges[0].name, ranges, exclusive=False).length

    def _join(self, name: str, ranges: Sequence[ChunkRange], *, exclusive: bool) -> Composed:
        made = self._do(name, lambda: join(self._client, name, ranges, self._pool, exclusive=exclusive))
        if made.length >= self.options.multipart_bytes_min:
            self._sweep_once()
        return made

    def do_close(self) -> None:
        self._pool.close()
        self._client.close()

    def _check_open(self) -> None:
        self._check("open")

    def _do(self, name: str, call: Callable[[], T]) -> T:
        try:
            with until(runtime.monotonic_s() + self.options.deadline_s):
                return call()
        except Refusal as refusal:
            raise refusal.error(refusal.name or name) from refusal
