"""What an export of a topic holds: the segments of its ledgers, and the rows that speak of these segments alone."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from chunkstore.metadata.codec import decode_table
from chunkstore.metadata.keys import segment_key, table_prefix
from chunkstore.metadata.port import MetadataView
from chunkstore.pulsar.contexts import NAMESPACE, Context, LedgerNotFound, check_topic, decode_context

__all__ = ["NAMESPACE", "check_topic", "context_rows", "named_by", "segments_of"]


def segments_of(view: MetadataView, topic: str) -> set[str]:
    """The segments of a topic that are there. Raises ``LedgerNotFound``, ``Damaged``."""
    contexts = _contexts(view, topic)
    if not contexts:
        raise LedgerNotFound(topic)
    found = {name for _, _, context in contexts for name in _named_by(context)}
    return {name for name in found if view.get(segment_key(name)) is not None}


def context_rows(view: MetadataView, segments: AbstractSet[str]) -> Iterator[tuple[bytes, bytes]]:
    """The rows that speak of ``segments`` alone, in key order. Raises ``Damaged``."""
    rows = dict[bytes, bytes]()
    for topic in {_topic_of(name) for name in segments} - {""}:
        found = _contexts(view, topic)
        rows |= {key: raw for key, raw, context in found if segments >= _named_by(context)}
    yield from sorted(rows.items())


def named_by(key: bytes, value: bytes) -> set[str]:
    """The segments that a row speaks of. Raises ``Damaged``."""
    return _named_by(decode_context(key, value))


def _topic_of(name: str) -> str:
    """The topic of which a segment is data or index; empty where it is neither."""
    topic, _, _ = name.removeprefix("offload/").rpartition("/")
    return topic if name.startswith("offload/") else ""


def _contexts(view: MetadataView, topic: str) -> list[tuple[bytes, bytes, Context]]:
    """The rows of a topic's contexts: key, value, and what they say. Raises ``Damaged``."""
    prefix = table_prefix(NAMESPACE)
    start = prefix + topic.encode() + b"\0"
    rows = view.scan(start, start + b"\xff" * 9)
    return [(key, raw, decode_context(key[len(prefix) :], decode_table(key, raw).value)) for key, raw in rows]


def _named_by(context: Context) -> set[str]:
    return {context.data, context.index_segment} if context.complete else {context.data}
