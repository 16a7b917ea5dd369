"""A stream of the entries of offloaded topics, in whole blocks. Missing offload segments are noticed by their numbers."""

from __future__ import annotations

from collections.abc import Iterable

from chunkstore.codec.pulsar.block_index import LedgerRange
from chunkstore.codec.pulsar.frames import ENTRY_ID_MAX
from chunkstore.engine.replica import Replica
from chunkstore.pulsar import LedgerNotFound, TopicPlanner, TopicPosition
from chunkstore.pulsar.contexts import Context, iter_contexts
from chunkstore.spark.options import LATEST, ReadOptions
from chunkstore.spark.plan import chosen_topics, is_chosen, plan_parts
from chunkstore.spark.positions import Limit, Reached, Shares, StreamOffset, lose
from chunkstore.spark.runs import ReadTask

__all__ = ["TopicFollower"]


class TopicFollower:
    """See the module. Of one stream; the replica is the stream's."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._target: dict[str, TopicPosition] | None = None
        self._planners: dict[str, TopicPlanner] = {}

    def forget(self) -> None:
        """Another replica will be asked from now on."""
        self._planners.clear()

    def freeze(self, replica: Replica) -> None:
        """Go no further than what is there now."""
        self._target = {topic: self._planner(replica, topic).end() for topic in self._topics(replica)}

    def initial(self, replica: Replica) -> StreamOffset:
        """Where a new query begins."""
        topics = self._topics(replica)
        if self._options.topic is not None and not topics:
            raise LedgerNotFound(self._options.topic)
        if self._options.starting == LATEST:
            return self.ends(replica)
        begins = {topic: TopicPosition(contexts[0].sequence, 0) for topic, contexts in topics.items()}
        return StreamOffset({topic: _reached(topics[topic], begin) for topic, begin in begins.items()})

    def ends(self, replica: Replica) -> StreamOffset:
        """Where the topics end."""
        found = {}
        for topic, contexts in self._topics(replica).items():
            end = self._planner(replica, topic).end()
            found[topic] = _reached(contexts, end if end.offset else TopicPosition(contexts[0].sequence, 0))
        return StreamOffset(found)

    def advance(self, replica: Replica, start: StreamOffset, limit: Limit) -> StreamOffset:
        """How far the next batch goes."""
        there = self._topics(replica)
        lost = start.lost_segments
        found: dict[str, Reached] = {}
        for topic, before in start.reached.items():
            if topic in there:
                continue
            if not is_chosen(self._options, topic):
                found[topic] = before._replace(begin=None)  # a caller that chooses it again goes on there
            elif not before.done:
                lost += self._lose(topic, 1)
        begins: dict[str, TopicPosition] = {}
        ends: dict[str, TopicPosition] = {}
        for topic, contexts in there.items():
            begins[topic], missing = _begin(contexts, start.reached.get(topic))
            lost += self._lose(topic, missing)
            end = self._planner(replica, topic).end()
            if self._target is not None:
                end = min(end, self._target.get(topic, begins[topic]))
            ends[topic] = max(end, begins[topic])

        shares = Shares({topic: _distance(there[topic], begins[topic], ends[topic]) for topic in there}, limit)
        for topic, share in shares:
            begin, contexts, held = begins[topic], there[topic], start.reached.get(topic)
            end, rows = self._end(replica, contexts, begin, ends[topic], share)
            shares.take(_distance(contexts, begin, end), rows)
            if held is not None or end > TopicPosition(0, 0):  # else it has nothing yet
                lost += self._lose(topic, _missing(contexts, begin.sequence + 1, end.sequence))
                follows = held is not None and begin == held.at
                found[topic] = _reached(contexts, end)._replace(begin=None if follows else begin)
        return start._replace(reached=found, lost_segments=lost)

    def tasks(self, replica: Replica, first: StreamOffset, last: StreamOffset) -> list[ReadTask]:
        """What is read between two offsets: the same rows each time."""
        parts: list[LedgerRange] = []
        for topic, reached in last.reached.items():
            before, stop = first.reached.get(topic), TopicPosition(*reached.at)
            start = TopicPosition(*(reached.begin or (0, 0)))
            is_read = False
            if before is not None and (before.at[0] < stop.sequence or before.identity == reached.identity):
                start, is_read = max(start, TopicPosition(*before.at)), before.done
            if start >= stop:
                continue
            contexts = iter_contexts(replica, topic)
            self._lose(topic, _missing(contexts, start.sequence + is_read, stop.sequence))
            if _reached(contexts, stop).identity != reached.identity:
                self._lose(topic, 1)
                stop = TopicPosition(stop.sequence, 0)
            parts += self._planner(replica, topic).between(start, stop)
        return plan_parts(replica, self._options, parts)

    # Helpers

    def _topics(self, replica: Replica) -> dict[str, list[Context]]:
        """The topics that are there, and their offload segments."""
        found = {topic: iter_contexts(replica, topic) for topic in chosen_topics(replica, self._options)}
        return {topic: contexts for topic, contexts in found.items() if contexts}

    def _planner(self, replica: Replica, topic: str) -> TopicPlanner:
        if topic not in self._planners:
            self._planners[topic] = TopicPlanner(replica, topic)
        return self._planners[topic]

    def _lose(self, topic: str, count: int) -> int:
        """So many offload segments of a topic are gone, if any: refused, or counted."""
        if count:
            lose(self._options, LedgerNotFound(topic))
        return count

    def _end(
        self, replica: Replica, contexts: list[Context], begin: TopicPosition, end: TopicPosition, limit: Limit
    ) -> tuple[TopicPosition, int]:
        """Where the batch ends, one block at least, and how many entries it has at most (if that matters)."""
        if limit == Limit() or begin == end:
            return end, 0
        size_bytes, rows = limit
        planner = self._planner(replica, contexts[0].topic)
        counts = _entries(contexts, planner.between(begin, end)) if rows is not None else {}
        at, taken_bytes, taken_rows = begin, 0, 0
        for border in planner.borders(begin, end):
            count = counts.get(border, rows or 0)  # a last block without a known end may hold more than what is left
            taken_bytes += border.offset - (at.offset if border.sequence == at.sequence else 0)
            is_over = (size_bytes is not None and taken_bytes > size_bytes) or (
                rows is not None and taken_rows + count > rows
            )
            if is_over and at != begin:
                break
            at, taken_rows = border, taken_rows + count
            if is_over:
                break
        return at, taken_rows


def _entries(contexts: list[Context], parts: Iterable[LedgerRange]) -> dict[TopicPosition, int]:
    """By where a block ends, how many entries it has at most, where that is known: ids may be left out."""
    sequences = {context.data: context.sequence for context in contexts}
    counts: dict[TopicPosition, int] = {}
    for part in parts:
        following = [block.first_entry for block in part.blocks[1:]]
        if part.last_entry < ENTRY_ID_MAX:
            following.append(part.last_entry + 1)
        for block, after in zip(part.blocks, following, strict=False):
            counts[TopicPosition(sequences[part.segment], block.stop)] = after - block.first_entry
    return counts


def _begin(contexts: list[Context], before: Reached | None) -> tuple[TopicPosition, int]:
    """Where the next batch begins, and how many offload segments in front of that were not read to their ends, and are gone.

    A topic that is new, or another one of its name, was promised from number 0."""
    first = contexts[0].sequence
    if before is None:
        return TopicPosition(first, 0), first
    sequence = before.at[0]
    same = next((context for context in contexts if context.sequence == sequence), None)
    if same is not None and same.uuid.hex() == before.identity:
        return TopicPosition(*before.at), 0
    later = [context.sequence for context in contexts if same is None and context.sequence > sequence]
    if later:
        return TopicPosition(later[0], 0), later[0] - sequence - before.done
    return TopicPosition(first, 0), first + (not before.done)


def _missing(contexts: list[Context], first: int, last: int) -> int:
    """How many numbers from ``first`` to ``last`` are not there: offload segments of a topic are numbered without holes."""
    return max(0, last + 1 - first) - sum(first <= context.sequence <= last for context in contexts)


def _distance(contexts: list[Context], begin: TopicPosition, end: TopicPosition) -> int:
    """Bytes between two positions."""
    return sum(
        (end.offset if context.sequence == end.sequence else context.data_length)
        - (begin.offset if context.sequence == begin.sequence else 0)
        for context in contexts
        if begin.sequence <= context.sequence <= end.sequence
    )


def _reached(contexts: list[Context], end: TopicPosition) -> Reached:
    for context in contexts:
        if context.sequence == end.sequence:
            done = context.complete and end.offset == context.data_length
            return Reached(context.uuid.hex(), end, done)
    return Reached("", end)
