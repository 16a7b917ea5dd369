"""Which offload segments that tasks wrote follow which, and what is stored: decided before anything is attached.

Promises: in the order that is given the entries of each ledger ascend without gaps, as readers of a topic rely on; and where the container
has entries of a ledger, they go on behind the last one. Leaves out: committing (``committing``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from itertools import pairwise
from typing import Final

from chunkstore.changes import Change, Create, Seal, TablePut
from chunkstore.errors import Conflict, InvalidArgument
from chunkstore.owner import Written
from chunkstore.pulsar.contexts import NAMESPACE, Context, EntryRange, encode_context, key_of
from chunkstore.spark.ledgers_out import Offloaded

__all__ = ["behind_stored", "changes_of", "ledgers_in_order"]

_REMEDY: Final = "repartition by topic and ledger, or repartitionByRange by topic, ledger and entry"


def ledgers_in_order(found: Sequence[Offloaded]) -> list[Offloaded]:
    """These in an order in which the entries of every ledger ascend. Raises ``InvalidArgument`` where ranges of tasks overlap, leave a gap,
    or cross: then no order is one."""
    parts: dict[tuple[str, int], list[tuple[EntryRange, int]]] = {}
    for number, item in enumerate(found):
        for entries in item.context.ranges:
            parts.setdefault((item.context.topic, entries.ledger), []).append((entries, number))
    before: dict[int, set[int]] = {number: set() for number in range(len(found))}
    for (topic, ledger), rows in parts.items():
        rows.sort()
        for (one, earlier), (other, later) in pairwise(rows):
            if other.first_entry != one.last_entry + 1:
                how = "overlap" if other.first_entry <= one.last_entry else "leave a gap"
                text = (
                    f"entries {one.first_entry} to {one.last_entry} and {other.first_entry} to {other.last_entry} of "
                    f"ledger {ledger} of topic {topic!r} {how}: {_REMEDY}"
                )
                raise InvalidArgument(text, argument="entry")
            before[later].add(earlier)
    sorter = TopologicalSorter(before)
    try:
        sorter.prepare()
    except CycleError as error:
        text = f"tasks have parts of the same ledgers, crosswise: {_REMEDY}"
        raise InvalidArgument(text, argument="ledger") from error
    ready: list[tuple[str, EntryRange, int]] = []
    order: list[Offloaded] = []
    while sorter.is_active():
        for number in sorter.get_ready():
            heappush(ready, (found[number].context.topic, found[number].context.ranges[0], number))
        number = heappop(ready)[-1]
        sorter.done(number)
        order.append(found[number])
    return order


def behind_stored(stored: Callable[[str], Sequence[Context]], found: Iterable[Offloaded]) -> list[Offloaded]:
    """These with their sequence numbers, behind what ``stored`` says of their topics.

    Raises ``Conflict``: an offload segment of the topic is open, so that somebody else writes it; or a ledger does not go on behind the
    last entry that is stored, ``expected`` being the one behind it and ``found`` the first that came."""
    sequences: dict[str, int] = {}
    lasts: dict[tuple[str, int], int] = {}
    numbered: list[Offloaded] = []
    for item in found:
        topic = item.context.topic
        if topic not in sequences:
            sequences[topic] = 0
            for context in stored(topic):
                sequences[topic] = context.sequence + 1
                if not context.complete:
                    what = f"offload segment {context.sequence} of topic {topic!r}"
                    remedy = "an OffloadWriter is filling it; let it complete, or create another one that continues it"
                    raise Conflict(what, expected="complete", found="open", remedy=remedy)
                for entries in context.ranges:
                    key = topic, entries.ledger
                    lasts[key] = max(entries.last_entry, lasts.get(key, -1))
        for entries in item.context.ranges:
            last = lasts.get((topic, entries.ledger), -1)
            if 0 <= last != entries.first_entry - 1:
                how = "these are stored already" if entries.first_entry <= last else "those between are missing"
                what = f"the first entry for ledger {entries.ledger} of topic {topic!r}, which has entries up to {last}"
                raise Conflict(what, expected=last + 1, found=entries.first_entry, remedy=f"{how}: choose others")
            lasts[topic, entries.ledger] = entries.last_entry
        numbered.append(item._replace(context=item.context._replace(sequence=sequences[topic])))
        sequences[topic] += 1
    return numbered


def changes_of(found: Iterable[Offloaded]) -> tuple[list[Written], list[Change]]:
    """What makes them visible: segments with their chunks, and what comes behind these, seals and contexts."""
    written: list[Written] = []
    also: list[Change] = []
    for context, data, index in found:
        for name, chunks in ((context.data, data), (context.index_segment, index)):
            written.append(Written(name, chunks, Create(name)))
            also.append(Seal(name))
        also.append(TablePut(NAMESPACE, key_of(context.topic, context.sequence), encode_context(context), 0))
    return written, also
