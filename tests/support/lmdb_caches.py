"""Caches in LMDB, as their tests make them."""

from __future__ import annotations

import os
from pathlib import Path

from chunkstore.config import KIB, Settings, Tuning
from chunkstore.metadata.lmdb import LmdbMetadataCache
from chunkstore.metadata.port import Commit, MetadataStore
from tests.support.metadata_history import History

CONTAINER = bytes(range(16))
SMALL = Settings(tuning=Tuning(lmdb_map_bytes=64 * KIB))


def made_current(cache: LmdbMetadataCache, commits: int = 3) -> tuple[MetadataStore, History]:
    store, history = cache.create(), History()
    for number in range(commits):
        assert store.apply([history.commit([(b"Sa", b"%d" % number)])], verify=False)
    cache.make_current(store)
    return store, history


def token_directories(cache: LmdbMetadataCache) -> list[str]:
    return sorted(name for name in os.listdir(cache.path) if len(name) == 32)


def state_file(cache: LmdbMetadataCache) -> Path:
    (name,) = token_directories(cache)
    return Path(cache.path, name, "STATE")


def big_commit(history: History, number: int) -> Commit:
    return history.commit([(b"S%06d" % (1000 * number + row), b"x" * 100) for row in range(300)])
