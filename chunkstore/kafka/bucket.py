"""``KafkaBucket``: a tier's bucket, a container, or a broker's log directory, read and checked without a broker.

Promises: nothing is changed; no record comes twice, and none of an undecided transaction with read_committed; what was passed over is in
``notes``. Memory: a row for each segment, and one window. Leaves out: high watermarks, which no bucket has.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, get_args

from chunkstore.buckets import open_bucket
from chunkstore.codec.kafka.batches import OFFSET_MAX, LogSummary, ReadOptions
from chunkstore.codec.kafka.encryption import load_private_key
from chunkstore.codec.kafka.records import Isolation, Record, Transactions, iter_records
from chunkstore.codec.kafka.remote_metadata import MetadataRecord, decode_metadata_record
from chunkstore.codec.sources import DataSource
from chunkstore.config import MIB
from chunkstore.errors import Damaged, InvalidArgument, SegmentNotFound
from chunkstore.kafka.checking import check_partition
from chunkstore.kafka.container import open_container
from chunkstore.kafka.lineage import Piece, apply_records, resolve, resolved, transactions_of
from chunkstore.kafka.model import require
from chunkstore.kafka.orphans import Orphan, find_orphans
from chunkstore.kafka.sources import BucketSource, Finding, Listing, LogDirectory, Segment, SegmentSource
from chunkstore.registry import Root, root_url

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KafkaBucket", "PlannedPartition"]

_WINDOW_BYTES: Final = 4 * MIB
"""Asked for at once of an object: several chunks of 1 MiB."""
_LOST: Final = ("incomplete", "manifest", "missing")
"""Kinds of findings whose segments are not read."""
_METADATA_TOPIC: Final = "__remote_log_metadata"


class PlannedPartition(NamedTuple):
    """Pieces of a partition that are read from offset ``start`` to below ``end``. Plain data, also for readers in other processes.

    ``transactions``: how they ended, for read_committed; None: every record is read. ``lost``: about segments that cannot be read.
    """

    topic: str
    partition: int
    pieces: tuple[Piece, ...]
    start: int
    end: int
    transactions: Transactions | None = None
    lost: tuple[Finding, ...] = ()

    def require_whole(self) -> None:
        """Raise ``Damaged`` if a segment between ``start`` and ``end`` is lost."""
        for each in self.lost:
            if self.start <= each.offset < self.end:
                text = f"{each.message}; {each.topic}-{each.partition} was not read from offset {each.offset} on, up to the next segment"
                raise Damaged(text, object=each.object, position=each.position)


class KafkaBucket:
    """The partitions of a tier, a container or a log directory. A context manager, which closes it. Thread-safe, but for ``notes``.

    ``source``: ``s3://BUCKET/PREFIX``, ``hdfs://HOST:HTTPPORT/PATH``, a path or ``file:///PATH`` of a tier, or the root of a container;
    or the path of a log directory, which has a partition's folder or ``meta.properties``. ``metadata_log``: a log directory, or a copy of
    one, with ``__remote_log_metadata-N`` folders: only segments that it says are finished are read. Without it leader epochs and higher
    ends decide. ``keys``: RSA private keys, each the bytes of a PEM file; each one is tried. ``prefix``: what object keys begin with
    below the URL; it may end without a slash. ``container``: its name, where the URL is that of its root: what ``tier`` or a storage
    manager stored there is read. None: no container is looked for.

    ``notes``: lines about what was passed over. Raises ``InvalidArgument``. Every call raises what the bucket raises (``AccessDenied``,
    ``StorageUnavailable``, ``DeadlineExceeded``), and changes nothing. Retry: safe.
    """

    def __init__(
        self,
        source: Root,
        *,
        metadata_log: str | None = None,
        keys: Iterable[bytes] = (),
        prefix: str = "",
        container: str | None = "default",
    ) -> None:
        self.notes: dict[str, None] = {}
        rings = [load_private_key(pem) for pem in keys]
        self.source: SegmentSource
        named = None if metadata_log or rings or prefix else container
        url, path = root_url(source, "source"), os.fspath(source)
        if named is not None and (opened := open_container(url, named)) is not None:
            self.source = opened
        elif "://" not in path and LogDirectory.is_at(path):
            if metadata_log is not None or rings or prefix:
                text = f"{source} is a log directory: metadata_log, keys and prefix are of a tier"
                raise InvalidArgument(text, argument="source")
            self.source = LogDirectory(path)
        else:
            states = None if metadata_log is None else self._states(metadata_log)
            self.source = BucketSource(open_bucket(url), prefix, rings, states)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.source.close()

    def segments(self, topic: str | None = None, partition: int | None = None) -> list[Segment]:
        """The segments with a manifest, or a log, by partition and offset, whether they are read or not."""
        return self._listing(topic, partition).segments

    def read(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        isolation: Isolation = "read_uncommitted",
        start_offset: int = 0,
        end_offset: int = OFFSET_MAX,
    ) -> Iterator[Record]:
        """The records from ``start_offset`` to below ``end_offset`` of each partition, partition by partition.

        Topics whose names begin with "__" are read where ``topic`` names them. Offsets that are not here are passed over, and noted. With
        "read_committed" transactions without an end are left out, and noted.

        Raises ``InvalidArgument``. While iterating: ``SegmentNotFound`` (no such partition), ``Conflict`` (two topics of one name),
        ``ChunkNotFound`` (deleted meanwhile), ``Damaged`` and ``Unsupported`` after the records before it, or at once where a scan for
        transactions meets it. A segment whose manifest or log is lost is ``Damaged`` after all other records of its partition.
        """
        for planned in self.plan(topic, partition):
            chosen = self.narrowed(planned, isolation, start_offset, end_offset)
            more: dict[str, Any] = {"isolation": isolation, "transactions": chosen.transactions}
            for source, options in self._opened(chosen):
                yield from iter_records(source, chosen.topic, chosen.partition, options=options, **more)

    def record_batches(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        isolation: Isolation = "read_uncommitted",
        start_offset: int = 0,
        end_offset: int = OFFSET_MAX,
    ) -> Iterator[pa.RecordBatch]:
        """The records as Arrow, with ``columns`` of ``RECORD_SCHEMA`` or all. Otherwise as ``read``."""
        for planned in self.plan(topic, partition):
            yield from self.planned_batches(self.narrowed(planned, isolation, start_offset, end_offset), columns)

    def plan(self, topic: str | None = None, partition: int | None = None) -> Iterator[PlannedPartition]:
        """What ``read`` reads of each partition: all of it. Raises as ``read``."""
        listing = self._listing(topic, partition)
        self._note(*(f"{each.object}: {each.message}" for each in listing.findings))
        if any(each.topic.startswith("__") and topic is None for each in listing.segments):
            self._note("topics whose names begin with __ are left out: name them (topic, --topic)")
        gone = [each for each in listing.findings if each.kind in _LOST]
        found = {each[2:4]: list[Segment]() for each in gone} | listing.partitions()
        for place, segments in sorted(found.items()):
            if topic is None and place[0].startswith("__"):
                continue
            pieces = resolved(self.source, segments, "give a prefix (--prefix) with one, or the metadata log")
            read = {piece.segment.name for piece in pieces}
            if passed := [each.name for each in segments if each.name not in read and each.bytes]:
                text = f"{len(passed)} of {len(segments)} segments are unfinished, of an older lineage, or others have their offsets"
                self._note(f"{place[0]}-{place[1]}: {text}: {passed[0]} is not read")
            ours = [each for each in gone if each[2:4] == place]
            lost = [each for each in ours if not any(piece.start <= each.offset < piece.stop for piece in pieces)]
            start = listing.log_starts.get(place, 0)
            yield PlannedPartition(*place, tuple(pieces), start, OFFSET_MAX, lost=tuple(lost))

    def narrowed(
        self, planned: PlannedPartition, isolation: Isolation, start_offset: int, end_offset: int
    ) -> PlannedPartition:
        """What ``read`` reads of a whole partition with these arguments. Raises as ``read``.

        "read_committed" reads an index or two of each segment; where they are missing, batches.
        """
        require(isolation in get_args(Isolation), "isolation", "read_uncommitted or read_committed")
        here = planned.pieces[-1].stop if planned.pieces else planned.start
        if here < (end_offset if end_offset < OFFSET_MAX else start_offset) < OFFSET_MAX:
            self._note(f"{planned.topic}-{planned.partition}: offsets from {here} on are not here")
        known = None
        if isolation == "read_committed":
            # Of all pieces: where a transaction began before ``start_offset``, nothing after it may count as committed.
            known, notes = transactions_of(self.source, planned.pieces)
            self._note(*notes)
            if known.last_stable_offset is not None:
                end_offset = min(end_offset, known.last_stable_offset)
        return planned._replace(start=max(planned.start, start_offset), end=end_offset, transactions=known)

    def planned_batches(self, planned: PlannedPartition, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """The records of a plan, or of some consecutive pieces of one, as ``record_batches``; nothing is listed."""
        from chunkstore.codec.kafka.record_batches import record_batches  # noqa: PLC0415  (loads Arrow)

        isolation = "read_uncommitted" if planned.transactions is None else "read_committed"
        more: dict[str, Any] = {"isolation": isolation, "transactions": planned.transactions, "columns": columns}
        for source, options in self._opened(planned):
            yield from record_batches(source, planned.topic, planned.partition, options=options, **more)

    def verify(self, topic: str | None = None, partition: int | None = None) -> Iterator[Finding]:
        """What is wrong: objects, chunks, batches, offsets, indexes, epochs. Of a segment's log the first damage is reported.

        Raises ``SegmentNotFound`` where there is nothing to verify.
        """
        listing = self._listing(topic, partition)
        if not listing.segments and not listing.findings:
            raise SegmentNotFound(self.source.url, f"nothing to verify: no segment is in {self.source.url}")
        yield from listing.findings
        for _, several in groupby(listing.segments, key=lambda each: each[:3]):
            segments = list(several)
            yield from check_partition(self.source, segments, resolve(self.source.finished(segments)))

    def orphans(self, *, older_than_s: float = 86_400) -> list[Orphan]:
        """What no broker will use or delete, by key. ``InvalidArgument`` for a log directory. See ``find_orphans``."""
        if not isinstance(self.source, BucketSource):
            text = "a log directory or a container has no orphans of Kafka's; give a tier's URL"
            raise InvalidArgument(text, argument="source")
        found, notes = find_orphans(self.source, older_than_s)
        self._note(*notes)
        return found

    def _note(self, *lines: str) -> None:
        self.notes.update(dict.fromkeys(lines))

    def _states(self, path: str) -> dict[bytes, MetadataRecord]:
        """What the metadata log in ``path`` says of segments."""
        with KafkaBucket(path) as log:
            if not log.source.listing(_METADATA_TOPIC).segments:
                text = f"{path} has no folder {_METADATA_TOPIC}-N: name a broker's log directory, or a copy of one"
                raise InvalidArgument(text, argument="metadata_log")
            states = apply_records(
                decode_metadata_record(record.value, object=f"{record.topic}-{record.partition} offset {record.offset}")
                for record in log.read(_METADATA_TOPIC)
                if record.value is not None
            )
            self._note(*log.notes)
        return states

    def _listing(self, topic: str | None, partition: int | None) -> Listing:
        found = self.source.listing(topic, partition)
        self._note(*found.notes)
        if not found.segments and not found.findings:
            where = f"in {self.source.url} (a tier is named by its URL, a log directory by its path)"
            if topic is not None:
                name = topic if partition is None else f"{topic}-{partition}"
                raise SegmentNotFound(name, f"no partition {name!r} {where}: 'chunkstore kafka ls' lists all")
            self._note(f"no segment is {where}")
        return found

    def _opened(self, planned: PlannedPartition) -> Iterator[tuple[DataSource, ReadOptions]]:
        at, start, end = planned.start, planned.start, planned.end
        for segment, first, stop in planned.pieces:
            if first >= end:
                break
            if stop <= start:
                continue
            if first > at:
                self._note(f"{segment.topic}-{segment.partition}: offsets {at} to {first - 1} are not here")
            seen, last = LogSummary(), min(end, stop)
            with self.source.log(segment) as log:
                position = self.source.position(segment, log, start) if start > first else 0
                where = position, segment.start_offset, start, last
                yield log, ReadOptions(*where, window_bytes=_WINDOW_BYTES, summary=seen)
            if seen.beyond > segment.end_offset:  # no CRC covers a base offset: a wrong one must not look like the end
                text = f"a batch at offset {seen.beyond}, and the segment ends with {segment.end_offset}"
                raise Damaged(text, object=segment.name, position=seen.end_position)
            if seen.gaps or seen.end_offset < last:
                text = f"{segment.name}: {seen.gaps} gaps, offsets up to {seen.end_offset - 1} of {last - 1}"
                self._note(f"{text}: compacted, or lost")
            at = stop
        planned.require_whole()
