"""The commit of a sink: every chunk attached, the sink's row put and, the session ended, all in one record.

Promises: plain Python over an ``Owner``, which is asked or here; ``once`` judges what is to be done, from the
row as it is, and the commit expects that row's version: whoever else moved it meanwhile is seen, and judged again.
Leaves out: Spark, executors, where no owner runs (``owners``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial, reduce
from hashlib import blake2b
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.asks import AskCommit
from chunkstore.changes import Create, TablePut
from chunkstore.errors import ChunkstoreError, Conflict, SegmentExists, SegmentNotFound
from chunkstore.metadata.sinks import JOB, STREAM, SinkRow, decode_sink, encode_sink, sink_key, unnamed_key
from chunkstore.names import SINKS_NAMESPACE
from chunkstore.operations.table_rows import TableEntry
from chunkstore.owner import Owner, Written, attach_written, end_session, find_session
from chunkstore.pulsar.contexts import iter_contexts
from chunkstore.reading import ReadableContainer
from chunkstore.sessions import SessionChunk
from chunkstore.spark.chunks_out import Output
from chunkstore.spark.ledgers_in import behind_stored, changes_of, ledgers_in_order
from chunkstore.spark.ledgers_out import Offloaded
from chunkstore.spark.once import NOTHING, Content, Incoming, Verdict, judge_batch, judge_job

__all__ = [
    "Job",
    "commit_batch",
    "commit_job",
    "done_so_far",
    "in_order",
    "row_of",
    "session_of",
    "was_done",
]

_TRIES: Final = 8
_SESSION_TTL_S: Final = 7 * 86_400.0
"""A label: no session ends by it."""
_TOKEN_BYTES: Final = 16


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


def session_of(owner: Owner, holder: str) -> int:
    """The open session of this holder, or a new one. Raises as ``Owner.run``."""
    return find_session(owner, holder, ttl_s=_SESSION_TTL_S).session_id


def commit_batch(owner: Owner, incoming: Incoming, run: str, job: Job) -> Verdict:
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
        return SinkRow(incoming.batch, owner.uuid, digest, _token(), incoming.query, content.packed())

    return _commit(owner, key, judge, row, job)


def commit_job(
    owner: Owner, application: str | None, version: int, job: Job, *, before: bytes = NOTHING, after: bytes = NOTHING
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
        return SinkRow(number, owner.uuid, after, _token(), content=content.packed())

    return _commit(owner, key, judge, row, job)


def was_done(owner: Owner, application: str | None, version: int, *, after: bytes = NOTHING) -> bool:
    """Whether this version, or a later one, is committed for certain. Raises ``OutcomeUnknown`` (nobody answers who could say),
    ``Conflict`` (something else was, see ``judge_job``), and what reading raises."""
    entry = None if application is None else row_of(owner.state(), sink_key(JOB, application.encode()))
    if application is None or entry is None:
        return False
    if judge_job(decode_sink(entry.key, entry.value), application, version, after=after) != "done":
        return False
    _confirm(owner, entry)
    return True


def done_so_far(owner: Owner, application: str) -> SinkRow | None:
    """What was committed last under this name, for certain. Raises as ``was_done``, but for ``Conflict``."""
    entry = row_of(owner.state(), sink_key(JOB, application.encode()))
    if entry is None:
        return None
    _confirm(owner, entry)
    return decode_sink(entry.key, entry.value)


def in_order(job: Job) -> dict[str, list[SessionChunk]]:
    """The chunks of each segment as they are to be attached: by partition."""
    found: dict[str, list[SessionChunk]] = {}
    for output in (item for outputs in job.outputs for item in outputs):
        if isinstance(output, Output):
            found.setdefault(output.segment, []).extend(output.chunks)
    return found


def _commit(
    owner: Owner,
    key: bytes,
    judge: Callable[[SinkRow | None], Verdict],
    row: Callable[[], SinkRow],
    job: Job,
) -> Verdict:
    offloaded = ledgers_in_order([item for found in job.outputs for item in found if isinstance(item, Offloaded)])
    attached = [(segment, tuple(chunks)) for segment, chunks in in_order(job).items() if chunks]
    moved: ChunkstoreError | None = None
    for _ in range(_TRIES):
        state = owner.state()
        entry = row_of(state, key)
        stored = None if entry is None else decode_sink(key, entry.value)
        verdict = judge(stored)
        if entry is not None and verdict == "done":
            _confirm(owner, entry, 0 if job.shared else job.session_id)
            return verdict
        if all(item.id != job.session_id for item in state.sessions()):
            what, remedy = f"session {job.session_id}, in which the chunks were written", "run it again"
            raise Conflict(what, expected="open", found="ended", remedy=remedy) from moved
        new = [Written(name, chunks, None if state.exists(name) else Create(name)) for name, chunks in attached]
        more, also = changes_of(behind_stored(partial(iter_contexts, state), offloaded))
        once = TablePut(SINKS_NAMESPACE, key, encode_sink(row()), 0 if entry is None else entry.version)
        try:
            attach_written(owner, job.session_id, [*new, *more], once, also=also, end_session=not job.shared)
        except (Conflict, SegmentExists, SegmentNotFound) as error:
            moved = error  # the row, the session or a segment is not what it was
        else:
            return verdict
    assert moved is not None
    raise moved


def _confirm(owner: Owner, done: TableEntry, session_id: int = 0) -> None:
    """Let the sweep have what was written once more, for it is nobody's; and be certain that what the row says is durable: a record that is
    committed behind it says so."""
    certain = owner.is_certain(done.version)
    try:
        if (session_id and end_session(owner, session_id)) or certain:
            return
        value = encode_sink(decode_sink(done.key, done.value)._replace(token=_token()))
        with suppress(Conflict):  # somebody else's record is behind it
            owner.run(AskCommit((), TablePut(SINKS_NAMESPACE, done.key, value, done.version)))
    except ChunkstoreError:
        if not certain:
            raise


def row_of(state: ReadableContainer, key: bytes) -> TableEntry | None:
    """A sink's row. Raises what reading raises."""
    return state.table(SINKS_NAMESPACE).get(key)


def _token() -> bytes:
    return runtime.token(_TOKEN_BYTES)
