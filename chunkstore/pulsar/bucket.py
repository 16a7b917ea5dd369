"""``PulsarBucket``: what Pulsar's offloaders wrote into a bucket, read without container and broker: ledgers, entries, messages.

A ledger is (cluster, topic, id); index and user metadata tell cluster and topic. Promises: nothing is changed; of attempts that differ
none is chosen silently; memory: a row for each ledger, and one window. Leaves out: MapFiles, which are named; cleaning (``orphans``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self

from chunkstore import runtime
from chunkstore.buckets import open_bucket
from chunkstore.codec.pulsar.frames import Entry, entry_id_at
from chunkstore.codec.pulsar.message_entries import MessageSummary, Transactions
from chunkstore.codec.pulsar.messages import Message, iter_messages, scan_transactions
from chunkstore.config import MIB
from chunkstore.errors import Conflict, Damaged, InvalidArgument, Unsupported
from chunkstore.pulsar.bucket_objects import Attempt, BucketObjects, Said, topic_name
from chunkstore.pulsar.checking import BucketCheck, Finding
from chunkstore.pulsar.contexts import LedgerNotFound
from chunkstore.pulsar.live import LiveFiles
from chunkstore.pulsar.read_handle import LedgerPart, ReadHandle, StoredLedger
from chunkstore.registry import Root
from chunkstore_bindings.bucket.port import Bucket

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LedgerRow", "PlannedLedger", "PulsarBucket"]

_COMPARED_BYTES: Final = 1 * MIB
_INDEX_READERS: Final = 15
_Kept = Literal["committed", "all"]
_Strictness = Literal["strict", "lenient"]
_Key = tuple[str | None, int | None]


class LedgerRow(NamedTuple):
    """A ledger in one data object. ``topic`` and ``entries`` are None where no index was read, or it does not tell.

    ``format``: "v1", "v2" or "mapfile". ``entries``: of this object, by their ids. ``bytes``: of the ledger's blocks; without details, of
    the data object, where ``ledger`` is None for v2.
    """

    topic: str | None
    ledger: int | None
    uuid: str
    format: str
    entries: int | None
    bytes: int


class _Part(NamedTuple):
    """A ledger's entries in one data object, from ``first`` on; ``error``: of an index that cannot be read."""

    attempt: Attempt
    topic: str | None
    ledger: int | None
    first: int
    bytes: int
    said: Said
    error: Damaged | None


@dataclass(frozen=True, slots=True)
class _Entries(Iterable[Entry]):
    """The entries of some ledgers, each opened when it is due: from ``first`` to ``last`` (both included) of each. May be read again."""

    ledgers: Sequence[Callable[[], ReadHandle]]
    first: int = 0
    last: int | None = None

    def __iter__(self) -> Iterator[Entry]:
        for opened in self.ledgers:
            with opened() as handle:
                yield from handle.iter_entries(self.first, self.last)


class _Run(NamedTuple):
    """A topic (None: not known), those of its entries that are read, and how its transactions ended."""

    topic: str | None
    entries: _Entries
    known: Transactions


class BucketMessages(Iterator[Message]):
    """Messages. ``topic``: that of the message that came last; ``summary``: what was left out, complete at the end."""

    def __init__(self, runs: Iterable[_Run], transactions: _Kept, messages: _Strictness) -> None:
        self.topic: str | None = None
        self.summary: MessageSummary = MessageSummary()
        self._rows = self._read(runs, transactions, messages)

    def __next__(self) -> Message:
        return next(self._rows)

    def _read(self, runs: Iterable[_Run], transactions: _Kept, messages: _Strictness) -> Iterator[Message]:
        for run in runs:
            self.topic = run.topic
            found = iter_messages(run.entries, known=run.known, transactions=transactions, messages=messages)
            yield from found
            for item in fields(MessageSummary):
                setattr(self.summary, item.name, getattr(self.summary, item.name) + getattr(found.summary, item.name))


class PlannedLedger(NamedTuple):
    """A ledger and the objects that it is read from."""

    topic: str | None
    ledger: int
    parts: tuple[_Part, ...]


class PulsarBucket(BucketObjects):
    """The ledgers in a bucket. A context manager, which closes the bucket; any number of threads, but for ``notes``.

    Args:
      bucket: an open one, or its path or URL: ``s3://BUCKET/PREFIX``, ``file:///PATH``, ``hdfs://HOST:HTTPPORT/PATH``.
      live: what brokers say (``read_live``): of several attempts to offload a ledger, the one that its broker names counts.

    ``notes``: what was passed over: indexes that cannot be read, attempts that equal another one. Every call raises ``AccessDenied``,
    ``StorageUnavailable`` and ``DeadlineExceeded``, and changes nothing. Retry: safe.
    """

    def __init__(self, bucket: Root | Bucket, *, live: LiveFiles | None = None) -> None:
        super().__init__(bucket if isinstance(bucket, Bucket) else open_bucket(bucket))
        self.notes: list[str] = []
        self._live = live or LiveFiles()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the bucket. Safe to repeat."""
        self.bucket.close()

    def ledgers(self, details: bool = False, topic: str | None = None) -> Iterator[LedgerRow]:
        """The complete offloads, by key; with ``details`` or a ``topic`` by topic and ledger.

        Costs LIST requests only; with ``details`` or ``topic`` each index is read as well, and one that is damaged leaves columns None.
        Raises ``LedgerNotFound`` for a topic that is not here.
        """
        if not details and topic is None:
            for attempt in self.attempts():
                if attempt.data is not None and attempt.is_complete:
                    yield LedgerRow(None, attempt.ledger, attempt.uuid, attempt.format, None, attempt.data.length)
            return
        found = self._ledgers(topic)
        if topic is not None and not found:
            raise self._missing(topic, None)
        for name, ledger in sorted(found, key=lambda key: (key[0] or "", -1 if key[1] is None else key[1])):
            parts = found[name, ledger]
            for part in parts:
                limit = part.said.limit
                if limit is not None:
                    limit = min([limit, *(other.first for other in parts if other.first > part.first)])
                entries = None if limit is None else max(0, limit - part.first)
                yield LedgerRow(name, ledger, part.attempt.uuid, part.attempt.format, entries, part.bytes)

    def open(self, ledger: int, uuid: str | None = None, topic: str | None = None) -> ReadHandle:
        """A ledger to be read, from its PIP-17 pair, its PIP-76 segments, or both; ``uuid``: only from this attempt, or segment.

        Raises ``LedgerNotFound`` (no complete offload), ``Conflict`` (attempts that differ; several topics or clusters have this id),
        ``Unsupported`` (a MapFile), ``Damaged`` (an index that cannot be read, or does not belong to the data object).
        """
        _, parts = self._only(ledger, uuid, topic)
        return self._handle(ledger, self._chosen(ledger, parts))

    def plan(self, topic: str | None = None, ledgers: Collection[int] | None = None) -> list[PlannedLedger]:
        """The ledgers (None: all) of a topic, or of every topic, ascending, for readers in other processes. Raises as ``open``."""
        found = self._ledgers(topic)
        keys = [(name or "", ledger) for name, ledger in found if ledger is not None]
        for missing in sorted(set(ledgers or ()) - {ledger for _, ledger in keys}):
            raise self._missing(topic, missing)
        return [
            PlannedLedger(name or None, ledger, tuple(self._chosen(ledger, found[name or None, ledger])))
            for name, ledger in sorted(keys)
            if ledgers is None or ledger in ledgers
        ]

    def open_planned(self, planned: PlannedLedger) -> StoredLedger:
        """A ledger of a plan, without a LIST request. Raises ``Damaged``, ``ChunkNotFound``."""
        return self._handle(planned.ledger, planned.parts)

    def iter_entries(
        self,
        topic: str | None = None,
        ledger: int | None = None,
        *,
        uuid: str | None = None,
        first: int = 0,
        last: int | None = None,
    ) -> Iterator[Entry]:
        """The entries of a topic, of one ledger, or of every topic in turn, by ledger. Arguments and errors: as ``iter_messages``."""
        for _, entries in self._entries(topic, ledger, uuid, first, last):
            yield from entries

    def iter_messages(
        self,
        topic: str | None = None,
        ledger: int | None = None,
        transactions: _Kept = "committed",
        messages: _Strictness = "strict",
        *,
        uuid: str | None = None,
        first: int = 0,
        last: int | None = None,
    ) -> BucketMessages:
        """The messages of a topic, of one ledger, or of every topic in turn, by ledger: what a consumer gets.

        Entries are read twice: first for how transactions ended, which a later ledger of the topic may tell.

        ``topic``: as ``persistent://public/ns/T`` or ``public/ns/persistent/T``. With ``ledger``: only this attempt (``uuid``), only
        the entries ``first`` to ``last``, both included. ``transactions``, ``messages``: as of ``codec.pulsar.messages.iter_messages``.

        Raises: as ``open``; while iterating also ``Damaged`` with ledger, entry and offset, and ``Unsupported`` (extra ``messages``).
        """
        return BucketMessages(self._runs(topic, ledger, uuid, first, last), transactions, messages)

    def message_batches(
        self,
        topic: str | None = None,
        ledger: int | None = None,
        transactions: _Kept = "committed",
        messages: _Strictness = "strict",
    ) -> pa.RecordBatchReader:
        """As ``iter_messages``, as Arrow batches: the column ``topic``, then those of ``MESSAGE_SCHEMA``. Needs pyarrow and numpy."""
        import pyarrow as pa

        from chunkstore.codec.pulsar.message_batches import MESSAGE_SCHEMA, message_batches

        schema = pa.schema([pa.field("topic", pa.string()), *MESSAGE_SCHEMA])

        def batches() -> Iterator[pa.RecordBatch]:
            for run in self._runs(topic, ledger, None, 0, None):
                for found in message_batches(
                    run.entries, known=run.known, transactions=transactions, messages=messages
                ):
                    topics = pa.array([run.topic], pa.string()).take(pa.nulls(found.num_rows, pa.int8()).fill_null(0))
                    yield pa.RecordBatch.from_arrays([topics, *found.columns], schema=schema)

        return pa.RecordBatchReader.from_batches(schema, batches())

    def verify(self, topic: str | None = None, ledger: int | None = None) -> Iterator[Finding]:
        """What is wrong with the bucket's objects, or with those of a topic or ledger: nothing if all is sound.

        Index against data, every block, every frame, the CRC32C of every message, counts and lengths against metadata, and the format
        version in user metadata, where the bucket keeps it. A lone object is a finding, but for data whose attempt is under way or dead by
        ``live``, or that is next to a complete attempt. One damaged object does not end it. Raises ``LedgerNotFound``.
        """
        check = BucketCheck(self, self._live, topic and topic_name(topic), ledger)
        yield from check.findings()
        if not check.matched and (topic is not None or ledger is not None):
            raise self._missing(topic, ledger)

    def _ledgers(
        self, topic: str | None, ledger: int | None = None, uuid: str | None = None
    ) -> dict[_Key, list[_Part]]:
        """(topic, ledger) -> its complete parts. A part that does not name its topic is of the only one that has the ledger."""
        wanted = topic and topic_name(topic)
        attempts = [
            attempt
            for attempt in self.attempts()
            if attempt.is_complete and uuid in (None, attempt.uuid)
            if ledger is None or attempt.ledger in (None, ledger)
        ]
        with closing(runtime.pool("chunkstore-indexes", _INDEX_READERS)) as pool:
            each = pool.run_all([partial(self._parts, attempt) for attempt in attempts])
        parts = [part for found in each for part in found]
        for part in parts:
            if part.error is not None:
                self._note(f"the index cannot be read: {part.error.message}")
        topics: dict[int | None, set[str]] = {}
        for part in parts:
            topics.setdefault(part.ledger, set()).update({part.topic} - {None})  # type: ignore[arg-type]
        found: dict[_Key, list[_Part]] = {}
        for part in parts:
            known = topics[part.ledger]
            name = min(known) if part.topic is None and len(known) == 1 and part.ledger is not None else part.topic
            if wanted in (None, name) and ledger in (None, part.ledger):
                found.setdefault((name, part.ledger), []).append(part)
        return found

    def _parts(self, attempt: Attempt) -> list[_Part]:
        assert attempt.data is not None
        facts = self.facts(attempt)
        if facts.index is None:
            said = Said(None, None, closed=False)
            return [_Part(attempt, facts.topic, attempt.ledger, 0, attempt.data.length, said, facts.error)]
        parts = []
        for ledger in facts.ledgers(attempt):
            if spans := facts.spans(ledger):
                size = sum(span.end - span.start for span in spans)
                parts.append(_Part(attempt, facts.topic, ledger, spans[0].first_entry, size, facts.says(ledger), None))
        return parts

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _missing(self, topic: str | None, ledger: int | None) -> LedgerNotFound:
        return LedgerNotFound(topic, ledger, where=f"{self.bucket.url}; 'chunkstore pulsar ls --details'")

    def _only(self, ledger: int, uuid: str | None, topic: str | None) -> tuple[_Key, list[_Part]]:
        """The topic that has this ledger, with the ledger, and the ledger's parts."""
        found = self._ledgers(topic, ledger, uuid)
        if not found:
            raise self._missing(topic, ledger)
        if len(found) > 1:
            names = sorted(str(name) for name, _ in found)
            raise Conflict(f"ledger {ledger}", expected="one topic", found=names, remedy="name the topic (--topic)")
        return found.popitem()

    def _chosen(self, ledger: int, parts: list[_Part]) -> list[_Part]:
        """The parts that are read, those of PIP-17 first; of attempts that hold the same, one."""
        if len(parts) > 1:
            clusters = {self.metadata(part.attempt).get("pulsarclustername") for part in parts} - {None}
            if len(clusters) > 1:
                found, remedy = sorted(map(str, clusters)), "choose one (uuid, --uuid)"
                raise Conflict(f"ledger {ledger}", expected="one cluster", found=found, remedy=remedy)
        parts = sorted(parts, key=lambda part: (part.attempt.format, part.first))
        readable = [part for part in parts if part.attempt.format != "mapfile"]
        if not readable:
            text = f"{parts[0].attempt.key} is a MapFile of Pulsar's filesystem offloader: only Hadoop reads it"
            raise Unsupported(text, feature="mapfile")
        groups = groupby(readable, key=lambda part: (part.attempt.format, part.first))
        return [self._one_of(ledger, list(group)) for _, group in groups]

    def _one_of(self, ledger: int, parts: list[_Part]) -> _Part:
        sound = [part for part in parts if part.error is None]
        named = [part for part in sound if part.attempt.uuid == self._live.uuids.get(ledger)]
        if not sound:
            assert parts[0].error is not None
            raise parts[0].error
        if named or len(sound) == 1:
            return (named or sound)[0]
        uuids = [part.attempt.uuid for part in sound]
        if not all(self._same_data(sound[0].attempt, part.attempt) for part in sound[1:]):
            remedy = "choose one (uuid, --uuid), or give the broker's output (live, --live)"
            raise Conflict(f"ledger {ledger}", expected="one attempt to offload it", found=uuids, remedy=remedy)
        self._note(f"ledger {ledger} is here {len(uuids)} times with the same bytes: {', '.join(uuids)}")
        return sound[0]

    def _same_data(self, one: Attempt, other: Attempt) -> bool:
        assert one.data is not None
        assert other.data is not None
        a, b = self.source(one.data), self.source(other.data)
        pieces = range(0, a.length, _COMPARED_BYTES)
        return a.length == b.length and all(a.read(at, _COMPARED_BYTES) == b.read(at, _COMPARED_BYTES) for at in pieces)

    def _handle(self, ledger: int, parts: Iterable[_Part]) -> StoredLedger:
        found, last, said = list[LedgerPart](), -1, Said(None, None, closed=False)
        for part in parts:
            facts, data = self.facts(part.attempt), part.attempt.data
            assert data is not None
            if facts.error is not None:
                raise facts.error
            reader, stop = self.reader(part.attempt, facts), part.said.limit
            if part.attempt.format == "v2" or stop is None:
                # Only its last block tells where a segment's part of a ledger ends.
                windows = reader.windows(ledger, facts.spans(ledger)[-1].first_entry)
                stop = 1 + max((entry_id_at(window.data, window.marks[-2]) for window in windows), default=-1)
            if stop > last + 1:
                found.append(LedgerPart(reader, max(part.first, last + 1), stop - 1, (self.bucket.url, *data)))
                last = stop - 1
            said = part.said if part.said.closed else said
        closed = said.closed and said.limit == last + 1
        length = said.length if closed else None
        return StoredLedger(ledger, found, last_add_confirmed=last, length=length, closed=closed)

    def _entries(
        self, topic: str | None, ledger: int | None, uuid: str | None, first: int, last: int | None
    ) -> Iterator[tuple[str | None, _Entries]]:
        """Each topic with its entries, or one with those of one ledger."""
        if ledger is None and (uuid is not None or first or last is not None):
            text = "uuid, first and last are of one ledger: name it (ledger, --ledger)"
            raise InvalidArgument(text, argument="ledger")
        found = self._ledgers(topic) if ledger is None else dict([self._only(ledger, uuid, topic)])
        if topic is not None and not found:
            raise self._missing(topic, None)
        keys = sorted((str(name), name, number) for name, number in found if number is not None)
        for _, group in groupby(keys, key=lambda key: key[0]):
            numbers = list(group)
            ledgers = [self._opener(number, found[name, number]) for _, name, number in numbers]
            yield numbers[0][1], _Entries(ledgers, first, last)

    def _runs(
        self, topic: str | None, ledger: int | None, uuid: str | None, first: int, last: int | None
    ) -> Iterator[_Run]:
        for name, entries in self._entries(topic, ledger, uuid, first, last):
            known = scan_transactions(_Entries(entries.ledgers, first))
            waiting = known.those("open") if ledger is not None and name is not None else ()
            later = self._ledgers(name) if waiting else {}
            for number in sorted(number for _, number in later if number is not None and number > (ledger or 0)):
                if any(known.state(txn) == "open" for txn in waiting):
                    known |= scan_transactions(_Entries([self._opener(number, later[name, number])]))
            yield _Run(name, entries, known)

    def _opener(self, ledger: int, parts: list[_Part]) -> partial[StoredLedger]:
        """Opens the ledger, as often as is wanted; its attempts are compared now, and once."""
        return partial(self._handle, ledger, self._chosen(ledger, parts))
