"""What people get wrong (a scheme, a region, a clock, a name) and servers that have had enough: clear errors, in time, few requests."""

from __future__ import annotations

import datetime as dt
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Lock

import pytest
from botocore import exceptions as sdk

from chunkstore.errors import ChunkstoreError, InvalidArgument, StorageUnavailable
from chunkstore.storage import ChunkHandle, ConcatArgument
from chunkstore_bindings.s3.refusals import refusal_of
from chunkstore_bindings.s3.storage import S3ChunkStorage
from chunkstore_bindings.wrappers.retrying import RetryingChunkStorage
from tests.s3.conftest import Answers, At
from tests.support.clock import stopped_clock
from tests.support.data import fails_in_time
from tests.support.servers.answering import http

MIB = 1 << 20
HANDLE = ChunkHandle("n", False)


def refusal(status: str, code: str, message: str = "said so", more: str = "", *headers: str) -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>"
    return http(status, body.encode(), "Content-Type: application/xml", *headers)


# Names


LONG, ODD = "é" * 462, "half-\ud800"


@pytest.mark.parametrize(("name", "says"), [(LONG, "1025 bytes.*prefix.*1024"), (ODD, "UTF-8")], ids=["long", "odd"])
def test_names_that_s3_cannot_hold_are_refused_before_any_request(
    at: At, answering: Answers, name: str, says: str
) -> None:
    server = answering(http("200 OK"))
    # The prefix and its slash count, too; the port's own limit is 900 characters.
    storage = at(server, prefix="p" * 100)
    handle = ChunkHandle(name, False)
    calls: list[Callable[[], object]] = [
        lambda: storage.exists(name),
        lambda: storage.create(name, b"x"),
        lambda: storage.create(name, bytes(33 * MIB)),
        lambda: storage.create_if_absent(name, b"x"),
        lambda: storage.put(name, b"x"),
        lambda: storage.read(handle, 0, 10),
        lambda: storage.read_into(handle, 0, bytearray(10)),
        lambda: storage.delete(name),
        lambda: storage.stat(name),
        lambda: storage.open_read(name),
        lambda: storage.concat([ConcatArgument(name, 1), ConcatArgument("n", 1)]),
        lambda: storage.list(name),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match=says) as caught:
            call()
        assert caught.value.argument == "name"
    assert server.requests == []


# Clocks and regions


def test_a_clock_that_is_wrong_is_named(at: At, answering: Answers) -> None:
    text = "The difference between the request time and the current time is too large."
    server = answering(refusal("403 Forbidden", "RequestTimeTooSkewed", text))
    storage = at(server)
    for call in (lambda: storage.put("n", b"x"), storage.list, lambda: storage.read(HANDLE, 0, 1)):
        with pytest.raises(StorageUnavailable, match="set this machine's clock"):
            call()
    assert len(server.requests) == 3


ELSEWHERE = {
    "permanent-redirect": refusal("301 Moved Permanently", "PermanentRedirect", "use the specified endpoint"),
    "with-its-region": refusal(
        "301 Moved Permanently", "PermanentRedirect", "elsewhere", "", "x-amz-bucket-region: eu-west-3"
    ),
    "malformed": refusal(
        "400 Bad Request",
        "AuthorizationHeaderMalformed",
        "the region 'us-east-1' is wrong; expecting 'eu-west-3'",
        "<Region>eu-west-3</Region>",
        "x-amz-bucket-region: eu-west-3",
    ),
    "location": refusal(
        "400 Bad Request", "IllegalLocationConstraintException", "is incompatible", "", "x-amz-bucket-region: eu-west-3"
    ),
    "temporary": refusal("307 Temporary Redirect", "TemporaryRedirect", "please re-send"),
    "no-words": http("301 Moved Permanently"),
    "no-words-400-with-region": http("400 Bad Request", b"", "x-amz-bucket-region: eu-west-3"),
}


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_a_bucket_of_another_region_is_named_with_few_requests(at: At, answering: Answers, kind: str) -> None:
    server = answering(ELSEWHERE[kind])
    storage = at(server)
    calls: list[Callable[[], object]] = [
        lambda: storage.put("n", b"x"),
        lambda: storage.read(HANDLE, 0, 1),
        storage.list,
        lambda: storage.exists("n"),
        lambda: storage.delete("n"),
    ]
    for call in calls:
        before = len(server.requests)
        with pytest.raises(InvalidArgument, match=r"region \(\?region=") as caught:
            call()
        assert caught.value.argument == "root"
        if "eu-west-3" in ELSEWHERE[kind].decode():
            assert "eu-west-3" in str(caught.value)
        assert len(server.requests) - before <= 3


# http and https


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """A certificate of our own, which nobody trusts."""
    x509 = pytest.importorskip("cryptography.x509", reason="cryptography is not installed")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    day = dt.timedelta(days=1)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now - day).not_valid_after(now + day)
    pem = tmp_path_factory.mktemp("tls") / "both.pem"
    pem.write_bytes(
        made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context


def mistaken(storage: S3ChunkStorage, *more: str) -> None:
    calls = lambda: storage.put("n", b"x"), lambda: storage.exists("n"), storage.list
    for said in fails_in_time(ChunkstoreError, *calls, match="http:// or https://"):
        assert all(text in said for text in more)


def test_http_where_tls_is_spoken(at: At, answering: Answers, tls: ssl.SSLContext) -> None:
    mistaken(at(answering(http("200 OK"), tls=tls)), "http://127.0.0.1")


def test_https_where_none_is_spoken(at: At, answering: Answers) -> None:
    mistaken(at(answering(http("400 Bad Request")), scheme="https"), "https://127.0.0.1")


def test_https_with_a_certificate_that_nobody_trusts(at: At, answering: Answers, tls: ssl.SSLContext) -> None:
    mistaken(at(answering(http("200 OK"), tls=tls), scheme="https"), "is its certificate trusted")


# Enough


@pytest.mark.parametrize(
    ("told", "dated", "seconds"),
    [
        ("7", "", 7),
        ("Wed, 21 Oct 2015 07:28:30 GMT", "Wed, 21 Oct 2015 07:28:00 GMT", 30),
        ("Wed, 21 Oct 2015 07:28:00 GMT", "", 0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", "never", 0),
        ("-7", "", 0),
        ("9" * 5000, "", 0),
        ("soon", "", 0),
    ],
)
def test_a_server_says_when_to_come_back(told: str, dated: str, seconds: float) -> None:
    headers = {"retry-after": told} | ({"date": dated} if dated else {})
    answer = {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": headers}}
    found = refusal_of(sdk.ClientError(answer, "PutObject"))
    assert found.retry_after_s == seconds
    assert found.error("n").retry_after_s == seconds  # type: ignore[attr-defined]


def test_20_clients_of_a_server_that_refuses_half_all_finish(at: At, answering: Answers) -> None:
    random, lock, refused = Random(18), Lock(), 0

    def answer(line: str) -> bytes:
        nonlocal refused
        with lock:
            busy = random.random() < 0.5
            refused += busy
        return refusal("503 Slow Down", "SlowDown") if busy else http("200 OK", b"", 'ETag: "e"', keep=True)

    server = answering(answer)
    storages = [RetryingChunkStorage(at(server, tries_max=4, deadline_s=3600)) for _ in range(20)]
    with stopped_clock() as clock, ThreadPoolExecutor(20) as pool:
        assert list(pool.map(lambda item: [item.put(f"n{n}", b"x") for n in range(5)], storages)) == [[None] * 5] * 20
    assert len(server.requests) == 100 + refused < 300
    assert sum(clock.slept_s) < 0.15 * len(server.requests)
