"""The history checker: accepts what is right, finds and names what is wrong, and agrees with the plain search."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chunkstore.testing.events import Event
from chunkstore.testing.history import ANOMALIES, check_history
from chunkstore.testing.history_search import find_order
from tests.support.histories import Scene, spoil

Lengths = Literal["exact", "lazy"]
Refusals = Literal["reads", "all", "none"]
quick = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


def scene(seed: int, *, calls: int = 14) -> list[Event]:
    chance = random.Random(seed)
    return Scene(
        chance,
        clients=chance.randrange(1, 4),
        calls=chance.randrange(1, calls),
        unknown=chance.choice((0, 0.2, 0.5)),
        unique=chance.random() < 0.6,
        wide=chance.random() < 0.7,
        names=("a", "b", "c")[: chance.randrange(1, 4)],
        final=chance.random() < 0.7,
    ).events


@given(seed=st.integers(0, 1 << 32), refusals=st.sampled_from(("reads", "all", "none")))
@quick
def test_what_a_correct_store_answers_is_accepted(seed: int, refusals: Refusals) -> None:
    events = scene(seed)
    assert check_history(events, refusals=refusals).ok, events
    assert find_order(events, refusals=refusals) is not None, events


@given(seed=st.integers(0, 1 << 32))
@settings(quick, max_examples=30)
def test_long_histories_are_accepted(seed: int) -> None:
    events = Scene(random.Random(seed), clients=6, calls=200, unknown=0.05).events
    verdict = check_history(events)
    # Of so many calls at a time whose outcome is unknown, some histories are too wide to be judged.
    assert not verdict.anomalies, verdict


def test_the_fast_checker_agrees_with_the_plain_search() -> None:
    fresh = random.randrange(1 << 32)
    print(f"fresh seed: {fresh}")
    seen: Counter[str] = Counter()
    for seed in [*range(1500), *range(fresh, fresh + 1500)]:
        chance = random.Random(seed)
        events = spoil(chance, scene(seed, calls=11))
        refusals: Refusals = chance.choice(("reads", "all", "none"))
        lengths: Lengths = chance.choice(("exact", "exact", "lazy"))
        verdict = check_history(events, lengths=lengths, refusals=refusals)
        order = find_order(events, lazy=lengths == "lazy", refusals=refusals)
        assert verdict.ok == (order is not None), (seed, verdict, order, events)
        seen.update([anomaly.name for anomaly in verdict.anomalies] or ["sound"])
    assert seen["sound"] > 300 and sum(seen.values()) - seen["sound"] > 300, seen
    assert seen.keys() - {"sound"} <= ANOMALIES.keys()


def test_calls_of_former_owners_end_with_the_first_change_of_a_later_one() -> None:
    """The fast search and the plain one agree, whoever is said to have asked whom."""
    sound = 0
    for seed in range(1500):
        chance = random.Random(seed)
        events = scene(seed, calls=10) if chance.random() < 0.7 else spoil(chance, scene(seed, calls=10))
        change = chance.randrange(1 + max([event.invoked for event in events if event.invoked > 0], default=0))
        owned = []
        for event in events:
            late = event.invoked >= change
            owned.append(replace(event, owner=chance.choice(("b", "b", "")) if late else "a", epoch=2 + late))
        lengths: Lengths = chance.choice(("exact", "exact", "lazy"))
        verdict = check_history(owned, lengths=lengths)
        order = find_order(owned, lazy=lengths == "lazy")
        assert verdict.ok == (order is not None), (seed, verdict, order, owned)
        sound += verdict.ok
    assert 300 < sound < 1400, sound


@pytest.mark.parametrize(
    ("owners", "sound"),
    [
        ((("a", 1), ("b", 2)), False),
        ((("a", 1), ("a", 2)), True),  # a roll of its own
        ((("", 1), ("b", 2)), True),
        ((("b", 2), ("a", 1)), True),
    ],
)
def test_what_a_deposed_owner_was_asked_does_not_happen_behind_its_successor(
    owners: tuple[tuple[str, int], tuple[str, int]], sound: bool
) -> None:
    (former, former_epoch), (later, later_epoch) = owners
    book = base().add("seal", "a", outcome="unknown", returned=None, result=None, owner=former, epoch=former_epoch)
    book.append(b"<new>", 10, owner=later, epoch=later_epoch)
    book.info(0, 15, sealed=True, owner=later, epoch=later_epoch)
    assert (find_order(book.events) is not None) == sound
    assert check_history(book.events).ok == sound


def test_a_zombie_that_is_asked_when_it_has_a_successor_changes_nothing() -> None:
    book = base().append(b"<new>", 10, owner="b", epoch=2)
    book.lost(b"<late>", owner="a", epoch=1)
    assert check_history(book.events).ok
    book.read(0, 99, b"<one><two><new><late>", owner="b", epoch=2)
    assert find_order(book.events) is None
    assert not check_history(book.events).ok


def test_the_order_that_is_found_is_one() -> None:
    for seed in range(200):
        events = scene(seed, calls=9)
        order = find_order(events)
        assert order is not None
        for place, index in enumerate(order):
            for later in order[place + 1 :]:
                returned = events[later].returned
                assert events[later].outcome == "unknown" or returned is None or returned >= events[index].invoked


class Book:
    """Writes a history down, one call after the other unless a time is given."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = 0

    def add(self, kind: str, name: str, *args: Any, result: Any = None, **more: Any) -> Book:
        invoked = more.pop("invoked", self.now + 1)
        returned = more.pop("returned", invoked + 1)
        outcome = more.pop("outcome", "ok")
        process = more.pop("process", "p")
        self.now = max(self.now, invoked, returned or 0)
        event = Event(
            process, kind, name, args, invoked, returned, outcome, result, more.pop("epoch", 1), more.pop("owner", "")
        )
        assert not more
        self.events.append(event)
        return self

    def create(self, name: str = "a", identity: int = 7, **more: Any) -> Book:
        return self.add("create", name, 64, result=identity, **more)

    def append(self, data: bytes, result: int | str | None, name: str = "a", **more: Any) -> Book:
        return self.add("append", name, data, None, None, None, result=result, **more)

    def lost(self, data: bytes, name: str = "a", **more: Any) -> Book:
        return self.append(data, None, name, outcome="unknown", returned=None, **more)

    def read(self, offset: int, length: int, result: bytes, name: str = "a", **more: Any) -> Book:
        return self.add("read", name, offset, length, result=result, **more)

    def info(
        self, start: int, length: int, sealed: bool = False, name: str = "a", identity: int = 7, **more: Any
    ) -> Book:
        return self.add("info", name, result=(identity, start, length, sealed), **more)

    def final(self, data: bytes, start: int = 0, name: str = "a", identity: int = 7) -> Book:
        return self.add("final", name, start, len(data) + 99, identity, result=data, epoch=9)

    def replica(self, offset: int, length: int, result: bytes, lsn: int, **more: Any) -> Book:
        return self.add("replica_read", "a", offset, length, 7, lsn, result=result, **more)


def base() -> Book:
    return Book().create().append(b"<one>", 0).append(b"<two>", 5)


SOUND = {
    "plain": base().read(0, 99, b"<one><two>").final(b"<one><two>"),
    "an unknown append that happened": base().lost(b"<tri>").append(b"<for>", 15).final(b"<one><two><tri><for>"),
    "an unknown append that did not": base().lost(b"<tri>").final(b"<one><two>"),
    "an unknown append that happens late": base().lost(b"<tri>").read(10, 9, b"").read(10, 9, b"<tri>"),
    "a replica behind": base().replica(0, 99, b"<one>", 3).replica(0, 99, b"<one><two>", 4),
    "a retry of an event": Book()
    .create()
    .add("append", "a", b"<one>", None, "w", 1, outcome="unknown", returned=None)
    .add("append", "a", b"<one>", None, "w", 1, result=0)
    .add("append", "a", b"<one>", None, "w", 1, result=0)
    .final(b"<one>"),
    "two reads around an append under way": Book()
    .create()
    .append(b"<one>", 0, invoked=3, returned=20)
    .read(0, 9, b"", invoked=4, returned=18)
    .read(0, 9, b"<one>", invoked=5, returned=17),
    "another life": base().add("delete", "a").create(identity=8).append(b"<new>", 0).final(b"<new>", identity=8),
    "a replica saw what stood before the commit that deleted it": base()
    .lost(b"<tri>")
    .replica(0, 99, b"<one><two><tri>", 5)
    .add(
        "commit",
        "",
        (("append", "a", (b"<for>", None, None, None)), ("delete", "a", ())),
        outcome="unknown",
        returned=None,
    )
    .create(identity=8)
    .info(0, 0, identity=8)
    .final(b"", identity=8),
    "concat": base()
    .create("b", 8)
    .append(b"<bbb>", 0, "b")
    .add("seal", "b")
    .add("concat", "a", 10, "b")
    .add("exists", "b", result=False)
    .final(b"<one><two><bbb>"),
    "an unknown truncation that was seen": base().add("truncate", "a", 3, outcome="unknown", returned=None).info(3, 10),
    "a fork that both reads saw one side of": base().lost(b"<tri>").lost(b"<for>").final(b"<one><two><for><tri>"),
}


@pytest.mark.parametrize("case", SOUND)
def test_sound(case: str) -> None:
    events = SOUND[case].events
    assert check_history(events).ok, check_history(events)
    assert find_order(events) is not None


PLANTED: list[tuple[str, str, Book]] = [
    ("lost-ack", "gone in the end", base().final(b"<one>")),
    ("lost-ack", "overwritten", base().lost(b"<tri>").final(b"<one><tri>")),
    ("lost-ack", "two told the same offset", base().append(b"<tri>", 5)),
    ("lost-ack", "a read behind it", base().read(5, 9, b"")),
    ("lost-ack", "a seal", base().add("seal", "a").add("unseal", "a").add("unseal", "a")),
    ("lost-ack", "a segment", base().add("exists", "a", result=False)),
    ("lost-ack", "a row that changed under its version", Book().add("table_put", "", "t", b"k", b"v", None)
     .add("table_get", "", "t", b"k", result=(b"v", 7)).add("table_put", "", "t", b"k", b"w", None)
     .add("table_put", "", "t", b"k", b"x", 7)),
    ("lost-ack", "a row", Book().add("table_put", "", "t", b"k", b"v", None).add("table_get", "", "t", b"k")),
    ("duplicate", "a retry that wrote again", base().lost(b"<tri>").final(b"<one><two><tri><tri>")),
    (
        "duplicate",
        "an event twice",
        Book()
        .create()
        .add("append", "a", b"<one>", None, "w", 1, outcome="unknown", returned=None)
        .add("append", "a", b"<one>", None, "w", 1, outcome="unknown", returned=None)
        .final(b"<one><one>"),
    ),
    ("reordered", "swapped in the end", base().final(b"<two><one>")),
    ("reordered", "offsets against time", Book().create().append(b"<one>", 5).append(b"<two>", 0)),
    ("stale-read", "a deposed owner", base().append(b"<tri>", 10, epoch=2).read(0, 99, b"<one><two>", epoch=1)),
    ("stale-read", "info of a deposed owner", base().append(b"<tri>", 10, epoch=2).info(0, 10, epoch=1)),
    ("stale-read", "known again later", base().read(5, 9, b"").read(0, 99, b"<one><two>").final(b"<one><two>")),
    ("stale-read", "a deleted segment", base().add("delete", "a", epoch=2).read(0, 9, b"<one><two>"[:9], epoch=1)),
    ("phantom", "a replica ahead of history", base().lost(b"<tri>").replica(0, 99, b"<one><two><tri>", 5).final(b"<one><two>")),
    ("phantom", "a replica saw another", base().lost(b"<tri>").replica(10, 9, b"<tri>", 5).append(b"<for>", 10)),
    ("phantom", "a replica went back", base().replica(0, 99, b"<one><two>", 4).replica(0, 99, b"<one>", 4, process="q")),
    ("phantom", "a replica's position", base().replica(0, 3, b"<on", 4).replica(0, 3, b"<on", 3)),
    ("phantom", "a replica before its time", base().replica(0, 99, b"<one><two><tri>", 5).append(b"<tri>", 10)),
    ("phantom", "two readers", base().lost(b"<x>").lost(b"<y>").read(10, 3, b"<x>").read(10, 3, b"<y>")),
    ("phantom", "longer than it can be", base().info(0, 11)),
    ("resurrected", "a refused append", base().append(b"<tri>", "StorageUnavailable", outcome="failed").final(b"<one><two><tri>")),
    ("resurrected", "a truncated part", base().add("truncate", "a", 5).info(5, 10).read(0, 5, b"<one>")),
    ("resurrected", "a deleted segment", base().add("delete", "a").read(0, 5, b"<one>")),
    ("torn", "half of one", base().lost(b"<tri>").final(b"<one><two><tr")),
    ("after-seal", "an append", base().add("seal", "a").append(b"<tri>", 10)),
    ("not-atomic", "a source that is still there", base()
     .create("b", 8).append(b"<bbb>", 0, "b").add("seal", "b")
     .add("concat", "a", 10, "b", invoked=40, returned=60)
     .add("list", "", "", result=(("a", 7, 0, 10, False),), invoked=45, returned=50)),
    ("not-atomic", "half a commit", Book().create().create("b", 8)
     .add("commit", "", (("append", "a", (b"<one>", None, None, None)), ("append", "b", (b"<two>", None, None, None))),
          result=(0, 0), invoked=9, returned=20)
     .add("list", "", "", result=(("a", 7, 0, 5, False), ("b", 8, 0, 0, False)), invoked=10, returned=19)),
    ("invented", "nobody's bytes", base().final(b"<one><two>?????")),
    ("invented", "a hole", base().append(b"<tri>", 15)),
    ("wrong-refusal", "truncated, it said", base().add("read", "a", 2, 3, result="SegmentTruncated", outcome="failed")),
    ("two-owners", "one epoch", Book().add("open", "", result=3).add("open", "", result=3, process="q")),
    ("reused-id", "one id", Book().create("a", 7).create("b", 7)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "case", "book"), PLANTED, ids=[f"{name}: {case}" for name, case, _ in PLANTED])
def test_planted_anomalies_are_named(name: str, case: str, book: Book) -> None:
    verdict = check_history(book.events)
    assert name in {anomaly.name for anomaly in verdict.anomalies}, verdict
    for anomaly in verdict.anomalies:
        assert anomaly.message and all(0 <= index < len(book.events) for index in anomaly.events)
    if not any(event.kind in ("replica_read", "open") for event in book.events) and name != "reused-id":
        assert find_order(book.events) is None


def test_every_anomaly_but_the_last_resort_is_planted() -> None:
    assert {name for name, _, _ in PLANTED} == ANOMALIES.keys() - {"no-order"}


def test_lazy_lengths_allow_a_part_of_an_owners_last_append() -> None:
    book = base().lost(b"<tri>").append(b"<for>", 13, epoch=2).final(b"<one><two><tr<for>")
    assert check_history(book.events, lengths="lazy").ok
    assert [anomaly.name for anomaly in check_history(book.events).anomalies] == ["torn"]
    # Not of one that the same owner wrote behind.
    book = base().lost(b"<tri>").append(b"<for>", 13, epoch=1).final(b"<one><two><tr<for>")
    assert not check_history(book.events, lengths="lazy").ok
    assert find_order(book.events, lazy=True) is None


def test_parts_that_only_one_call_can_have_left_are_found_at_once() -> None:
    """Found by the simulator, seed 2000100509: with every part of every append to try, a sound history could not be judged."""
    book = base()
    for number in range(12):
        book = book.lost(b"<lost%02d>" % number)
    book = book.append(b"<for>", 13, epoch=2).final(b"<one><two><lo<for>")
    assert check_history(book.events, lengths="lazy", states_max=5).undecided  # there are twelve
    book = base().lost(b"<tri>")
    for number in range(12):
        book = book.lost(b"<lost%02d>" % number)
    book = book.append(b"<for>", 13, epoch=2).final(b"<one><two><tr<for>")
    assert check_history(book.events, lengths="lazy", states_max=5).ok


def lost_and_told(book: Book) -> Book:
    """A dozen appends that were told that nobody knows: too many to try with every part."""
    for number in range(12):
        book = book.append(b"<lost%02d>" % number, None, outcome="unknown")
    return book


def test_a_part_that_nobody_has_read_is_found_by_the_length() -> None:
    """Found by the simulator, seeds 3000100213 and 2500000163: the segment was cut or deleted before anybody read the part."""
    for told in (
        lost_and_told(base()).lost(b"<tri>").append(b"<for>", 13, epoch=2),
        lost_and_told(base()).lost(b"<tri>").info(0, 13, epoch=2),
        lost_and_told(base()).lost(b"<tri>").read(9, 99, b">" + b"<tr", epoch=2),
        lost_and_told(base()).lost(b"<tri>").add("list", "", "", result=(("a", 7, 0, 13, False),), epoch=2),
    ):
        gone = told.add("delete", "a", epoch=2)
        assert check_history(gone.events, lengths="lazy", states_max=5).ok
        assert not check_history(gone.events).ok


def test_a_part_that_begins_like_many_was_left_by_an_owner_in_time() -> None:
    """Seed 3000100213: two bytes with which every append begins; its maker's epoch lies between those around it."""
    book = base().append(b"<tri>", 10, epoch=2)
    for epoch in range(1, 13):
        book = book.lost(b"<lost%02d>" % epoch, epoch=epoch)
    book = book.append(b"<for>", 17, epoch=3).final(b"<one><two><tri><l<for>")
    assert check_history(book.events, lengths="lazy", states_max=5).ok


def test_a_part_may_end_where_bytes_begin_that_nobody_was_told_of() -> None:
    """Of two appends of unknown outcome the second stands behind a part of the first, or of another that begins alike."""
    book = Book().create().lost(b"<1>").lost(b"<2...>", epoch=2).final(b"<<2...>")
    assert check_history(book.events, lengths="lazy").ok
    assert find_order(book.events, lazy=True) is not None


def test_a_part_that_looks_like_the_beginning_of_something_else_hides_nothing() -> None:
    """Bytes that nobody appended, or that a failed call brought, shown by a replica only: cutting appends short left nothing to compare."""
    book = base().lost(b"<tri>").append(b"<for>", 12, epoch=2).lost(b"<tooo>", epoch=3)
    read = (0, 17, b"<one><two><t<for>")
    assert check_history(book.read(*read, epoch=3).events, lengths="lazy").ok
    told = book.replica(0, 99, b"<one><two><t<for>?????", 5)
    assert "invented" in {anomaly.name for anomaly in check_history(told.events, lengths="lazy").anomalies}


def test_parts_behind_parts_are_found() -> None:
    book = base().lost(b"<tri>").lost(b"<for>", epoch=2).final(b"<one><two><tr<f")
    assert check_history(book.events, lengths="lazy").ok
    assert find_order(book.events, lazy=True) is not None


def test_a_refusal_may_be_due_to_a_truncation_within_a_commit() -> None:
    """Found by the simulator, seed 3010100148: of truncations only those of their own were looked for."""
    changes = (("append", "a", (b"<tri>", None, None, None)), ("truncate", "a", (10,)))
    book = base().add("commit", "", changes, outcome="unknown")
    book = book.add("read", "a", 0, 99, outcome="failed", result="SegmentTruncated")
    assert check_history(book.events).ok
    assert find_order(book.events) is not None
    assert not check_history(base().add("read", "a", 0, 99, outcome="failed", result="SegmentTruncated").events).ok


def test_what_stands_behind_a_part_is_looked_at_too() -> None:
    """Seed 3000100213: of two parts in one segment the second was not seen, where nobody had been told an offset between them."""
    book = lost_and_told(base()).lost(b"<tri>").lost(b"<for>", epoch=2).lost(b"<fiv>", epoch=3).lost(b"<six>", epoch=4)
    book = book.final(b"<one><two><tr<for><fi<six>")
    assert check_history(book.events, lengths="lazy", states_max=5).ok


def test_what_parts_do_not_explain_is_told_beside_what_is_undecided() -> None:
    book = lost_and_told(lost_and_told(base())).append(b"<for>", 13, epoch=2).final(b"<one><two><lo<for>")
    verdict = check_history(book.events, lengths="lazy", states_max=5)
    assert verdict.undecided and [anomaly.name for anomaly in verdict.unexplained] == ["torn"]
    # Of a sound history that is only too large nothing is left to explain.
    assert not check_history(book.events, lengths="lazy", states_max=100_000).unexplained


def test_parts_among_too_many_orders_hush_nothing_up() -> None:
    """The part that is read has one maker; what else was lost has too many orders, so that nobody comes to the bytes that are missing."""
    book = base().lost(b"<tri>").append(b"<for>", 13, epoch=2).read(0, 99, b"<one><two><tr<for>", epoch=2)
    for number in range(12):
        book = book.add("append", "b", b"<lost%02d>" % number, None, None, None, outcome="unknown", returned=None)
    for number in range(12):
        book = book.add("table_put", "", "t", b"k", b"%d" % number, None, outcome="unknown", returned=None)
    book = book.create("b", 8).info(0, 8 * 11, name="b", identity=8)
    verdict = check_history(book.events, lengths="lazy", states_max=1)
    assert verdict.undecided and [anomaly.name for anomaly in verdict.unexplained] == ["torn"]


def test_what_may_not_stand_behind_a_part_does_not_because_the_part_is_known() -> None:
    """Neither another append of the same owner, nor an answered retry of the event that has only a part there."""
    book = base().lost(b"<tri>").lost(b"<for>").final(b"<one><two><tr<for>")
    assert not check_history(book.events, lengths="lazy").ok
    assert find_order(book.events, lazy=True) is None
    event = (b"<event>", None, b"w", 1)
    for retried in (False, True):
        book = Book().create().add("append", "a", *event, outcome="unknown", returned=None)
        if retried:
            book = book.add("append", "a", *event, result=0, epoch=2)
        book = book.final(b"<eve")
        assert check_history(book.events, lengths="lazy").ok != retried
        assert (find_order(book.events, lazy=True) is None) == retried


def test_too_many_orders_are_not_guessed_about() -> None:
    book = Book()
    for number in range(5):
        book.add("table_put", "", "t", b"k", b"%d" % number, None, invoked=100, returned=200)
    book.add("table_get", "", "t", b"k", result=(b"3", 7), invoked=201)
    verdict = check_history(book.events, states_max=5)
    assert verdict.undecided and not verdict.ok and not verdict.anomalies
    assert check_history(book.events).ok


def test_a_long_history_takes_time_in_proportion() -> None:
    """Twice the calls, about twice the time, with hundreds of unknown outcomes among them."""

    def run(calls: int) -> float:
        book = Book().create()
        content = bytearray()
        for number in range(calls):
            data = b"<event %d>" % number
            if number % 20 == 7:
                book.lost(data)
                if number % 40 == 7:
                    content += data
            elif number % 10 == 3:
                book.read(max(0, len(content) - 50), 99, bytes(content[-50:]))
            else:
                book.append(data, len(content))
                content += data
        book.final(bytes(content))
        began = time.process_time()
        verdict = check_history(book.events)
        took = time.process_time() - began
        assert verdict.ok, verdict
        spoilt = [
            replace(event, result=bytes(content[:-1])) if event.kind == "final" else event for event in book.events
        ]
        assert not check_history(spoilt).ok
        return took

    run(1_000)
    assert run(8_000) < 10 * run(2_000) + 1
