"""Applying commits to rows: conditions, the state digest and the offset index, the same for every store.

Promises: a batch of commits that follow one another is applied to one write transaction, whole or not at all (the
caller aborts the transaction when this raises). Rows of lines are derived here (``lines``). With ``verify`` the state digest is
recomputed from the rows and compared with every commit that states one. A row that many commits of a batch rewrite is hashed once
per new value and written once, at the end.
Leaves out: transactions (the stores), and what changes mean (the engine).
"""

from __future__ import annotations

from collections.abc import Sequence

from chunkstore.checksum import DIGEST_MODULUS, row_digest
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.journal import OpCode
from chunkstore.metadata.codec import decode_chunk
from chunkstore.metadata.index import (
    INDEXED,
    add_extents,
    apply_operation,
    run_range,
)
from chunkstore.metadata.keys import CHUNK, EXTENT, INLINE, ROW_KINDS, chunk_key
from chunkstore.metadata.lines import LineFold
from chunkstore.metadata.ordered_map import Transaction
from chunkstore.metadata.port import Commit, Head, RowChange
from chunkstore.metadata.transaction import RowTransaction
from chunkstore.records.names import CHUNK_ID_BYTES, chunk_segment

__all__ = ["KEY_BYTES_MAX", "Fold", "may_follow"]

KEY_BYTES_MAX = 511
"""LMDB's limit; the memory store keeps it too."""

_APPEND = int(OpCode.APPEND)
_DROPPING = frozenset((int(OpCode.COLLECT), int(OpCode.SPILL)))
"""Opcodes whose rows of chunks go."""
_DROP_SLACK = 64
_NO_CHUNKS = ((),)
"""What follows the lengths of an append into the last chunk, which changes nothing in the index: nearly every operation."""


def may_follow(head: Head, commits: Sequence[Commit]) -> bool:
    """Whether ``commits`` begin right after ``head``.

    Raises ``InvalidArgument`` if the commits do not follow one another.
    """
    lsn, link = head.position.lsn, head.position.hash
    first = commits[0]
    if first.previous_hash != link or first.position.lsn != lsn + 1:
        return False
    if len(commits) > 1:
        for commit in commits:
            lsn += 1
            if commit.previous_hash != link or commit.position.lsn != lsn:
                raise InvalidArgument(f"commit {commit.position.lsn} does not follow {lsn - 1}", argument="commits")
            link = commit.position.hash
    return True


class Fold(RowTransaction):
    """A batch of commits, for which ``may_follow`` said yes, on a store at ``head``. Here the index sees rows that are not written yet."""

    def __init__(self, txn: Transaction, head: Head, *, verify: bool, counts: bool) -> None:
        super().__init__(txn, counts=counts)
        self._digest = head.digest
        self._rows: dict[bytes, bytes | None] = {}
        self._fresh: set[bytes] = set()
        """Keys that the transaction has no row of."""
        self._summands: dict[bytes, int] | None = {} if verify else None
        """Of the present value of each row touched."""
        self._claimed: set[int] = set()
        self._lines = LineFold(self.get)

    def get(self, key: bytes) -> bytes | None:
        return self._rows[key] if key in self._rows else super().get(key)

    def apply(self, commits: Sequence[Commit]) -> Head:
        """Apply all of them; returns the new head (not yet stored). Raises ``Damaged`` if a key or an operation cannot be, or a digest
        differs."""
        has_lines = False
        for commit in commits:
            if commit.lines is not None:
                self._lines.add(commit.lines)
                has_lines = True
                continue
            if has_lines:
                self._derive()
                has_lines = False
            self._change(commit)
        if has_lines:
            self._derive()
        if self._fresh:
            fresh = sorted(self._fresh.intersection(self._rows))
            self.put_new([(key, value) for key in fresh if (value := self._rows.pop(key)) is not None])
        for key in sorted(self._rows):
            value = self._rows[key]
            if value is None:
                self.delete(key)
            else:
                self.put(key, value)
        return Head(commits[-1].position, self._digest)

    def _derive(self) -> None:
        """The rows of the lines so far."""
        rows, fresh, extents = self._lines.take()
        digest, summands = self._digest, self._summands
        for key, value, old in rows:
            new = row_digest(key, value)
            digest += new
            if old is not None:
                digest -= row_digest(key, old) if summands is None or key not in summands else summands[key]
            if summands is not None:
                summands[key] = new
            self._rows[key] = value
        self._digest = digest % DIGEST_MODULUS
        self._fresh.update(key for key, _, _ in rows[:fresh])
        for segment_id, chunks in extents:
            add_extents(self, segment_id, chunks, self._claimed)

    def _change(self, commit: Commit) -> None:
        rows, ops, summands = self._rows, commit.ops, self._summands
        collects = ops[0][0] in _DROPPING if len(ops) == 1 else any(op[0] in _DROPPING for op in ops)
        runs, count_max = self._collected_runs(commit.rows) if collects else (set(), 0)
        digest = self._digest
        for key, value in commit.rows:
            if key not in rows and (not 0 < len(key) <= KEY_BYTES_MAX or key[0] not in ROW_KINDS):
                raise Damaged(
                    f"commit {commit.position.lsn} changes a row that cannot be", object=f"metadata row {key!r}"
                )
            if summands is not None:
                if key not in summands:
                    old = super().get(key)
                    summands[key] = 0 if old is None else row_digest(key, old)
                new = 0 if value is None else row_digest(key, value)
                digest += new - summands[key]
                summands[key] = new
            rows[key] = value
        if summands is None and commit.digest is not None:
            digest = commit.digest
        self._digest = digest % DIGEST_MODULUS
        if self._digest != commit.digest:
            raise Damaged(
                f"the state digest after commit {commit.position.lsn} is not the one its record states; "
                "this state or that record was changed",
                object="state digest",
                position=commit.position.lsn,
            )
        for op in ops:
            if op[0] in INDEXED and not (op[0] == _APPEND and op[4:] == _NO_CHUNKS):
                apply_operation(self, op, self._claimed)
        if runs:
            self._drop_dead_extents(runs, count_max)

    # What is dropped from the index

    def _collected_runs(self, rows: Sequence[RowChange]) -> tuple[set[int], int]:
        """The runs that the chunks deleted by ``rows`` belong to, and how many extents may be dropped for them."""
        runs: set[int] = set()
        count = 0
        for key, value in rows:
            if value is None and key[:1] == CHUNK and len(key) == 1 + CHUNK_ID_BYTES:
                count += 1
                segment_id = chunk_segment(key[1:])
                if segment_id is None:
                    # A session's chunk names its segment only in its row, which is about to go.
                    old = self.get(key)
                    if old is None:
                        continue
                    segment_id = decode_chunk(key, old).segment_id
                runs.add(segment_id)
        return runs, 2 * count + _DROP_SLACK

    def _drop_dead_extents(self, runs: set[int], count_max: int) -> None:
        """Drop extents from the low end of ``runs`` while their chunks' rows are gone, at most ``count_max`` in all."""
        # An extent is put by the commit that makes its chunk's row, so an extent without row is dead for ever. The bound is twice what the
        # commit forgets: collections that were held up (by a pin) are caught up with, and no commit is slow.
        for run in sorted(runs):
            for kind in (EXTENT, INLINE):
                dead: list[bytes] = []
                for key, identity in self.scan(*run_range(kind, run)):
                    if len(dead) >= count_max or self.get(chunk_key(identity)) is not None:
                        break
                    dead.append(key)
                for key in dead:
                    self.delete(key)
                count_max -= len(dead) if kind == EXTENT else 0
