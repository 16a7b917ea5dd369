"""Kafka's tiered storage (KIP-405), on the engine and without a broker.

``KafkaBucket`` reads and checks tiers and log directories. ``RemoteLogMetadataManager`` keeps the metadata of remote log segments at
the owner of a container, ``RemoteLogMetadataReader`` reads it at the owner or a replica; ``chunkstore.kafka.model`` has what they take
and raise, ``chunkstore.kafka.early`` the interface of KIP-405's early text over the same rows. FORMAT.md has the bytes of the rows.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["KafkaBucket", "RemoteLogMetadataManager", "RemoteLogMetadataReader"]

_MODULES = {"KafkaBucket": "bucket", "RemoteLogMetadataManager": "metadata", "RemoteLogMetadataReader": "lookups"}


def __getattr__(name: str) -> Any:
    """A public name, whose module is loaded at its first use: buckets need the packages of the extra, metadata does not."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"chunkstore.kafka.{_MODULES[name]}"), name)
