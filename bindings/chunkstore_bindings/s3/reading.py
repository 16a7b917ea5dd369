"""Reading objects: one ranged GET, or several at once into one buffer, verified where the whole object was read.

Promises
* What is read of an object in one piece from end to end is checked against the CRC32C in its metadata.
  Bytes that do not match are asked for once more, in case they were damaged on the way; then it is ``Damaged``.
* A large read is split over the connections; pieces of two versions of an object are never mixed.
* Only the range that was asked for is taken for it, whole but for the object's end.

Leaves out: CRCs of parts of an object (they are not kept), read-ahead (the engine's).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from chunkstore import runtime
from chunkstore.checksum import crc32c, crc32c_extend
from chunkstore.errors import Damaged
from chunkstore.records.chunks import filled, joined
from chunkstore_bindings.s3.checksums import kept_crc
from chunkstore_bindings.s3.client import S3Client
from chunkstore_bindings.s3.refusals import SDK_ERRORS, Kind, Refusal, nonsense, refusal_of

__all__ = ["Found", "Head", "exists", "get_range", "head", "read_into", "read_range"]

_BLOCK_BYTES: Final = 1 << 19
_END_MAX: Final = 1 << 53
"""Beyond what any object can be: servers need not understand larger numbers in a Range."""
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})\Z")


class Head(NamedTuple):
    """What a server says about an object. ``locked_until_ms``: the end of its lock, where there is one and we may know."""

    length: int
    modified_ms: int
    metadata: Mapping[str, str]
    locked_until_ms: int | None = None


class Found(NamedTuple):
    """A range of an object: how many bytes (``size``) came, of how long an object, with which CRC; ``data``: the bytes, unless
    they went into the caller's buffer."""

    size: int
    length: int
    etag: str
    crc: int
    expected_crc: int | None
    data: bytes = b""
    metadata: Mapping[str, str] = {}


_NOTHING: Final = Found(0, 0, "", 0, None)
"""Beyond the end."""


def head(client: S3Client, name: str) -> Head:
    """Length and metadata. Raises ``Refusal``."""
    try:
        answer = client.repeat("head_object", Key=client.options.key(name))
    except Refusal as refusal:
        if refusal.kind is not Kind.UNTOLD:
            raise
        # A GET's answer has a body that shows whether the server gave it; if it succeeds, the object was made meanwhile.
        get_range(client, name, 0, 1)
        answer = client.repeat("head_object", Key=client.options.key(name))
    modified_ms, locked = int(answer["LastModified"].timestamp() * 1000), answer.get("ObjectLockRetainUntilDate")
    locked_until_ms = None if locked is None else int(locked.timestamp() * 1000)
    return Head(int(answer["ContentLength"]), modified_ms, answer.get("Metadata", {}), locked_until_ms)


def exists(client: S3Client, name: str) -> bool:
    """Whether there is such an object. Raises ``Refusal``."""
    try:
        head(client, name)
    except Refusal as refusal:
        if refusal.kind is Kind.NOT_FOUND:
            return False
        raise
    return True


def get_range(client: S3Client, name: str, offset: int, length: int) -> Found:
    """Up to ``length`` (at least one) bytes from ``offset``; empty at and beyond the end. Raises ``Refusal``, ``Damaged``."""
    return _verified(client, name, partial(_fetch, client, name, offset, length))


def read_range(client: S3Client, name: str, offset: int, length: int, pool: runtime.Pool) -> bytes:
    """As ``get_range``, split over several connections where it is large. Returns the bytes."""
    if offset >= _END_MAX:
        head(client, name)
        return b""
    length = min(length, _END_MAX - offset)
    if length <= 2 * client.options.part_size_bytes:
        return get_range(client, name, offset, length).data if length else b""
    # Who asks for "everything" names a length far beyond the end: only what is there is made room for.
    size = min(length, max(0, head(client, name).length - offset))
    try:
        return filled(size, lambda view: read_into(client, name, offset, view, pool))
    except MemoryError:
        raise Refusal(Kind.INVALID, f"{size} bytes do not fit into memory at once; read them in pieces") from None


def read_into(client: S3Client, name: str, offset: int, view: memoryview, pool: runtime.Pool) -> int:
    """Fill ``view`` from ``offset``; the count, short only at the object's end. Raises ``Refusal``, ``Damaged``."""
    if offset >= _END_MAX:
        head(client, name)
        return 0
    if not len(view):
        return 0
    ways = min(client.options.concurrency, -(-len(view) // client.options.part_size_bytes))
    if ways <= 1:
        return _verified(client, name, partial(_fetch, client, name, offset, len(view), view)).size
    return _verified(client, name, partial(_fill_split, client, name, offset, view, ways, pool)).size


def _verified(client: S3Client, name: str, attempt: Callable[[], Found]) -> Found:
    """Call ``attempt`` until what it brings matches its CRC, or its tries end."""
    backoff = client.backoff()
    damaged: Damaged | None = None
    while True:
        found = client.repeated(attempt, backoff)
        if found.expected_crc is None or found.size < found.length or found.crc == found.expected_crc:
            return found
        if damaged is not None:
            raise damaged
        damaged = Damaged(f"CRC32C {found.crc:08x}, kept with it {found.expected_crc:08x}", object=name)


def _fetch(client: S3Client, name: str, offset: int, length: int, view: memoryview | None = None) -> Found:
    """One ranged GET, into ``view`` if there is one."""
    answer = _ask(client, name, offset, length)
    if answer is None:
        return _NOTHING
    expected, total = _sizes(answer, offset, length)
    kept = kept_crc(answer)
    is_checked = expected == total and kept is not None
    data, at, crc = b"", 0, 0
    if view is None:
        data = joined(_blocks(client, answer, expected))
        crc = crc32c(data) if is_checked else 0
    else:
        for block in _blocks(client, answer, expected):
            view[at : at + len(block)] = block
            at += len(block)
            if is_checked:
                crc = crc32c_extend(crc, block)
    return Found(expected, total, answer["ETag"], crc, kept, data, answer.get("Metadata", {}))


def _fill_split(client: S3Client, name: str, offset: int, view: memoryview, ways: int, pool: runtime.Pool) -> Found:
    """The ranges of one view at once, each with its own tries. They are verified together, if together they are the object."""
    size = -(-len(view) // ways)
    attempts = [
        partial(_fetch, client, name, offset + start, len(part), part)
        for start in range(0, len(view), size)
        for part in (view[start : start + size],)
    ]
    pieces = pool.run_all([partial(client.repeated, attempt) for attempt in attempts])
    present = [piece for piece in pieces if piece.size]
    if not present:
        return _NOTHING
    first, count = present[0], sum(piece.size for piece in present)
    # A piece that lay beyond the end of another version has no ETag to tell that by, but is missing here.
    if len({piece.etag for piece in present}) > 1 or count != min(len(view), first.length - offset):
        raise Refusal(Kind.TRANSIENT, "the object was replaced while it was read")
    kept = first.expected_crc if count == first.length else None
    crc = crc32c_extend(0, view[:count]) if kept is not None else 0
    return Found(count, first.length, first.etag, crc, kept)


def _ask(client: S3Client, name: str, offset: int, length: int) -> dict[str, Any] | None:
    """One ranged GET; None where the range is beyond the end."""
    end = min(offset + length, _END_MAX)
    try:
        return client.send(
            "get_object", wanted_bytes=length, Key=client.options.key(name), Range=f"bytes={offset}-{end - 1}"
        )
    except Refusal as refusal:
        if refusal.kind is Kind.BEYOND_END:
            return None
        raise


def _blocks(client: S3Client, answer: dict[str, Any], expected: int) -> Iterator[bytes]:
    """The body, block by block; closes it. Raises ``Refusal`` when it ends early, hangs, takes too long or goes on."""
    body = answer["Body"]
    got = 0
    try:
        while got < expected:
            block = body.read(min(_BLOCK_BYTES, expected - got))
            if not block:
                raise Refusal(Kind.TRANSIENT, f"the answer ended after {got} of {expected} bytes")
            got += len(block)
            yield block
        # The connection can be used again only once the end was seen.
        if body.read(1):
            raise nonsense(f"a body longer than its {expected} bytes")
    except (*SDK_ERRORS, OSError) as error:
        raise refusal_of(error) from error
    finally:
        body.close()
        client.received(got)


def _sizes(answer: dict[str, Any], offset: int, length: int) -> tuple[int, int]:
    """How many bytes come, and how many the whole object has. Raises ``Refusal`` unless they are the range that was asked for,
    as far as the object goes; a plain 200 is the whole object."""
    try:
        return _checked_sizes(answer, offset, length)
    except Refusal:
        answer["Body"].close()
        raise


def _checked_sizes(answer: dict[str, Any], offset: int, length: int) -> tuple[int, int]:
    expected = int(answer["ContentLength"])
    text = answer.get("ContentRange")
    if text is None:
        if offset or expected > length:
            asked = f"a range of {length} bytes from {offset}"
            raise Refusal(Kind.UNSUPPORTED, f"the server answered {asked} with {expected} bytes: it ignores Range")
        return expected, expected
    match = _CONTENT_RANGE.match(str(text))
    if match is None:
        raise nonsense(f"the range {str(text)[:80]!r}")
    first, last, total = int(match[1]), int(match[2]), int(match[3])
    if first != offset or last + 1 - first != expected or expected != min(length, total - offset):
        raise nonsense(f"{expected} bytes as the range {match[0]!r}, asked for {length} from {offset}")
    return expected, total
