"""The judge of the chaos run: each kind of violation, planted into notes and findings that are otherwise in order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chunkstore.testing.chaos.ledger import Ledger
from chunkstore.testing.chaos.plan import GROWING, EventAt, Torn, event_tag, frame, parse
from chunkstore.testing.chaos.survey import Piece, SegmentSeen, Survey
from chunkstore.testing.chaos.verdict import Verdict


class Story:
    """What one process noted and what is there: a run in which everything is right, to be spoilt by the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: dict[str, list[list[Any]]] = {"p0.notes": [], "p1.notes": []}
        self.data: dict[str, bytes] = dict.fromkeys(GROWING, b"")
        self.rows: dict[str, tuple[int, str]] = {}
        self.sealed: set[str] = set()
        self.epoch = 1
        self.clock = 0.0
        self.verdict = Verdict(mode="append", lazy=False)
        self.ledger = Ledger(str(folder))

    def note(self, kind: str, *items: object, process: str = "p0.notes") -> None:
        self.clock += 1.0
        self.lines[process].append([self.clock, kind, *items])

    def open(self, epoch: int, process: str = "p0.notes") -> None:
        self.note("opening", 0.0, process=process)
        self.note("opened", epoch, "cache", 0, None, [], process=process)
        self.epoch = epoch

    def put(self, segment: str, tag: str) -> int:
        offset = len(self.data.setdefault(segment, b""))
        self.data[segment] += frame(tag)
        return offset

    def append(self, tag: str, segment: str = "log-0", kind: str = "plain", *details: object) -> None:
        self.note("try", tag, kind, self.epoch, segment, *details)
        self.note("ok", tag, self.epoch, self.put(segment, tag))

    def event(self, number: int, identity: str, process: str = "p0.notes") -> None:
        self.note("try", identity, "event", self.epoch, "log-0", "w0", number, process=process)
        self.note("ok", identity, self.epoch, self.put("log-0", event_tag("w0", number)), process=process)

    def survey(self) -> Survey:
        segments = {
            name: SegmentSeen(0, len(data), name in self.sealed, data, [Piece(0, max(1, len(data)), self.epoch)])
            for name, data in self.data.items()
        }
        return Survey(self.epoch, segments, self.rows, [])

    def judge(self) -> list[str]:
        for name, lines in self.lines.items():
            with open(self.folder / name, "a") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
            lines.clear()
        self.ledger.read()
        self.verdict.judge(self.ledger, self.survey())
        return self.verdict.violations


@pytest.fixture
def story(tmp_path: Path) -> Story:
    made = Story(tmp_path)
    made.open(1)
    made.append("a.1")
    made.event(1, "e.1")
    made.event(2, "e.2")
    made.append("a.2", "joined-0")
    part = "part-b.1"
    made.note("try", "b.2", "create", 1, part)
    made.note("ok", "b.2", 1, None)
    made.append("b.3", part, "part")
    made.note("try", "b.4", "put", 1, "chain-0", "")
    made.note("ok", "b.4", 1, None)
    made.rows["chain-0"] = (7, "b.4")
    made.note("try", "c.1", "pair", 1, "chain-pair", "")
    made.note("ok", "c.1", 1, [made.put("pair-a", "c.1.a"), made.put("pair-b", "c.1.b")])
    made.rows["chain-pair"] = (8, "c.1")
    return made


def test_frames_come_back_and_half_ones_are_seen() -> None:
    tags = [f"p{number}-1.2.{number}" for number in range(40)]
    data = b"".join(frame(tag) for tag in tags)
    assert [event.tag for event in parse(data, 100) if isinstance(event, EventAt)] == tags
    torn = data[:50] + frame("x.1")[:3] + frame("y.1")
    assert any(isinstance(event, Torn) for event in parse(torn, 0))
    assert isinstance(next(iter(parse(frame("x.1").replace(b"x.1", b"x.2", 1), 0))), EventAt | Torn)


def test_a_story_in_order_is_in_order(story: Story) -> None:
    assert story.judge() == []
    story.append("a.3")
    story.event(3, "e.3")
    assert story.judge() == []


def lose(story: Story) -> None:
    story.append("a.9")
    story.data["log-0"] = story.data["log-0"][: -len(frame("a.9"))]


def lose_event(story: Story) -> None:
    story.event(3, "e.3")
    story.data["log-0"] = story.data["log-0"][: -len(frame("w0-3"))]


def lose_part(story: Story) -> None:
    story.data["part-b.1"] = b""


def lose_segment(story: Story) -> None:
    del story.data["part-b.1"]


def double(story: Story) -> None:
    story.put("log-1", "a.1")


def double_event(story: Story) -> None:
    story.put("log-0", "w0-2")


def skip_event(story: Story) -> None:
    story.event(4, "e.4")


def phantom(story: Story) -> None:
    story.put("log-0", "z.1")


def failed_and_there(story: Story) -> None:
    story.note("try", "a.9", "plain", 1, "log-0")
    story.note("no", "a.9", "StorageFull")
    story.put("log-0", "a.9")


def moved(story: Story) -> None:
    story.note("try", "a.9", "plain", 1, "log-0")
    story.note("ok", "a.9", 1, story.put("log-0", "a.9") + 1)


def torn(story: Story) -> None:
    story.data["log-0"] += b"[half"


def reordered(story: Story) -> None:
    late, early = story.clock + 3, story.clock + 1
    begin = len(story.data["log-0"])
    story.data["log-0"] += frame("a.8") + frame("a.9")
    story.lines["p0.notes"] += [
        [early, "try", "a.9", "plain", 1, "log-0"],
        [early + 1, "ok", "a.9", 1, begin + len(frame("a.8"))],
        [late, "try", "a.8", "plain", 1, "log-0"],
        [late + 1, "ok", "a.8", 1, begin],
    ]


def zombie(story: Story) -> None:
    story.open(2, "p1.notes")
    story.note("try", "a.9", "look", 1, "log-0")
    story.note("ok", "a.9", 1, len(story.data["log-0"]))


def wrong_epoch(story: Story) -> None:
    story.append("a.9")
    story.epoch = 2


def twice_opened(story: Story) -> None:
    story.open(1, "p1.notes")


def stale_look(story: Story) -> None:
    story.note("try", "a.9", "look", 1, "log-0")
    story.note("ok", "a.9", 1, 0)


def future_look(story: Story) -> None:
    story.note("try", "a.8", "look", 1, "log-0")
    story.note("ok", "a.8", 1, len(story.data["log-0"]) + len(frame("a.9")))
    story.append("a.9")


def lost_row(story: Story) -> None:
    story.note("try", "b.9", "put", 1, "chain-0", "b.4")
    story.note("ok", "b.9", 1, None)


def unknown_row(story: Story) -> None:
    story.rows["chain-0"] = (9, "b.77")


def torn_pair(story: Story) -> None:
    story.note("try", "c.9", "pair", 1, "chain-pair", "c.1")
    story.note("un", "c.9", "")
    story.put("pair-a", "c.9.a")


def joined_and_there(story: Story) -> None:
    story.note("try", "b.9", "concat", 1, "part-b.1", "joined-0", len(story.data["joined-0"]))
    story.note("ok", "b.9", 1, None)


def back_from_the_dead(story: Story) -> None:
    story.note("try", "b.9", "delete", 1, "part-b.1")
    story.note("ok", "b.9", 1, None)
    data = story.data.pop("part-b.1")
    assert story.judge() == []
    story.data["part-b.1"] = data


def unsealed(story: Story) -> None:
    story.note("try", "b.9", "seal", 1, "part-b.1")
    story.note("ok", "b.9", 1, None)


def changed(story: Story) -> None:
    assert story.judge() == []
    story.data["log-0"] = story.data["log-0"].replace(b"[a.1", b"[a.7", 1)


def shrunk(story: Story) -> None:
    assert story.judge() == []
    story.data["log-0"] = story.data["log-0"][:-1]


def said_no_later(story: Story) -> None:
    story.note("try", "a.9", "plain", 1, "log-0")
    story.put("log-0", "a.9")
    assert story.judge() == []
    story.note("no", "a.9", "NotOwner")


def replica_phantom(story: Story) -> None:
    story.note("seen", "log-0", 0, len(story.data["log-0"]) + 10, 5, 3)


def replica_wrong(story: Story) -> None:
    story.note("seen", "log-0", 0, 5, 12345, 3)


def replica_back(story: Story) -> None:
    story.note("shows", 9, {}, story.clock)
    story.note("shows", 8, {}, story.clock + 0.5)


def replica_stale(story: Story) -> None:
    story.open(2, "p1.notes")
    story.note("shows", 9, {"log-0": 0}, story.clock + 0.5)


def said_so_itself(story: Story) -> None:
    story.note("bad", "p0", "something")


SPOILERS: list[tuple[Callable[[Story], None], str]] = [
    (lose, "lost"),
    (lose_event, "lost"),
    (lose_part, "lost"),
    (lose_segment, "gone though nobody removed it"),
    (double, "too"),
    (double_event, "follows event"),
    (skip_event, "follows event"),
    (phantom, "nobody has tried"),
    (failed_and_there, "did not happen"),
    (moved, "and is at"),
    (torn, "no whole event"),
    (reordered, "in front of it began"),
    (zombie, "tried after epoch 2"),
    (wrong_epoch, "chunk of epoch 2"),
    (twice_opened, "was opened by"),
    (stale_look, "stale"),
    (future_look, "before they had been tried"),
    (lost_row, "not on the chain"),
    (unknown_row, "nothing leads back"),
    (torn_pair, "is torn"),
    (joined_and_there, "exists, though"),
    (back_from_the_dead, "came back"),
    (unsealed, "not any more"),
    (changed, "changed after"),
    (shrunk, "shrunk"),
    (said_no_later, "did not happen"),
    (replica_phantom, "phantom"),
    (replica_wrong, "other bytes"),
    (replica_back, "went back"),
    (replica_stale, "stale"),
    (said_so_itself, "something"),
]


@pytest.mark.parametrize(("spoil", "words"), SPOILERS, ids=[spoil.__name__ for spoil, _ in SPOILERS])
def test_what_is_wrong_is_named(story: Story, spoil: Callable[[Story], None], words: str) -> None:
    spoil(story)
    found = story.judge()
    assert any(words in violation for violation in found), found


def test_lazy_lengths_may_leave_half_an_append_and_nothing_else(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.verdict = Verdict(mode="append", lazy=True)
    story.open(1)
    story.append("a.1")
    story.note("try", "a.2", "plain", 1, "log-0")
    story.data["log-0"] += frame("a.2")[:4]
    story.append("a.3")
    assert story.judge() == []
    assert story.verdict.places.torn_bytes == 4


@pytest.mark.parametrize("outcome", ["un", None])
def test_an_unknown_append_may_be_there_once(story: Story, outcome: str | None) -> None:
    story.note("try", "a.8", "plain", 1, "log-0")
    story.note("try", "a.9", "plain", 1, "log-0")
    if outcome is not None:
        story.note(outcome, "a.8", "")
        story.note(outcome, "a.9", "")
    story.put("log-0", "a.9")
    assert story.judge() == []
    story.put("log-0", "a.9")
    assert story.judge() != []
