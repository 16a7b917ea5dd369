"""The checker of histories: each kind of wrong history is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import pytest

from tests.judges.checker import ANOMALIES, Verdict, check_history
from tests.judges.events import Event

pytestmark = pytest.mark.proof


class Stored(NamedTuple):
    """A record as the storage would have held it."""

    epoch: int
    written: int
    ops: list[tuple[Any, ...]]
    data: list[bytes | None]


class Story:
    """Calls of two owners, one after the other, and the records that they left; what follows spoils it."""

    def __init__(self) -> None:
        self.now = 0
        self.records: list[Stored] = []
        self.events: list[Event] = []
        self.owners = {1: "p1", 2: "p2"}
        self.epoch = 1
        self.record((1, 7, "a"))
        self.call("create", "a", (9,), 7)
        self.append(b"abc", 0)
        self.append(b"defg", 3)

    def record(self, *ops: tuple[Any, ...], data: tuple[bytes | None, ...] = (None,)) -> int:
        self.now += 10
        self.records.append(Stored(self.epoch, self.now, list(ops), list(data)))
        return len(self.records)

    def call(self, kind: str, name: str, args: tuple[Any, ...], result: Any, **changes: Any) -> Event:
        """A call whose record, if it has one, was written last."""
        self.now += 2
        outcome: Literal["ok", "failed"] = changes.pop("outcome", "ok")
        event = Event("c", kind, name, args, self.now - 5, self.now, outcome, result, self.epoch, f"p{self.epoch}")
        self.events.append(replace(event, **changes))
        return self.events[-1]

    def append(self, data: bytes, offset: int, **changes: Any) -> Event:
        self.record((2, 7, offset, len(data), ()), data=(data,))
        return self.call("append", "a", (data, None, None, None), changes.pop("result", offset), **changes)

    def look(self, kind: str, args: tuple[Any, ...], result: Any, **changes: Any) -> Event:
        self.now += 10
        return self.call(kind, "a", args, result, **changes)

    def refused(self, kind: str, args: tuple[Any, ...], error: str, fields: tuple[Any, ...], **changes: Any) -> Event:
        return self.look(kind, args, error, outcome="failed", fields=fields, **changes)

    def judge(self) -> Verdict:
        return check_history(self.records, self.events, owners=self.owners)


def sound(story: Story) -> None:
    story.look("read", (0, 99), b"abcdefg")
    story.look("seal", (), None, outcome="unknown", returned=None)
    story.refused("append", (b"x", 3, None, None), "BadOffset", ("a", 7, 3))
    story.look("append", (b"", None, None, None), 7)
    story.record((2, 7, 7, 1, ()), data=(b"w",))
    story.call("append", "a", (b"w", None, "w", 4), 7)
    story.look("append", (b"w", None, "w", 4), 7)
    story.look("replica_read", (0, 99, 7, 2), b"abc")
    story.look("replica_read", (0, 99, 7, 4), b"abcdefgw")
    story.epoch = 2
    story.record((3, 7))
    story.call("seal", "a", (), None)
    story.look("seal", (), None)
    story.look("info", (), (7, 0, 8, True))
    story.record((10, "t", b"k"), data=(b"v",))
    story.call("table_put", "", ("t", b"k", b"v", 0), None)
    story.look("table_get", ("t", b"k"), (b"v", 6))
    story.record((14, b"G", 3))
    story.record((15, 7, 0, 3, [[0, b"c"]]))


def test_a_broken_writer_repeats_its_failure() -> None:
    """It breaks by a refusal, because of a seal that then fails; what it is given later fails with the same error."""
    story = Story()
    now = story.now
    story.call("seal", "a", (), "StorageFull", outcome="failed", invoked=now, returned=now + 10)
    for invoked in (now + 5, now + 20):
        refused: dict[str, Any] = {"outcome": "failed", "fields": ("a",), "invoked": invoked, "returned": now + 30}
        story.call("write", "a", (b"z", 7), "SegmentSealed", **refused)
    assert story.judge().ok
    del story.events[-2]
    assert not story.judge().ok


def dropped_record(story: Story) -> None:
    story.append(b"hi", 7)
    del story.records[-1]


def wrong_offset_told(story: Story) -> None:
    story.append(b"hi", 7, result=8)


def duplicated_record(story: Story) -> None:
    story.append(b"hi", 7)
    story.record((2, 7, 9, 2, ()), data=(b"hi",))


def nobody_asked(story: Story) -> None:
    story.record((2, 7, 7, 2, ()), data=(b"hi",))


def torn_append(story: Story) -> None:
    story.record((2, 7, 7, 2, ()), data=(b"hi",))
    story.call("append", "a", (b"hiho", None, None, None), 7)


def bytes_not_there(story: Story) -> None:
    story.append(b"hi", 7)
    story.records[-1] = story.records[-1]._replace(data=[None])


def half_a_commit(story: Story) -> None:
    story.record((2, 7, 7, 2, ()), data=(b"hi",))
    changes = (("append", "a", (b"hi", None, None, None)), ("seal", "a", ()))
    story.call("commit", "", (changes,), (7, None))


def refused_and_there(story: Story) -> None:
    story.append(b"hi", 7, outcome="failed", result="StorageUnavailable")


def written_for_another_owner(story: Story) -> None:
    story.append(b"hi", 7, owner="p2")


def written_after_the_answer(story: Story) -> None:
    told = story.append(b"hi", 7)
    story.records[-1] = story.records[-1]._replace(written=(told.returned or 0) + 1)


def later_call_in_an_earlier_record(story: Story) -> None:
    story.append(b"hi", 7)
    story.append(b"ho", 9)
    story.records[-2:] = [
        Stored(1, story.now, [(2, 7, 7, 2, ())], [b"ho"]),
        Stored(1, story.now, [(2, 7, 9, 2, ())], [b"hi"]),
    ]
    story.events[-1] = replace(story.events[-1], result=7)
    story.events[-2] = replace(story.events[-2], result=9)


def append_to_a_sealed_segment(story: Story) -> None:
    story.record((3, 7))
    story.call("seal", "a", (), None)
    story.append(b"hi", 7)


def an_id_twice(story: Story) -> None:
    story.record((1, 7, "b"))
    story.call("create", "b", (9,), 7)


def a_wrong_value_written_and_shown(story: Story) -> None:
    """Rows, reads and replay agree with each other, and not with what was asked for."""
    story.record((10, "t", b"k"), data=(b"other",))
    story.call("table_put", "", ("t", b"k", b"v", None), None)
    story.look("table_get", ("t", b"k"), (b"other", 4))


def a_wrong_length_written_and_shown(story: Story) -> None:
    story.record((6, 7, 3))
    story.call("truncate", "a", (2,), None)
    story.look("info", (), (7, 3, 7, False))


def wrong_bytes(story: Story) -> None:
    story.look("read", (0, 99), b"abcdefX")


def too_old(story: Story) -> None:
    story.look("read", (0, 99), b"abc")


def too_new(story: Story) -> None:
    story.look("read", (0, 99), b"abcdefghi")
    story.append(b"hi", 7)


def going_back(story: Story) -> None:
    story.now += 20
    story.events[-1] = replace(story.events[-1], returned=story.now)  # the append is answered late
    story.call("read", "a", (0, 9), b"abcdefg", returned=story.now - 4, invoked=story.now - 9)
    story.look("read", (0, 9), b"abc")


def wrong_fields(story: Story) -> None:
    story.refused("truncate", (9,), "BadOffset", ("a", 6, 9))


def wrong_error(story: Story) -> None:
    story.refused("seal", (), "SegmentSealed", ("a",))


def a_refused_read(story: Story) -> None:
    story.refused("read", (0, 9), "SegmentTruncated", ("a", 2, 0))


def not_known_to_the_writer(story: Story) -> None:
    story.look("append", (b"w", None, "w", 1), 3)


def replica_back(story: Story) -> None:
    story.look("replica_read", (0, 99, 7, 3), b"abcdefg")
    story.look("replica_read", (0, 99, 7, 2), b"abc")


def replica_ahead(story: Story) -> None:
    story.look("replica_read", (0, 99, 7, 4), b"abcdefghi")
    story.append(b"hi", 7)


def replica_wrong(story: Story) -> None:
    story.look("replica_read", (0, 99, 7, 2), b"abX")


def two_owners(story: Story) -> None:
    for process in ("p1", "p2"):
        story.look("open", (), 2, process=process)


SPOILERS: list[tuple[Callable[[Story], None], str]] = [
    (dropped_record, "lost-ack"),
    (wrong_offset_told, "wrong-answer"),
    (duplicated_record, "duplicate"),
    (nobody_asked, "invented"),
    (torn_append, "torn"),
    (bytes_not_there, "torn"),
    (half_a_commit, "not-atomic"),
    (refused_and_there, "resurrected"),
    (written_for_another_owner, "foreign"),
    (written_after_the_answer, "reordered"),
    (later_call_in_an_earlier_record, "reordered"),
    (append_to_a_sealed_segment, "forbidden"),
    (an_id_twice, "forbidden"),
    (a_wrong_value_written_and_shown, "invented"),
    (a_wrong_length_written_and_shown, "forbidden"),
    (wrong_bytes, "wrong-read"),
    (too_old, "stale-read"),
    (too_new, "phantom"),
    (going_back, "stale-read"),
    (wrong_fields, "wrong-refusal"),
    (wrong_error, "wrong-refusal"),
    (a_refused_read, "wrong-refusal"),
    (not_known_to_the_writer, "lost-ack"),
    (replica_back, "phantom"),
    (replica_ahead, "phantom"),
    (replica_wrong, "wrong-read"),
    (two_owners, "two-owners"),
]


def test_a_sound_history_is_sound() -> None:
    story = Story()
    sound(story)
    assert story.judge().anomalies == ()
    assert sorted(story.judge().lsns.values()) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("spoiler", "name"), SPOILERS, ids=[spoiler.__name__ for spoiler, _ in SPOILERS])
def test_what_is_wrong_is_named(spoiler: Callable[[Story], None], name: str) -> None:
    story = Story()
    spoiler(story)
    assert name in {anomaly.name for anomaly in story.judge().anomalies}


def test_every_anomaly_is_shown() -> None:
    assert {name for _, name in SPOILERS} == ANOMALIES.keys()


def test_one_call_of_an_unknown_outcome_has_one_record_at_most() -> None:
    story = Story()
    story.append(b"hi", 7, outcome="unknown", returned=None)
    assert story.judge().ok
    story.record((2, 7, 9, 2, ()), data=(b"hi",))
    assert [anomaly.name for anomaly in story.judge().anomalies] == ["duplicate"]


def test_an_append_is_refused_because_of_one_under_way_that_fails() -> None:
    story = Story()
    story.look("append", (b"hi", None, None, None), "DeadlineExceeded", outcome="failed", returned=story.now + 99)
    refusal = story.refused("append", (b"x", 7, None, None), "BadOffset", ("a", 9, 7))
    assert story.judge().ok
    story.events[-1] = replace(refusal, fields=("a", 8, 7))
    assert [anomaly.name for anomaly in story.judge().anomalies] == ["wrong-refusal"]


def test_an_append_is_refused_because_of_many_under_way_in_another_order_than_they_were_made() -> None:
    story = Story()
    open_end = {"outcome": "unknown", "returned": None}
    for length in (2, 2, 2, 2, 3, 3, 3, 3, 4, 4):
        story.look("append", (bytes(length), None, None, None), "OutcomeUnknown", **open_end)
    story.look(
        "append", (bytes(100), 7, None, None), "OutcomeUnknown", **open_end
    )  # it came first, where the end was 7 still
    refusal = story.refused("append", (b"x", 7, None, None), "BadOffset", ("a", 7 + 100 + 2 + 3, 7))
    assert story.judge().ok
    story.events[-1] = replace(refusal, fields=("a", 7 + 100 + 1, 7))
    assert [anomaly.name for anomaly in story.judge().anomalies] == ["wrong-refusal"]


def test_what_a_buffering_writer_joined_is_several_calls() -> None:
    story = Story()
    story.record((2, 7, 7, 4, ()), data=(b"hiho",))
    for data, offset in ((b"hi", 7), (b"ho", 9)):
        story.call("write", "a", (data, 7), offset, invoked=story.now - 9)
    assert story.judge().anomalies == ()
    story.events.pop()
    assert not story.judge().ok
