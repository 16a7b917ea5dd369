"""Caches in LMDB, as their tests make them."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb

from chunkstore.config import KIB, Settings, Tuning
from chunkstore.metadata.lmdb import LmdbMetadataCache
from chunkstore.metadata.lmdb.environment import Environment
from chunkstore.metadata.port import Commit, MetadataStore
from chunkstore.metadata.store import RowStore
from tests.support.metadata_history import History

__all__ = [
    "CONTAINER",
    "SMALL",
    "big_commit",
    "environment_of",
    "lmdb_of",
    "made_current",
    "state_file",
    "token_directories",
]

CONTAINER = bytes(range(16))
SMALL = Settings(tuning=Tuning(lmdb_map_bytes=64 * KIB))


def environment_of(store: MetadataStore | None) -> Environment:
    assert isinstance(store, RowStore) and isinstance(store.environment, Environment)
    return store.environment


def lmdb_of(store: MetadataStore) -> lmdb.Environment:
    return environment_of(store).handle


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
