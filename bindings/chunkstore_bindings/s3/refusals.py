"""What a server (or the way to it) answered instead of doing what was asked: sorted, and turned into our errors.

Promises: every error of the SDK becomes one ``Refusal`` whose ``kind`` says what may be concluded; texts hold code, message
and remedy and never a header, a signature or a key id: the SDK's error is chained with everything else struck out. "Not found"
is believed only of S3: a 404 that has neither an S3 code nor an S3 header may be from anything in between.
Leaves out: deciding whether to try again.
"""

from __future__ import annotations

import http.client
import re
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any, Final, NoReturn

from botocore import exceptions as sdk
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from chunkstore import runtime
from chunkstore.deadline import Backoff
from chunkstore.errors import (
    ChunkExists,
    ChunkNotFound,
    ChunkstoreError,
    InvalidArgument,
    StorageFull,
    StorageUnavailable,
    Unsupported,
)
from chunkstore_bindings.in_time import AnswerTooLong

__all__ = ["SDK_ERRORS", "Kind", "Refusal", "nonsense", "refusal_of"]

SDK_ERRORS: Final = (
    sdk.BotoCoreError,
    sdk.ClientError,
    sdk.HTTPClientError,
    ResponseParserError,
    HTTPError,
    ValueError,
    OverflowError,
    RuntimeError,
)
"""Everything that the SDK raises and lets through, at answers that make no sense, too (numbers and dates that are none); the
sockets' own errors are OSError."""


class Kind(Enum):
    """What a refusal means."""

    NOT_FOUND = "not found"
    UNTOLD = "not found, perhaps"
    """A 404 without a word, or a header of S3's: it may be a proxy's."""
    TAKEN = "taken"
    """412: the name is taken, perhaps by an attempt of our own."""
    CONFLICT = "conflict"
    """409: nothing was decided; ask again."""
    BEYOND_END = "beyond the end"
    NO_UPLOAD = "no such upload"
    THROTTLED = "throttled"
    """Not performed, because there is too much to do."""
    UNSENT = "unsent"
    """No connection: nothing has reached the server."""
    TRANSIENT = "transient"
    """No answer, or one that says nothing: may have been performed, or may still be."""
    DAMAGED_ON_THE_WAY = "damaged on the way"
    """The server received other bytes than were sent; it kept nothing."""
    FULL = "full"
    DENIED = "denied"
    UNSUPPORTED = "unsupported"
    INVALID = "invalid"


_ELSEWHERE: Final = (
    "PermanentRedirect",
    "TemporaryRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    *("301", "302", "307", "308"),
)
"""The bucket is another server's. Answers to HEAD have no words, only a status."""
_CODES: Final = {
    **dict.fromkeys(_ELSEWHERE, Kind.INVALID),
    "NoSuchKey": Kind.NOT_FOUND,
    "NoSuchUpload": Kind.NO_UPLOAD,
    "PreconditionFailed": Kind.TAKEN,
    "ConditionalRequestConflict": Kind.CONFLICT,
    "OperationAborted": Kind.CONFLICT,
    "InvalidRange": Kind.BEYOND_END,
    "SlowDown": Kind.THROTTLED,
    "Throttling": Kind.THROTTLED,
    "ThrottlingException": Kind.THROTTLED,
    "TooManyRequests": Kind.THROTTLED,
    "RequestLimitExceeded": Kind.THROTTLED,
    "KMS.ThrottlingException": Kind.THROTTLED,
    "RequestTimeout": Kind.TRANSIENT,
    "BadDigest": Kind.DAMAGED_ON_THE_WAY,
    "InvalidDigest": Kind.DAMAGED_ON_THE_WAY,
    "XAmzContentSHA256Mismatch": Kind.DAMAGED_ON_THE_WAY,
    "XAmzContentChecksumMismatch": Kind.DAMAGED_ON_THE_WAY,
    "IncompleteBody": Kind.DAMAGED_ON_THE_WAY,
    "QuotaExceeded": Kind.FULL,
    "InsufficientCapacity": Kind.FULL,
    "XMinioStorageFull": Kind.FULL,
    "XMinioAdminBucketQuotaExceeded": Kind.FULL,
    "NotImplemented": Kind.UNSUPPORTED,
    "MethodNotAllowed": Kind.UNSUPPORTED,
    "EntityTooLarge": Kind.INVALID,
    "KeyTooLongError": Kind.INVALID,
    "NoSuchBucket": Kind.INVALID,
    "InvalidBucketName": Kind.INVALID,
    "InvalidObjectState": Kind.DENIED,
    # With status 400, as if the request were wrong: the next one, with new credentials, may be right.
    "ExpiredToken": Kind.DENIED,
    "InvalidToken": Kind.DENIED,
    "TokenRefreshRequired": Kind.DENIED,
}
_STATUSES: Final = {
    404: Kind.NOT_FOUND,
    409: Kind.CONFLICT,
    412: Kind.TAKEN,
    416: Kind.BEYOND_END,
    429: Kind.THROTTLED,
    401: Kind.DENIED,
    403: Kind.DENIED,
    405: Kind.UNSUPPORTED,
    501: Kind.UNSUPPORTED,
    507: Kind.FULL,
}
_REGION: Final = re.compile(r"[a-z0-9-]{1,40}\Z")
_SECONDS: Final = re.compile(r"[0-9]{1,9}\Z")
_REMEDIES: Final = {
    "NoSuchBucket": "create the bucket, or correct the root",
    **dict.fromkeys(_ELSEWHERE, "name the bucket's region (?region=...), or the endpoint that has it"),
    "400": "is the root's endpoint right, http:// or https:// included?",
    "RequestTimeTooSkewed": "set this machine's clock",
    "InvalidObjectState": "the object was moved to an archive class; restore it and take the transition rule off the root",
    "EntityTooLarge": "choose smaller chunks",
}


class Refusal(Exception):
    """One request was not answered as it should be. Never leaves the binding: see ``error``."""

    def __init__(self, kind: Kind, text: str, *, code: str = "", status: int = 0) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.code = code
        self.status = status
        self.retry_after_s = 0.0
        """When the server wants to be asked again; 0: it does not say."""
        self.name = ""
        """The object that it is about, where that is not the call's own."""

    @property
    def leaves_doubt(self) -> bool:
        """Whether a changing request may have been performed, or may still be."""
        return self.kind is Kind.TRANSIENT

    @property
    def is_doubtful(self) -> bool:
        """The same, where it decides what a later answer means: gateways ask to slow down, too, that have no idea what the
        server behind them did."""
        return self.leaves_doubt or self.kind is Kind.THROTTLED

    @property
    def is_busy(self) -> bool:
        """Whether the server has too much to do. A HEAD is not told in words."""
        return self.kind is Kind.THROTTLED or self.status == 503

    def conclude(self, in_doubt: bool) -> NoReturn:
        """Raise this last answer, unless an attempt before it may still take effect: then the outcome is unknown."""
        if not in_doubt or self.leaves_doubt:
            raise self
        raise Refusal(
            Kind.TRANSIENT, f"{self.text}; an attempt before that may still land", status=self.status
        ) from self

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later."""
        return self.kind in _PASSING

    def may_repeat(self, backoff: Backoff) -> bool:
        """Whether the request is sent again; sleeps before that."""
        return self.may_pass and backoff.pause(busy=self.is_busy, retry_after_s=self.retry_after_s)

    def error(self, name: str) -> ChunkstoreError:
        """The error of the storage port for object ``name``."""
        kind, text = self.kind, f"{name or 'the bucket'}: {self.text}"
        if kind is Kind.NOT_FOUND:
            return ChunkNotFound(name)
        if kind is Kind.TAKEN:
            return ChunkExists(name)
        if kind is Kind.FULL:
            return StorageFull(text, object=name)
        if kind is Kind.UNSUPPORTED:
            return Unsupported(text, feature=self.code or "s3")
        if kind in (Kind.INVALID, Kind.BEYOND_END):
            return InvalidArgument(text, argument="root" if self.code in _REMEDIES else "name")
        unavailable = StorageUnavailable(text, object=name)
        if self.retry_after_s:
            unavailable.retry_after_s = self.retry_after_s
        return unavailable


_PASSING: Final = (Kind.CONFLICT, Kind.THROTTLED, Kind.UNSENT, Kind.TRANSIENT, Kind.DAMAGED_ON_THE_WAY)


def nonsense(what: str) -> Refusal:
    """An answer that S3 does not give: nothing can be concluded from it."""
    return Refusal(Kind.TRANSIENT, f"an answer that is not S3's ({what}); check whether a proxy is in between")


def refusal_of(error: BaseException, *, understood: bool = False) -> Refusal:
    """Sort an error of the SDK or of a socket; ``understood``: an earlier answer was. What is neither is raised."""
    if isinstance(error, sdk.ClientError):
        return _answered(error, understood)
    if isinstance(error, (sdk.NoCredentialsError, sdk.PartialCredentialsError, sdk.CredentialRetrievalError)):
        return Refusal(
            Kind.DENIED, "no usable credentials were found; give them to the SDK (environment, profile, instance role)"
        )
    if isinstance(error, (sdk.EndpointConnectionError, sdk.ConnectTimeoutError, sdk.ProxyConnectionError)):
        return Refusal(Kind.UNSENT, f"no connection to the server ({type(error).__name__})")
    if isinstance(error, sdk.ParamValidationError):
        return Refusal(Kind.INVALID, "the SDK refuses the request's parameters")
    if isinstance(error, sdk.SSLError):
        return Refusal(Kind.TRANSIENT, "no TLS with the server (SSLError); is its certificate trusted?")
    if isinstance(error, (ResponseParserError, ValueError, OverflowError, RuntimeError)):
        return nonsense(type(error).__name__)
    if isinstance(error, (sdk.HTTPClientError, sdk.BotoCoreError, HTTPError, OSError)):
        cause = _cause(error)
        if isinstance(cause, AnswerTooLong):
            return nonsense(str(cause))
        if isinstance(cause, http.client.HTTPException):
            return Refusal(Kind.TRANSIENT, f"an answer that is not HTTP's ({type(cause).__name__})")
        return Refusal(Kind.TRANSIENT, f"no answer from the server ({type(error).__name__})")
    raise error


def _cause(error: BaseException) -> BaseException:
    """What is below the wrappings of the SDK and of urllib3."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error


def _answered(error: sdk.ClientError, understood: bool) -> Refusal:
    answer: dict[str, Any] = error.response
    details = answer.get("Error", {})
    code, message = str(details.get("Code") or ""), str(details.get("Message") or "")
    metadata = answer.get("ResponseMetadata", {})
    status = int(metadata.get("HTTPStatusCode", 0))
    headers: dict[str, str] = metadata.get("HTTPHeaders", {})
    region = str(details.get("Region") or headers.get("x-amz-bucket-region") or "")
    # What remains goes wherever a traceback goes: no signature, no key id, no headers.
    error.response = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    if status == 404 and code in ("", "404") and not any(name.startswith("x-amz") for name in headers):
        what = "404 with no error code and no header of S3's"
        return Refusal(Kind.UNTOLD, what) if error.operation_name == "HeadObject" else nonsense(what)
    kind = _CODES.get(code)
    if kind is None and code == "400" and error.operation_name == "HeadObject" and understood and not region:
        # The endpoint was right before: where words are allowed, this would be ExpiredToken or the like.
        kind, code = Kind.DENIED, ""
    if kind is None:
        kind = _STATUSES.get(status)
    if kind is None:
        # 503 comes from gateways, too, that have no idea what the server behind them did.
        kind = Kind.TRANSIENT if status >= 500 or status == 408 or status < 300 else Kind.INVALID
    text = f"{code or status} {message}".strip()[:400]
    # A HEAD signed for the wrong region is answered with 400 alone.
    remedy = _REMEDIES.get("PermanentRedirect" if code == "400" and region else code)
    if remedy is not None and _REGION.match(region):
        remedy += f"; it is in {region}"
    if remedy is None and kind is Kind.DENIED:
        remedy = "check credentials and policies"
    refusal = Refusal(kind, f"{text}; {remedy}" if remedy else text, code=code, status=status)
    refusal.retry_after_s = _retry_after_s(headers)
    return refusal


def _retry_after_s(headers: dict[str, str]) -> float:
    """Seconds, or a date: of the server's own clock where it tells that. What is neither says nothing."""
    text = headers.get("retry-after", "")
    if _SECONDS.match(text):
        return float(text)
    try:
        now_s = parsedate_to_datetime(headers["date"]).timestamp() if "date" in headers else runtime.now_ms() / 1000
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_s)
    except (ValueError, OverflowError, TypeError):
        return 0.0
