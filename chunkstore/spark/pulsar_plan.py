"""The options of the format "pulsar-offload" of Spark, checked before anything is opened; and which blocks a task reads.

Promises: an unknown option is refused by name; names are case-insensitive, as Spark's are. Leaves out: whether topic and ledgers exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from chunkstore.config import MIB
from chunkstore.errors import InvalidArgument
from chunkstore.registry import root_url
from chunkstore.spark.options import items_of, known_values, numbers_of, one_of, path_option, whole_number

__all__ = ["OffloadOptions", "Run", "parse_offload_options", "partitions_of"]

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
    path = path_option(values, "the bucket, for example s3://bucket")
    messages = one_of(values, "messages", ("false", "true")) == "true"
    for name in () if messages else ("transactions", "lenient"):
        if name in values:
            raise InvalidArgument(f"option {name!r} needs messages=true", argument=name)
    columns = tuple(map(str, items_of(values, "columns"))) if "columns" in values else None
    return OffloadOptions(
        url=root_url(path, "path"),
        topic=values.get("topic"),
        ledgers=numbers_of(values, "ledgers", "ledger id"),
        messages=messages,
        transactions="all" if one_of(values, "transactions", ("committed", "all")) == "all" else "committed",
        lenient=one_of(values, "lenient", ("false", "true")) == "true",
        columns=columns,
        partition_bytes=whole_number(values, "maxBytesPerPartition", 1, _BYTES_MAX) or _PARTITION_BYTES,
    )


class Run(NamedTuple):
    """Entries ``first`` to ``last`` (both included) of the ledger ``number`` in a plan: consecutive blocks."""

    number: int
    first: int
    last: int


def partitions_of(blocks: Iterable[tuple[Run, int]], partition_bytes: int) -> list[list[Run]]:
    """Consecutive blocks, each with its bytes, put together to at most ``partition_bytes``, at least one: the runs of each partition."""
    found: list[list[Run]] = []
    size_bytes = 0
    for run, block_bytes in blocks:
        if not found or size_bytes + block_bytes > partition_bytes:
            found.append([run])
            size_bytes = block_bytes
            continue
        before = found[-1][-1]
        if before.number == run.number:
            found[-1][-1] = before._replace(last=run.last)
        else:
            found[-1].append(run)
        size_bytes += block_bytes
    return found
