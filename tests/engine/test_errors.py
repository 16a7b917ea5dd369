"""Every refusal, and the order of checks: argument, closed, not owner, segment exists, sealed, offset."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from chunkstore import changes
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import (
    BadOffset,
    ChunkstoreError,
    Closed,
    ContainerNotFound,
    InvalidArgument,
    NotOwner,
    SegmentNotFound,
    SegmentSealed,
)
from chunkstore.records.arguments import SegmentHandle
from tests.support.worlds import World

Call = Callable[[ChunkedSegmentStorage], object]


class Verb(NamedTuple):
    """``wrong``: a bad argument and everything else wrong too. ``good``: fine on a segment that exists."""

    wrong: Call
    missing: Call
    sealed: Call | None = None
    offset: Call | None = None


# In the store under test: "open" has 3 bytes from offset 1 on, "sealed" has 3 bytes, "missing" does not exist.
VERBS: dict[str, Verb] = {
    "create": Verb(lambda s: s.create(""), lambda s: s.create("new")),
    "create-attributes": Verb(lambda s: s.create("open", attributes={"a": 1.5}), lambda s: s.create("new")),  # type: ignore[dict-item]
    "write": Verb(
        lambda s: s.write("missing", -1, b"x"),
        lambda s: s.write("missing", 99, b"x"),
        lambda s: s.write("sealed", 99, b"x"),
        lambda s: s.write("open", 99, b"x"),
    ),
    "write-data": Verb(lambda s: s.write("missing", 99, 5), lambda s: s.write("missing", 99, b"")),  # type: ignore[arg-type]
    "append": Verb(
        lambda s: s.append("missing", b"x", expected_offset=-1),
        lambda s: s.append("missing", b"x", expected_offset=99),
        lambda s: s.append("sealed", b"x", expected_offset=99),
        lambda s: s.append("open", b"x", expected_offset=99),
    ),
    "append-writer": Verb(
        lambda s: s.append("missing", b"x", writer_id=b"w"),
        lambda s: s.append("missing", b"x", writer_id=b"w", event_number=1),
        lambda s: s.append("sealed", b"x", writer_id=b"w", event_number=1, expected_offset=9),
    ),
    "append_many": Verb(
        lambda s: s.append_many("missing", b"bytes"),  # type: ignore[arg-type]
        lambda s: s.append_many("missing", [b"x"], expected_offset=9),
        lambda s: s.append_many("sealed", [b"x"], expected_offset=9),
        lambda s: s.append_many("open", [b"x"], expected_offset=9),
    ),
    "seal": Verb(lambda s: s.seal(""), lambda s: s.seal("missing")),
    "unseal": Verb(lambda s: s.unseal(""), lambda s: s.unseal("missing")),
    "truncate": Verb(
        lambda s: s.truncate("missing", -1), lambda s: s.truncate("missing", 99), None, lambda s: s.truncate("open", 99)
    ),
    "concat": Verb(
        lambda s: s.concat("missing", -1, "missing"),
        lambda s: s.concat("missing", 99, "sealed"),
        lambda s: s.concat("sealed", 99, "sealed-2"),
        lambda s: s.concat("open", 99, "sealed"),
    ),
    "concat-self": Verb(lambda s: s.concat("missing", 99, "missing"), lambda s: s.concat("open", 99, "missing")),
    "delete": Verb(lambda s: s.delete(""), lambda s: s.delete("missing")),
    "attributes": Verb(
        lambda s: s.update_attributes("missing", {"a": 1.5}),  # type: ignore[dict-item]
        lambda s: s.update_attributes("missing", {"a": 1}, expected={"b": 2}),
    ),
    "commit": Verb(
        lambda s: s.commit([changes.Append("missing", b"x", -1)]),
        lambda s: s.commit([changes.Append("missing", b"x", 99)]),
        lambda s: s.commit([changes.Append("sealed", b"x", 99)]),
        lambda s: s.commit([changes.Append("open", b"x", 99)]),
    ),
    "open_write": Verb(lambda s: s.open_write(""), lambda s: s.open_write("missing")),
    "open_read": Verb(lambda s: s.open_read("x" * 256), lambda s: s.open_read("missing")),
    "exists": Verb(lambda s: s.exists("\0"), lambda s: s.exists("missing")),
    "info": Verb(lambda s: s.info(""), lambda s: s.info("missing")),
    "segments": Verb(lambda s: s.segments(5), lambda s: list(s.segments())),  # type: ignore[arg-type]
    "segments-after": Verb(lambda s: s.segments("", after=5), lambda s: list(s.segments())),  # type: ignore[arg-type]
    "segments-limit": Verb(lambda s: s.segments("", limit=-1), lambda s: list(s.segments())),
    "layout": Verb(lambda s: s.layout(""), lambda s: s.layout("missing")),
    "read": Verb(
        lambda s: s.read("missing", -1, 1), lambda s: s.read("missing", 99, 1), None, lambda s: s.read("open", 99, 1)
    ),
    "read-length": Verb(lambda s: s.read("missing", 0, -1), lambda s: s.read("missing", 0, 1)),
    "read_into": Verb(
        lambda s: s.read_into("missing", 0, b"readonly"),  # type: ignore[arg-type]
        lambda s: s.read_into("missing", 99, bytearray(1)),
        None,
        lambda s: s.read_into("open", 99, bytearray(1)),
    ),
    "read_into-offset": Verb(
        lambda s: s.read_into("missing", -1, bytearray(1)), lambda s: s.read_into("missing", 0, bytearray(1))
    ),
    "offset_at": Verb(lambda s: s.offset_at("missing", -1), lambda s: s.offset_at("missing", 0)),
    "wait": Verb(lambda s: s.wait("missing", -1, 0), lambda s: s.wait("missing", 0, 0)),
    "wait-timeout": Verb(lambda s: s.wait("missing", 0, -1), lambda s: s.wait("missing", 0, 9)),
    "reader": Verb(lambda s: s.reader("missing", start=-1), lambda s: s.reader("missing")),
    "reader-piece": Verb(lambda s: s.reader("missing", piece_bytes=0), lambda s: s.reader("missing")),
    "writer": Verb(lambda s: s.writer("missing", flush_bytes=0), lambda s: s.writer("missing")),
    "last_event": Verb(lambda s: s.last_event_number("missing", b""), lambda s: s.last_event_number("missing", b"w")),
    "check": Verb(lambda s: s.check("thorough"), lambda s: s.check()),  # type: ignore[arg-type]
    "table-get": Verb(lambda s: s.table("t").get(b""), lambda s: s.table("t").get(b"k")),
    "table-scan": Verb(
        lambda s: s.table("t").scan("text"),  # type: ignore[arg-type]
        lambda s: list(s.table("t").scan()),
    ),
    "table-put": Verb(lambda s: s.table("t").put(b"", b""), lambda s: s.table("t").put(b"k", b"v")),
    "table-version": Verb(
        lambda s: s.table("t").put(b"k", b"", expected_version="1"),  # type: ignore[arg-type]
        lambda s: s.table("t").put(b"k", b"", expected_version=0),
    ),
    "table-delete": Verb(lambda s: s.table("t").delete(b"k" * 401), lambda s: s.table("t").delete(b"k")),
    "session": Verb(lambda s: s.session(""), lambda s: s.session("me")),
    "snapshot": Verb(lambda s: s.open_read(""), lambda s: s.snapshot()),
    "collect": Verb(lambda s: s.open_read(""), lambda s: s.collect()),
}
NOT_ABOUT_A_SEGMENT = {
    *("create", "create-attributes", "exists", "segments", "segments-after", "segments-limit", "check", "session"),
    *("snapshot", "collect"),
}


def prepare(store: ChunkedSegmentStorage) -> None:
    store.create("open")
    store.append("open", b"1234")
    store.truncate("open", 1)
    for name in ("sealed", "sealed-2"):
        store.create(name)
        store.append(name, b"123")
        store.seal(name)


def outcome(call: Call, store: ChunkedSegmentStorage) -> type[BaseException] | None:
    try:
        call(store)
    except ChunkstoreError as error:
        assert type(pickle.loads(pickle.dumps(error))) is type(error)
        return type(error)
    return None


def test_the_order_of_checks_while_open(world: World) -> None:
    store = world.open()
    prepare(store)
    before = [*store.segments()]
    for name, verb in VERBS.items():
        assert outcome(verb.wrong, store) is InvalidArgument, name
        if verb.sealed is not None:
            assert outcome(verb.sealed, store) is SegmentSealed, name
        if verb.offset is not None:
            assert outcome(verb.offset, store) is BadOffset, name
        if not name.startswith("table-") and name not in NOT_ABOUT_A_SEGMENT:
            assert outcome(verb.missing, store) is SegmentNotFound, name
    assert [*store.segments()] == before


def test_the_order_of_checks_when_closed_and_when_fenced(world: World) -> None:
    old = world.open()
    prepare(old)
    world.open(metadata=None).close()
    for name, verb in VERBS.items():
        assert outcome(verb.wrong, old) is InvalidArgument, name
        assert outcome(verb.missing, old) is NotOwner, name
    old.close()
    for name, verb in VERBS.items():
        assert outcome(verb.wrong, old) is InvalidArgument, name
        assert outcome(verb.missing, old) is Closed, name
    old.close()


def test_fields_of_the_errors(world: World) -> None:
    store = world.open()
    prepare(store)
    store.create("unsealed")

    def caught(call: Call) -> dict[str, object]:
        with pytest.raises(ChunkstoreError) as info:
            call(store)
        assert str(info.value)
        return info.value.to_fields()

    assert caught(lambda s: s.write("open", 3, b"x")) == {"segment": "open", "expected": 4, "given": 3}
    assert caught(lambda s: s.append("open", b"x", expected_offset=5)) == {"segment": "open", "expected": 4, "given": 5}
    assert caught(lambda s: s.truncate("open", 5)) == {"segment": "open", "expected": 4, "given": 5}
    assert caught(lambda s: s.read("open", 5, 0)) == {"segment": "open", "expected": 4, "given": 5}
    assert caught(lambda s: s.read("open", 0, 0)) == {"segment": "open", "start_offset": 1, "offset": 0}
    assert caught(lambda s: s.concat("unsealed", 1, "sealed")) == {"segment": "unsealed", "expected": 0, "given": 1}
    assert caught(lambda s: s.read("missing", 0, 0)) == {"segment": "missing"}
    assert caught(lambda s: s.append("sealed", b"")) == {"segment": "sealed"}
    assert caught(lambda s: s.unseal("open")) == {"segment": "open"}
    assert caught(lambda s: s.create("open")) == {"segment": "open"}
    second = world.open()
    assert caught(lambda s: s.append("open", b"x")) == {"epoch": second.epoch - 1, "owner": second.epoch}


def test_opening_what_is_not_there_and_bad_arguments(world: World) -> None:
    with pytest.raises(ContainerNotFound) as caught:
        world.open(create=False)
    assert caught.value.container == "default"
    with pytest.raises(ContainerNotFound):
        world.replica()
    for container in ("", ".", "..", "a/b", "-a", "x" * 65, "a b", "ä", 5):
        with pytest.raises(InvalidArgument):
            world.open(container)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        world.open(wait_s=-1)
    world.open("other").create("only-here")
    store = world.open()
    assert not store.exists("only-here") and store.container == "default"
    assert world.open("other", create=False).exists("only-here")


@pytest.mark.parametrize(
    ("name", "identity"),
    [
        (None, 1),
        (7, 1),
        (b"a", 1),
        ("\ud800", 1),
        ("", 1),
        ("a\0", 1),
        ("a", None),
        ("a", "1"),
        ("a", 1.0),
        ("a", True),
    ],
)
def test_handles_that_nobody_gave_out(world: World, name: Any, identity: Any) -> None:
    """Plain data, so anybody can make them."""
    store = world.open()
    store.create("a")
    handle = SegmentHandle(name, identity, True)
    calls: list[Callable[[], object]] = [
        lambda: store.info(handle),
        lambda: store.exists(handle),
        lambda: store.read(handle, 0, 1),
        lambda: store.layout(handle),
        lambda: store.append(handle, b"1"),
        lambda: store.write(handle, 0, b"1"),
        lambda: store.seal(handle),
        lambda: store.open_write(handle),
        lambda: store.last_event_number(handle, b"w"),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument) as caught:
            call()
        assert caught.value.argument == "segment"
