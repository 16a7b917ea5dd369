"""The options and columns of ``df.write.format("chunkstore")`` and ``df.writeStream``, checked before a job runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from chunkstore.config import MIB
from chunkstore.errors import InvalidArgument
from chunkstore.pulsar.contexts import check_topic
from chunkstore.records.names import check_container_name, check_segment_name, utf8_bytes
from chunkstore.registry import root_url
from chunkstore.spark.columns import unknown_name
from chunkstore.spark.options import known_values, one_of, path_option, refused, whole_number

__all__ = ["WRITE_OPTIONS", "Columns", "WriteOptions", "check_columns", "parse_write_options"]

WRITE_OPTIONS: Final = (
    *("path", "container", "segments", "topic", "framing", "chunkBytes"),
    *("takeOver", "sinkId", "txnAppId", "txnVersion", "as"),
)
_SPARKS_OWN: Final = ("checkpointLocation", "queryName")
"""Spark puts these among a stream's options."""
_BATCH_ONLY: Final = ("takeOver", "txnVersion")
_CHUNK_BYTES: Final = 64 * MIB
_CHUNK_BYTES_MAX: Final = 1 << 30
_NUMBER_MAX: Final = (1 << 63) - 1
_VALUES: Final = ("string", "binary")
LEDGER_KINDS: Final[dict[str, tuple[str, ...]]] = {"ledger": ("bigint",), "entry": ("bigint",), "payload": _VALUES}
"""The columns of entries, in this order, and their Spark types."""
_ROW_KINDS: Final = {"value": _VALUES, "segment": ("string",)}


class WriteOptions(NamedTuple):
    """What one write asks for. ``target``: where all rows go that no column routes; empty: not given.
    ``checkpoint``: what a stream that has no ``sink_id`` is known by before it runs; empty where it is the session's.
    ``named_by``: the option that gave ``target``; of entries of ledgers that is a topic, and ``chunk_bytes`` of an offload segment.
    ``kind``: segments or ledger; empty where the columns decide."""

    path: str
    container: str
    target: str
    lines: bool
    chunk_bytes: int
    take_over: bool
    sink_id: str | None
    application: str | None
    version: int
    checkpoint: str
    named_by: str
    kind: str = ""


class Columns(NamedTuple):
    """Which columns say what. ``segment`` None: all rows go to the option's. ``ledgers``: rows are entries of
    ledgers."""

    segment: str | None
    ledgers: bool = False


def parse_write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Check the options as Spark hands them over. Raises ``InvalidArgument`` naming the option, ``Unsupported``."""
    values = known_values(given, (*WRITE_OPTIONS, *_SPARKS_OWN) if streaming else WRITE_OPTIONS)
    path = root_url(path_option(values), "path")
    check_container_name(values.get("container", "default"))
    for name in _BATCH_ONLY if streaming else ():
        if name in values:
            text = f"option {name!r} is for batch writes; a stream asks the owner, and counts its micro-batches"
            raise InvalidArgument(text, argument=name)
    if "sinkId" in values and not streaming:
        raise refused("sinkId", "is for streams; a batch write has txnAppId and txnVersion")
    if "sinkId" in values and "txnAppId" in values:
        raise InvalidArgument("options 'sinkId' and 'txnAppId' both name the sink; keep one", argument="sinkId")
    if not streaming and ("txnAppId" in values) != ("txnVersion" in values):
        raise InvalidArgument("options 'txnAppId' and 'txnVersion' are given together", argument="txnVersion")
    if "segments" in values and "topic" in values:
        raise InvalidArgument("options 'segments' and 'topic' both name a destination; keep one", argument="topic")
    named_by = "topic" if "topic" in values else "segments"
    target = values.get(named_by, "")
    known_as = _name(values, "sinkId" if "sinkId" in values else "txnAppId")
    if named_by in values:
        check_segment_name(target, named_by)
    return WriteOptions(
        path=path,
        container=values.get("container", "default"),
        target=target,
        lines=one_of(values, "framing", ("none", "lines")) == "lines",
        chunk_bytes=whole_number(values, "chunkBytes", 1, _CHUNK_BYTES_MAX) or _CHUNK_BYTES,
        take_over=one_of(values, "takeOver", ("false", "true")) == "true",
        sink_id=known_as if streaming else None,
        application=None if streaming else known_as,
        version=whole_number(values, "txnVersion", 0, _NUMBER_MAX) or 0,
        checkpoint=values.get("checkpointLocation", ""),
        named_by=named_by if target else "",
        kind=one_of(values, "as", ("segments", "ledger")) if "as" in values else "",
    )


def check_columns(fields: Sequence[tuple[str, str]], options: WriteOptions) -> Columns:
    """Which of these columns (name and Spark type) is what. Raises ``InvalidArgument`` for one that is missing, wrong or not stored."""
    kinds = dict(fields)
    ledgers = options.kind == "ledger" or (not options.kind and not LEDGER_KINDS.keys().isdisjoint(kinds))
    if ledgers and (options.lines or options.named_by == "segments"):
        wrong = "framing" if options.lines else "segments"
        raise InvalidArgument(f"option {wrong!r} is for segments; entries of ledgers take topic", argument=wrong)
    allowed = {"topic": ("string",), **(LEDGER_KINDS if ledgers else _ROW_KINDS)}
    for name, _ in fields:
        if name not in allowed:
            raise InvalidArgument(
                f"{unknown_name('column', name, sorted(allowed))}; drop the other columns", argument=name
            )
    if len(kinds) < len(fields):
        raise InvalidArgument("two columns have one name", argument=fields[-1][0])
    for name, types in allowed.items():
        if kinds.get(name, types[0]) not in types:
            text = f"column {name!r} must be of type {' or '.join(types)}, not {kinds[name]}: cast it"
            raise InvalidArgument(text, argument=name)
    for name in LEDGER_KINDS if ledgers else ("value",):
        if name not in kinds:
            text = f"column {name!r} ({' or '.join(allowed[name])}) is missing; it holds the bytes to write"
            raise InvalidArgument(text, argument=name)
    if "segment" in kinds and "topic" in kinds:
        raise InvalidArgument("columns 'segment' and 'topic' both name a row's destination; keep one", argument="topic")
    segment = "segment" if "segment" in kinds else "topic" if "topic" in kinds else None
    if segment is not None and options.target:
        text = f"column {segment!r} names a row's destination, and so do the options 'segments' and 'topic'; keep one"
        raise InvalidArgument(text, argument="segments")
    if ledgers and options.target:
        check_topic(options.target)
    if ledgers and segment is None and not options.target:
        raise InvalidArgument("whose ledgers are these? Give a column or an option 'topic'", argument="topic")
    if segment is None and not options.target:
        text = "where do the rows go? Give a column 'segment' or 'topic', or option 'segments'"
        raise InvalidArgument(text, argument="segment")
    return Columns(segment, ledgers)


def _name(values: Mapping[str, str], name: str) -> str | None:
    text = values.get(name)
    if text is not None and not 1 <= utf8_bytes(text) <= 255:
        raise refused(name, "must be 1 to 255 bytes of UTF-8")
    return text
