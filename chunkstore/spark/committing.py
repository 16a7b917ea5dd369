"""The commit of a sink: every chunk attached, the sink's row put and the session ended, all in one record.

What to do is judged from the stored row (decision 0028), and the commit expects that row's version, so a concurrent change is judged
again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import pairwise
from typing import Final, Literal, NamedTuple, TypeAlias

from chunkstore import runtime
from chunkstore.changes import Change, Create, Seal, TablePut
from chunkstore.changes.asks import AskCommit
from chunkstore.changes.sessions import SessionChunk
from chunkstore.engine.owner import Owner, Written, attach_written, end_session, find_session
from chunkstore.engine.reading import ReadableContainer
from chunkstore.errors import ChunkstoreError, Conflict, InvalidArgument, SegmentExists, SegmentNotFound
from chunkstore.metadata.reserved import JOB, STREAM, SinkRow, decode_sink, encode_sink, sink_key, unnamed_key
from chunkstore.operations.tables import TableEntry
from chunkstore.pulsar.contexts import NAMESPACE, EntryRange, encode_context, iter_contexts, key_of
from chunkstore.records.names import SINKS_NAMESPACE
from chunkstore.spark.chunks_out import CONTENT, Content, Offloaded, Output

__all__ = [
    "NOTHING",
    "Job",
    "MicroBatch",
    "Version",
    "commit",
    "done_so_far",
    "row_of",
    "session_of",
    "something_else",
    "was_done",
]

Verdict: TypeAlias = Literal["commit", "done"]
NOTHING: Final = bytes(16)
"""The digest of no offload: of a batch write, too."""
_ANEW: Final = "begin with a new checkpoint, and another txnAppId where one is given"
_TRIES: Final = 8
_SESSION_TTL_S: Final = 7 * 86_400.0
"""A label: no session ends by it."""
_TOKEN_BYTES: Final = 16


class MicroBatch(NamedTuple):
    """One that is to be committed. ``container``: the uuid of where to. ``run``: of its query."""

    sink: str
    query: str
    batch: int
    container: bytes
    run: str = ""

    @property
    def key(self) -> bytes:
        """Of the sink's row."""
        return sink_key(STREAM, self.sink.encode())

    def judge(self, stored: SinkRow | None, content: Content) -> Verdict:
        """What becomes of it with these rows. Raises ``Conflict`` (expected and found): it is refused, and nothing is to be done."""
        refusal = _refusal(stored, self)
        if refusal is not None:
            raise refusal
        if stored is None or stored.number != self.batch:
            return "commit"
        _require_same_rows(
            stored,
            content,
            f"sink {self.sink!r} has written other rows of micro-batch {self.batch} already: the checkpoint was put back, or the "
            "query gives other rows each time, or writes several frames",
            f"put the newer checkpoint back, or {_ANEW}, from where the stored rows end; where a query writes several frames, each "
            "needs a foreach_batch with a txnAppId of its own, called once for each micro-batch",
        )
        return "done"

    def row(self, content: Content, token: bytes) -> SinkRow:
        """What is stored with its rows."""
        run = blake2b(self.run.encode(), digest_size=16).digest()
        return SinkRow(self.batch, self.container, run, token, self.query, content.packed())


class Version(NamedTuple):
    """A batch write that is to be committed. Without an ``application`` it is committed in any case, and ``version`` is its session's id.

    ``before`` and ``after``: digests of all that the application has written so far, and then."""

    application: str | None
    version: int
    container: bytes
    before: bytes = NOTHING
    after: bytes = NOTHING

    @property
    def key(self) -> bytes:
        """Of the application's row."""
        return unnamed_key(self.version) if self.application is None else sink_key(JOB, self.application.encode())

    def judge(self, stored: SinkRow | None, content: Content | None) -> Verdict:
        """Whether this version, or a later one, was committed before. ``content``: of the rows, if known; only those of the last
        version are stored. Raises ``Conflict``: it was not, or with other rows."""
        if self.application is None:
            return "commit"
        number, digest = (-1, NOTHING) if stored is None else (stored.number, stored.run)
        if self.version > number and digest == self.before:
            return "commit"
        if self.version <= number and digest == self.after:
            if stored is not None and self.version == number and content is not None:
                what = f"version {self.version} of {self.application!r} was written with other rows"
                _require_same_rows(stored, content, what, "give new rows a txnVersion above it, or another txnAppId")
            return "done"
        raise something_else(self.application, self.after, digest)

    def row(self, content: Content, token: bytes) -> SinkRow:
        """What is stored with its rows."""
        return SinkRow(self.version, self.container, self.after, token, content=content.packed())


def something_else(application: str, asked: bytes, found: bytes) -> Conflict:
    """The error of a name under which something else was written, or is: nothing is passed over because of its name alone."""
    what = (
        f"the job {application!r} wrote other files or options before (lengths, times, topic, ledger, kind of "
        "entries), or another driver is writing it now; digest"
    )
    remedy = "run it again if another driver did; else use a new job name and ledgers after the stored ones"
    return Conflict(what, expected=asked.hex(), found=found.hex(), remedy=remedy)


def _require_same_rows(stored: SinkRow, content: Content, what: str, remedy: str) -> None:
    if stored.content != content.packed():
        expected = "{} rows, {:x}".format(*CONTENT.unpack(stored.content))
        found = f"{content.rows} rows, {content.crcs:x}"
        raise Conflict(f"{what}; rows and sum of their CRCs", expected=expected, found=found, remedy=remedy)


def _refusal(stored: SinkRow | None, incoming: MicroBatch) -> Conflict | None:
    sink = f"sink {incoming.sink!r}"
    if stored is None:
        if incoming.batch == 0:
            return None
        what = f"{sink} has no row in this container: the checkpoint is of another container, or this is an older state; micro-batch"
        return Conflict(what, expected=0, found=incoming.batch, remedy=_ANEW)
    if stored.container != incoming.container:
        what = f"{sink} wrote to another container, of which this one is a copy: later writes there are not here; container"
        remedy = "give this copy's query a checkpoint and a txnAppId of its own"
        return Conflict(what, expected=stored.container.hex(), found=incoming.container.hex(), remedy=remedy)
    if stored.query != incoming.query:
        what = f"{sink} was written by another query (up to its micro-batch {stored.number}; this one brings {incoming.batch}); query"
        remedy = "put its checkpoint back, or give this query a txnAppId of its own"
        return Conflict(what, expected=stored.query, found=incoming.query, remedy=remedy)
    if incoming.batch < stored.number:
        what = f"{sink}: the checkpoint is older than the container, and its micro-batches were written; micro-batch"
        return Conflict(
            what,
            expected=stored.number + 1,
            found=incoming.batch,
            remedy=f"put the newer checkpoint back, or {_ANEW}: it writes again",
        )
    if incoming.batch > stored.number + 1:
        what = (
            f"{sink}: the container is older than the checkpoint, and micro-batches between are not here; micro-batch"
        )
        return Conflict(
            what,
            expected=stored.number + 1,
            found=incoming.batch,
            remedy=f"put the newer container back, or {_ANEW}",
        )
    return None


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


def was_done(owner: Owner, version: Version) -> bool:
    """Whether this version, or a later one, is committed for certain. Raises ``OutcomeUnknown`` (no one answers who could say),
    ``Conflict`` (something else was, see ``Version.judge``), and what reading raises."""
    stored = done_so_far(owner, version)
    return stored is not None and version.judge(stored, None) == "done"


def done_so_far(owner: Owner, version: Version) -> SinkRow | None:
    """What was committed last under the name of the application, for certain. Raises as ``was_done``, but for ``Conflict``."""
    entry = None if version.application is None else row_of(owner.state(), version.key)
    if entry is None:
        return None
    _confirm(owner, entry)
    return decode_sink(entry.key, entry.value)


def commit(owner: Owner, incoming: MicroBatch | Version, job: Job) -> Verdict:
    """Commit what the tasks have written, unless it was committed before: then "done".

    Raises ``Conflict`` (it does not follow what is stored, or was committed with other rows; its session has ended; its
    entries do not go on where a ledger ends, or somebody else writes the topic), ``InvalidArgument`` (ranges of tasks overlap, or
    leave a gap in a ledger), ``SegmentSealed``, ``OutcomeUnknown`` (it may be committed yet), and what reading raises. Atomic,
    durable. Retry: safe.
    """
    content = job.content()
    found = [item for outputs in job.outputs for item in outputs]
    offloaded = _ledgers_in_order([item for item in found if isinstance(item, Offloaded)])
    chunks: dict[str, list[SessionChunk]] = {}
    for item in found:
        if isinstance(item, Output) and item.chunks:
            chunks.setdefault(item.segment, []).extend(item.chunks)
    moved: ChunkstoreError | None = None
    for _ in range(_TRIES):
        state = owner.state()
        entry = row_of(state, incoming.key)
        verdict = incoming.judge(None if entry is None else decode_sink(incoming.key, entry.value), content)
        if entry is not None and verdict == "done":
            _confirm(owner, entry, 0 if job.shared else job.session_id)
            return verdict
        if all(item.id != job.session_id for item in state.sessions()):
            what, remedy = f"session {job.session_id}, in which the chunks were written", "run it again"
            raise Conflict(what, expected="open", found="ended", remedy=remedy) from moved
        new = [
            Written(name, tuple(each), None if state.exists(name) else Create(name)) for name, each in chunks.items()
        ]
        more, also = _changes_of(_not_stored_yet(state, offloaded))
        value = encode_sink(incoming.row(content, runtime.token(_TOKEN_BYTES)))
        once = TablePut(SINKS_NAMESPACE, incoming.key, value, 0 if entry is None else entry.version)
        try:
            attach_written(owner, job.session_id, [*new, *more], once, also=also, end_session=not job.shared)
        except (Conflict, SegmentExists, SegmentNotFound) as error:
            moved = error  # the row, the session or a segment is not what it was
        else:
            return verdict
    assert moved is not None
    raise moved


def _confirm(owner: Owner, done: TableEntry, session_id: int = 0) -> None:
    """Let the sweep have what was written once more, for it is no one's; and be certain that what the row says is durable: a record that is
    committed after it says so."""
    certain = owner.is_certain(done.version)
    try:
        if (session_id and end_session(owner, session_id)) or certain:
            return
        value = encode_sink(decode_sink(done.key, done.value)._replace(token=runtime.token(_TOKEN_BYTES)))
        with suppress(Conflict):  # somebody else's record is after it
            owner.run(AskCommit((), TablePut(SINKS_NAMESPACE, done.key, value, done.version)))
    except ChunkstoreError:
        if not certain:
            raise


def row_of(state: ReadableContainer, key: bytes) -> TableEntry | None:
    """A sink's row. Raises what reading raises."""
    return state.table(SINKS_NAMESPACE).get(key)


_REMEDY: Final = "repartition by topic and ledger, or repartitionByRange by topic, ledger and entry"


def _ledgers_in_order(found: Sequence[Offloaded]) -> list[Offloaded]:
    """These in an order in which the entries of every ledger ascend. Raises ``InvalidArgument`` where ranges of tasks overlap, leave a gap,
    or cross: then no order is one."""
    parts: dict[tuple[str, int], list[tuple[EntryRange, int]]] = {}
    for number, item in enumerate(found):
        for entries in item.context.ranges:
            parts.setdefault((item.context.topic, entries.ledger), []).append((entries, number))
    before: dict[int, set[int]] = {number: set() for number in range(len(found))}
    for (topic, ledger), rows in parts.items():
        rows.sort()
        for (one, earlier), (other, later) in pairwise(rows):
            if other.first_entry != one.last_entry + 1:
                how = "overlap" if other.first_entry <= one.last_entry else "leave a gap"
                text = (
                    f"entries {one.first_entry} to {one.last_entry} and {other.first_entry} to {other.last_entry} of "
                    f"ledger {ledger} of topic {topic!r} {how}: {_REMEDY}"
                )
                raise InvalidArgument(text, argument="entry")
            before[later].add(earlier)
    sorter = TopologicalSorter(before)
    try:
        sorter.prepare()
    except CycleError as error:
        text = f"tasks have parts of the same ledgers, crosswise: {_REMEDY}"
        raise InvalidArgument(text, argument="ledger") from error
    ready: list[tuple[str, EntryRange, int]] = []
    order: list[Offloaded] = []
    while sorter.is_active():
        for number in sorter.get_ready():
            heappush(ready, (found[number].context.topic, found[number].context.ranges[0], number))
        number = heappop(ready)[-1]
        sorter.done(number)
        order.append(found[number])
    return order


def _not_stored_yet(state: ReadableContainer, found: Iterable[Offloaded]) -> list[Offloaded]:
    """These with their sequence numbers, after what is stored of their topics.

    Raises ``Conflict``: an offload segment of the topic is open, so that somebody else writes it; or a ledger does not go on after the
    last entry that is stored, ``expected`` being the one after it and ``found`` the first that came."""
    sequences: dict[str, int] = {}
    lasts: dict[tuple[str, int], int] = {}
    numbered: list[Offloaded] = []
    for item in found:
        topic = item.context.topic
        if topic not in sequences:
            sequences[topic] = 0
            for context in iter_contexts(state, topic):
                sequences[topic] = context.sequence + 1
                if not context.complete:
                    what = f"offload segment {context.sequence} of topic {topic!r}"
                    remedy = "an OffloadWriter is filling it; let it complete, or create another one that continues it"
                    raise Conflict(what, expected="complete", found="open", remedy=remedy)
                for entries in context.ranges:
                    key = topic, entries.ledger
                    lasts[key] = max(entries.last_entry, lasts.get(key, -1))
        for entries in item.context.ranges:
            last = lasts.get((topic, entries.ledger), -1)
            if 0 <= last != entries.first_entry - 1:
                how = "these are stored already" if entries.first_entry <= last else "those between are missing"
                what = f"the first entry for ledger {entries.ledger} of topic {topic!r}, which has entries up to {last}"
                raise Conflict(what, expected=last + 1, found=entries.first_entry, remedy=f"{how}: choose others")
            lasts[topic, entries.ledger] = entries.last_entry
        numbered.append(item._replace(context=item.context._replace(sequence=sequences[topic])))
        sequences[topic] += 1
    return numbered


def _changes_of(found: Iterable[Offloaded]) -> tuple[list[Written], list[Change]]:
    """What makes them visible: segments with their chunks, and what comes after these, seals and contexts."""
    written: list[Written] = []
    also: list[Change] = []
    for context, data, index in found:
        for name, chunks in ((context.data, data), (context.index_segment, index)):
            written.append(Written(name, chunks, Create(name)))
            also.append(Seal(name))
        also.append(TablePut(NAMESPACE, key_of(context.topic, context.sequence), encode_context(context), 0))
    return written, also
