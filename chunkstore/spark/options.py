"""The options of ``spark.read.format("chunkstore")``, checked before anything is opened.

Promises: an unknown option is refused by name, so that a misspelt one cannot change an answer silently; names are
case-insensitive, as Spark's are. Leaves out: whether container, segments and ledgers exist (``plan`` finds out).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from chunkstore.errors import InvalidArgument, Unsupported
from chunkstore.names import check_container_name, check_segment_name

__all__ = [
    "LEDGER_COLUMNS",
    "OPTIONS",
    "SEGMENT_COLUMNS",
    "ReadOptions",
    "known_values",
    "parse_options",
    "unknown_name",
]

OPTIONS: Final = ("path", "container", "topic", "ledgers", "segments", "columns", "minPartitions")
SEGMENT_COLUMNS: Final = {"segment": "STRING", "offset": "LONG", "value": "BINARY"}
"""The columns of raw segments and their Spark types, in order."""
LEDGER_COLUMNS: Final = {"topic": "STRING", "ledger": "LONG", "entry": "LONG", "payload": "BINARY"}
"""The columns of offloaded ledgers and their Spark types, in order."""
_PARTITIONS_MAX = 100_000
_LEDGER_MAX = (1 << 63) - 1
_WHOLE = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What one read asks for. Either ``segments`` names some, or ``topic`` is set; ``ledgers`` None means all of the topic's."""

    path: str
    container: str
    segments: tuple[str, ...]
    topic: str | None
    ledgers: tuple[int, ...] | None
    columns: tuple[str, ...]
    min_partitions: int

    @property
    def known_columns(self) -> dict[str, str]:
        """Every column this read could have, with its Spark type."""
        return SEGMENT_COLUMNS if self.topic is None else LEDGER_COLUMNS


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
            raise InvalidArgument(f"option {name!r} is given twice", argument=name)
        values[name] = value
    return values


def unknown_name(what: str, given: str, names: Sequence[str]) -> str:
    """The text that refuses a name, with the closest one that is known."""
    lowered = {name.lower(): name for name in names}
    close = [lowered[match] for match in get_close_matches(given.lower(), list(lowered), 1)]
    hint = f"did you mean {close[0]!r}? The" if close else "the"
    return f"unknown {what} {given!r}; {hint} {what}s are {', '.join(names)}"


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Check the options as Spark hands them over. Raises ``InvalidArgument`` naming the option.

    ``Unsupported``: a root in memory, a table of Spark's catalog.
    """
    values = known_values(given, OPTIONS)
    path = values.get("path", "")
    if not path:
        raise InvalidArgument(
            "option 'path' is missing: the container's root, for example file:///srv/log", argument="path"
        )
    if path.lower().startswith("memory:"):
        raise Unsupported("a memory:// root lives in one process; Spark reads from many", feature="memory")
    container = values.get("container", "default")
    check_container_name(container)
    segments = _segments(values)
    topic = values.get("topic")
    if (topic is None) == (not segments):
        raise InvalidArgument(
            "give either option 'segments' or option 'topic' (with 'ledgers', if not all)", argument="segments"
        )
    if topic == "":
        raise InvalidArgument("option 'topic' is empty", argument="topic")
    if topic is None and "ledgers" in values:
        raise InvalidArgument("option 'ledgers' needs option 'topic'", argument="ledgers")
    return ReadOptions(
        path=path,
        container=container,
        segments=segments,
        topic=topic,
        ledgers=_ledgers(values),
        columns=_columns(values, SEGMENT_COLUMNS if topic is None else LEDGER_COLUMNS),
        min_partitions=_min_partitions(values),
    )


def _items(values: Mapping[str, str], name: str) -> list[object]:
    """A list, separated by commas; or as a JSON array, for names that hold commas. No item may be there twice."""
    text = values[name].strip()
    items: list[object]
    if text.startswith("["):
        try:
            items = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(
                f"option {name!r} begins like a JSON array and is none: {error}", argument=name
            ) from error
    else:
        items = [item.strip() for item in text.split(",")]
    seen: set[str] = set()
    for item in items:
        if str(item) in seen:
            raise InvalidArgument(f"option {name!r} names {item!r} twice", argument=name)
        seen.add(str(item))
    return items


def _segments(values: Mapping[str, str]) -> tuple[str, ...]:
    if "segments" not in values:
        return ()
    names: list[str] = []
    for item in _items(values, "segments"):
        if not isinstance(item, str) or not item:
            raise InvalidArgument(f"option 'segments' holds {item!r}, which is no segment name", argument="segments")
        check_segment_name(item, "segments")
        names.append(item)
    if not names:
        raise InvalidArgument("option 'segments' names no segment", argument="segments")
    return tuple(names)


def _ledgers(values: Mapping[str, str]) -> tuple[int, ...] | None:
    if "ledgers" not in values:
        return None
    ledgers: list[int] = []
    for item in _items(values, "ledgers"):
        text = str(item)
        if isinstance(item, bool) or _WHOLE.fullmatch(text) is None or int(text) > _LEDGER_MAX:
            raise InvalidArgument(f"option 'ledgers' holds {item!r}, which is no ledger id", argument="ledgers")
        if int(text) in ledgers:
            raise InvalidArgument(f"option 'ledgers' names {int(text)} twice", argument="ledgers")
        ledgers.append(int(text))
    if not ledgers:
        raise InvalidArgument("option 'ledgers' names no ledger", argument="ledgers")
    return tuple(ledgers)


def _columns(values: Mapping[str, str], known: Mapping[str, str]) -> tuple[str, ...]:
    if "columns" not in values:
        return tuple(known)
    columns: list[str] = []
    for item in _items(values, "columns"):
        if not isinstance(item, str) or item not in known:
            raise InvalidArgument(f"no column {item!r} here; the columns are {', '.join(known)}", argument="columns")
        columns.append(item)
    if not columns:
        raise InvalidArgument("option 'columns' names no column", argument="columns")
    return tuple(columns)


def _min_partitions(values: Mapping[str, str]) -> int:
    text = values.get("minPartitions", "1").strip()
    if _WHOLE.fullmatch(text) is None or not 1 <= int(text) <= _PARTITIONS_MAX:
        raise InvalidArgument(
            f"option 'minPartitions' must be a whole number from 1 to {_PARTITIONS_MAX}, not {text!r}",
            argument="minPartitions",
        )
    return int(text)
