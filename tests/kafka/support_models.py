"""Two naive models of a partition's metadata: what mode strict promises, by search; and Kafka's cache, by its own steps."""

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
    "KafkaModel",
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


class KafkaModel:
    """As RemoteLogMetadataCache keeps it: for each epoch starts and ids, ids that are not referenced, the highest offset."""

    strict = False

    def __init__(self) -> None:
        self.segments: dict[int, RemoteLogSegmentMetadata] = {}
        self.starts: dict[int, dict[int, int]] = {}
        self.others: dict[int, set[int]] = {}
        self.highest: dict[int, int] = {}

    def add(self, item: RemoteLogSegmentMetadata) -> None:
        number = number_of(item) or 0
        for epoch in item.segment_leader_epochs:
            self.starts.setdefault(epoch, {})
            self.others.setdefault(epoch, set()).add(number)
        self.segments[number] = item

    def move(self, old: RemoteLogSegmentMetadata, item: RemoteLogSegmentMetadata) -> None:
        number = number_of(item) or 0
        for epoch, start in item.segment_leader_epochs.items():
            starts, others, end = self.starts[epoch], self.others[epoch], item.epoch_end(epoch)
            if item.state == FINISHED:
                while starts and max(starts) >= start and self.highest[epoch] <= end:
                    others.add(starts.pop(max(starts)))
                starts[start] = number
                others.discard(number)
                self.highest[epoch] = max(end, self.highest.get(epoch, end))
            elif item.state == DELETING:
                if starts.get(start) == number:
                    del starts[start]
                others.add(number)
            else:
                others.discard(number)
        self.segments[number] = item
        if item.state == DELETED:
            del self.segments[number]

    def find(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        starts = self.starts.get(epoch, {})
        below = [start for start in starts if start <= offset]
        found = self.segments[starts[max(below)]] if below else None
        return found if found is not None and offset <= found.epoch_end(epoch) else None

    def listed(self, epoch: int) -> list[int]:
        return [*self.starts.get(epoch, {}).values(), *self.others.get(epoch, ())]

    def answers(self) -> dict[str, object]:
        """As ``support_metadata.answers``."""
        found: dict[str, object] = {"all": sorted(self.segments)}
        for epoch in EPOCHS:
            found[f"highest {epoch}"] = self.highest.get(epoch)
            numbers = self.listed(epoch)
            whole = all(number in self.segments for number in numbers)
            order = (
                sorted(numbers, key=lambda number: (self.segments[number].start_offset, number)) if whole else "missing"
            )
            found[f"list {epoch}"] = order
            found[f"size {epoch}"] = sum(1 << number for number in numbers) if whole else "missing"
            for offset in OFFSETS:
                item = self.find(epoch, offset)
                found[f"find {epoch} {offset}"] = number_of(item)
                while item is not None and item.txn_idx_empty:
                    item = self.find(epoch, item.end_offset + 1)
                found[f"txn {epoch} {offset}"] = number_of(item)
        return found


class StrictModel(KafkaModel):
    """Every answer by a search through all segments. ``finished``: them in the order in which their copies finished."""

    strict = True

    def __init__(self) -> None:
        super().__init__()
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

    def listed(self, epoch: int) -> list[int]:
        return [number for number, item in self.segments.items() if epoch in item.segment_leader_epochs]


_NEXT = {STARTED: {FINISHED, DELETING}, FINISHED: {DELETING}, DELETING: {DELETED}}


def apply_to_model(model: KafkaModel, command: Command, partition: TopicIdPartition) -> str:
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
