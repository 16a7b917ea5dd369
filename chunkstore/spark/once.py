"""Exactly once: from the row of the last commit and what comes now, to what is to be done (decision 0028). Pure; no storage, no Spark.

Promises: the same micro-batch is committed once, whatever was killed between our commit and Spark's; what does not follow the stored one is
refused with both numbers. A refusal is overruled once. Leaves out: committing (``committing``).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from chunkstore.errors import Conflict
from chunkstore.metadata.sinks import SinkRow

__all__ = ["Incoming", "Verdict", "judge_batch", "judge_job"]

Verdict: TypeAlias = Literal["commit", "done", "overrule"]
"""``overrule``: commit, and remember that a refusal was overruled."""
_RESET: Final = "sinkReset=true, once, goes on from here"


class Incoming(NamedTuple):
    """A micro-batch that is to be committed. ``container``: the uuid of where to; ``reset``: option ``sinkReset``."""

    sink: str
    query: str
    batch: int
    container: bytes
    reset: bool


def judge_batch(stored: SinkRow | None, incoming: Incoming) -> Verdict:
    """What becomes of a micro-batch. Raises ``Conflict`` (expected and found): it is refused, and nothing is to be done."""
    refusal = _refusal(stored, incoming)
    is_here = stored is not None and (stored.query, stored.number) == (incoming.query, incoming.batch)
    if is_here and (refusal is None or incoming.reset):
        return "done"  # also in a copy of the container that it was committed to
    if refusal is None:
        return "commit"
    if not incoming.reset:
        raise refusal
    if stored is not None and stored.is_reset:
        remedy = "sinkReset has overruled one refusal already: start the query once without it, and set it again"
        raise Conflict(refusal.subject, expected=refusal.expected, found=refusal.found, remedy=remedy)
    return "overrule"


def judge_job(stored: SinkRow | None, version: int) -> Verdict:
    """What becomes of a batch write that has an application's id: one of this version or of a later one was committed before, or not."""
    return "commit" if stored is None or version > stored.number else "done"


def _refusal(stored: SinkRow | None, incoming: Incoming) -> Conflict | None:
    sink = f"sink {incoming.sink!r}"
    if stored is None:
        if incoming.batch == 0:
            return None
        what = f"{sink} has no row in this container: this is another one than the checkpoint is of, or an older state; micro-batch"
        return Conflict(what, expected=0, found=incoming.batch, remedy=_RESET)
    if stored.container != incoming.container:
        what = f"{sink} wrote to another container, of which this one is a copy: what came there since is not here; container"
        remedy = f"give this copy's query a checkpoint and a sinkId of its own, or {_RESET}"
        return Conflict(what, expected=stored.container.hex(), found=incoming.container.hex(), remedy=remedy)
    if stored.query != incoming.query:
        what = f"{sink} was written by another query (up to its micro-batch {stored.number}; this one brings {incoming.batch}); query"
        remedy = f"put its checkpoint back, give this query a sinkId of its own, or {_RESET}, and writes what it brings"
        return Conflict(what, expected=stored.query, found=incoming.query, remedy=remedy)
    if incoming.batch < stored.number:
        what = f"{sink}: the checkpoint is older than the container, and its micro-batches were written; micro-batch"
        return Conflict(
            what,
            expected=stored.number + 1,
            found=incoming.batch,
            remedy=f"put the newer checkpoint back, or {_RESET}, and writes again",
        )
    if incoming.batch > stored.number + 1:
        what = (
            f"{sink}: the container is older than the checkpoint, and micro-batches between are not here; micro-batch"
        )
        return Conflict(
            what,
            expected=stored.number + 1,
            found=incoming.batch,
            remedy=f"put the newer container back, or {_RESET} without them",
        )
    return None
