"""What a container's owner can be asked to do, as plain data, and the box that holds requests and answers (protocol 3.19).

Promises: frozen data. A request that is performed twice changes no more than once: a commit has a row that makes the second one fail, an
append its event number, what is staged its own name, a session its holder, a pin its name and holder; jobs can be repeated.
Leaves out: stored bytes (``chunkstore_journal.asks``), the owner (``Store.run``, ``upkeep.asked``), the client (``engine.owner``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from chunkstore.changes import Append, Change, EndSession, Replace, TablePut, check_changes
from chunkstore.changes.sessions import SessionChunk, check_holder, check_session_chunks, check_session_id
from chunkstore.config import LIMITS
from chunkstore.errors import ChunkstoreError, Damaged, InvalidArgument
from chunkstore.journal import SnapshotReport
from chunkstore.records.arguments import check_number, check_pin, check_writer
from chunkstore.records.names import check_segment_name
from chunkstore.records.reports import CollectReport, DefragReport
from chunkstore.records.segments import Pin, PinRecord

__all__ = [
    "Answer",
    "Ask",
    "AskBox",
    "AskCommit",
    "AskJob",
    "AskPin",
    "AskSession",
    "Event",
    "Request",
    "Result",
    "Stage",
    "check_ask",
    "expect",
]

T = TypeVar("T")
_JOBS = ("collect", "defrag", "snapshot")


class Event(NamedTuple):
    """Makes an append happen once: the segment's id, so that it never meets another one of its name, and the event of a writer."""

    segment_id: int
    writer_id: bytes
    event_number: int


class Stage(NamedTuple):
    """Keep each run of chunks of an open session as a staged segment, for a later commit (``owner.attach_written``)."""

    session_id: int
    runs: tuple[tuple[SessionChunk, ...], ...]


class AskCommit(NamedTuple):
    """Commit ``changes`` in one record, once. The result is the version of the row ``once``, or the offset of an append.

    ``once``: a row that expects a version; if it has its value already, at another version, the commit has happened. Or the ``Event`` of
    the only change, an ``Append``; or a ``Stage`` and no change; None where the only change is an ``EndSession``."""

    changes: tuple[Change, ...]
    once: TablePut | Event | Stage | None


class AskSession(NamedTuple):
    """Find the open session of this holder, or open one. The result is its id."""

    holder: str
    ttl_ms: int


class AskPin(NamedTuple):
    """Pin what the metadata say now (``lasts_ms`` 0: until it is given up), and get the pin; or give it up: whether it was there."""

    name: str
    wanted: PinRecord | None


class AskJob(NamedTuple):
    """Run "collect", "defrag" or "snapshot". ``segment``: the only one to be merged; None: all. The result is the job's report."""

    job: str
    segment: str | None = None


Ask: TypeAlias = AskCommit | AskSession | AskPin | AskJob
Result: TypeAlias = bool | int | Pin | CollectReport | DefragReport | SnapshotReport | None


class Request(NamedTuple):
    """An ask, when it was made, by the clock of its client, and for how long the client waits."""

    ask: Ask
    made_ms: int
    wait_ms: int


class Answer(NamedTuple):
    """By the owner of ``epoch``: the result, or the ``error`` of a request that was not and will not be performed."""

    epoch: int
    error: ChunkstoreError | None
    result: Result


class AskBox(Protocol):
    """Holds requests and answers. ``token``: 32 hex digits, the name of a request, never used twice. All raise ``StorageUnavailable``."""

    # The client's
    def send(self, token: str, request: Request) -> None:
        """Store a request, durably. Raises ``InvalidArgument`` (too long), ``StorageFull``; ``StorageUnavailable``: it may be stored."""

    def ring(self) -> None: ...
    def answer(self, token: str) -> Answer | None: ...

    def withdraw(self, token: str, *, keep_answer: bool) -> None:
        """Delete the request, which an owner that has read it may perform all the same.

        ``keep_answer``: the answer stays, so that no owner performs what the network repeats."""

    def is_succeeded(self, epoch: int) -> bool:
        """Whether there is a claim above this epoch."""

    # The owner's
    def bell(self) -> bytes:
        """What ``ring`` changes; empty before the first ring. One request."""

    def waiting(self, most: int) -> Sequence[str]:
        """The tokens of requests that have no answer, up to ``most``."""

    def request(self, token: str) -> Request | None:
        """A request; None: withdrawn, or answered before. Raises ``Damaged`` (it is none), ``Unsupported`` (of a newer version)."""

    def respond(self, token: str, answer: Answer) -> None:
        """Delete the request, then store the answer: no owner that looks from now on performs what is answered."""


def expect(kind: type[T], result: Result) -> T:
    """The result, if it is of this kind. Raises ``Damaged``: the owner is of another version of this program."""
    if not isinstance(result, kind):
        raise Damaged(f"the owner's answer is no {kind.__name__}: {result!r:.80}", object="answer")
    return result


def check_ask(ask: Ask) -> None:
    """Check arguments only, the same where it is made and where it is read. Raises ``InvalidArgument``."""
    match ask:
        case AskCommit((Append() as change,), Event(segment_id, writer_id, event_number)):
            check_changes((change,))
            check_number(segment_id, "segment_id")
            check_writer(writer_id, event_number)
            if len(change.data) > LIMITS.ask_append_bytes_max:
                text = (
                    f"{len(change.data)} bytes are more than ask_append_bytes_max ({LIMITS.ask_append_bytes_max}): append them in "
                    "pieces, write them under a session, or let the owner append them"
                )
                raise InvalidArgument(text, argument="data")
        case AskCommit((), Stage(session_id, runs)):
            check_session_id(session_id)
            if type(runs) is not tuple or not all(runs) or not 1 <= len(runs) <= LIMITS.batch_ops_max:
                what = f"runs are a tuple of 1 to {LIMITS.batch_ops_max} tuples of chunks, none empty"
                raise InvalidArgument(what, argument="runs")
            check_session_chunks(session_id, tuple(item for run in runs for item in run))
        case AskCommit((EndSession() as change,), None):
            check_changes((change,))
        case AskCommit(changes, TablePut() as once):
            check_changes((*changes, once))
            if once.expected_version is None:
                text = "once must expect a version (0: the row is absent): the commit happens only once because of it"
                raise InvalidArgument(text, argument="once")
            if any(isinstance(change, Replace) and change.session_id is None for change in changes):
                raise InvalidArgument("only chunks of a session can be asked to replace others", argument="changes")
        case AskSession(holder, ttl_ms):
            check_holder(holder, ttl_ms / 1000)
        case AskPin(name, wanted):
            check_segment_name(name, "name")
            if wanted is not None:
                check_pin(wanted.note, wanted.lasts_ms / 1000 or None)
                check_holder(wanted.holder, 1.0)
        case AskJob(job, segment) if job in _JOBS:
            if segment is not None:
                check_segment_name(segment, "segment")
        case _:
            raise InvalidArgument(f"not a request: {ask!r:.80}; see chunkstore.changes.asks", argument="ask")
