"""The options of ``spark.read`` and ``spark.readStream`` of the format "chunkstore", checked before anything is opened.

An unknown option is refused by name, so that a misspelt one cannot change an answer silently. Names are case-insensitive, as Spark's."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeAlias

from chunkstore.config import GIB, MIB, Settings
from chunkstore.errors import InvalidArgument, Unsupported
from chunkstore.records.names import check_container_name, check_segment_name
from chunkstore.registry import root_url
from chunkstore.spark.columns import (
    LEDGER_COLUMNS,
    LEDGER_EXTRAS,
    SEGMENT_COLUMNS,
    SEGMENT_EXTRAS,
    TABLES,
    no_column,
    unknown_name,
)

__all__ = [
    "EARLIEST",
    "LATEST",
    "OPTIONS",
    "STREAM_OPTIONS",
    "Positions",
    "ReadOptions",
    "items_of",
    "known_values",
    "numbers_of",
    "one_of",
    "parse_options",
    "path_option",
    "refused",
    "whole_number",
]

_BOTH: Final = (
    *("path", "container", "topic", "ledgers", "segments", "segmentsPattern", "topicsPattern", "columns"),
    *("framing", "maxRecordBytes", "minPartitions", "startingOffsets", "failOnDataLoss"),
)
OPTIONS: Final = (*_BOTH, "metadata", "endingOffsets", "lsnAsOf", "timestampAsOf", "mapFunction")
"""Of a batch read. ``mapFunction`` is what ``map_batches`` sends along."""
STREAM_OPTIONS: Final = (*_BOTH, "maxBytesPerTrigger", "maxOffsetsPerTrigger")
LINE_BYTES_MAX: Final = 16 * MIB
EARLIEST: Final = -2
LATEST: Final = -1
"""Kafka's numbers for the two ends."""
Positions: TypeAlias = int | Mapping[str, int]
"""An offset for all segments, or for each by name; ``EARLIEST`` and ``LATEST`` among them."""
_PARTITIONS_MAX = 100_000
_BYTES_MAX = (1 << 63) - 1
_WHOLE = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What one read asks for. ``segments`` names some, or ``topic`` one; or a pattern is matched by their whole names. ``ledgers`` None:
    all of the topic's. ``metadata``: instead of bytes, one of ``columns.TABLES``. ``trigger_bytes``, ``trigger_rows``: of a
    micro-batch, None without a limit."""

    path: str
    container: str
    segments: tuple[str, ...]
    topic: str | None
    ledgers: tuple[int, ...] | None
    columns: tuple[str, ...]
    min_partitions: int
    segments_pattern: str | None = None
    topics_pattern: str | None = None
    lines: bool = False
    record_bytes_max: int | None = None
    starting: Positions = EARLIEST
    ending: Positions = LATEST
    fail_on_data_loss: bool = True
    as_of_lsn: int | None = None
    as_of_ms: int | None = None
    function: str | None = None
    trigger_bytes: int | None = None
    trigger_rows: int | None = None
    metadata: str | None = None

    @property
    def settings(self) -> Settings:
        """For planning, and for tasks."""
        return Settings()

    @property
    def line_bytes_max(self) -> int:
        """The longest line; 0 where rows are no lines."""
        return (self.record_bytes_max or LINE_BYTES_MAX) if self.lines else 0

    @property
    def reads_topics(self) -> bool:
        """Whether this is about entries of ledgers, not about raw segments."""
        return self.topic is not None or self.topics_pattern is not None

    @property
    def known_columns(self) -> Mapping[str, Any]:
        """Every column that this read can have, with its Arrow type."""
        if self.metadata is not None:
            return TABLES[self.metadata].columns
        return {**LEDGER_COLUMNS, **LEDGER_EXTRAS} if self.reads_topics else {**SEGMENT_COLUMNS, **SEGMENT_EXTRAS}


def refused(name: str, text: str) -> InvalidArgument:
    """The error of an option."""
    return InvalidArgument(f"option {name!r} {text}", argument=name)


def known_values(given: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """The options under the names as they are written in ``names``. Raises ``InvalidArgument`` for any other, ``Unsupported`` for those of
    a table of Spark's catalog."""
    if "provider" in {key.lower() for key in given}:
        raise Unsupported(
            "Spark forgets the options of its catalog's tables; use CREATE TEMPORARY VIEW instead of CREATE TABLE",
            feature="catalog tables",
        )
    known = {name.lower(): name for name in names}
    values: dict[str, str] = {}
    for key, value in given.items():
        name = known.get(key.lower())
        if name is None:
            raise InvalidArgument(unknown_name("option", key, names), argument=key)
        if name in values:
            raise refused(name, "is given twice")
        values[name] = value
    return values


def path_option(values: Mapping[str, str], what: str = "the container's root, for example /srv/log") -> str:
    """The option ``path``. Raises ``InvalidArgument``, ``Unsupported`` (a root in memory)."""
    path = values.get("path", "")
    if not path:
        raise refused("path", f"is missing: {what}")
    if path.lower().startswith("memory:"):
        raise Unsupported("a memory:// root lives in one process; Spark works in many", feature="memory")
    return path


def parse_options(given: Mapping[str, str], *, stream: bool | None = False) -> ReadOptions:
    """Check the options as Spark hands them over; ``stream`` None: either kind of read's. Raises ``InvalidArgument`` naming the option.

    ``Unsupported``: a root in memory, a table of Spark's catalog.
    """
    own: tuple[str, ...]
    other: tuple[str, ...]
    own, other, where = (OPTIONS, STREAM_OPTIONS, "streams (spark.readStream)")
    if stream:
        own, other, where = (STREAM_OPTIONS, OPTIONS, "batch reads (spark.read)")
    elif stream is None:
        own = (*OPTIONS, *set(STREAM_OPTIONS).difference(OPTIONS))
    odd = {name.lower() for name in set(other).difference(own)}
    for key in given:
        if key.lower() in odd:
            raise refused(key, f"is for {where} only")
    values = known_values(given, own)
    path = root_url(path_option(values), "path")
    container = values.get("container", "default")
    check_container_name(container)
    segments = _segments(values)
    metadata = _metadata(values)
    if metadata is None:
        _check_choice(values, stream=stream)
    options = ReadOptions(
        path=path,
        container=container,
        segments=segments,
        topic=values.get("topic"),
        ledgers=numbers_of(values, "ledgers", "ledger id"),
        columns=(),
        min_partitions=whole_number(values, "minPartitions", 1, _PARTITIONS_MAX) or 1,
        segments_pattern=_pattern(values, "segmentsPattern"),
        topics_pattern=_pattern(values, "topicsPattern"),
        lines=one_of(values, "framing", ("none", "lines")) == "lines",
        record_bytes_max=whole_number(values, "maxRecordBytes", 1, GIB),
        starting=_positions(values, "startingOffsets", LATEST if stream else EARLIEST, segments),
        ending=_positions(values, "endingOffsets", LATEST, segments),
        fail_on_data_loss=one_of(values, "failOnDataLoss", ("true", "false")) == "true",
        as_of_lsn=whole_number(values, "lsnAsOf", 1, _BYTES_MAX),
        as_of_ms=_moment(values, "timestampAsOf"),
        function=values.get("mapFunction"),
        trigger_bytes=whole_number(values, "maxBytesPerTrigger", 1, _BYTES_MAX),
        trigger_rows=whole_number(values, "maxOffsetsPerTrigger", 1, _BYTES_MAX),
        metadata=metadata,
    )
    return replace(options, columns=_columns(values, options))


_CHOICES: Final = ("segments", "segmentsPattern", "topic", "topicsPattern")
_ALWAYS: Final = ("path", "container", "columns", "metadata", "mapFunction")


def _metadata(values: Mapping[str, str]) -> str | None:
    """The table that is wanted instead of bytes; all options are about it."""
    if "metadata" not in values:
        return None
    name = values["metadata"].strip().lower()
    if name not in TABLES:
        raise InvalidArgument(unknown_name("metadata table", values["metadata"], tuple(TABLES)), argument="metadata")
    pruning = TABLES[name].options
    for option in values:
        if option not in (*_ALWAYS, *pruning):
            what = ", ".join(pruning) or "none"
            text = f"option {option!r} does not apply to metadata={name}; options that do: {what}"
            raise InvalidArgument(text, argument=option)
    chosen = [option for option in _CHOICES if option in values]
    if len(chosen) > 1:
        raise InvalidArgument(f"options {chosen[0]!r} and {chosen[1]!r} both choose: keep one", argument=chosen[1])
    _check_pairs(values)
    return name


def _check_choice(values: Mapping[str, str], *, stream: bool | None) -> None:
    """What is read is said once, and all options are about it."""
    if sum(name in values for name in _CHOICES) != 1:
        raise InvalidArgument(f"give one of the options {', '.join(_CHOICES)}", argument="segments")
    if "ledgers" in values and stream:
        raise refused("ledgers", "is for batch reads")
    if not {"topic", "topicsPattern"}.isdisjoint(values):
        others = ("startingOffsets", "failOnDataLoss") if stream is False else ()
        for name in ("framing", "maxRecordBytes", "endingOffsets", *others):
            if name in values:
                raise refused(name, "is for raw segments, not for topics")
        if values.get("startingOffsets", "latest").strip().lower() not in ("earliest", "latest"):
            raise refused("startingOffsets", "is earliest or latest for topics")
    if "maxRecordBytes" in values and one_of(values, "framing", ("none", "lines")) == "none":
        raise refused("maxRecordBytes", "needs framing=lines")
    _check_pairs(values)


def _check_pairs(values: Mapping[str, str]) -> None:
    if values.get("topic") == "":
        raise refused("topic", "is empty")
    if "ledgers" in values and "topic" not in values:
        raise refused("ledgers", "needs option 'topic'")
    if "lsnAsOf" in values and "timestampAsOf" in values:
        raise InvalidArgument("give option 'lsnAsOf' or 'timestampAsOf', not both", argument="lsnAsOf")


def one_of(values: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """The first word unless another is given."""
    word = values.get(name, words[0]).strip().lower()
    if word not in words:
        raise refused(name, f"is {' or '.join(words)}, not {values[name]!r}")
    return word


def whole_number(values: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    """Of this option, if it is there. Raises ``InvalidArgument``."""
    if name not in values:
        return None
    text = values[name].strip()
    if _WHOLE.fullmatch(text) is None or not least <= int(text) <= most:
        raise refused(name, f"must be a whole number from {least} to {most}, not {text!r}")
    return int(text)


def _pattern(values: Mapping[str, str], name: str) -> str | None:
    pattern = values.get(name)
    try:
        re.compile(pattern or "")
    except (re.error, RecursionError, OverflowError) as error:
        raise refused(name, f"is not a regular expression: {error}") from error
    if pattern == "":
        raise refused(name, "is empty")
    return pattern


def _positions(values: Mapping[str, str], name: str, default: int, segments: tuple[str, ...]) -> Positions:
    """earliest, latest, a number, or a JSON object of numbers by segment (-2: earliest, -1: latest)."""
    if name not in values:
        return default
    text = values[name].strip()
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words:
        return words[text.lower()]
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if _is_position(given, 0):
        return int(given)
    if not isinstance(given, dict) or not all(_is_position(item, EARLIEST) for item in given.values()):
        known = 'earliest, latest, an offset, or a JSON object of offsets by segment (-2: earliest, -1: latest), such as {"orders": 4096}'
        raise refused(name, f"is {known}; not {text!r}")
    for segment in given:
        check_segment_name(segment, name)
    if segments and set(given) != set(segments):
        odd = min(set(given) ^ set(segments))
        raise InvalidArgument(f"options {name!r} and 'segments' differ in {odd!r}", argument=name)
    return {str(segment): int(given[segment]) for segment in sorted(given)}


def _is_position(value: object, least: int) -> bool:
    return type(value) is int and least <= value <= _BYTES_MAX


def _moment(values: Mapping[str, str], name: str) -> int | None:
    """Milliseconds since 1970: as such, or ISO 8601 with a time zone."""
    text = values.get(name, "").strip()
    if name not in values:
        return None
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return math.floor(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        pass
    known = "milliseconds since 1970, or a time with its zone such as 2026-11-20T08:00:00+00:00"
    raise refused(name, f"is {known}; not {text!r}")


def items_of(values: Mapping[str, str], name: str, what: str = "column") -> list[object]:
    """A list, separated by commas; or as a JSON array, for names that hold commas. Not empty; no item may be there twice."""
    text = values[name].strip()
    items: list[object]
    if text.startswith("["):
        try:
            items = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise refused(name, f"begins like a JSON array and is none: {error}") from error
    else:
        items = [item.strip() for item in text.split(",")]
    if not items:
        raise refused(name, f"names no {what}")
    seen: set[str] = set()
    for item in items:
        if str(item) in seen:
            raise refused(name, f"names {item!r} twice")
        seen.add(str(item))
    return items


def _segments(values: Mapping[str, str]) -> tuple[str, ...]:
    if "segments" not in values:
        return ()
    names: list[str] = []
    for item in items_of(values, "segments", "segment"):
        if not isinstance(item, str) or not item:
            raise refused("segments", f"holds {item!r}, which is not a segment name")
        check_segment_name(item, "segments")
        names.append(item)
    return tuple(names)


def numbers_of(values: Mapping[str, str], name: str, what: str) -> tuple[int, ...] | None:
    """The numbers in an option, each of them a ``what``; None where it is not there. Raises ``InvalidArgument``."""
    if name not in values:
        return None
    numbers: list[int] = []
    for item in items_of(values, name, what):
        text = str(item)
        if isinstance(item, bool) or _WHOLE.fullmatch(text) is None or int(text) > _BYTES_MAX:
            raise refused(name, f"holds {item!r}, which is not a {what}")
        if int(text) in numbers:
            raise refused(name, f"names {int(text)} twice")
        numbers.append(int(text))
    return tuple(numbers)


def _columns(values: Mapping[str, str], options: ReadOptions) -> tuple[str, ...]:
    if "columns" not in values:
        if options.metadata is not None:
            return tuple(options.known_columns)
        return tuple(LEDGER_COLUMNS if options.reads_topics else SEGMENT_COLUMNS)
    columns: list[str] = []
    for item in items_of(values, "columns"):
        if not isinstance(item, str) or item not in options.known_columns:
            raise no_column(str(item), options.known_columns, "columns")
        columns.append(item)
    return tuple(columns)
