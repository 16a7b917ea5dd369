"""The options of the format "pulsar-offload" of Spark, checked before anything is opened; and which blocks a task reads.

Promises: an unknown option is refused by name; names are case-insensitive, as Spark's are. Leaves out: whether topic and ledgers exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from chunkstore.config import MIB
from chunkstore.errors import InvalidArgument
from chunkstore.spark.options import items_of, known_values, ledger_numbers, one_of, whole_number

__all__ = ["OffloadOptions", "parse_offload_options", "runs_of"]

OPTIONS: Final = ("path", "topic", "ledgers", "messages", "transactions", "lenient", "columns", "maxBytesPerPartition")
_PARTITION_BYTES: Final = 128 * MIB
_BYTES_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class OffloadOptions:
    """What one read asks for; ``topic`` and ``ledgers``: None for all."""

    url: str
    topic: str | None
    ledgers: tuple[int, ...] | None
    messages: bool
    transactions: Literal["committed", "all"]
    lenient: bool
    columns: tuple[str, ...] | None
    partition_bytes: int


def parse_offload_options(given: Mapping[str, str]) -> OffloadOptions:
    """Check the options as Spark hands them over. Raises ``InvalidArgument`` naming the option, ``Unsupported``."""
    values = known_values(given, OPTIONS)
    if not values.get("path"):
        raise InvalidArgument("option 'path' is missing: the bucket's URL, for example s3://bucket", argument="path")
    messages = one_of(values, "messages", ("false", "true")) == "true"
    for name in () if messages else ("transactions", "lenient"):
        if name in values:
            raise InvalidArgument(f"option {name!r} needs messages=true", argument=name)
    columns = tuple(map(str, items_of(values, "columns"))) if "columns" in values else None
    return OffloadOptions(
        url=values["path"],
        topic=values.get("topic"),
        ledgers=ledger_numbers(values),
        messages=messages,
        transactions="all" if one_of(values, "transactions", ("committed", "all")) == "all" else "committed",
        lenient=one_of(values, "lenient", ("false", "true")) == "true",
        columns=columns,
        partition_bytes=whole_number(values, "maxBytesPerPartition", 1, _BYTES_MAX) or _PARTITION_BYTES,
    )


def runs_of(blocks: Iterable[tuple[int, int, int]], partition_bytes: int) -> list[tuple[int, int]]:
    """Consecutive blocks (first entry, last entry, bytes) put together to at most ``partition_bytes``, at least one: first and last entry
    of each run."""
    runs: list[tuple[int, int]] = []
    size_bytes = 0
    for first, last, block_bytes in blocks:
        if runs and size_bytes + block_bytes <= partition_bytes:
            runs[-1] = (runs[-1][0], last)
            size_bytes += block_bytes
        else:
            runs.append((first, last))
            size_bytes = block_bytes
    return runs
