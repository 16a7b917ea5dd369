"""Asking the owner: whoever is not the owner has something done by it, at most once, and whatever lies in the box harms nobody."""

from __future__ import annotations

import os
from typing import Any

import pytest

from chunkstore import changes as c
from chunkstore import runtime
from chunkstore.changes.asks import Answer, AskCommit, Request
from chunkstore.config import RollingPolicy
from chunkstore.engine.owner import Asker
from chunkstore.errors import (
    Conflict,
    Damaged,
    DeadlineExceeded,
    InvalidArgument,
    OutcomeUnknown,
    SegmentExists,
    SegmentNotFound,
    SegmentNotSealed,
    Unsupported,
)
from chunkstore.operations.session_writer import SessionWriter
from chunkstore_journal.asks import StoredAsks, encode_request
from tests.support.data import pattern, refused
from tests.support.hooked import wait_for
from tests.support.worlds import World

ASKED: dict[str, Any] = {"ask_s": 0.01}
SOON_S = 60.0


def once(value: bytes, expected: int = 0) -> c.TablePut:
    return c.TablePut("sink", b"query", value, expected)


def box_of(world: World) -> StoredAsks:
    return asker_box(world.asker())


def asker_box(asker: Asker) -> StoredAsks:
    box = asker._box
    assert isinstance(box, StoredAsks)
    return box


def left(world: World) -> list[str]:
    return list(box_of(world).waiting(1000))


def send(box: StoredAsks, ask: Any, *, wait_ms: int = 60_000, made_ms: int | None = None) -> str:
    token = runtime.token(16).hex()
    box.send(token, Request(ask, runtime.now_ms() if made_ms is None else made_ms, wait_ms))
    box.ring()
    return token


def answer_to(box: StoredAsks, token: str) -> Answer:
    wait_for(lambda: box.answer(token) is not None)
    answer = box.answer(token)
    assert answer is not None
    return answer


def written(world: World, writer: SessionWriter, number: int, data: bytes) -> Any:
    return writer.write_chunk(world.storage(), number, data)


def test_a_commit_of_a_sessions_chunks_happens_once_and_is_seen(world: World) -> None:
    store = world.open(**ASKED)
    store.create("a")
    asker = world.asker()
    writer = asker.session("query-1/batch-7", wait_s=SOON_S)
    assert asker.session("query-1/batch-7", wait_s=SOON_S) == writer, "found again"
    assert asker.session("query-1/batch-8", wait_s=SOON_S) != writer
    assert [item.holder for item in store.sessions()] == ["query-1/batch-7", "query-1/batch-8"]
    chunks = tuple(written(world, writer, number, pattern(number, 40)) for number in range(3))
    changes = (c.Create("b"), c.Attach("b", writer.session_id, chunks), c.Seal("b"), c.EndSession(writer.session_id))
    version = asker.commit(changes, once(b"7"), wait_s=SOON_S)
    assert asker.replica.lsn >= version
    assert store.read("b", 0, 200) == asker.replica.read("b", 0, 200) == b"".join(pattern(n, 40) for n in range(3))
    head = store._container.current.queue.head.lsn
    assert asker.commit(changes, once(b"7"), wait_s=SOON_S) == version, "the same again is not carried out again"
    assert store._container.current.queue.head.lsn <= head + 1  # a heartbeat
    moved = asker.commit((c.Concat("a", "b"),), once(b"8", version), wait_s=SOON_S)
    assert moved > version and store.info("a").length == 120
    assert left(world) == []


def test_whatever_a_commit_can_do_can_be_asked_for(world: World) -> None:
    store, asker = world.open(**ASKED), world.asker()
    for name in "abc":
        store.create(name)
    changes: list[c.Change] = [c.Append("a", b"0123456789"), c.Truncate("a", 4), c.Delete("b"), c.Concat("a", "c")]
    refused(SegmentNotSealed, lambda: asker.commit(changes, once(b"1"), wait_s=SOON_S))
    changes = [c.Seal("c"), *changes, c.UpdateAttributes("a", {"k": 1})]
    assert asker.commit(changes, once(b"1"), wait_s=SOON_S) == asker.commit(changes, once(b"1"), wait_s=SOON_S)
    info = store.info("a")
    assert (info.start_offset, info.length, dict(info.attributes)) == (4, 10, {"k": 1})
    assert [item.name for item in store.segments()] == ["a"]


def test_pins_collections_merges_and_snapshots(world: World) -> None:
    store = world.open(rolling=10, gc_grace_s=0, collect_s=0, **ASKED)
    store.create("a")
    for number in range(10):
        store.append("a", pattern(number, 10))
    asker = world.asker()
    pin = asker.pin("nightly", "backup", 3600, wait_s=SOON_S)
    assert store.pins() == [pin] == asker.replica.pins()
    assert asker.pin("nightly", "backup", 3600, wait_s=SOON_S) == pin
    refused(Conflict, lambda: asker.pin("nightly", wait_s=SOON_S))
    store.create("b", rolling=RollingPolicy(chunk_size_bytes_max=1000))
    store.seal("a")
    store.concat("b", 0, "a")
    report = asker.defrag("b", wait_s=SOON_S)
    assert report.chunks_before == 10 and report.chunks_after == store.info("b").chunk_count < 10
    assert {action.segment for action in report.actions} == {"b"}
    refused(SegmentNotFound, lambda: asker.defrag("no", wait_s=SOON_S))
    assert asker.collect(wait_s=SOON_S).pinned == 10
    other = world.asker()  # of the same host and process number, as in another container
    refused(Conflict, lambda: other.pin("nightly", "backup", 3600, wait_s=SOON_S))
    assert (asker.unpin("nightly", wait_s=SOON_S), asker.unpin("nightly", wait_s=SOON_S)) == (True, False)
    assert asker.collect(wait_s=SOON_S).chunks == 10
    taken = asker.snapshot(wait_s=SOON_S)
    assert taken.lsn <= store._container.current.queue.head.lsn and world.storage().exists(taken.name)
    assert store.optimiser.figures()["runs"]["ask"] == 11
    assert store.optimiser.figures()["errors"]["ask"] == 3


def test_refusals_are_the_owners_own_errors(world: World) -> None:
    store = world.open(**ASKED)
    store.create("a")
    asker = world.asker()
    with pytest.raises(SegmentExists) as caught:
        asker.commit((c.Create("a"),), once(b"1"), wait_s=SOON_S)
    assert caught.value.segment == "a"
    refused(Conflict, lambda: asker.commit((), once(b"1", 77), wait_s=SOON_S))
    assert store.table("sink").get(b"query") is None
    assert left(world) == []
    refused(
        InvalidArgument,
        lambda: asker.commit((), c.TablePut("sink", b"query", b"1")),
        lambda: asker.commit((c.Create("a\0"),), once(b"1")),
        lambda: asker.commit((c.Create("b"),), c.TablePut("!blocks", b"query", b"1", 0)),
        lambda: asker.session("", wait_s=1),
        lambda: asker.session("x", ttl_s=-1),
        lambda: asker.session("x", wait_s="soon"),  # type: ignore[arg-type]
        lambda: asker.pin("x", expires_s=0),
        lambda: asker.pin("x", expires_s="soon"),  # type: ignore[arg-type]
        lambda: asker.defrag("\0"),
    )
    refused(DeadlineExceeded, lambda: asker.session("x", wait_s=0))


def test_without_an_owner_nobody_answers_and_what_is_withdrawn_does_not_happen(world: World) -> None:
    store = world.open(ask_s=0)
    asker = world.asker()
    with pytest.raises(OutcomeUnknown, match="no owner answered"):
        asker.commit((c.Create("a"),), once(b"1"), wait_s=0.2)
    store.close()
    store = world.open(**ASKED)
    assert asker.session("x", wait_s=SOON_S).session_id
    assert not store.exists("a")
    assert asker.commit((c.Create("a"),), once(b"1"), wait_s=SOON_S) > 0
    assert store.exists("a")


def test_what_a_dead_owner_left_the_next_one_carries_out(world: World) -> None:
    world.open(ask_s=0)
    box = box_of(world)
    token = send(box, AskCommit((c.Create("a"),), once(b"1")))
    store = world.open(**ASKED)
    assert answer_to(box, token).error is None
    assert store.exists("a") and left(world) == []
    # Another owner read it before that, and is slow: it does not create "a" again, nor fail at it.
    store.delete("a")
    token = send(box, AskCommit((c.Create("a"),), once(b"1")))
    assert answer_to(box, token).error is None
    assert not store.exists("a")


def test_hostile_boxes_harm_nobody(world: World) -> None:
    store = world.open(**ASKED)
    box, storage = box_of(world), world.storage()
    names = store._container.names
    request = Request(AskCommit((c.Create("a"),), once(b"1")), runtime.now_ms(), 60_000)
    good = encode_request(request, box._container)
    for name, data in {
        "0" * 32: b"",
        "1" * 32: os.urandom(5000),
        "2" * 32: good[:-1],
        "3" * 32: good[:4] + b"\2" + good[5:],
        "4" * 32: bytes((15 << 20) + 1),
        "7" * 32: encode_request(request, bytes(16)),
        "not-a-token": good,
        "F" * 32: good,
        "5" * 32 + ".r": b"garbage",
        "6" * 31: good,
    }.items():
        assert storage.create_if_absent(f"{names.container}/ask/{name}", data)
    storage.put(names.bell, os.urandom(100_000))
    for digit in "012347":
        answer = answer_to(box, digit * 32)
        assert isinstance(answer.error, (Damaged, Unsupported))
    asker = world.asker()
    assert asker.session("after all that", wait_s=SOON_S).session_id
    assert not store.exists("a")
    with pytest.raises(Damaged):
        box.answer("5" * 32)


def test_a_request_of_long_ago_is_refused_and_told_why(world: World) -> None:
    store = world.open(ask_s=0)
    box = box_of(world)
    token = send(box, AskCommit((c.Create("a"),), once(b"1")), made_ms=runtime.now_ms() - 200_000)
    store.close()
    store = world.open(**ASKED)
    assert isinstance(answer_to(box, token).error, DeadlineExceeded)
    assert not store.exists("a")
    early = send(box, AskCommit((c.Create("a"),), once(b"1")), made_ms=runtime.now_ms() + 10**9)
    assert answer_to(box, early).error is None, "a clock ahead is no reason"


def test_a_deposed_owner_answers_nothing(world: World) -> None:
    first = world.open(**ASKED)
    first.create("a")
    box = box_of(world)
    heir = world.open(ask_s=0)
    heir.delete("a")
    send(
        box, AskCommit((c.Create("a"),), once(b"1")), made_ms=runtime.now_ms() - 200_000
    )  # or so says a clock that is wrong
    send(box, AskCommit((c.Create("a"),), once(b"1")))
    runtime.sleep_s(0.5)
    assert len(left(world)) == 2
    heir.close()
    asker = world.asker()
    world.open(**ASKED)
    assert asker.commit((c.Create("a"),), once(b"1"), wait_s=SOON_S) > 0
