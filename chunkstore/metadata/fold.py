"""Applying commits to rows: conditions, the state digest and the offset index, the same for every store.

Promises: a batch of commits that follow one another is applied to one write transaction, whole or not at all (the
caller aborts the transaction when this raises). With ``verify`` the state digest is recomputed from the rows and compared
with every commit. A row that many commits of a batch rewrite is hashed once per new value and written once, at the end.
Leaves out: transactions (the stores), and what changes mean (the engine).
"""

from __future__ import annotations

from collections.abc import Sequence

from chunkstore.checksum import DIGEST_MODULUS, row_digest
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.journal import OpCode
from chunkstore.metadata.index import (
    DROPPING,
    INDEXED,
    IndexTransaction,
    apply_operation,
    collected_runs,
    drop_dead_extents,
)
from chunkstore.metadata.keys import ROW_KINDS
from chunkstore.metadata.port import Commit, Head

__all__ = ["KEY_BYTES_MAX", "fold", "may_follow"]

KEY_BYTES_MAX = 511
"""LMDB's limit; the memory store keeps it too."""

_APPEND = int(OpCode.APPEND)
_NO_CHUNKS = ((),)
"""What stands behind the lengths of an append into the last chunk, which changes nothing in the index: nearly every operation."""


def may_follow(head: Head, commits: Sequence[Commit]) -> bool:
    """Whether ``commits`` begin right behind ``head``.

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


def fold(txn: IndexTransaction, head: Head, commits: Sequence[Commit], *, verify: bool) -> Head:
    """Apply ``commits``, for which ``may_follow`` said yes, and return the new head (not yet stored).

    Raises: ``Damaged`` if a key or an operation cannot be, or a digest differs.
    """
    if verify or len(commits) > 1:
        _fold_many(txn, head, commits, verify=verify)
    else:
        _fold_one(txn, commits[0])
    last = commits[-1]
    return Head(last.position, last.digest)


def _bad_key(key: bytes, commit: Commit) -> Damaged:
    return Damaged(f"commit {commit.position.lsn} changes a row that cannot be", object=f"metadata row {key!r}")


def _fold_one(txn: IndexTransaction, commit: Commit) -> None:
    ops = commit.ops
    collects = ops[0][0] in DROPPING if len(ops) == 1 else any(op[0] in DROPPING for op in ops)
    runs, count_max = collected_runs(txn.get, commit.rows) if collects else (set(), 0)
    for key, value in commit.rows:
        if not 0 < len(key) <= KEY_BYTES_MAX or key[0] not in ROW_KINDS:
            raise _bad_key(key, commit)
        if value is None:
            txn.delete(key)
        else:
            txn.put(key, value)
    for op in ops:
        if op[0] in INDEXED and not (op[0] == _APPEND and op[4:] == _NO_CHUNKS):
            apply_operation(txn, op)
    if runs:
        drop_dead_extents(txn, runs, count_max)


class _Overlay:
    """The transaction as the index shall see it: rows that are not written yet included. Index entries go straight through."""

    __slots__ = ("_get", "delete", "floor", "put", "rows", "scan")

    def __init__(self, txn: IndexTransaction) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self._get = txn.get
        self.put = txn.put
        self.delete = txn.delete
        self.floor = txn.floor
        self.scan = txn.scan

    def get(self, key: bytes) -> bytes | None:
        return self.rows[key] if key in self.rows else self._get(key)


def _fold_many(txn: IndexTransaction, head: Head, commits: Sequence[Commit], *, verify: bool) -> None:
    overlay = _Overlay(txn)
    rows = overlay.rows
    summands: dict[bytes, int] = {}  # of the present value of each row touched
    digest = head.digest
    claimed: set[int] = set()
    for commit in commits:
        ops = commit.ops
        collects = ops[0][0] in DROPPING if len(ops) == 1 else any(op[0] in DROPPING for op in ops)
        runs, count_max = collected_runs(overlay.get, commit.rows) if collects else (set(), 0)
        for key, value in commit.rows:
            if key not in rows:
                if not 0 < len(key) <= KEY_BYTES_MAX or key[0] not in ROW_KINDS:
                    raise _bad_key(key, commit)
                if verify:
                    old = txn.get(key)
                    summands[key] = 0 if old is None else row_digest(key, old)
            if verify:
                new = 0 if value is None else row_digest(key, value)
                digest += new - summands[key]
                summands[key] = new
            rows[key] = value
        if verify:
            digest %= DIGEST_MODULUS
            if digest != commit.digest:
                raise Damaged(
                    f"the state digest after commit {commit.position.lsn} is not the one its record states; "
                    "this state or that record was changed",
                    object="state digest",
                    position=commit.position.lsn,
                )
        for op in commit.ops:
            if op[0] in INDEXED and not (op[0] == _APPEND and op[4:] == _NO_CHUNKS):
                apply_operation(overlay, op, claimed)
        if runs:
            drop_dead_extents(overlay, runs, count_max)
    for key in sorted(rows):
        value = rows[key]
        if value is None:
            txn.delete(key)
        else:
            txn.put(key, value)
