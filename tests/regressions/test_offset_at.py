"""Times along a chunk list are not sorted after a concat."""

from __future__ import annotations

import time

import chunkstore
from chunkstore import Settings
from chunkstore.runtime import now_ms


def test_older_chunks_behind_a_younger_one_do_not_hide_it() -> None:
    with chunkstore.open("memory://offset-at-concat", settings=Settings(lease_s=0)) as store:
        store.create("target")
        store.append("target", b"oldest")
        store.seal("target")
        store.unseal("target")
        store.create("source", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=1))
        store.append("source", b"12345678")
        store.seal("source")
        time.sleep(0.005)
        between = now_ms()
        time.sleep(0.005)
        store.append("target", b"young")
        store.concat("target", 11, "source")
        assert store.offset_at("target", between) == 0
        assert store.offset_at("target", now_ms() + 1000) == 18
