"""What answers mean, and that no answer carries a credential further."""

from __future__ import annotations

import traceback

import pytest
from botocore import exceptions as sdk
from botocore.parsers import ResponseParserError

from chunkstore.errors import (
    ChunkExists,
    ChunkNotFound,
    ChunkstoreError,
    InvalidArgument,
    StorageFull,
    StorageUnavailable,
    Unsupported,
)
from chunkstore_bindings.s3.lifecycle import expiring_rule
from chunkstore_bindings.s3.refusals import Kind, refusal_of


def answered(code: str, status: int, **more: str) -> sdk.ClientError:
    return sdk.ClientError(
        {
            "Error": {"Code": code, "Message": "as the server says", **more},
            "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {"authorization": "sesame"}},
        },
        "PutObject",
    )


@pytest.mark.parametrize(
    ("code", "status", "kind", "error"),
    [
        ("NoSuchKey", 404, Kind.NOT_FOUND, ChunkNotFound),
        ("404", 404, Kind.NOT_FOUND, ChunkNotFound),
        ("NoSuchBucket", 404, Kind.INVALID, InvalidArgument),
        ("NoSuchUpload", 404, Kind.NO_UPLOAD, StorageUnavailable),
        ("PreconditionFailed", 412, Kind.TAKEN, ChunkExists),
        ("ConditionalRequestConflict", 409, Kind.CONFLICT, StorageUnavailable),
        ("OperationAborted", 409, Kind.CONFLICT, StorageUnavailable),
        ("SlowDown", 503, Kind.THROTTLED, StorageUnavailable),
        ("TooManyRequests", 429, Kind.THROTTLED, StorageUnavailable),
        ("ServiceUnavailable", 503, Kind.TRANSIENT, StorageUnavailable),
        ("InternalError", 500, Kind.TRANSIENT, StorageUnavailable),
        ("InternalError", 200, Kind.TRANSIENT, StorageUnavailable),
        ("BadGateway", 502, Kind.TRANSIENT, StorageUnavailable),
        ("RequestTimeout", 400, Kind.TRANSIENT, StorageUnavailable),
        ("BadDigest", 400, Kind.DAMAGED_ON_THE_WAY, StorageUnavailable),
        ("QuotaExceeded", 403, Kind.FULL, StorageFull),
        ("InsufficientStorage", 507, Kind.FULL, StorageFull),
        ("AccessDenied", 403, Kind.DENIED, StorageUnavailable),
        ("InvalidAccessKeyId", 403, Kind.DENIED, StorageUnavailable),
        ("NotImplemented", 501, Kind.UNSUPPORTED, Unsupported),
        ("InvalidRange", 416, Kind.BEYOND_END, InvalidArgument),
        ("EntityTooLarge", 400, Kind.INVALID, InvalidArgument),
        ("PermanentRedirect", 301, Kind.INVALID, InvalidArgument),
        ("Whatever", 400, Kind.INVALID, InvalidArgument),
    ],
)
def test_answers(code: str, status: int, kind: Kind, error: type[ChunkstoreError]) -> None:
    refusal = refusal_of(answered(code, status))
    assert refusal.kind is kind
    assert type(refusal.error("c/x")) is error
    assert refusal.leaves_doubt == (kind is Kind.TRANSIENT)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (sdk.EndpointConnectionError(endpoint_url="http://h"), Kind.UNSENT),
        (sdk.ConnectTimeoutError(endpoint_url="http://h"), Kind.UNSENT),
        (sdk.ReadTimeoutError(endpoint_url="http://h"), Kind.TRANSIENT),
        (sdk.ConnectionClosedError(endpoint_url="http://h"), Kind.TRANSIENT),
        (sdk.IncompleteReadError(actual_bytes=1, expected_bytes=2), Kind.TRANSIENT),
        (ConnectionResetError(), Kind.TRANSIENT),
        (TimeoutError(), Kind.TRANSIENT),
        (sdk.SSLError(endpoint_url="https://h", error="x"), Kind.TRANSIENT),
        (ResponseParserError("<html>"), Kind.TRANSIENT),
        (sdk.NoCredentialsError(), Kind.DENIED),
        (sdk.ParamValidationError(report="sesame"), Kind.INVALID),
    ],
)
def test_silence(error: Exception, kind: Kind) -> None:
    refusal = refusal_of(error)
    assert refusal.kind is kind
    assert "sesame" not in refusal.text


def test_an_answer_without_words_says_nothing_it_was_not_told() -> None:
    error = answered("SignatureDoesNotMatch", 403)
    error.response["Error"]["Message"] = None
    assert refusal_of(error).text == "SignatureDoesNotMatch; check credentials and policies"


def test_only_what_is_foreign_is_sorted() -> None:
    with pytest.raises(KeyError):
        refusal_of(KeyError("ours"))


def test_nothing_secret_travels_with_an_error() -> None:
    told = {"AWSAccessKeyId": "sesame", "StringToSign": "sesame", "SignatureProvided": "sesame"}
    error = answered("SignatureDoesNotMatch", 403, **told)
    try:
        try:
            raise error
        except sdk.ClientError as caught:
            raise refusal_of(caught).error("c/x") from caught
    except StorageUnavailable as raised:
        text = "".join(traceback.format_exception(raised))
        assert "check credentials" in str(raised)
        assert "sesame" not in text
        assert "sesame" not in repr(vars(error))


@pytest.mark.parametrize(
    ("rule", "hits"),
    [
        ({"Filter": {"Prefix": ""}, "Expiration": {"Days": 30}}, True),
        ({"Filter": {}, "Expiration": {"Date": "2026"}}, True),
        ({"Expiration": {"Days": 30}}, True),
        ({"Prefix": "logs/", "Expiration": {"Days": 30}}, True),
        ({"Filter": {"Prefix": "logs/orders/d/"}, "Expiration": {"Days": 30}}, True),
        ({"Filter": {"And": {"Prefix": "lo", "ObjectSizeGreaterThan": 5}}, "Expiration": {"Days": 30}}, True),
        ({"Filter": {"ObjectSizeGreaterThan": 5}, "Expiration": {"Days": 30}}, True),
        ({"Filter": {"Prefix": "logs-old/"}, "Expiration": {"Days": 30}}, False),
        ({"Filter": {"Prefix": "other/"}, "Expiration": {"Days": 30}}, False),
        ({"Filter": {"Tag": {"Key": "a", "Value": "b"}}, "Expiration": {"Days": 30}}, False),
        ({"Filter": {"And": {"Prefix": "", "Tags": [{"Key": "a"}]}}, "Expiration": {"Days": 30}}, False),
        ({"Filter": {"Prefix": ""}, "Expiration": {"ExpiredObjectDeleteMarker": True}}, False),
        ({"Filter": {"Prefix": ""}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}, False),
        ({"Filter": {"Prefix": ""}, "NoncurrentVersionExpiration": {"NoncurrentDays": 1}}, False),
        ({"Filter": {"Prefix": ""}, "Expiration": {"Days": 30}, "Status": "Disabled"}, False),
    ],
)
def test_rules_that_expire_keys(rule: dict[str, object], hits: bool) -> None:
    found = expiring_rule([{"ID": "harmless", "Status": "Enabled"}, {"ID": "x", "Status": "Enabled", **rule}], "logs/")
    assert found == ("x" if hits else None)
