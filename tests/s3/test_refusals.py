"""What answers mean, and that no answer carries a credential further."""

from __future__ import annotations

import logging
import pickle
import re
import traceback

import pytest
from botocore import exceptions as sdk
from botocore.parsers import ResponseParserError

from chunkstore.errors import (
    AccessDenied,
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
from tests.s3.conftest import Answers, At, Serve
from tests.support.servers.answering import ABSENT, http
from tests.support.servers.s3server import CREDENTIALS


def answered(code: str, status: int, *headers: str, **more: str) -> sdk.ClientError:
    return sdk.ClientError(
        {
            "Error": {"Code": code, "Message": "as the server says", **more},
            "ResponseMetadata": {
                "HTTPStatusCode": status,
                "HTTPHeaders": {"authorization": "sesame", **dict.fromkeys(headers, "x")},
            },
        },
        "PutObject",
    )


@pytest.mark.parametrize(
    ("code", "status", "kind", "error"),
    [
        ("NoSuchKey", 404, Kind.NOT_FOUND, ChunkNotFound),
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
        ("XMinioAdminBucketQuotaExceeded", 400, Kind.FULL, StorageFull),
        ("KMS.ThrottlingException", 400, Kind.THROTTLED, StorageUnavailable),
        ("ExpiredToken", 400, Kind.DENIED, StorageUnavailable),
        ("InvalidToken", 400, Kind.DENIED, StorageUnavailable),
        ("TokenRefreshRequired", 400, Kind.DENIED, StorageUnavailable),
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
    assert (kind is Kind.DENIED) == ("check credentials" in refusal.text)


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


def test_no_signature_and_no_key_id_in_the_sdks_log(
    at: At, answering: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    key_id = CREDENTIALS["AWS_ACCESS_KEY_ID"]
    repeated = f"<Error><Code>InvalidAccessKeyId</Code><AWSAccessKeyId>{key_id}</AWSAccessKeyId></Error>"
    server = answering(lambda line: ABSENT if line.startswith("HEAD") else http("403 Forbidden", repeated.encode()))
    with caplog.at_level(logging.DEBUG):
        assert not at(server).exists("n")
        with pytest.raises(StorageUnavailable, match="InvalidAccessKeyId") as caught:
            at(server).put("n", b"x")
    assert key_id not in f"{caught.value} {caplog.text}"
    assert "InvalidAccessKeyId" in caplog.text
    signature, _ = re.findall(r"Signature=(\w+)", "".join(server.heads))
    text = "".join(record.getMessage() for record in caplog.records)
    assert "Signature:\n(struck out)" in text
    assert signature not in text


@pytest.mark.parametrize("is_told", [True, False])
def test_a_lock_tells_when_it_ends(serve: Serve, is_told: bool) -> None:
    refused = http("403 Forbidden", b"<Error><Code>AccessDenied</Code><Message>locked</Message></Error>")
    told = ["Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT", "ETag: x"]
    told += ["x-amz-object-lock-retain-until-date: 2030-01-01T00:00:00Z"] if is_told else []
    storage = serve(lambda line: http("200 OK", b"", *told) if line.startswith("HEAD") else refused)
    with pytest.raises(AccessDenied) as caught:
        storage.delete("n")
    assert caught.value.until_ms == (1_893_456_000_000 if is_told else None)
    assert ("locked until 1893456000000 ms" in str(caught.value)) == is_told
    assert pickle.loads(pickle.dumps(caught.value)).until_ms == caught.value.until_ms


# Rules


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
