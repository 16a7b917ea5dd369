"""Objects of a tier that no broker will use or delete, and segments whose objects are missing.

Nothing is deleted; without a metadata log only incomplete copies and foreign objects are reported. Leaves out: taking the copy of the
metadata log, which must not be older than ``older_than_s``: what was copied since looks like an orphan.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Literal, NamedTuple

from chunkstore import runtime
from chunkstore.codec.kafka.names import ObjectKey, parse_object_key, uuid_text
from chunkstore.codec.kafka.remote_metadata import MetadataRecord, SegmentState
from chunkstore.errors import InvalidArgument
from chunkstore.kafka.sources import BucketSource
from chunkstore_bindings.bucket.port import ObjectInfo

__all__ = ["Orphan", "find_orphans"]

Kind = Literal["object-without-metadata", "metadata-without-object", "never-finished", "foreign"]


class Orphan(NamedTuple):
    """An object (``bytes`` None: an unfinished upload; ``topic`` and ``partition`` None: foreign), or one that is missing (0 bytes)."""

    kind: Kind
    object: str
    topic: str | None
    partition: int | None
    bytes: int | None
    age_s: int


def find_orphans(source: BucketSource, older_than_s: float) -> tuple[list[Orphan], list[str]]:
    """The orphans that are ``older_than_s`` seconds old at least, by key, and notes. ``InvalidArgument`` for a negative age."""
    if not older_than_s >= 0:
        raise InvalidArgument(f"{older_than_s} seconds", argument="--older-than")
    now_ms, found, seen, topics = runtime.now_ms(), list[Orphan](), set[bytes](), set[bytes]()

    def add(kind: Kind, object: str, key: ObjectKey | MetadataRecord | None, size: int | None, at_ms: int) -> None:
        age_s = (now_ms - at_ms) // 1000
        if age_s >= older_than_s:
            found.append(Orphan(kind, object, key and key.topic, None if key is None else key.partition, size, age_s))

    def ours() -> Iterator[tuple[ObjectInfo, ObjectKey]]:
        for item, key in source.objects():
            if key is not None:
                yield item, key
            else:
                add("foreign", item.key, None, item.length, item.modified_ms)

    for stem, several in groupby(ours(), key=lambda pair: pair[0].key.rpartition(".")[0]):
        items = list(several)
        key, objects = items[0][1], {each.suffix: item for item, each in items}
        seen.add(key.segment_id)
        topics.add(key.topic_id)
        kind = _kind(source, key, objects)
        newest_ms = max(item.modified_ms for item in objects.values())
        if kind == "metadata-without-object":
            for suffix in {"log", "indexes", "rsm-manifest"} - objects.keys():
                add(kind, f"{stem}.{suffix}", key, 0, newest_ms)
        elif kind is not None:
            for item in objects.values():
                add(kind, item.key, key, item.length, newest_ms)
    states = source.states or {}
    for segment_id, record in states.items():
        if segment_id not in seen and record.topic_id in topics:
            name = f"{record.topic}-{uuid_text(record.topic_id)}/{record.partition}/{record.start_offset:020d}-{uuid_text(segment_id)}"
            add("metadata-without-object", f"{source.prefix}{name}.log", record, 0, record.event_timestamp_ms)
    for upload in source.bucket.uploads(source.prefix):
        named = parse_object_key(upload.key, source.prefix)
        if named is not None:
            add("never-finished", upload.key, named, None, upload.started_ms)
    others = sorted({record.topic for record in states.values() if record.topic_id not in topics})
    notes = [f"the metadata log has segments of topic {topic}, of which no object is here" for topic in others]
    stated = {(record.topic, record.partition) for record in states.values()}
    unknown = {(each.topic, each.partition) for each in found if each.kind == "object-without-metadata"} - stated
    text = "the metadata log has no record of {}-{}: if partitions of the metadata topic are missing here, its objects are not orphans"
    notes += [text.format(*place) for place in sorted(unknown, key=str)]
    return sorted(found, key=lambda each: each.object), notes


def _kind(source: BucketSource, key: ObjectKey, objects: dict[str, ObjectInfo]) -> Kind | None:
    """What the objects of a segment are; None: they are in use, or a broker deletes them."""
    whole = len(objects) == 3  # log, indexes, manifest
    if source.states is None:
        return None if whole else "metadata-without-object" if "rsm-manifest" in objects else "never-finished"
    record = source.states.get(key.segment_id)
    if record is None:
        return "object-without-metadata"
    if record.state == SegmentState.COPY_SEGMENT_STARTED:
        return "never-finished"
    return "metadata-without-object" if record.state == SegmentState.COPY_SEGMENT_FINISHED and not whole else None
