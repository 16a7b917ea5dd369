"""A naive model of a partition's metadata in mode strict, which searches; and random commands for it and for Kafka's cache."""

from __future__ import annotations

import random
from typing import Literal, NamedTuple, TypeAlias

from chunkstore.errors import InvalidArgument
from chunkstore.kafka.model import (
    IllegalTransition,
    RemoteLogSegmentMetadata,
    RemoteResourceNotFoundException,
    TopicIdPartition,
)
from tests.kafka.support_metadata import DELETED, DELETING, FINISHED, STARTED, Leader, number_of, segment, update

__all__ = [
    "EPOCHS",
    "OFFSETS",
    "Command",
    "StrictModel",
    "apply",
    "apply_to_model",
    "random_command",
    "segment_of",
]

EPOCHS = range(3)
OFFSETS = range(0, 16, 2)

Word: TypeAlias = Literal["add", "0", "1", "2", "3"]


class Command(NamedTuple):
    """Add segment ``number``, or move it to a state. ``split``: where its second epoch begins, from its start on; none: only one."""

    word: str
    number: int
    start: int = 0
    length: int = 1
    epoch: int = 0
    split: int | None = None


def random_command(chance: random.Random) -> Command:
    """A command; states follow their order more often than not."""
    word = chance.choice(["add", "add", "1", "1", "1", "2", "3", "0"])
    split = chance.choice([None, None, *range(6)])
    return Command(word, chance.randrange(6), chance.randrange(10), chance.randint(1, 8), chance.randrange(2), split)


def segment_of(command: Command, partition: TopicIdPartition) -> RemoteLogSegmentMetadata:
    """The segment that a command adds."""
    start, end = command.start, command.start + command.length - 1
    epochs = {command.epoch: start}
    if command.split is not None:
        epochs[command.epoch + 1] = min(start + command.split, end)
    return segment(
        command.number, start, end, epochs, partition=partition,
        txn_idx_empty=command.length % 2 == 0, segment_size_in_bytes=1 << command.number,
    )  # fmt: skip


class StrictModel:
    """Every answer by a search through all segments. ``finished``: them in the order in which their copies finished."""

    def __init__(self) -> None:
        self.segments: dict[int, RemoteLogSegmentMetadata] = {}
        self.highest: dict[int, int] = {}
        self.finished: list[int] = []

    def add(self, item: RemoteLogSegmentMetadata) -> None:
        self.segments[number_of(item) or 0] = item

    def move(self, old: RemoteLogSegmentMetadata, item: RemoteLogSegmentMetadata) -> None:
        number = number_of(item) or 0
        self.finished = [other for other in self.finished if other != number]
        self.segments[number] = item
        if item.state == FINISHED:
            self.finished.append(number)
            for epoch in item.segment_leader_epochs:
                self.highest[epoch] = max(item.epoch_end(epoch), self.highest.get(epoch, -1))
        elif item.state == DELETED:
            del self.segments[number]

    def find(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        ranges = []
        for order, number in enumerate(self.finished):
            item = self.segments[number]
            if epoch in item.segment_leader_epochs:
                ranges.append((item.segment_leader_epochs[epoch], item.epoch_end(epoch), order, item))
        best = [
            (start, item)
            for start, end, order, item in ranges
            if start <= offset <= end
            and not any(
                other_start <= start
                and end <= other_end
                and ((other_start, other_end) != (start, end) or later > order)
                for other_start, other_end, later, other in ranges
                if other is not item
            )
        ]
        return max(best, key=lambda pair: pair[0])[1] if best else None

    def answers(self) -> dict[str, object]:
        """As ``support_metadata.answers``."""
        found: dict[str, object] = {"all": sorted(self.segments)}
        for epoch in EPOCHS:
            found[f"highest {epoch}"] = self.highest.get(epoch)
            numbers = [number for number, item in self.segments.items() if epoch in item.segment_leader_epochs]
            order = sorted(numbers, key=lambda number: (self.segments[number].start_offset, number))
            found[f"list {epoch}"] = order
            found[f"size {epoch}"] = sum(1 << number for number in numbers)
            for offset in OFFSETS:
                item = self.find(epoch, offset)
                found[f"find {epoch} {offset}"] = number_of(item)
                while item is not None and item.txn_idx_empty:
                    item = self.find(epoch, item.end_offset + 1)
                found[f"txn {epoch} {offset}"] = number_of(item)
        return found


_NEXT = {STARTED: {FINISHED, DELETING}, FINISHED: {DELETING}, DELETING: {DELETED}}


def apply_to_model(model: StrictModel, command: Command, partition: TopicIdPartition) -> str:
    """Do it, and say what comes of it: "done", "dropped", "unknown" or "argument"."""
    old = model.segments.get(command.number)
    if command.word == "add":
        if old is not None and old.state != STARTED:
            return "dropped"
        model.add(segment_of(command, partition))
        return "done"
    state = type(STARTED)(int(command.word))
    if old is None:
        return "unknown"
    if state == STARTED and old.state == STARTED:
        return "argument"
    if state != old.state and state not in _NEXT[old.state]:
        return "dropped"
    model.move(old, old.with_update(update(old, state)))
    return "done"


def apply(leader: Leader, command: Command) -> str:
    """As ``apply_to_model``, by the manager."""
    item = segment_of(command, leader.partition)
    before = leader.manager.remote_log_segment(item.remote_log_segment_id)
    try:
        if command.word == "add":
            leader.add(item)
        else:
            leader.move(item, type(STARTED)(int(command.word)))
    except RemoteResourceNotFoundException:
        return "unknown"
    except InvalidArgument:
        return "argument"
    except IllegalTransition:
        return "dropped"
    after = leader.manager.remote_log_segment(item.remote_log_segment_id)
    wanted = (
        item if command.word == "add" else before and before.with_update(update(item, type(STARTED)(int(command.word))))
    )
    return "done" if after == wanted or (after is None and command.word == "3") else "dropped"
