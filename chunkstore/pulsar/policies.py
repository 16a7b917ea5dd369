"""``OffloadPolicies``: when ledgers are offloaded and trimmed; rows of the table ``offload-policies`` (FORMAT.md), by topic and broker.

Promises: the narrowest policy that is set counts, field by field; a trigger that could never fire is refused; rows are versioned, and
checked when they are read. Leaves out: policies of namespaces, and doing what they say (``managed``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import msgpack

from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import InvalidArgument
from chunkstore.pulsar.contexts import MAJOR, Stored, check_topic, damaged_row, row_fields
from chunkstore.pulsar.streaming import StreamingPolicy

__all__ = ["OffloadPolicies"]

NAMESPACE: Final = "offload-policies"
MINOR: Final = 0
BROKER: Final = b"\0"
_ARRAY_MAX: Final = 64


@dataclass(kw_only=True)
class OffloadPolicies:
    """None: not set; where it is set nowhere, never (streaming: off; 1 or True: on). Sizes are MiB.

    Triggers name closed ledgers that are this old, or exceed this size together with all newer ones. Retention deletes alike, so that a
    trigger which is not below it is ``InvalidArgument``.
    """

    offload_time_in_minutes: int | None = None
    offload_size_in_mb: int | None = None
    retention_time_in_minutes: int | None = None
    retention_size_in_mb: int | None = None
    streaming_offload_enabled: int | None = None
    max_size_per_offload_segment_mbytes: int | None = None
    max_offload_segment_rollover_time_minutes: int | None = None

    def __post_init__(self) -> None:
        for name, value in zip(_NAMES, self._values(), strict=True):
            if value is not None and (not isinstance(value, int) or not 0 <= value < 1 << 40):
                raise InvalidArgument(f"{name} is a number from 0 on, or None, not {value!r}", argument=name)
        for name in ("time_in_minutes", "size_in_mb"):
            trigger, kept = getattr(self, f"offload_{name}"), getattr(self, f"retention_{name}")
            if trigger is not None and kept is not None and trigger >= kept:
                text = f"offload_{name} {trigger} is not below retention_{name} {kept}: ledgers would be deleted first"
                raise InvalidArgument(text, argument=f"offload_{name}")

    def over(self, wider: OffloadPolicies) -> OffloadPolicies:
        """These, and ``wider`` where they are not set. Raises ``InvalidArgument`` where that cannot be."""
        both = zip(_NAMES, self._values(), wider._values(), strict=True)
        return OffloadPolicies(**{name: far if near is None else near for name, near, far in both})

    def streaming_policy(self) -> StreamingPolicy:
        """How streaming cuts segments, with the usual values where none are set."""
        given = {name: getattr(self, name) for name in StreamingPolicy._fields[:2]}
        return StreamingPolicy()._replace(**{name: value for name, value in given.items() if value is not None})

    def put(self, store: ChunkedSegmentStorage, topic: str | None = None) -> None:
        """Store these for a topic; None: for the broker. Durable. Raises as ``Table.put``. Retry: safe."""
        store.table(NAMESPACE).put(_key(topic), msgpack.packb((MAJOR, MINOR, *self._values())))

    @staticmethod
    def of(store: Stored, topic: str | None = None) -> OffloadPolicies:
        """What is stored for a topic alone; None: for the broker. Raises ``Damaged`` and what tables raise."""
        row = store.table(NAMESPACE).get(_key(topic))
        if row is None:
            return OffloadPolicies()
        try:
            return OffloadPolicies(
                **dict(zip(_NAMES, row_fields(row.value, len(_NAMES), _ARRAY_MAX, minor=MINOR), strict=True))
            )
        except (ValueError, TypeError, InvalidArgument) as error:
            raise damaged_row(NAMESPACE, row.key, error) from error

    def _values(self) -> list[int | None]:
        return [getattr(self, name) for name in _NAMES]


_NAMES: Final = [item.name for item in fields(OffloadPolicies)]


def _key(topic: str | None) -> bytes:
    return BROKER if topic is None else check_topic(topic).encode()
