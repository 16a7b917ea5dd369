"""Exactly once: from the row of the last commit and the incoming rows to a verdict (decision 0028). Pure; no storage, no Spark."""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Final, Literal, NamedTuple, TypeAlias

from chunkstore.errors import Conflict
from chunkstore.metadata.reserved import JOB, STREAM, SinkRow, sink_key, unnamed_key

__all__ = ["NOTHING", "Content", "MicroBatch", "Verdict", "Version", "something_else"]

Verdict: TypeAlias = Literal["commit", "done"]
NOTHING: Final = bytes(16)
"""The digest of no offload: of a batch write, too."""
_CONTENT: Final = Struct(">QQ")
_ANEW: Final = "begin with a new checkpoint, and another txnAppId where one is given"


class Content(NamedTuple):
    """What a commit writes, the same however its rows are ordered and split between tasks: Spark repeats the rows of a micro-batch, and
    neither their order nor their tasks. ``crcs``: the sum of the rows' CRC32Cs, modulo 2**64."""

    rows: int = 0
    crcs: int = 0

    def plus(self, other: Content) -> Content:
        """Of both."""
        return Content(self.rows + other.rows, (self.crcs + other.crcs) % (1 << 64))

    def packed(self) -> bytes:
        """As ``SinkRow.content``."""
        return _CONTENT.pack(*self)


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
        expected = "{} rows, {:x}".format(*_CONTENT.unpack(stored.content))
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
