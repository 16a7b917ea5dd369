"""What things cost in requests on S3: counted by the metered wrapper where calls are meant, by the binding where HTTP is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chunkstore.assembly import open_store_on
from chunkstore.changes import Append
from chunkstore.config import KIB, MIB, Settings
from chunkstore.registry import open_storage
from chunkstore_bindings.wrappers.metered import MeteredChunkStorage
from tests.support.alone import alone
from tests.support.requests_spent import Requests
from tests.support.servers.s3server import S3Server
from tests.support.settings import tuned


def settings(path: Path, **more: Any) -> Settings:
    return tuned(cache_dir=str(path), lease_s=0, **more)


@pytest.mark.parametrize("segments", [1, 8])
def test_a_group_commit_is_one_put_more_than_it_has_chunks(server: S3Server, tmp_path: Path, segments: int) -> None:
    metered = MeteredChunkStorage(open_storage(server.root(server.make_bucket()), settings(tmp_path)))
    chosen = settings(tmp_path, inline_bytes_max=0)
    store = open_store_on(metered, settings=chosen, close_storage=True)
    names = [f"s{number}" for number in range(segments)]
    for name in names:
        store.create(name)
    alone(store)
    with Requests(metered) as spent, metered.counting() as calls:
        store.commit([Append(name, b"x" * 10 * KIB) for name in names])
    assert calls.requests == {"create": segments, "create_if_absent": 1}
    assert spent.verbs == {"PUT": segments + 1}
    store.close()


def test_an_append_in_the_record_is_one_put(server: S3Server, tmp_path: Path) -> None:
    storage = open_storage(server.root(server.make_bucket()), settings(tmp_path))
    with open_store_on(storage, settings=settings(tmp_path, spill_s=3600.0), close_storage=True) as store:
        alone(store)
        for name in ("a", "b", "c"):
            store.create(name)
        with Requests(storage) as spent:
            store.append("a", b"x" * KIB)
        assert spent.verbs == {"PUT": 1}
        with Requests(storage) as spent:
            store.commit([Append(name, b"x" * KIB) for name in ("a", "b", "c") * 4])
        assert spent.verbs == {"PUT": 1}
        with Requests(storage) as spent:
            store.spill(["a"])
        assert spent.verbs == {"PUT": 2}
        assert [chunk.length for chunk in store.layout("a")] == [5 * KIB]


def test_a_read_is_one_get_and_a_look_at_the_fence(server: S3Server, tmp_path: Path) -> None:
    root = server.root(server.make_bucket())
    storage = open_storage(root, settings(tmp_path))
    with open_store_on(storage, settings=settings(tmp_path), close_storage=True) as store:
        store.create("s")
        store.append("s", b"x" * MIB)
        alone(store)
        with Requests(storage) as spent:
            assert len(store.read("s", 100, 1000)) == 1000
        assert spent.verbs == {"GET": 1, "HEAD": 1}
