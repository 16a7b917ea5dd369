"""Appends from other processes through the live owner: exactly once, whatever is lost on the way."""

from __future__ import annotations

from functools import partial

import pytest

from chunkstore import runtime
from chunkstore.changes import Append
from chunkstore.changes.asks import AskCommit, Event, Request
from chunkstore.config import LIMITS
from chunkstore.errors import BadOffset, Conflict, InvalidArgument, OutcomeUnknown, SegmentNotFound, SegmentSealed
from chunkstore.errors import StorageUnavailable as Unavailable
from tests.engine.test_asking import ASKED, SOON_S, answer_to, asker_box, box_of, left, send
from tests.support.data import refused
from tests.support.forwarding import Hooked
from tests.support.hooked import open_hooked, wait_for
from tests.support.worlds import World


def asked_append(name: str, segment_id: int, data: bytes, writer: bytes) -> AskCommit:
    return AskCommit((Append(name, data),), Event(segment_id, writer, 1))


def test_an_append_happens_once_and_refusals_are_the_owners(world: World) -> None:
    store = world.open(**ASKED)
    store.create("a")
    store.append("a", b"owner;")
    asker = world.asker()
    append = partial(asker.append, "a", writer_id="w", wait_s=SOON_S)
    assert append(b"one;", event_number=1) == append(b"one;", event_number=1) == 6
    assert append(memoryview(b"two;"), event_number=2, expected_offset=10) == 10
    assert append(b"two;", event_number=2, expected_offset=10) == 10
    refused(Conflict, lambda: append(b"other", event_number=2))
    refused(BadOffset, lambda: append(b"three", event_number=3, expected_offset=10))
    refused(SegmentNotFound, lambda: asker.append("no", b"x", writer_id="w", event_number=1, wait_s=SOON_S))
    store.seal("a")
    refused(SegmentSealed, lambda: append(b"three", event_number=3))
    assert append(b"two;", event_number=2) == 10, "it was there before"
    assert store.read("a", 0, 100) == b"owner;one;two;"
    asker.replica.refresh()
    assert asker.replica.read("a", 0, 100) == b"owner;one;two;"
    refused(
        InvalidArgument,
        lambda: append("text", event_number=3),  # type: ignore[arg-type]
        lambda: append(b"x", event_number=None),  # type: ignore[arg-type]
        lambda: asker.append("a", b"x", writer_id=None, event_number=None),  # type: ignore[arg-type]
        lambda: append(b"x", event_number=3, expected_offset=-1),
    )
    with pytest.raises(InvalidArgument, match="ask_append_bytes_max"):
        append(bytes(LIMITS.ask_append_bytes_max + 1), event_number=3)
    assert left(world) == []


@pytest.mark.parametrize("lost", ["answer", "both"])
def test_an_owner_that_dies_before_it_answers_has_appended_once(world: World, lost: str) -> None:
    """``answer``: the request is deleted by then; ``both``: it is there still, and a successor carries it out again."""
    store, hook = open_hooked(world, Hooked, keeper=True, **ASKED)
    store.create("a")
    asker = world.asker()

    def fail(operation: str, names: tuple[str, ...]) -> None:
        if operation == ("put" if lost == "answer" else "delete") and "/ask/" in names[0]:
            raise Unavailable("no answers today", object=names[0])

    box = asker_box(asker)
    request = Request(asked_append("a", store.info("a").id, b"once", b"w"), runtime.now_ms(), 60_000)
    token = runtime.token(16).hex()
    hook.before = fail
    box.send(token, request)
    box.ring()
    wait_for(lambda: store.info("a").length == 4)
    with pytest.raises(OutcomeUnknown):
        asker.append("a", b"once", writer_id="w", event_number=1, wait_s=0.1)
    world.crash(store)
    heir = world.open(**ASKED)
    assert asker.append("a", b"once", writer_id="w", event_number=1, wait_s=SOON_S) == 0
    if lost == "both":
        assert answer_to(box, token).result == 0
    assert asker.append("a", b"next", writer_id="w", event_number=2, wait_s=SOON_S) == 4
    assert heir.read("a", 0, 100) == b"oncenext"


def test_a_request_never_meets_another_segment_of_its_name(world: World) -> None:
    """The one that has its event may be gone when a request comes again."""
    store = world.open(**ASKED)
    store.create("a")
    asker, old = world.asker(), store.info("a").id
    assert asker.append("a", b"once", writer_id="w", event_number=1, wait_s=SOON_S) == 0
    store.delete("a")
    store.create("a")
    token = send(box_of(world), asked_append("a", old, b"once", b"w"))
    assert isinstance(answer_to(box_of(world), token).error, SegmentNotFound)
    assert store.info("a").length == 0
    assert asker.append("a", b"new", writer_id="w", event_number=1, wait_s=SOON_S) == 0, "asked for anew"
