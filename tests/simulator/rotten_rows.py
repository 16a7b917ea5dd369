"""Rows of a metadata cache that rot: a bit of a value, a row that is gone, an entry of the offset index.

Nobody puts them right: whoever meets one throws the cache away and takes the state from the journal. Promises: the judges of caches
know which of them rot (``World.rotten_caches``). Leaves out: pages (``tests/unit`` flips bits of LMDB's files).
"""

from __future__ import annotations

from random import Random

from chunkstore.errors import ChunkstoreError
from chunkstore.metadata.memory import _Content
from tests.simulator.roots import RootRun

__all__ = ["RottenRow", "rot_a_row_at_rest", "rot_a_row_live"]


class RottenRow:
    """A row of one cache."""

    def __init__(self, content: _Content, key: bytes, value: bytes | None) -> None:
        self._content = content
        self._key = key
        self._gone = value is None
        if value is None:
            content.live.delete(key)
        else:
            content.live.values[key] = value

    def __repr__(self) -> str:
        return f"row {self._key!r} {'is gone' if self._gone else 'has another bit'}"

    def undo(self) -> None:
        """It stays as it is."""

    def excuses(self, error: ChunkstoreError) -> bool:
        """Whether it names a row."""
        return "metadata" in str(error)


def _flip(content: _Content, random: Random, *, gone: bool) -> RottenRow:
    key = random.choice(content.live.keys)
    value = content.live.values[key]
    assert value is not None
    if gone or not value:
        return RottenRow(content, key, None)
    place = random.randrange(len(value))
    flipped = bytes((value[place] ^ 1 << random.randrange(8),))
    return RottenRow(content, key, value[:place] + flipped + value[place + 1 :])


def rot_a_row_at_rest(run: RootRun, random: Random) -> RottenRow | None:
    """A row of a cache whose processes have died: a bit, or all of it."""
    return _rot(run, random, live=False, gone=random.random() < 0.3)


def rot_a_row_live(run: RootRun, random: Random) -> RottenRow | None:
    """A bit of a row under an owner or a replica. (Rows that vanish under them are found by the next scan only.)"""
    return _rot(run, random, live=True, gone=False)


def _rot(run: RootRun, random: Random, *, live: bool, gone: bool) -> RottenRow | None:
    caches = [
        (machine, content)
        for machine in run.world.machines.values()
        for content in machine.caches()
        if content.live.values
    ]
    if not caches:
        return None
    machine, content = random.choice(caches)
    if not live:
        run.begin_replicas(run.shut_down(machine))
    run.world.rotten_caches.append(content)
    return _flip(content, random, gone=gone)
