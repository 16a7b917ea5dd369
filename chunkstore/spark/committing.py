"""The commit of a sink: every chunk attached, the sink's row put and, the session ended, all in one record.

Promises: plain Python over a ``Door`` to the container, which asks its owner or is it; ``once`` judges what is to be done, from the
row as it is, and the commit expects that row's version: whoever else moved it meanwhile is seen, and judged again.
Leaves out: Spark, executors, where no owner runs (``owners``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from chunkstore import runtime
from chunkstore.asks import AskedChange
from chunkstore.attaching import EndingDoor, Written, attach_written, end_by_row, find_session
from chunkstore.changes import Create, TablePut
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Conflict, SegmentExists, SegmentNotFound
from chunkstore.metadata.keys import SINKS_NAMESPACE
from chunkstore.metadata.sinks import JOB, STREAM, SinkRow, decode_sink, encode_sink, sink_key, unnamed_key
from chunkstore.operations.tables import TableEntry
from chunkstore.pulsar.contexts import Context, iter_contexts
from chunkstore.records import OpenSession
from chunkstore.sessions import SessionChunk
from chunkstore.spark.chunks_out import Output
from chunkstore.spark.ledgers_in import behind_stored, changes_of, ledgers_in_order
from chunkstore.spark.ledgers_out import Offloaded
from chunkstore.spark.once import NOTHING, Content, Incoming, Verdict, judge_batch, judge_job

__all__ = [
    "SESSION_TTL_S",
    "Door",
    "Job",
    "StoreDoor",
    "commit_batch",
    "commit_job",
    "done_so_far",
    "give_up",
    "in_order",
    "was_done",
]

_TRIES: Final = 8
SESSION_TTL_S: Final = 7 * 86_400.0
"""A label: no session ends by it."""
_TOKEN_BYTES: Final = 16
_NO_SESSION: Final = 1
"""Ids hold the epoch that gave them: this is nobody's."""


class Door(EndingDoor, Protocol):
    """The way to a container's owner."""

    def is_certain(self, entry: TableEntry) -> bool:
        """Whether this row, which ``row`` has shown, is durable for certain: an asker cannot tell of the last record of all."""

    def exists(self, segment: str) -> bool:
        """Whether there is such a segment, as of the last ``row``. Raises what reading raises."""

    def find_session(self, holder: str, ttl_s: float) -> int:
        """The open session of this holder, or a new one. Raises ``OutcomeUnknown`` and what the owner says."""

    def contexts(self, topic: str) -> list[Context]:
        """The contexts of a topic's offload segments, as of the last ``row``. Raises what reading raises."""

    def attach(
        self,
        session_id: int,
        written: Sequence[Written],
        once: TablePut,
        *,
        also: Sequence[AskedChange] = (),
        end_session: bool,
    ) -> None:
        """As ``attach_written``, which see for what it raises."""


class Job(NamedTuple):
    """What the tasks of a job have written, in the order of the partitions. ``shared``: the session is not the query's alone, and no commit
    ends it. All others end theirs: none says which micro-batch is a query's last, and the sweep takes what failed tasks left."""

    session_id: int
    outputs: tuple[tuple[Output | Offloaded | Content, ...], ...]
    shared: bool = False

    def content(self) -> Content:
        """Of all tasks."""
        found = (item for outputs in self.outputs for item in outputs if isinstance(item, Content))
        return reduce(Content.plus, found, Content())


class StoreDoor:
    """The owner itself, in this process."""

    def __init__(self, store: ChunkedSegmentStorage, uuid: bytes) -> None:
        self._store = store
        self._table = store.table(SINKS_NAMESPACE)
        self.uuid = uuid

    def row(self, key: bytes) -> TableEntry | None:
        return self._table.get(key)

    def is_certain(self, entry: TableEntry) -> bool:
        return True

    def session(self, session_id: int) -> OpenSession | None:
        return next((item for item in self._store.sessions() if item.id == session_id), None)

    def exists(self, segment: str) -> bool:
        return self._store.exists(segment)

    def find_session(self, holder: str, ttl_s: float) -> int:
        return find_session(self._store, holder, ttl_s=ttl_s).session_id

    def contexts(self, topic: str) -> list[Context]:
        return iter_contexts(self._store, topic)

    def attach(
        self,
        session_id: int,
        written: Sequence[Written],
        once: TablePut,
        *,
        also: Sequence[AskedChange] = (),
        end_session: bool,
    ) -> None:
        attach_written(self._store, session_id, written, once, also=also, end_session=end_session)


def commit_batch(door: Door, incoming: Incoming, run: str, job: Job) -> Verdict:
    """Commit a micro-batch of a stream, if it is the next one; "done" if it was committed before.

    Raises ``Conflict`` (it does not follow what is stored, or was committed with other rows; its session has ended; its
    entries do not go on where a ledger ends, or somebody else writes the topic), ``InvalidArgument`` (ranges of tasks overlap, or
    leave a gap in a ledger), ``SegmentSealed``, ``OutcomeUnknown`` (it may be committed yet), and what reading raises. Atomic,
    durable. Retry: safe.
    """
    key = sink_key(STREAM, incoming.sink.encode())
    digest = blake2b(run.encode(), digest_size=16).digest()

    content = job.content()

    def judge(stored: SinkRow | None) -> Verdict:
        return judge_batch(stored, incoming, content)

    def row() -> SinkRow:
        return SinkRow(incoming.batch, door.uuid, digest, _token(), incoming.query, content.packed())

    return _commit(door, key, judge, row, job)


def commit_job(
    door: Door, application: str | None, version: int, job: Job, *, before: bytes = NOTHING, after: bytes = NOTHING
) -> Verdict:
    """Commit a batch write and end its session; "done" if its application has committed this version, or a later one, before.

    ``before``, ``after``: as of ``judge_job``. Raises and retry as ``commit_batch``; also ``Conflict`` as ``judge_job``.
    """
    key = sink_key(JOB, application.encode()) if application is not None else unnamed_key(job.session_id)
    content = job.content()

    def judge(stored: SinkRow | None) -> Verdict:
        return "commit" if application is None else judge_job(stored, application, version, before, after, content)

    def row() -> SinkRow:
        number = version if application is not None else job.session_id
        return SinkRow(number, door.uuid, after, _token(), content=content.packed())

    return _commit(door, key, judge, row, job)


def was_done(door: Door, application: str | None, version: int, *, after: bytes = NOTHING) -> bool:
    """Whether this version, or a later one, is committed for certain. Raises ``OutcomeUnknown`` (nobody answers who could say),
    ``Conflict`` (something else was, see ``judge_job``), and what reading raises."""
    entry = None if application is None else door.row(sink_key(JOB, application.encode()))
    if application is None or entry is None:
        return False
    if judge_job(decode_sink(entry.key, entry.value), application, version, after=after) != "done":
        return False
    _confirm(door, entry, _NO_SESSION)
    return True


def done_so_far(door: Door, application: str) -> SinkRow | None:
    """What was committed last under this name, for certain. Raises as ``was_done``, but for ``Conflict``."""
    entry = door.row(sink_key(JOB, application.encode()))
    if entry is None:
        return None
    _confirm(door, entry, _NO_SESSION)
    return decode_sink(entry.key, entry.value)


def give_up(door: Door, session_id: int) -> bool:
    """End the session of a batch write that failed, so that nothing of it can be attached any more; whether it was open.

    If not, it has been committed, or given up before. Raises ``OutcomeUnknown`` and what the owner says: then it may still be committed.
    """
    return end_by_row(door, unnamed_key(session_id), session_id)


def in_order(job: Job) -> dict[str, list[SessionChunk]]:
    """The chunks of each segment as they are to be attached: by partition."""
    found: dict[str, list[SessionChunk]] = {}
    for output in (item for outputs in job.outputs for item in outputs):
        if isinstance(output, Output):
            found.setdefault(output.segment, []).extend(output.chunks)
    return found


def _commit(
    door: Door,
    key: bytes,
    judge: Callable[[SinkRow | None], Verdict],
    row: Callable[[], SinkRow],
    job: Job,
) -> Verdict:
    offloaded = ledgers_in_order([item for found in job.outputs for item in found if isinstance(item, Offloaded)])
    attached = [(segment, tuple(chunks)) for segment, chunks in in_order(job).items() if chunks]
    moved: ChunkstoreError | None = None
    for _ in range(_TRIES):
        entry = door.row(key)
        stored = None if entry is None else decode_sink(key, entry.value)
        verdict = judge(stored)
        if entry is not None and verdict == "done":
            _confirm(door, entry, _NO_SESSION if job.shared else job.session_id or _NO_SESSION)
            return verdict
        if door.session(job.session_id) is None:
            what, remedy = f"session {job.session_id}, in which the chunks were written", "run it again"
            raise Conflict(what, expected="open", found="ended", remedy=remedy) from moved
        new = [Written(name, chunks, None if door.exists(name) else Create(name)) for name, chunks in attached]
        more, also = changes_of(behind_stored(door.contexts, offloaded))
        once = TablePut(SINKS_NAMESPACE, key, encode_sink(row()), 0 if entry is None else entry.version)
        try:
            door.attach(job.session_id, [*new, *more], once, also=also, end_session=not job.shared)
        except (Conflict, SegmentExists, SegmentNotFound) as error:
            moved = error  # the row, the session or a segment is not what it was
        else:
            return verdict
    assert moved is not None
    raise moved


def _confirm(door: Door, done: TableEntry, session_id: int) -> None:
    """Let the sweep have what was written once more, for it is nobody's; and be certain that what the row says is durable: a record that is
    committed behind it says so."""
    certain = door.is_certain(done)
    try:
        if end_by_row(door, done.key, session_id) or certain:
            return
        value = encode_sink(decode_sink(done.key, done.value)._replace(token=_token()))
        with suppress(Conflict):  # somebody else's record is behind it
            door.attach(session_id, (), TablePut(SINKS_NAMESPACE, done.key, value, done.version), end_session=False)
    except ChunkstoreError:
        if not certain:
            raise


def _token() -> bytes:
    return runtime.token(_TOKEN_BYTES)
