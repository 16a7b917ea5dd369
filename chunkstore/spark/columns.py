"""The columns of raw segments and of ledgers, with the types that Spark's Kafka source gives those of its names. Plain data.

Promises: a row of either kind has all columns of its kind, whether or not they come unasked; what Kafka has and there is not is
refused with the reason. Leaves out: those of metadata (``metadata_tables``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["ABSENT", "LEDGER_COLUMNS", "LEDGER_EXTRAS", "SEGMENT_COLUMNS", "SEGMENT_EXTRAS", "split_partition"]

SEGMENT_COLUMNS: Final = {"segment": "STRING", "offset": "LONG", "value": "BINARY"}
"""The columns of raw segments and their Spark types, in order."""
SEGMENT_EXTRAS: Final = {"topic": "STRING", "partition": "INT", "timestamp": "TIMESTAMP"}
"""Those that come only if asked for: both from the segment's name, and the time at which the chunk of the first byte was begun."""
LEDGER_COLUMNS: Final = {"topic": "STRING", "ledger": "LONG", "entry": "LONG", "payload": "BINARY"}
"""The columns of offloaded ledgers and their Spark types, in order."""
LEDGER_EXTRAS: Final = {"value": "BINARY", "offset": "LONG", "partition": "INT", "timestamp": "TIMESTAMP"}
"""Those that come only if asked for: payload, entry, from the topic's name, and the time at which the chunk of the block was begun."""
_NOT_DECODED = "an entry holds the broker's bytes, one message or a batch, which are not decoded here"
ABSENT: Final[Mapping[bool, Mapping[str, str]]] = {
    False: {
        "key": "a segment is a sequence of bytes, whose records have no keys",
        "headers": "a segment is a sequence of bytes, whose records have no headers",
        "timestampType": "the time is always that of the chunk",
    },
    True: {
        "key": _NOT_DECODED,
        "headers": _NOT_DECODED,
        "timestampType": "the time is always that of the chunk",
    },
}
"""By whether ledgers are read: columns of Kafka that are not there, and why."""
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,9})", re.DOTALL)
_PARTITION_MAX: Final = (1 << 31) - 1


def split_partition(name: str) -> tuple[str, int | None]:
    """A name as Pulsar gives it to a topic's partition, ``<topic>-partition-<n>``, in its two parts; of any other: all of it, and None."""
    found = _PARTITION.fullmatch(name)
    if found is None or int(found[2]) > _PARTITION_MAX:
        return name, None
    return found[1], int(found[2])
