"""Servers that speak S3 and lie: a byte at a time, lengths that cannot be, listings that are none, ranges nobody asked for."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chunkstore import runtime
from chunkstore.deadline import until
from chunkstore.errors import ChunkstoreError, StorageUnavailable
from chunkstore.storage import ChunkHandle
from tests.s3.conftest import Answers, At, Serve
from tests.support.data import fails_in_time
from tests.support.servers.answering import ABSENT, drip, http

MIB = 1 << 20
BLOCK = bytes(1 << 16)
HANDLE = ChunkHandle("n", False)
DATE = "Sun, 22 Nov 2026 01:00:00 GMT"
OBJECT = ('ETag: "e"', f"Last-Modified: {DATE}")


def xml(body: str) -> bytes:
    return http("200 OK", f"<?xml version='1.0'?>{body}".encode(), "Content-Type: application/xml")


def error(status: str, code: str) -> bytes:
    return http(status, f"<Error><Code>{code}</Code><Message>so</Message></Error>".encode())


def piece(body: bytes, *headers: str, status: str = "206 Partial Content") -> bytes:
    return http(status, body, *OBJECT, *headers)


def endless(head: str, blocks: list[int]) -> Iterator[bytes]:
    """A head and a body without end; ``blocks`` counts the 64 KiB that were taken."""
    yield head.encode() + b"\r\n\r\n"
    chunked = "chunked" in head
    for number in itertools.count():
        blocks[0] = number
        yield b"%x\r\n%s\r\n" % (len(BLOCK), BLOCK) if chunked else BLOCK


# In time


def test_a_byte_at_a_time_ends_with_the_operation(serve: Serve) -> None:
    storage = serve(lambda _: drip(b"HTTP/1.1 200 OK\r\nX-Slow: "), deadline_s=600, read_timeout_s=300)
    with until(runtime.monotonic_s() + 0.8):
        fails_in_time(StorageUnavailable, lambda: storage.put("n", b"x"))


# Bounded

LIES = {
    "length": "HTTP/1.1 {status}\r\nContent-Length: 1000000000000",
    "negative-length": "HTTP/1.1 {status}\r\nContent-Length: -5",
    "no-length": "HTTP/1.1 {status}\r\nConnection: close",
    "chunks": "HTTP/1.1 {status}\r\nTransfer-Encoding: chunked",
    "chunks-and-length": "HTTP/1.1 {status}\r\nContent-Length: 10\r\nTransfer-Encoding: chunked",
    "huge-chunk": "HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFF",
}
ALL_THERE = '\r\nETag: "e"\r\nLast-Modified: ' + DATE


@pytest.mark.parametrize("status", ["200 OK", "403 Forbidden"])
@pytest.mark.parametrize("lie", LIES)
def test_answers_that_are_too_long_are_given_up(
    serve: Serve, lie: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chunkstore_bindings.s3.client._ANSWER_BYTES_MAX", 1 << 16)
    blocks = [0]
    head = LIES[lie].format(status=status).replace("\r\n", ALL_THERE + "\r\n", 1)
    storage = serve(lambda _: endless(head, blocks), tries_max=1)
    calls: list[Callable[[], object]] = [
        lambda: storage.put("n", b"x"),
        lambda: storage.read(HANDLE, 0, 10),
        lambda: storage.read_into(HANDLE, 100, bytearray(10)),
        storage.list,
        storage.check_root,
    ]
    for number, call in enumerate(calls):
        blocks[0] = 0
        try:
            found = call()
        except ChunkstoreError as told:
            assert "Error in" not in str(told), told
        else:
            # Where no body is expected, the head of the answer is all of it. The bucket's rules may not be looked at: 403.
            assert (number == 0 and status == "200 OK") or found == "unseen"
        # As much as fits into the buffers of sockets, beside what was taken.
        assert blocks[0] <= 100


@pytest.mark.parametrize(
    "answer",
    [
        piece(b"0123456789", status="200 OK"),  # the whole object, whatever was asked
        piece(b"0123456789"),
        piece(b"01234", "Content-Range: bytes 0-4/10"),
        piece(b"01234", "Content-Range: bytes 5-7/10"),
        piece(b"01234", "Content-Range: bytes 5-9/7"),
        piece(b"01", "Content-Range: bytes 5-6/100"),  # shorter, and not at the end
        piece(b"01234", "Content-Range: bytes 5-9/*"),
        piece(b"01234", "Content-Range: lines 5-9/10"),
    ],
)
def test_a_range_that_was_not_asked_for_is_no_answer(serve: Serve, answer: bytes) -> None:
    storage = serve(answer)
    with pytest.raises(ChunkstoreError):
        storage.read(HANDLE, 5, 10)
    with pytest.raises(ChunkstoreError):
        storage.read_into(HANDLE, 5, bytearray(10))


# Listings


def listing(*contents: str, truncated: str = "false", more: str = "") -> bytes:
    inner = "".join(contents)
    return xml(
        f"<ListBucketResult><Name>bucket</Name><IsTruncated>{truncated}</IsTruncated>{more}{inner}</ListBucketResult>"
    )


def item(key: str, size: str = "1", modified: str = "2026-11-22T01:00:00Z") -> str:
    return f"<Contents><Key>{key}</Key><LastModified>{modified}</LastModified><Size>{size}</Size></Contents>"


NO_LISTINGS = {
    "html": http("200 OK", b"<html>please log in</html>", "Content-Type: text/html"),
    "html-with-a-doctype": http("200 OK", b"<!DOCTYPE html>\n<html><body/></html>"),
    "nothing": http("200 OK"),
    "no-content": http("204 No Content"),
    "json": http("200 OK", b"{}"),
    "other-xml": xml("<feed><title>news</title></feed>"),
    "buckets": xml("<ListAllMyBucketsResult><Buckets/></ListAllMyBucketsResult>"),
    "bare": xml("<ListBucketResult/>"),
    "cut": xml("<ListBucketResult><IsTruncated>false</IsTruncated>"),
    "more-but-nothing": listing(truncated="true"),
    "outside": listing(item("elsewhere")),
    "size": listing(item("n", size="many")),
    "negative-size": listing(item("n", size="-1")),
    "no-size": listing("<Contents><Key>n</Key><LastModified>2026-11-22T01:00:00Z</LastModified></Contents>"),
    "date": listing(item("n", modified="yesterday")),
    "no-date": listing("<Contents><Key>n</Key><Size>1</Size></Contents>"),
    "no-key": listing("<Contents><Size>1</Size></Contents>"),
    "backwards": listing(item("n2"), item("n1")),
    "twice": listing(item("n"), item("n")),
    "round-and-round": listing(item("n"), truncated="true"),
}


@pytest.mark.parametrize("kind", NO_LISTINGS)
def test_what_is_no_listing_is_never_taken_for_one(serve: Serve, kind: str) -> None:
    storage = serve(NO_LISTINGS[kind])
    with pytest.raises(StorageUnavailable) as caught:
        storage.list("n")
    assert "Error in" not in str(caught.value), "ours, not a translation of what escaped"


LARGE: dict[str, Any] = {"part_size_bytes": 5 * MIB, "multipart_bytes_min": 5 * MIB}
BEGUN = xml("<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")


def uploads(line: str) -> bytes | None:
    """What comes before a completion."""
    if "?uploads" in line:
        return BEGUN
    if line.startswith("PUT"):
        return http("200 OK", b"", 'ETag: "e"')
    return None


def test_a_completion_answered_by_a_portal_is_not_done(serve: Serve) -> None:
    def answer(line: str) -> bytes:
        return uploads(line) or (ABSENT if line.startswith("HEAD") else NO_LISTINGS["html"])

    with pytest.raises(StorageUnavailable, match="whether a proxy is in between"):
        serve(answer, **LARGE).create("n", bytes(6 * MIB))


@pytest.mark.parametrize("status", ["503 Slow Down", "500 Internal Server Error"])
def test_a_completion_that_was_carried_out_behind_a_refusal_is_recognised(
    at: At, answering: Answers, status: str
) -> None:
    """503 comes from gateways, too, that have no idea what the server behind them did."""
    completions = itertools.count()

    def answer(line: str) -> bytes:
        if line.startswith("POST") and "uploadId" in line:
            return (
                error(status, "SlowDown" if "Slow" in status else "InternalError")
                if next(completions) == 0
                else error("404 Not Found", "NoSuchUpload")
            )
        if line.startswith("HEAD") and next(looks) == 0:
            return ABSENT
        if line.startswith("HEAD"):
            [token] = re.findall(r"chunkstore-token: (\w+)", "".join(server.heads))
            found = http("200 OK", b"", *OBJECT, f"x-amz-meta-chunkstore-token: {token}")
            return found.replace(b"Content-Length: 0", b"Content-Length: %d" % (6 * MIB))
        return uploads(line) or http("204 No Content")

    looks = itertools.count()
    server = answering(answer)
    at(server, tries_max=3, **LARGE).create("n", bytes(6 * MIB))
