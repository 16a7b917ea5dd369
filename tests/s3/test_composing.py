"""What ``compose`` assumes of S3, broken on purpose: lost replies, names that are taken and sources that go meanwhile, servers that
copy no ranges or other ones."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

from chunkstore.config import MIB
from chunkstore.errors import ChunkExists, ChunkstoreError
from chunkstore.storage import ChunkHandle, ChunkRange, Composed
from chunkstore_bindings.s3.storage import S3ChunkStorage
from tests.s3.conftest import Answers, At, Connect, Proxied, is_completion, is_part
from tests.support.servers.answering import http
from tests.support.servers.faultproxy import Request
from tests.support.servers.s3server import S3Server

PART = 5 * MIB
CONTENTS = [b"one." * (PART // 4), b"two." * (PART // 4)]
RANGES = [ChunkRange("s/0", 0, PART), ChunkRange("s/1", 0, PART)]


def sources(storage: S3ChunkStorage) -> None:
    for number, content in enumerate(CONTENTS):
        storage.create(f"s/{number}", content)


def content_of(storage: S3ChunkStorage, name: str) -> bytes:
    return storage.read(ChunkHandle(name, False), 0, 1 << 30)


def uploads_of(server: S3Server, storage: S3ChunkStorage) -> object:
    return server.client.list_multipart_uploads(Bucket=storage.options.bucket).get("Uploads", [])


def is_second_part(request: Request) -> bool:
    return is_part(request) and "partNumber=2" in request.target


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Started; what it returned or raised will be in the list."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(call())
        except ChunkstoreError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def test_lost_replies(server: S3Server, proxied: Proxied, connect: Connect) -> None:
    """Of copies, which are sent again, and of the completion, which is recognised by its token."""
    proxy = proxied(server)
    storage = connect(server, proxy)
    sources(storage)
    rules = [proxy.lose_reply(is_second_part), proxy.lose_reply(is_completion)]
    assert storage.compose("c/new", RANGES) == Composed(2 * PART, 0)
    assert [rule.fired for rule in rules] == [1, 1]
    assert content_of(storage, "c/new") == b"".join(CONTENTS)
    assert uploads_of(server, storage) == []


def test_a_name_that_is_taken_while_parts_are_copied(moto: S3Server, proxied: Proxied, connect: Connect) -> None:
    """As on servers that look at the condition; and also where the reply to our first attempt was lost."""
    proxy = proxied(moto)
    storage = connect(moto, proxy)
    sources(storage)
    for number in range(2):
        rule = proxy.hold(is_completion)
        thread, found = in_thread(lambda number=number: storage.compose(f"c/{number}", RANGES))  # type: ignore[misc]
        assert rule.hit.wait(60)
        moto.client.put_object(Bucket=storage.options.bucket, Key=f"c/{number}", Body=b"theirs")
        if number:
            proxy.lose_reply(is_completion)
        rule.release()
        thread.join(120)
        assert isinstance(found[0], ChunkExists), found
        assert content_of(storage, f"c/{number}") == b"theirs"
    assert uploads_of(moto, storage) == []


def xml(body: str) -> bytes:
    return http("200 OK", f'<?xml version="1.0"?>{body}'.encode(), "Content-Type: application/xml")


COPIED = xml('<CopyPartResult><ETag>"e"</ETag></CopyPartResult>')
BEGUN = xml("<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
DONE = xml('<CompleteMultipartUploadResult><ETag>"e"</ETag></CompleteMultipartUploadResult>')
ABSENT = http("404 Not Found", b"", "x-amz-request-id: 1")


def parts(*sizes: int) -> bytes:
    listed = (f"<Part><PartNumber>{at}</PartNumber><Size>{size}</Size></Part>" for at, size in enumerate(sizes, 1))
    return xml(f"<ListPartsResult><IsTruncated>false</IsTruncated>{''.join(listed)}</ListPartsResult>")


def scripted(sizes: tuple[int, ...], copies: Callable[[], bytes]) -> Callable[[str], bytes]:
    """A server with these parts in its list, and this answer to a copy."""

    def answer(line: str) -> bytes:
        if line.startswith("POST"):
            return BEGUN if "?uploads" in line else DONE
        if line.startswith("PUT"):
            return copies()
        if line.startswith("HEAD"):
            return ABSENT
        return http("204 No Content") if line.startswith("DELETE") else parts(*sizes)

    return answer


def test_what_is_asked_of_a_server(at: At, answering: Answers) -> None:
    server = answering(scripted((PART, PART), lambda: COPIED))
    ranges = [ChunkRange("s/a b", 7, PART), ChunkRange("s/1", 0, PART)]
    assert at(server).compose("new", ranges) == Composed(2 * PART, 0)
    heads = [head.lower() for head in server.heads]
    [completion] = [head for head in heads if head.startswith("post") and "uploadid" in head]
    assert "if-none-match: *" in completion
    copies = sorted(re.findall(r"x-amz-copy-source(?:-range)?: (.*?)\r?\n", "".join(heads)))
    assert copies == ["bucket/s/1", "bucket/s/a%20b", f"bytes=0-{PART - 1}", f"bytes=7-{PART + 6}"]
    assert [head.split()[0] for head in heads].count("delete") == 0
