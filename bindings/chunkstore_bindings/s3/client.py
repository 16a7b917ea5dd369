"""One S3 client: requests with deadlines, counted by verb, paced when the server asks to slow down.

Promises
* The SDK never repeats a request by itself: what is sent twice is sent by this package, which knows when that is safe.
* ``send`` makes one attempt and raises ``Refusal``. ``repeat`` is for requests that may be carried out twice: it sends
  them again, with pauses that double and are half chance, until the tries or the operation's time are used up.
* *Adaptive back-off*: a 503 or 429 makes every request of this client wait before it is sent, longer with each further
  one; each success shortens the wait again. So the rate finds its own level, without a configured limit.
* Credentials are found by the SDK's own chain and never read, kept or shown here, nor by the SDK in its debugging log.

Leaves out: what requests mean (its neighbours), interrupting one that hangs (each has a time limit of its own).
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import boto3
import botocore.session
from botocore.config import Config
from botocore.handlers import add_expect_header
from botocore.parsers import ResponseParserError
from urllib3.util import Timeout

from chunkstore import runtime
from chunkstore.deadline import left_s
from chunkstore.errors import InvalidArgument
from chunkstore_bindings.s3.options import S3Options
from chunkstore_bindings.s3.refusals import SDK_ERRORS, Kind, Refusal, refusal_of

__all__ = ["Patience", "S3Client"]

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 5.0
_SHORTEST_PAUSE_S: Final = 0.01

_VERBS: Final = {
    "put_object": "PUT",
    "upload_part": "PUT",
    "upload_part_copy": "COPY",
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
_TALKERS: Final = ("botocore.auth", "botocore.endpoint", "botocore.httpsession", "botocore.awsrequest")
_SECRET: Final = re.compile(r"(?i)(x-amz-security-token['\"]?: *b?['\"]?|signature=)[^'\"\s,}]+")
_ALWAYS_THERE: Final = {
    "put_object": "ETag",
    "upload_part": "ETag",
    "upload_part_copy": "CopyPartResult",
    "get_object": "ETag",
    "head_object": "LastModified",
    "create_multipart_upload": "UploadId",
}
"""What S3 never leaves out of its answers. Something else that says 200, a portal that wants a login, has stored nothing."""
_LEAST_WAIT_S: Final = 0.05
_MAKING: Final = ("put_object", "create_multipart_upload")


class _Bounded(Timeout):
    """How long one request may be silent: never longer than what is left to the operation that it is sent for."""

    def __init__(self, connect_s: float, read_s: float) -> None:
        super().__init__(connect=connect_s, read=read_s)
        self._connect_s = connect_s
        self._read_s = read_s

    def clone(self) -> Timeout:
        return Timeout(
            connect=max(_LEAST_WAIT_S, left_s(self._connect_s)), read=max(_LEAST_WAIT_S, left_s(self._read_s))
        )


def _chance() -> float:
    return int.from_bytes(runtime.token(4), "big") / 0xFFFF_FFFF


class Patience:
    """The time and the tries of one call. Pauses double up to 5 s; half of each is chance."""

    __slots__ = ("_end_s", "_pause_s", "_tries")

    def __init__(self, tries_max: int, budget_s: float) -> None:
        self._tries = tries_max
        self._pause_s = _FIRST_PAUSE_S
        self._end_s = runtime.monotonic_s() + budget_s

    @property
    def end_s(self) -> float:
        """When the time is up, on the monotonic clock."""
        return self._end_s

    def pause(self) -> bool:
        """Sleep before the next try; False, without sleeping, when there is to be none."""
        self._tries -= 1
        pause_s = self._pause_s * (0.5 + 0.5 * _chance())
        if self._tries < 1 or pause_s >= left_s(self._end_s - runtime.monotonic_s()):
            return False
        runtime.sleep_s(pause_s)
        self._pause_s = min(_LONGEST_PAUSE_S, self._pause_s * 2)
        return True


class _Pacer:
    """How long every request waits at present, because the server said it has too much to do."""

    __slots__ = ("_lock", "_wait_s")

    def __init__(self) -> None:
        self._lock = runtime.lock()
        self._wait_s = 0.0

    @property
    def wait_s(self) -> float:
        return self._wait_s

    def wait(self) -> None:
        wait_s = self._wait_s
        if wait_s > 0:
            runtime.sleep_s(left_s(wait_s * (0.5 + 0.5 * _chance())))

    def slower(self) -> None:
        with self._lock:
            self._wait_s = min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, self._wait_s * 2))

    def faster(self) -> None:
        if self._wait_s > 0:
            with self._lock:
                self._wait_s *= 0.8
                if self._wait_s < _SHORTEST_PAUSE_S:
                    self._wait_s = 0.0


class _Discreet(logging.Filter):
    """The SDK writes whole requests to its debugging log: the session token in them is struck out, the signature, too."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if _SECRET.search(text) is not None:
            record.msg, record.args = _SECRET.sub(r"\1(struck out)", text), None
        return True


def _make_discreet() -> None:
    for name in _TALKERS:
        logger = logging.getLogger(name)
        if not any(isinstance(item, _Discreet) for item in logger.filters):
            logger.addFilter(_Discreet())


_loaders: list[Any] = []


def _session(profile: str | None) -> boto3.session.Session:
    """A session with credentials of its own, over descriptions of the service that are read once for all: they are large."""
    _make_discreet()
    core = botocore.session.Session(profile=profile)
    if _loaders:
        core.register_component("data_loader", _loaders[0])
    else:
        _loaders.append(core.get_component("data_loader"))
    session = boto3.session.Session(botocore_session=core)
    # Each session adds its own path to the shared list.
    _loaders[0].search_paths[:] = dict.fromkeys(_loaders[0].search_paths)
    return session


class S3Client:
    """See the module. Thread-safe; ``connections`` is the size of the connection pool.

    Raises ``InvalidArgument`` where the SDK refuses profile, region or endpoint.
    """

    def __init__(self, options: S3Options, *, connections: int) -> None:
        self.options = options
        self.server = ""
        """What the server called itself in its last answer."""
        config = Config(
            connect_timeout=options.connect_timeout_s,
            read_timeout=options.read_timeout_s,
            max_pool_connections=connections,
            # Small answers must not wait for acknowledgements, and a dead peer must be noticed.
            tcp_keepalive=True,
            retries={"mode": "standard", "total_max_attempts": 1},
            s3={"addressing_style": "path" if options.use_path_style else "auto"},
            # Checksums are ours to choose: many look-alikes refuse the SDK's own default.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        try:
            session = _session(options.profile)
            self._sdk: Any = session.client(
                "s3",
                endpoint_url=options.endpoint_url,
                region_name=options.region or session.region_name or "us-east-1",
                config=config,
            )
        except (*SDK_ERRORS, ValueError) as error:
            raise InvalidArgument(
                f"the SDK refuses this s3:// root ({type(error).__name__})", argument="root"
            ) from error
        # Asking for leave before each body would cost a round trip, and look-alikes answer late or not at all.
        self._sdk.meta.events.unregister("before-call.s3", add_expect_header)
        # The SDK has one time limit for all requests of a client; urllib3 copies it for each of them.
        limits = _Bounded(options.connect_timeout_s, options.read_timeout_s)
        session_of_http = self._sdk._endpoint.http_session  # noqa: SLF001  (the SDK has no door to it)
        session_of_http._manager.connection_pool_kw["timeout"] = limits  # noqa: SLF001
        self._common: dict[str, str] = {"Bucket": options.bucket}
        if options.request_payer is not None:
            self._common["RequestPayer"] = options.request_payer
        self._pacer = _Pacer()
        self._lock = runtime.lock()
        self._requests: Counter[str] = Counter()
        self._sent_bytes = 0
        self._received_bytes = 0

    @property
    def pace_s(self) -> float:
        """How long each request waits at present before it is sent; 0 unless the server asked to slow down."""
        return self._pacer.wait_s

    def patience(self, tries_max: int | None = None) -> Patience:
        """The tries and the time that one call of the port has."""
        return Patience(tries_max or self.options.tries_max, left_s(self.options.deadline_s))

    def send(self, operation: str, *, sent_bytes: int = 0, **parameters: Any) -> dict[str, Any]:
        """One attempt at one request. Raises ``Refusal``; whether it may be sent again is the caller's to know."""
        self._pacer.wait()
        with self._lock:
            self._requests[_VERBS[operation]] += 1
            self._sent_bytes += sent_bytes
        call: Callable[..., dict[str, Any]] = getattr(self._sdk, operation)
        try:
            answer = call(**self._common, **parameters)
            needed = _ALWAYS_THERE.get(operation)
            if needed is not None and needed not in answer:
                if "Body" in answer:
                    answer["Body"].close()
                raise ResponseParserError(needed)
        except (*SDK_ERRORS, OSError) as error:
            refusal = refusal_of(error)
            if refusal.kind is Kind.THROTTLED or refusal.status == 503:
                self._pacer.slower()
            if refusal.kind is Kind.NOT_FOUND and operation in _MAKING:
                # Not "no such object": this server has no place for such a name.
                refusal.kind = Kind.INVALID
            if refusal.kind is Kind.UNSENT:
                refusal.text += f" at {self.options.endpoint_url or 'AWS'}"
            elif refusal.code == "NoSuchBucket":
                refusal.text += f" ({self.options.bucket})"
            refusal.name = str(parameters.get("Key", "")).removeprefix(self.options.key(""))
            raise refusal from error
        self._pacer.faster()
        self.server = str(answer["ResponseMetadata"].get("HTTPHeaders", {}).get("server", ""))[:100]
        return answer

    def repeat(
        self,
        operation: str,
        *,
        sent_bytes: int = 0,
        patience: Patience | None = None,
        fresh: Callable[[], dict[str, Any]] | None = None,
        **parameters: Any,
    ) -> dict[str, Any]:
        """As ``send``, repeated while it may help. ``fresh`` makes parameters that are used up by an attempt (a body)."""
        patience = patience if patience is not None else self.patience()
        while True:
            try:
                return self.send(
                    operation, sent_bytes=sent_bytes, **parameters, **(fresh() if fresh is not None else {})
                )
            except Refusal as refusal:
                if not refusal.may_pass or not patience.pause():
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
