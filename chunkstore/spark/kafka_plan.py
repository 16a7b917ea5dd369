"""The options of the format "kafka-tiered" of Spark, checked before anything is opened.

Promises: an unknown option is refused by name; names are case-insensitive, as Spark's are. Leaves out: whether topics, partitions and
keys are there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from chunkstore.errors import InvalidArgument
from chunkstore.spark.options import (
    EARLIEST,
    LATEST,
    items_of,
    known_values,
    numbers_of,
    one_of,
    path_option,
    whole_number,
)

__all__ = ["TieredOptions", "parse_tiered_options"]

OPTIONS: Final = (
    *("path", "topic", "partitions", "startingOffsets", "endingOffsets", "isolation", "metadataLog", "keyFiles"),
    *("prefix", "container", "columns", "minPartitions"),
)
_OFFSET_MAX: Final = (1 << 63) - 1
_WORDS: Final = {"earliest": 0, "latest": _OFFSET_MAX}
_NUMBERS: Final = {EARLIEST: 0, LATEST: _OFFSET_MAX}


@dataclass(frozen=True, slots=True)
class TieredOptions:
    """What one read asks for; None: all. ``starting``, ``ending``: the offset in partitions, and those of some by "topic-partition"."""

    path: str
    topics: tuple[str, ...] | None
    partitions: tuple[int, ...] | None
    starting: tuple[int, Mapping[str, int]]
    ending: tuple[int, Mapping[str, int]]
    isolation: Literal["read_uncommitted", "read_committed"]
    metadata_log: str | None
    key_files: tuple[str, ...]
    prefix: str
    container: str | None
    columns: tuple[str, ...] | None
    min_partitions: int


def parse_tiered_options(given: Mapping[str, str]) -> TieredOptions:
    """Check the options as Spark hands them over. Raises ``InvalidArgument`` naming the option, ``Unsupported``."""
    values = known_values(given, OPTIONS)
    path = path_option(values, "a tier, a container's root or a log directory, for example s3://bucket/prefix")
    committed = one_of(values, "isolation", ("read_uncommitted", "read_committed")) == "read_committed"
    return TieredOptions(
        path=path if "://" in path else os.path.abspath(path),
        topics=_names(values, "topic"),
        partitions=numbers_of(values, "partitions", "partition"),
        starting=_offsets(values, "startingOffsets", "earliest"),
        ending=_offsets(values, "endingOffsets", "latest"),
        isolation="read_committed" if committed else "read_uncommitted",
        metadata_log=values.get("metadataLog"),
        key_files=_names(values, "keyFiles") or (),
        prefix=values.get("prefix", ""),
        container=values.get("container", "default"),
        columns=_names(values, "columns"),
        min_partitions=whole_number(values, "minPartitions", 1, 100_000) or 1,
    )


def _names(values: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    return tuple(map(str, items_of(values, name))) if name in values else None


def _offsets(values: Mapping[str, str], name: str, default: str) -> tuple[int, Mapping[str, int]]:
    """earliest, latest, or Kafka's JSON; a partition that is not in there has the default."""
    text = values.get(name, default).strip()
    if text.lower() in _WORDS:
        return _WORDS[text.lower()], {}
    try:
        found = {
            f"{topic}-{int(number)}": _NUMBERS.get(offset, offset)
            for topic, offsets in json.loads(text).items()
            for number, offset in offsets.items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        found = {}
    if not found or not all(type(offset) is int and 0 <= offset <= _OFFSET_MAX for offset in found.values()):
        example = 'earliest, latest, or offsets (-2: earliest, -1: latest), such as {"orders": {"0": 23}}'
        raise InvalidArgument(f"option {name!r} is {example}; not {text[:200]!r}", argument=name)
    return _WORDS[default], found
