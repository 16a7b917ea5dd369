"""One S3 client: requests with deadlines, counted by verb.

Promises
* The SDK never repeats a request by itself: what is sent twice is sent by this package, which knows when that is safe.
* ``send`` makes one attempt and raises ``Refusal``. ``repeat`` is for requests that may be performed twice: it sends
  them again, with pauses that double and are half chance, until the tries or the operation's time are used up.
* ``Retry-After`` is kept by the call that it is said to; a refusal because of load uses up half a try.
* A request, the reading of its answer included, ends with the time of its call and of the operation under way.
* Credentials are found by the SDK's own chain and never read, kept or shown here, nor by the SDK in its debugging log.

Leaves out: what requests mean (its neighbours), interrupting the resolution of a host's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, TypeVar

from botocore.parsers import ResponseParserError

from chunkstore import runtime
from chunkstore.deadline import Backoff, Deadline, left_s
from chunkstore_bindings.in_time import bounded
from chunkstore_bindings.s3.checksums import Body, Integrity
from chunkstore_bindings.s3.options import S3Options
from chunkstore_bindings.s3.refusals import SDK_ERRORS, Kind, Refusal, nonsense, refusal_of
from chunkstore_bindings.s3.session import LEAST_WAIT_S, sdk_client

__all__ = ["S3Client"]

T = TypeVar("T")

_VERBS: Final = {
    "put_object": "PUT",
    "upload_part": "PUT",
    "upload_part_copy": "COPY",
    "copy_object": "COPY",
    "get_object": "GET",
    "head_object": "HEAD",
    "delete_object": "DELETE",
    "abort_multipart_upload": "DELETE",
    "create_multipart_upload": "POST",
    "complete_multipart_upload": "POST",
    "list_objects_v2": "LIST",
    "list_multipart_uploads": "LIST",
    "list_parts": "LIST",
    "get_bucket_lifecycle_configuration": "GET",
}
_ANSWER_BYTES_MAX: Final = 8 << 20
"""The longest answer, but for the bytes of an object: a page of a listing has 4 MB at most."""
_MAKING: Final = ("put_object", "create_multipart_upload")
_LISTING: Final = ("list_objects_v2", "list_multipart_uploads")
_REQUIRED: Final = {
    "put_object": "ETag",
    "upload_part": "ETag",
    "upload_part_copy": "CopyPartResult",
    "get_object": "ContentLength",
    "head_object": "LastModified",
    "create_multipart_upload": "UploadId",
    "complete_multipart_upload": "ETag",
    "list_objects_v2": "IsTruncated",
    "list_multipart_uploads": "IsTruncated",
    "list_parts": "IsTruncated",
}
"""What S3 never leaves out of an answer. A proxy's 200 without it has stored nothing and lists nothing."""
_WITHOUT_PAYER: Final = ("get_bucket_lifecycle_configuration",)
"""The owner of a bucket pays for what only the owner may ask."""


class S3Client:
    """See the module. Thread-safe; ``connections`` is the size of the connection pool.

    Raises ``InvalidArgument`` where the SDK refuses profile, region or endpoint.
    """

    def __init__(self, options: S3Options, *, connections: int) -> None:
        self.options = options
        self.server = ""
        """What the server called itself in its last answer."""
        self._sdk = sdk_client(options, connections)
        self.integrity = Integrity()
        self._understood = False
        """Whether S3 has ever answered here: if not, the root may be wrong."""
        self._lock = runtime.lock()
        self._requests: Counter[str] = Counter()
        self._sent_bytes = 0
        self._received_bytes = 0

    def backoff(self, tries_max: int | None = None) -> Backoff:
        """The tries of one request; by default as many as the options say."""
        return Backoff(tries_max=tries_max or self.options.tries_max)

    def send(self, operation: str, *, wanted_bytes: int = 0, **parameters: Any) -> dict[str, Any]:
        """One attempt at one request, which ends within the call's time, its answer's body included; ``wanted_bytes``: how
        much of an object that may be. Raises ``Refusal``; whether it may be sent again is the caller's to know."""
        body = parameters.get("Body", b"")
        if isinstance(body, Body):
            body.seek(0)  # an attempt before may have sent a part of it
        with self._lock:
            self._requests[_VERBS[operation]] += 1
            self._sent_bytes += len(body)
        call: Callable[..., dict[str, Any]] = getattr(self._sdk, operation)
        try:
            with bounded(
                Deadline(max(LEAST_WAIT_S, left_s(self.options.deadline_s))), _ANSWER_BYTES_MAX + wanted_bytes
            ):
                answer = call(**self._common(operation), **parameters)
            if _REQUIRED.get(operation, "ResponseMetadata") not in answer or answer.get("ContentLength", 0) < 0:
                if "Body" in answer:
                    answer["Body"].close()
                raise ResponseParserError(f"{operation} without {_REQUIRED[operation]}")
        except (*SDK_ERRORS, OSError) as error:
            refusal = refusal_of(error, understood=self._understood)
            if refusal.kind is Kind.NOT_FOUND and operation in _MAKING:
                # Not "no such object": this server has no place for such a name.
                refusal.kind = Kind.INVALID
            elif refusal.kind is Kind.NOT_FOUND and operation in _LISTING:
                # A bucket that is not there has a code of its own, and where there is nothing, S3 lists nothing.
                refusal = nonsense(f"{refusal.text} to a listing")
            if refusal.kind is Kind.UNSENT:
                refusal.text += f" at {self.options.endpoint_url or 'AWS'}"
            elif refusal.code == "NoSuchBucket":
                refusal.text += f" ({self.options.bucket})"
            if refusal.status and refusal.code != "400":
                self._understood = True
            elif refusal.may_pass and not self._understood and self.options.endpoint_url:
                refusal.text += f"; {self.options.endpoint_url} has not answered as S3; check the address and its http:// or https://"
            refusal.name = str(parameters.get("Key", "")).removeprefix(self.options.key(""))
            raise refusal from error
        self._understood = True
        if "Body" in parameters:
            self.integrity.learn(answer)
        self.server = str(answer["ResponseMetadata"].get("HTTPHeaders", {}).get("server", ""))[:100]
        return answer

    def _common(self, operation: str) -> dict[str, str]:
        """The parameters of every request."""
        common = {"Bucket": self.options.bucket}
        if self.options.request_payer is not None and operation not in _WITHOUT_PAYER:
            common["RequestPayer"] = self.options.request_payer
        return common

    def repeat(self, operation: str, *, backoff: Backoff | None = None, **parameters: Any) -> dict[str, Any]:
        """As ``send``, repeated while it may help."""
        return self.repeated(lambda: self.send(operation, **parameters), backoff)

    def repeated(self, attempt: Callable[[], T], backoff: Backoff | None = None) -> T:
        """What ``attempt`` brings, which is called again while it may help. Raises its last ``Refusal``."""
        backoff = backoff if backoff is not None else self.backoff()
        while True:
            try:
                return attempt()
            except Refusal as refusal:
                if not refusal.may_repeat(backoff):
                    raise

    def received(self, size_bytes: int) -> None:
        """Count bytes of a body that was read."""
        with self._lock:
            self._received_bytes += size_bytes

    def counts(self) -> dict[str, int]:
        """Requests by verb since the client was made (PUT, GET, HEAD, LIST, POST, COPY, DELETE: every attempt counts), and
        the users' bytes that went through it: ``sent_bytes`` and ``received_bytes``."""
        with self._lock:
            return {**self._requests, "sent_bytes": self._sent_bytes, "received_bytes": self._received_bytes}

    def close(self) -> None:
        """Close all connections."""
        self._sdk.close()
