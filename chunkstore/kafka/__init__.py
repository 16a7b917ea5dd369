"""Kafka's tiered storage (KIP-405) without a broker: ``KafkaBucket`` reads and checks tiers and log directories."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["KafkaBucket"]


def __getattr__(name: str) -> Any:
    """``KafkaBucket``, whose module loads the packages of the extra, at its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("chunkstore.kafka.bucket"), name)
