"""Rows of a metadata cache that rot: a bit of a row or of an index entry, under an owner or a replica, or behind one that has died.

Nobody puts them right: whoever meets one throws the cache away and takes the state from the journal, and a caller at most has to try again.
Only caches in LMDB check their rows, so runs that draw this keep theirs there. Leaves out: pages, and rows that vanish.
"""

from __future__ import annotations

import os
from random import Random

import lmdb

from chunkstore.errors import ChunkstoreError
from chunkstore.metadata.lmdb import environment
from tests.simulator.roots import RootRun

__all__ = ["RottenRow", "rot_a_row"]

_FIRST_ROW = b"\x01"


class RottenRow:
    """A row of one cache."""

    def __init__(self, path: str, key: bytes) -> None:
        self._told = f"row {key!r} of {os.path.basename(path)} has another bit"

    def __repr__(self) -> str:
        return self._told

    def undo(self) -> None:
        """It stays as it is."""

    def excuses(self, _error: ChunkstoreError) -> bool:
        """Nothing: the caller is not to hear of it."""
        return False


def rot_a_row(run: RootRun, random: Random) -> RottenRow | None:
    """Flip a bit of a row of some cache of the run, whoever has it open."""
    folder = os.path.realpath(run.world.lmdb_folder or "") + os.sep
    found = [path for path in environment._environments if path.startswith(folder)]
    if not found:
        return None
    path = random.choice(found)
    with run.scheduler.atomic(), environment._environments[path].handle.begin(write=True) as txn:
        key = _flip_a_row(txn, random)
    if key is None:
        return None
    run.world.rotten_caches += 1
    return RottenRow(path, key)


def _flip_a_row(txn: lmdb.Transaction[bytes], random: Random) -> bytes | None:
    cursor = txn.cursor()
    rows = list(cursor.iternext()) if cursor.set_range(_FIRST_ROW) else []
    if not rows:
        return None
    key, raw = random.choice(rows)
    place = random.randrange(len(raw))
    flipped = bytes((raw[place] ^ 1 << random.randrange(8),))
    txn.put(key, raw[:place] + flipped + raw[place + 1 :])
    return key
