"""What things cost in requests on S3: counted by the metered wrapper where calls are meant, by the binding where HTTP is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.assembly import open_store_on
from chunkstore.changes import Append
from chunkstore.config import KIB, MIB, DefragPolicy, RollingPolicy, Settings
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkHandle, ChunkRange, Composed
from chunkstore_bindings.wrappers.metered import MeteredChunkStorage
from tests.faults.ground import FULL_RUN
from tests.s3.conftest import Connect
from tests.support.alone import alone
from tests.support.epochs import age
from tests.support.requests_spent import Requests
from tests.support.servers.s3server import S3Server

EPOCHS = 1000 if FULL_RUN else 200


def settings(path: Path, **more: Any) -> Settings:
    return Settings(cache_dir=str(path), lease_s=0, **more)


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


@pytest.mark.proof
def test_composing_costs_what_it_has_to(rgw: S3Server, connect: Connect) -> None:
    """Large ranges: one request each and a handful. Small ones: their bytes once each way, and no look at their lengths. (A
    concat is the same joining, without the look for the name.)"""
    storage = connect(rgw, concurrency=8)
    large = b"0123456789abcdef" * (5 * MIB // 16 + 1)
    for number in range(12):
        storage.create(f"l/{number:03}", large)
    for number in range(300):
        storage.create(f"s/{number:04}", b"%04d" % number * (16 * KIB))
    with Requests(storage) as spent:
        made = storage.compose("c/large", [ChunkRange(f"l/{number:03}", 16, 5 * MIB) for number in range(12)])
    assert made == Composed(60 * MIB, 0)
    assert spent.moved_bytes == 0
    assert spent.verbs["COPY"] == 12
    assert spent.total <= 12 + 5
    with Requests(storage) as spent:
        made = storage.compose("c/small", [ChunkRange(f"s/{number:04}", 0, 64 * KIB) for number in range(300)])
    assert made == Composed(300 * 64 * KIB, 300 * 64 * KIB)
    assert spent.moved_bytes <= 2.1 * made.length
    assert spent.verbs["GET"] == 300
    assert spent.total <= 300 + 2 + 4
    assert storage.read(ChunkHandle("c/large", False), 5 * MIB - 8, 16) == b"89abcdef01234567"
    assert storage.read(ChunkHandle("c/small", False), 299 * 64 * KIB, 100 * KIB) == b"0299" * (16 * KIB)


@pytest.mark.proof
@pytest.mark.parametrize(("count", "size", "verify"), [(60, 64 * KIB, False), (8, 5 * MIB, False), (8, 5 * MIB, True)])
def test_a_merge_costs_what_it_says_beforehand(
    rgw: S3Server, tmp_path: Path, count: int, size: int, verify: bool
) -> None:
    storage = open_storage(rgw.root(rgw.make_bucket()), settings(tmp_path))
    with open_store_on(storage, settings=settings(tmp_path), close_storage=True) as store:
        store.create("small", rolling=RollingPolicy(chunk_size_bytes_max=size))
        store.append("small", bytes(count * size))
        store.seal("small")
        store.create("s")
        store.concat("s", 0, "small")
        alone(store)
        policy = DefragPolicy(verify=verify)
        with Requests(storage) as spent:
            would = store.defrag("s", policy=policy, dry_run=True)
        assert spent.total <= 1
        with Requests(storage) as spent:
            done = store.defrag("s", policy=policy)
        assert (done.chunks_before, done.chunks_after, done.bytes_moved) == (count, 1, count * size)
        assert abs(spent.total - would.requests) <= 8, spent.verbs
        carried = count * size if size < 5 * MIB else 0
        assert done.carried_bytes == carried
        moved = 2 * carried + (count * size if verify else 0)
        assert moved <= spent.moved_bytes <= 1.1 * moved + 64 * KIB
        assert store.read("s", 0, 1) == b"\0" and store.check("deep") == []


@pytest.mark.parametrize("opened", [True, False], ids=["opened-and-empty", "claimed-and-never-opened"])
@pytest.mark.proof
def test_a_take_over_with_many_epochs_behind_it(rgw: S3Server, tmp_path: Path, opened: bool) -> None:
    bucket = rgw.make_bucket()
    root = rgw.root(bucket)
    with chunkstore.open(root, settings=settings(tmp_path / "first")) as store:
        store.create("s")
        store.append("s", b"there")
        store.snapshot()
    storage = open_storage(root, settings(tmp_path))
    age(storage, lambda name, data: rgw.client.put_object(Bucket=bucket, Key=name, Body=data), EPOCHS, opened=opened)
    storage.close()
    for machine in ("first", "new"):
        storage = open_storage(root, settings(tmp_path))
        with Requests(storage) as spent:
            store = open_store_on(storage, settings=settings(tmp_path / machine), close_storage=True)
        assert store.epoch > EPOCHS + 1
        assert store.read("s", 0, 10) == b"there"
        assert spent.total <= 40, spent.verbs
        assert "LIST" not in spent.verbs
        store.close()
