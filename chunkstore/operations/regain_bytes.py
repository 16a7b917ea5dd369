"""The bytes of what a repair keeps: comparing them with records, and copying those that cannot stay where they are (protocol 3.15).

Promises: reads and makes chunks of our own epoch, and changes nothing else; a copy counts once its bytes were read back and have the CRC32C
that follows from its parts'. Leaves out: which bytes (``cut_off``); what becomes of the copies (``regain``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from chunkstore import runtime
from chunkstore.checksum import crc32c_combine, crc32c_extend
from chunkstore.chunks import COMPOSE_RANGES_MAX
from chunkstore.config import MIB
from chunkstore.errors import ChunkNotFound, Conflict, Damaged, InvalidArgument, SegmentNotFound
from chunkstore.names import NO_CHUNK, ContainerNames
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.owned_epoch import OwnedEpoch
from chunkstore.operations.repair_plan import ChunkLink, SegmentPlan
from chunkstore.operations.spill import spill
from chunkstore.records import CLOSED, KIND_OBJECT, ChunkRecord
from chunkstore.storage import ChunkHandle, ChunkRange, ChunkStorage

__all__ = ["clipped", "is_stored", "spill_again", "with_copies"]

_READ_BYTES = 4 * MIB
_SPILL_BYTES = 8 * MIB
_TRIES = 5


def is_stored(storage: ChunkStorage, names: ContainerNames, link: ChunkLink) -> bool:
    """Whether the bytes of a link's chunk are there, with the CRC32C that its record says. Raises what the storage raises."""
    found = _crc_of(storage, *names.address(link.identity, link.record), link.record.length)
    return found is not None and found == link.record.crc32c


def clipped(storage: ChunkStorage, names: ContainerNames, link: ChunkLink, stop: int) -> ChunkLink:
    """The link up to this offset of the segment: of a chunk that goes on behind it, so many bytes."""
    if link.stop <= stop:
        return link
    length = stop - link.offset + link.skip
    crc = _crc_of(storage, *names.address(link.identity, link.record), length)
    return link._replace(record=link.record._replace(length=length, crc32c=crc))


def _crc_of(storage: ChunkStorage, name: str, begin: int, length: int) -> int | None:
    """The CRC32C of so many bytes of an object; None where there are fewer."""
    crc, position = 0, 0
    with suppress(ChunkNotFound):
        while position < length:
            data = storage.read(ChunkHandle(name, False), begin + position, min(_READ_BYTES, length - position))
            if not data:
                return None
            crc = crc32c_extend(crc, data)
            position += len(data)
        return crc
    return None


# --- copying ----------------------------------------------------------------------------------------------------------


def with_copies(container: OwnedContainer, owned: OwnedEpoch, plan: SegmentPlan) -> SegmentPlan:
    """The plan with chunks of ``owned`` in the place of links that are to be copied; they are durable, and nothing refers to them.

    Raises ``Damaged`` (what was there a moment ago is not), and what the storage raises. Retry: safe, and makes others.
    """
    if not any(link.copied for link in plan.links):
        return plan
    links: list[ChunkLink] = []
    number = 0
    for group in _groups(plan):
        number += len(group)
        links.append(_copy(container, owned, plan.id, group) if group[0].copied else group[0])
    assert number == len(plan.links)
    shift = {link.offset: place for place, link in enumerate(links)}
    sources = [
        source._replace(
            first=shift[plan.links[source.first].offset],
            last=shift[plan.links[source.last].offset],
        )
        for source in plan.sources
    ]
    return replace(plan, links=links, sources=sources)


def _groups(plan: SegmentPlan) -> Iterator[Sequence[ChunkLink]]:
    """The links, one by one, those that are copied in groups of neighbours that become one chunk."""
    size_max = next(segment for segment in (plan.final, plan.base) if segment is not None).chunk_size_bytes_max
    group: list[ChunkLink] = []
    for link in plan.links:
        fits = group and len(group) < COMPOSE_RANGES_MAX and link.stop - group[0].offset <= size_max
        if group and not (link.copied and fits):
            yield group
            group = []
        if link.copied:
            group.append(link)
        else:
            yield (link,)
    if group:
        yield group


def _copy(container: OwnedContainer, owned: OwnedEpoch, segment_id: int, group: Sequence[ChunkLink]) -> ChunkLink:
    storage, names = container.storage, container.names
    identity = owned.new_chunk(segment_id)
    target, length = names.chunk(identity), group[-1].stop - group[0].offset
    ranges: list[ChunkRange] = []
    crc: int | None = 0
    try:
        for link in group:
            name, begin = names.address(link.identity, link.record)
            size = link.record.length - link.skip
            part = _crc_of(storage, name, begin + link.skip, size) if link.skip else link.record.crc32c
            crc = None if part is None or crc is None else crc32c_combine(crc, part, size)
            ranges.append(ChunkRange(name, begin + link.skip, size))
        with container.bounded(container.deadline()):
            storage.compose(target, ranges)
    except (ChunkNotFound, InvalidArgument) as error:
        raise Damaged(f"the bytes to copy have disappeared: {error}", object=ranges[-1].name) from error
    if crc is None or _crc_of(storage, target, 0, length) != crc:
        raise Damaged("the bytes do not have the CRC32C that is recorded", object=ranges[0].name)
    record = ChunkRecord(
        "", 0, length, crc, NO_CHUNK, NO_CHUNK, segment_id, owned.epoch, CLOSED, KIND_OBJECT, runtime.now_ms()
    )
    return ChunkLink(group[0].offset, identity, record, copied=True)


# --- spilling again ---------------------------------------------------------------------------------------------------


def spill_again(container: OwnedContainer, name: str, spilled: Sequence[ChunkLink]) -> None:
    """Spill every extent of a segment: what holds them a former owner may delete at any time. Where it has, ``spilled`` have the bytes.

    What is damaged there stays, for ``check`` to tell. Raises what commits and storages raise. Retry: safe.
    """
    tries = _TRIES
    with suppress(Damaged, SegmentNotFound):
        while True:
            try:
                done = spill(container, name, bytes_max=_SPILL_BYTES, instead=partial(_instead, container, spilled))
            except Conflict:  # another epoch of ours began meanwhile
                tries -= 1
                if not tries:
                    raise
                continue
            if not done.extents:
                return


def _instead(container: OwnedContainer, spilled: Sequence[ChunkLink], start: int, stop: int) -> bytes:
    """What holds bytes of a segment that spills behind the cut have moved. Short where it is not known, or not what its record says."""
    storage, names = container.storage, container.names
    found: list[bytes] = []
    for link in spilled:
        if link.offset < stop and start < link.stop and link.record.kind == KIND_OBJECT:
            if not is_stored(storage, names, link):
                break
            begin = max(start, link.offset) - link.offset
            handle = ChunkHandle(names.chunk(link.identity), False)
            found.append(storage.read(handle, begin, min(stop, link.stop) - link.offset - begin))
    return b"".join(found)
