"""CODE_ONLY_UPGRADE: headers follow the journal, in every world."""

from __future__ import annotations

import pytest

import chunkstore
from chunkstore.codec.rolling_header import MaxSizeEntry, decode_entries, decode_header, encode_header
from chunkstore.errors import (
    Conflict,
)
from chunkstore.storage import ChunkStorage
from tests.support.old_layout import (
    CODE_ONLY,
    EPOCH_SEGMENT,
    LAYOUT,
    SMALL,
    export_root,
    facts,
    follow,
    header_of,
    import_root,
    old_root,
    old_view,
    opened,
    put,
)
from tests.support.worlds import World


def test_headers_follow_the_journal_and_the_old_code_reads_them(world: World) -> None:
    expected = old_root(world)
    with opened(world, layout=CODE_ONLY, rolling=10) as store:
        store.append(EPOCH_SEGMENT, b", and on")
        store.create("new")
        for at in range(0, 36, 9):
            store.append("new", bytes(range(at, at + 9)))
        store.create("cut", rolling=SMALL)
        for _ in range(3):
            store.append("cut", b"123456789")
        store.truncate("cut", 13)
        store.info("a")
        store.info("empty")
        assert follow(store) == []
        assert old_view(world, "a") == (0, expected["a"][3])
        assert old_view(world, EPOCH_SEGMENT) == (5, b"deep down, and on")
        assert old_view(world, "new") == (0, bytes(range(36)))
        assert old_view(world, "empty") == (0, b"")
        start, data = old_view(world, "cut")
        assert data == (b"123456789" * 3)[start:]
        assert start <= 13
        chunks = set(world.chunks())
        assert all(entry.name in chunks for name in ("a", "new", "cut") for entry in header_of(world, name))
        store.delete("new")
        store.seal("cut")
        store.unseal("cut")
        store.seal("cut")
        assert follow(store) == []
        assert "new$header" not in world.objects()
        if world.raw_storage().capabilities.set_read_only:
            assert not world.raw_storage().open_write("cut$header").writable


def test_a_header_grows_by_what_is_written_behind_it_where_the_storage_appends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(world, layout=CODE_ONLY, rolling=10) as store:
        store.create("log")
        store.append("log", b"0123456789")
        follow(store)
        before = world.content("log$header")
        store.append("log", b"0123456789")
        puts: list[str] = []
        real = type(store.read_context.storage).put

        def noted(self: ChunkStorage, name: str, data: bytes) -> None:
            puts.append(name)
            real(self, name, data)

        monkeypatch.setattr(type(store.read_context.storage), "put", noted)
        follow(store)
        after = world.content("log$header")
        assert len(header_of(world, "log")) == 2
        assert after.startswith(before)
        assert ("log$header" in puts) is not world.appends


def test_close_lets_them_follow_and_an_interrupted_owner_s_successor_mends_them(world: World) -> None:
    with opened(world, layout=CODE_ONLY) as store:
        store.create("one")
        store.append("one", b"first")
    assert old_view(world, "one") == (0, b"first")
    store = opened(world, rolling=5)
    store.append("one", b"second")
    store.create("two")
    store.append("two", b"2")
    store.create("gone")
    follow(store)
    world.crash(store)
    store.append("one", b"third")
    store.delete("gone")
    # Between commit and header.
    assert "gone$header" in world.objects()
    # By default it goes on as it was told to.
    opened(world)
    assert old_view(world, "one") == (0, b"firstsecondthird")
    assert old_view(world, "two") == (0, b"2")
    assert "gone$header" not in world.objects()


@pytest.mark.parametrize("rest", [b"", b"12", b"12=", b"nonsense&", b"maxsize=1&"])
def test_a_header_whose_writer_was_killed_is_mended(world: World, rest: bytes) -> None:
    with opened(world, layout=CODE_ONLY, rolling=4) as store:
        store.create("log")
        store.append("log", b"0123")
        store.append("log", b"4567")
    whole = world.content("log$header")
    put(world, log_header=whole[: whole.rindex(b"4=")] + rest)
    with opened(world) as store:
        assert old_view(world, "log") == (0, b"01234567")
        store.append("log", b"8")
        follow(store)
        assert old_view(world, "log") == (0, b"012345678")


def test_what_a_crash_left_behind_the_last_record_is_not_shown_to_the_old_code(world: World) -> None:
    with opened(world, layout=CODE_ONLY) as store:
        store.create("log")
        store.append("log", b"acknowledged")
        (chunk,) = store.layout("log")
    world.overwrite(chunk.name, b"acknowledged, and not")
    with opened(world) as store:
        assert old_view(world, "log") == (0, b"acknowledged")
        (copy,) = header_of(world, "log")
        assert copy.name.startswith("log$offset.0.")
    with opened(world) as store:
        assert header_of(world, "log") == (copy,), "the copy that is there is as good"
        store.append("log", b"!")
        follow(store)
        assert old_view(world, "log") == (0, b"acknowledged!")
        assert copy.name not in world.objects()


def test_nothing_is_deleted_that_a_header_names(world: World) -> None:
    with opened(world, layout=CODE_ONLY, gc_grace_s=0, rolling=4) as store:
        store.create("log")
        for _ in range(8):
            store.append("log", b"0123")
        follow(store)
        store.defrag(policy=chunkstore.DefragPolicy(fanout=2))
        store.truncate("log", 4)
        assert store.collect().chunks
        start, data = old_view(world, "log")
        assert (b"0123" * 8)[start:] == data


def test_a_deposed_owner_that_writes_late_is_mended(world: World) -> None:
    """Old headers are not fenced: what a zombie puts is an older state, or one of a segment that is gone."""
    with opened(world, layout=CODE_ONLY, rolling=4) as store:
        store.create("log")
        store.append("log", b"0123")
        store.create("gone")
        follow(store)
        old = {name: world.content(name) for name in ("log$header", "gone$header")}
        store.append("log", b"4567")
        store.delete("gone")
    for name, data in old.items():
        world.raw_storage().put(name, data)
    with opened(world) as store:
        assert old_view(world, "log") == (0, b"01234567")
        assert "gone$header" not in world.objects()
        world.raw_storage().put("gone$header", old["gone$header"])
        assert not store.exists("gone"), "it is ours, so nothing is imported of it"


def test_where_the_old_code_has_gone_on_nobody_opens(world: World) -> None:
    with opened(world, layout=CODE_ONLY) as store:
        store.create("log")
        store.append("log", b"0123")
    ours = world.content("log$header")
    theirs = ours + b"4=log$offset.4&"
    put(world, log_header=theirs, **{"log$offset.4": b"4567"})
    for _ in range(2):
        with pytest.raises(Conflict) as refused:
            opened(world)
        assert "log$header" in refused.value.subject
    assert world.content("log$header") == theirs
    with opened(world, "other", layout=LAYOUT) as store:
        assert not store.exists("log"), "it follows another container: only who names it means it"
        assert import_root(world, store, "log") == ("log",)
        assert store.read("log", 0, 100) == b"01234567"
    put(world, log_header=ours)
    with opened(world) as store:
        assert store.read("log", 0, 100) == b"0123"


def test_a_header_that_comes_later_is_not_replaced(world: World) -> None:
    with opened(world) as store:
        store.create("a")
        store.append("a", b"ours")
    old_root(world)
    with pytest.raises(Conflict):
        opened(world, layout=CODE_ONLY)
    with opened(world, layout=LAYOUT) as store:
        assert store.read("a", 0, 10) == b"ours"
        assert store.info(EPOCH_SEGMENT).length == 14


def test_while_it_serves_that_is_a_finding(world: World) -> None:
    with opened(world, layout=CODE_ONLY) as store:
        store.create("log")
        follow(store)
        put(world, log_header=b"0=theirs&", theirs=b"bytes")
        store.append("log", b"1")
        assert any("log$header" in finding for finding in follow(store))
    assert world.content("log$header") == b"0=theirs&"


def test_a_segment_that_was_imported_into_its_own_root_before_may_follow(world: World) -> None:
    expected = old_root(world)
    with opened(world, layout=LAYOUT) as store:
        store.info("a")
    with opened(world, "second", layout=CODE_ONLY) as store:
        assert facts(store) == {}
        assert import_root(world, store, "a") == ("a",)
        assert facts(store) == {"a": expected["a"]}
        follow(store)
        assert old_view(world, "a") == (0, expected["a"][3])


def test_an_export_into_its_own_root_is_what_follows(world: World) -> None:
    with opened(world, layout=CODE_ONLY, rolling=4) as store:
        store.create("log")
        store.create("empty")
        store.append("log", b"01234567")
        store.truncate("log", 2)
        assert export_root(world, store).copied == 1
        assert old_view(world, "log") == (2, b"234567")
    with opened(world) as store:
        assert store.read("log", 2, 100) == b"234567"
        store.delete("empty")
        follow(store)
        assert "empty$header" not in world.objects()
        assert old_view(world, "log")[1].endswith(b"234567")


def test_our_headers_are_marked_by_what_the_old_code_passes_over(world: World) -> None:
    with opened(world, layout=CODE_ONLY) as store:
        store.create("log", rolling=SMALL)
        follow(store)
        entries = decode_entries(world.content("log$header"))
        assert store.old_layout is not None
        assert entries == (MaxSizeEntry(10), MaxSizeEntry(store.old_layout.mark("log")))
        assert decode_header(encode_header(entries)).size_bytes_max == 10
