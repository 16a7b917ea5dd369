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


@pytest.mark.parametrize("code", ["404", ""])
def test_a_404_without_a_word_of_s3_is_anybodys(code: str) -> None:
    for header in ("x-amz-request-id", "x-amzn-requestid"):
        assert refusal_of(answered(code, 404, header)).kind is Kind.NOT_FOUND
    refusal = refusal_of(answered(code, 404, "server", "x-request-id"))
    assert type(refusal.error("c/x")) is StorageUnavailable
    assert "whether a proxy is in between" in refusal.text
    assert refusal.leaves_doubt


def test_a_head_answered_by_a_404_of_nobody_is_asked_again_in_words(at: At, answering: Answers) -> None:
    """There are servers without any header of S3's; and there are proxies. A GET tells them apart."""
    told = http("404 Not Found", b"<Error><Code>NoSuchKey</Code><Message>no</Message></Error>")
    for words, absent in ((told, True), (http("404 Not Found", b"<html>nginx</html>"), False)):

        def answer(line: str, words: bytes = words) -> bytes:
            return http("404 Not Found") if line.startswith("HEAD") else words

        server = answering(answer)
        storage = at(server)
        if absent:
            assert not storage.exists("n")
            with pytest.raises(ChunkNotFound):
                storage.stat("n")
            assert [line.split()[0] for line in server.requests] == ["HEAD", "GET"] * 2
        else:
            with pytest.raises(StorageUnavailable, match="whether a proxy is in between"):
                storage.exists("n")


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


# Rules


@pytest.mark.parametrize("code", ["NoSuchLifecycleConfiguration", "AccessDenied"])
def test_rules_are_looked_at_where_the_requester_pays(at: At, answering: Answers, code: str) -> None:
    """That question has no place for it in the SDK, which refused it, and nobody had looked."""
    answer = http(
        "404 Not Found" if code.startswith("No") else "403 Forbidden", f"<Error><Code>{code}</Code></Error>".encode()
    )
    server = answering(answer)
    storage = at(server, request_payer="requester")
    assert storage.check_root() == ("none" if code.startswith("No") else "unseen")
    with pytest.raises((ChunkNotFound, StorageUnavailable)):
        storage.stat("n")
    paid = ["x-amz-request-payer: requester" in head.lower() for head in server.heads]
    assert paid[:2] == [False, True]


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


@pytest.mark.parametrize("locked", [False, True])
def test_an_object_that_is_not_let_go_says_until_when(serve: Serve, locked: bool) -> None:
    lock = ["x-amz-object-lock-mode: COMPLIANCE", "x-amz-object-lock-retain-until-date: 2030-01-02T03:04:05Z"]
    here = ["Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT", "x-amz-request-id: tx0", *(lock if locked else [])]
    refused = b"<Error><Code>AccessDenied</Code><Message>WORM</Message></Error>"

    def answer(line: str) -> bytes:
        return http("403 Forbidden", refused) if line.startswith("DELETE") else http("200 OK", b"", *here)

    with pytest.raises(AccessDenied, match="WORM") as caught:
        serve(answer).delete("default/d/00/x")
    assert caught.value.until_ms == (1_893_553_445_000 if locked else None)
    assert pickle.loads(pickle.dumps(caught.value)).to_fields() == caught.value.to_fields()
