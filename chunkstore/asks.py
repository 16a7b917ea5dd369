"""Asking the owner: what somebody who is not the owner may ask it to do, as plain data, and the box the requests lie in (protocol 3.19).

Promises: frozen data; a request that is carried out twice does no more than once: a commit has a table row that makes the second one
fail, an append its event number, a session is found by its holder, a pin by its holder and name, and collecting, merging and snapshots
can be repeated.
Leaves out: bytes (``chunkstore_journal.asks``), carrying out (``chunkstore.upkeep.asked``), asking (``chunkstore.asker``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from chunkstore.arguments import check_number, check_pin, check_version, check_writer
from chunkstore.changes import (
    Attach,
    Change,
    Concat,
    Create,
    EndSession,
    Replace,
    Seal,
    TablePut,
    check_changes,
)
from chunkstore.config import LIMITS
from chunkstore.errors import ChunkstoreError, InvalidArgument
from chunkstore.names import check_segment_name
from chunkstore.sessions import SessionChunk, check_holder, check_session_chunks, check_session_id

__all__ = [
    "ASKED_CHANGES",
    "Answer",
    "Ask",
    "AskAppend",
    "AskBox",
    "AskCollect",
    "AskCommit",
    "AskDefrag",
    "AskPin",
    "AskSession",
    "AskSnapshot",
    "AskStage",
    "AskUnpin",
    "AskedChange",
    "Plain",
    "Request",
    "check_ask",
]

Plain: TypeAlias = "bool | int | str | bytes | tuple[Plain, ...] | None"

AskedChange: TypeAlias = Create | Attach | Replace | Seal | Concat | EndSession | TablePut
"""What a commit that is asked for may consist of. Nothing in it deletes, and chunks are those of a session."""
ASKED_CHANGES: Final = (Create, Attach, Replace, Seal, Concat, EndSession, TablePut)


class AskSession(NamedTuple):
    """Find the open session of this holder, or open one."""

    holder: str
    ttl_ms: int


class AskCommit(NamedTuple):
    """Commit ``changes`` and ``once`` in one record. ``once`` expects a version, so that it can happen one time only; and where the row
    has its value already, at another version than expected, it has happened."""

    changes: tuple[Change, ...]
    once: TablePut


class AskStage(NamedTuple):
    """Keep each run of chunks of an open session as a staged segment, for a later commit (``chunkstore.attaching``)."""

    session_id: int
    runs: tuple[tuple[SessionChunk, ...], ...]


class AskPin(NamedTuple):
    """Pin what the metadata say now, for ``holder``; ``lasts_ms`` 0: until it is given up."""

    name: str
    note: str
    lasts_ms: int
    holder: str


class AskUnpin(NamedTuple):
    """Give up a pin."""

    name: str


class AskCollect(NamedTuple):
    """Delete garbage that is due."""


class AskDefrag(NamedTuple):
    """Merge small chunks of a segment, or of all, by the default policy."""

    segment: str | None


class AskSnapshot(NamedTuple):
    """Write a snapshot."""


class AskAppend(NamedTuple):
    """Append ``data`` to the segment of this name and id, as event ``event_number`` of a writer; at ``expected_offset``, unless None."""

    name: str
    segment_id: int
    data: bytes
    writer_id: bytes
    event_number: int
    expected_offset: int | None


Ask: TypeAlias = (
    AskSession | AskCommit | AskStage | AskPin | AskUnpin | AskCollect | AskDefrag | AskSnapshot | AskAppend
)


class Request(NamedTuple):
    """An ask, when it was made, by the clock of who made it, and for how long it will be waited for."""

    ask: Ask
    made_ms: int
    wait_ms: int


class Answer(NamedTuple):
    """What came of it, said by the owner of ``epoch``: ``error``, for a request that was not and will not be carried out, or a result."""

    epoch: int
    error: ChunkstoreError | None
    result: tuple[Plain, ...]


class AskBox(Protocol):
    """Where requests and answers lie. ``token``: 32 hex digits, the name of a request, never used twice."""

    # Who asks
    def send(self, token: str, request: Request) -> None:
        """Store a request, durably. Raises ``InvalidArgument`` (too long), ``StorageFull``; ``StorageUnavailable``: it may come to be."""

    def ring(self) -> None:
        """Make the owner look. Raises what the storage raises."""

    def answer(self, token: str) -> Answer | None:
        """The answer, or None. Raises ``Damaged``, ``StorageUnavailable``."""

    def withdraw(self, token: str, *, keep_answer: bool) -> None:
        """Delete the request, and its answer. Raises what the storage raises. Whoever has read the request may carry it out all the same.

        ``keep_answer``: it stays, so that nobody carries out what the network repeats."""

    def is_succeeded(self, epoch: int) -> bool:
        """Whether a claim stands above this epoch. Raises ``StorageUnavailable``."""

    # The owner
    def bell(self) -> bytes:
        """What ``ring`` changes; empty where nobody ever rang. One request. Raises ``StorageUnavailable``."""

    def waiting(self, most: int) -> Sequence[str]:
        """The tokens of requests that have no answer, up to ``most``. Raises ``StorageUnavailable``."""

    def request(self, token: str) -> Request | None:
        """A request; None: withdrawn, or answered before.

        Raises ``Damaged`` (it is none), ``Unsupported`` (of a newer version), ``StorageUnavailable``."""

    def respond(self, token: str, answer: Answer) -> None:
        """Delete the request, then store the answer: what is answered is not carried out by those who look from now on.

        Raises what the storage raises."""


def check_ask(ask: Ask) -> None:
    """Check arguments only, the same where it is made and where it is read. Raises ``InvalidArgument``."""
    match ask:
        case AskSession(holder, ttl_ms):
            check_holder(holder, ttl_ms / 1000)
        case AskCommit(changes, once):
            check_changes((*changes, once))
            check_version(once.expected_version)
            if once.expected_version is None:
                text = "once must expect a version (0: the row is absent): the commit happens only once because of it"
                raise InvalidArgument(text, argument="once")
            for change in changes:
                if not isinstance(change, ASKED_CHANGES):
                    kinds = ", ".join(kind.__name__ for kind in ASKED_CHANGES)
                    text = f"{type(change).__name__} cannot be asked for, only {kinds}; open the container for it"
                    raise InvalidArgument(text, argument="changes")
                if isinstance(change, Replace) and change.session_id is None:
                    raise InvalidArgument("only chunks of a session can be asked to replace others", argument="changes")
        case AskStage(session_id, runs):
            check_session_id(session_id)
            filled = type(runs) is tuple and all(type(run) is tuple and run for run in runs)
            if not filled or not 1 <= len(runs) <= LIMITS.batch_ops_max:
                what = f"runs are a tuple of 1 to {LIMITS.batch_ops_max} tuples of chunks, none empty"
                raise InvalidArgument(what, argument="runs")
            check_session_chunks(session_id, tuple(item for run in runs for item in run))
        case AskPin(name, note, lasts_ms, holder):
            check_segment_name(name, "name")
            check_pin(note, lasts_ms / 1000 or None)
            check_holder(holder, 1.0)
        case AskUnpin(name):
            check_segment_name(name, "name")
        case AskDefrag(segment) if segment is not None:
            check_segment_name(segment, "name")
        case AskAppend(name, segment_id, data, writer_id, event_number, expected_offset):
            check_segment_name(name)
            check_number(segment_id, "segment_id")
            check_writer(writer_id, event_number)
            if expected_offset is not None:
                check_number(expected_offset, "expected_offset")
            if len(data) > LIMITS.ask_append_bytes_max:
                text = (
                    f"{len(data)} bytes are more than ask_append_bytes_max ({LIMITS.ask_append_bytes_max}): append them in "
                    "pieces, write them under a session, or let the owner append them"
                )
                raise InvalidArgument(text, argument="data")
        case AskCollect() | AskDefrag() | AskSnapshot():
            pass
        case _:
            raise InvalidArgument(f"not a request: {type(ask).__name__}; see chunkstore.asks", argument="ask")
