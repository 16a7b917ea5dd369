"""Joining ranges of objects on the server: copies where they are large enough, memory only for what is too small to copy.

Promises
* ``plan_parts`` is pure: parts in order, each at least 5 MiB but the last, at most 5 GiB, at most 10,000 of them. A range
  of 5 MiB or more is copied by the server; smaller neighbours are carried through memory together, and take just as many
  bytes from a large neighbour as they lack.
* One upload (one PUT, where all of it is one carried part); the target appears, or is replaced, in one step when it is
  completed, by this upload or not at all. At most ``concurrency`` carried parts are in memory.

Leaves out: removing the sources; a CRC of what was joined in parts (it was not read; the engine keeps one).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from chunkstore import runtime
from chunkstore.storage import ChunkRange, Composed
from chunkstore_bindings.s3.client import S3Client
from chunkstore_bindings.s3.multipart import Upload, in_parts, send_part
from chunkstore_bindings.s3.options import COPY_BYTES_MAX, PART_BYTES_MIN, PARTS_MAX
from chunkstore_bindings.s3.reading import get_range, head
from chunkstore_bindings.s3.refusals import Kind, Refusal, nonsense
from chunkstore_bindings.s3.sending import put_if_absent, put_object

__all__ = ["Part", "Span", "join", "plan_parts"]

_CARRIED_BYTES: Final = 16 << 20
"""Where a carried part is long enough: small ones share a request, and memory stays bounded."""
_SPARE_PARTS: Final = 100
_OBJECT_BYTES_MAX: Final = COPY_BYTES_MAX * PARTS_MAX


class Span(NamedTuple):
    """``[start, stop)`` of source number ``source``."""

    source: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        """In bytes."""
        return self.stop - self.start


class Part(NamedTuple):
    """One part of the result. ``copied``: by the server, from one span; else carried through memory."""

    spans: tuple[Span, ...]
    copied: bool

    @property
    def length(self) -> int:
        """In bytes."""
        return sum(span.length for span in self.spans)


def plan_parts(
    spans: Sequence[Span],
    *,
    part_min: int = PART_BYTES_MIN,
    part_max: int = COPY_BYTES_MAX,
    parts_max: int = PARTS_MAX,
    carried: int = _CARRIED_BYTES,
) -> list[Part]:
    """The parts that make these spans one object, in order; empty spans are passed over.

    Raises ``ValueError`` where no such plan exists: more bytes than ``parts_max`` parts can have.
    """
    total = sum(span.length for span in spans)
    if total > part_max * parts_max:
        raise ValueError(f"{total} bytes do not fit into {parts_max} parts of {part_max}")
    # With very many sources even large ones have to share parts, or there would be too many parts.
    least = max(part_min, -(-total // max(1, parts_max - min(_SPARE_PARTS, parts_max // 2))))
    if least > part_max:
        raise ValueError(f"{total} bytes leave no choice of parts of at most {part_max}")
    planner = _Planner(least, part_max, max(carried, least))
    for span in spans:
        planner.add(span)
    return planner.end()


class _Planner:
    """Builds the list from left to right. ``_waiting`` holds spans that are too small to be copied by themselves."""

    def __init__(self, least: int, most: int, carried: int) -> None:
        self._least = least
        self._most = most
        self._carried = carried
        self._parts: list[Part] = []
        self._waiting: list[Span] = []
        self._waiting_bytes = 0

    def add(self, span: Span) -> None:
        """Take the next source."""
        if span.length < self._least:
            self._wait(span)
            if self._waiting_bytes >= self._carried:
                self._flush()
            return
        if self._waiting_bytes:
            lacking = self._least - self._waiting_bytes
            if lacking > 0:
                # What waits is too small for a part: the head of this source fills it up. If what is left of the source is
                # too small then, all of it goes along.
                cut = span.start + lacking if span.length - lacking >= self._least else span.stop
                self._wait(Span(span.source, span.start, cut))
                span = Span(span.source, cut, span.stop)
            self._flush()
        self._copy(span)

    def end(self) -> list[Part]:
        """What waits now is the last part, which may be of any size."""
        self._flush()
        return self._parts

    def _wait(self, span: Span) -> None:
        if span.length:
            self._waiting.append(span)
            self._waiting_bytes += span.length

    def _flush(self) -> None:
        if self._waiting:
            self._parts.append(Part(tuple(self._waiting), copied=False))
            self._waiting, self._waiting_bytes = [], 0

    def _copy(self, span: Span) -> None:
        ways = -(-span.length // self._most)
        if not ways:
            return
        size = -(-span.length // ways)
        for start in range(span.start, span.stop, size):
            self._parts.append(Part((Span(span.source, start, min(span.stop, start + size)),), copied=True))


def join(
    client: S3Client,
    target: str,
    ranges: Sequence[ChunkRange],
    pool: runtime.Pool,
    *,
    exclusive: bool,
) -> Composed:
    """Make ``target`` the bytes of these ranges, in order; it may be one of the sources unless it is made exclusively.

    Raises ``Refusal``: ``TAKEN`` (the target exists, and this is exclusive), ``BEYOND_END`` (a range beyond its object),
    ``NOT_FOUND``; then nothing was changed.
    """
    names = [item.name for item in ranges]
    for name in (target, *names):
        client.options.key(name)  # a name that cannot be is refused before anything is asked
    for item in ranges:
        if item.offset + item.length > _OBJECT_BYTES_MAX:
            raise _shorter(item.name, f"no object has {item.offset + item.length} bytes")
        if not item.length:
            head(client, item.name)  # nothing else checks that it exists
    spans = [Span(number, item.offset, item.offset + item.length) for number, item in enumerate(ranges)]
    try:
        parts = plan_parts(spans)
    except ValueError as error:
        raise Refusal(Kind.INVALID, str(error)) from error
    length = sum(span.length for span in spans)
    if len(parts) <= 1 and not any(part.copied for part in parts):
        # All of it fits into memory: one plain PUT.
        data = _carry(client, names, parts[0], pool) if parts else b""
        if not exclusive:
            put_object(client, target, data)
        elif not put_if_absent(client, target, data):
            raise Refusal(Kind.TAKEN, "the name exists", status=412)
        return Composed(length, length)
    carried: list[int] = []
    sends = [partial(_make, client, names, part, pool, carried) for part in parts]
    # Sizes before anything appears: a server that clips a range at its source's end must not shorten the result.
    check = partial(_check_sizes, client, names, parts)
    in_parts(client, target, None, sends, length, pool, exclusive=exclusive, check=check)
    return Composed(length, sum(carried))


def _make(
    client: S3Client,
    names: Sequence[str],
    part: Part,
    pool: runtime.Pool,
    carried: list[int],
    upload: Upload,
    number: int,
) -> dict[str, Any]:
    """One part; what completion has to say about it. What went through memory is noted in ``carried``."""
    if part.copied:
        try:
            return _copy(client, upload, names, part.spans[0], number)
        except Refusal as refusal:
            refusal.name = names[part.spans[0].source]
            # Some servers copy no ranges, or none of objects of exactly 5 MiB: short ones can be carried instead.
            if refusal.kind not in (Kind.INVALID, Kind.UNSUPPORTED) or part.length > 2 * _CARRIED_BYTES:
                raise
    data = _carry(client, names, part, pool)
    carried.append(len(data))
    return send_part(client, upload, number, memoryview(data))


def _copy(client: S3Client, upload: Upload, names: Sequence[str], span: Span, number: int) -> dict[str, Any]:
    options = client.options
    answer = client.repeat(
        "upload_part_copy",
        Key=options.key(upload.name),
        UploadId=upload.id,
        PartNumber=number,
        CopySource={"Bucket": options.bucket, "Key": options.key(names[span.source])},
        CopySourceRange=f"bytes={span.start}-{span.stop - 1}",
    )
    result = answer["CopyPartResult"]
    made = {"PartNumber": number, "ETag": result["ETag"]}
    if "ChecksumCRC32C" in result:
        made["ChecksumCRC32C"] = result["ChecksumCRC32C"]
    return made


def _carry(client: S3Client, names: Sequence[str], part: Part, pool: runtime.Pool) -> bytes:
    """The part's bytes, fetched. Raises ``Refusal`` (``BEYOND_END``: a source is shorter than was said)."""

    def fetch(span: Span) -> bytes:
        data = get_range(client, names[span.source], span.start, span.length).data
        if len(data) != span.length:
            raise _shorter(names[span.source], f"it ends before byte {span.stop}")
        return data

    return b"".join(pool.run_all([partial(fetch, span) for span in part.spans]))


def _check_sizes(client: S3Client, names: Sequence[str], parts: Sequence[Part], upload: Upload) -> None:
    """Compare what the server has of every part with the plan. Raises ``Refusal``."""
    marker = 0
    found: dict[int, int] = {}
    while True:
        page = client.repeat(
            "list_parts", Key=client.options.key(upload.name), UploadId=upload.id, PartNumberMarker=marker
        )
        found |= {int(item["PartNumber"]): int(item["Size"]) for item in page.get("Parts", [])}
        if not page.get("IsTruncated"):
            break
        before, marker = marker, int(page.get("NextPartNumberMarker", 0))
        if marker <= before:
            raise nonsense("a list of parts that repeats itself")
    for number, part in enumerate(parts, 1):
        if found.get(number) != part.length:
            text = f"as part {number} it has {found.get(number)} bytes, not {part.length}"
            raise _shorter(names[part.spans[0].source], text)


def _shorter(name: str, text: str) -> Refusal:
    refusal = Refusal(Kind.BEYOND_END, text, status=416)
    refusal.name = name
    return refusal
