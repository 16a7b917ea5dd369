"""Kafka's tiered storage (KIP-405), on the engine and without a broker.

``KafkaBucket`` reads and checks tiers and log directories. ``RemoteLogMetadataManager`` keeps the metadata of remote log segments at
the owner of a container, ``RemoteLogMetadataReader`` reads it at the owner or a replica; ``chunkstore.kafka.model`` has what they take
and raise, ``chunkstore.kafka.early`` the interface of KIP-405's early text over the same rows. ``RemoteStorageManager`` stores their bytes;
``chunkstore.kafka.tier`` copies a broker's log directory into a container, and back; ``RemoteLogManager`` does what a broker does with
both managers: copy, read, expire. FORMAT.md has the bytes of the rows. All of it needs the extra ``kafka``.
"""

from chunkstore.kafka.bucket import KafkaBucket
from chunkstore.kafka.metadata import RemoteLogMetadataManager, RemoteLogMetadataReader
from chunkstore.kafka.retention import RemoteLogManagerConfig
from chunkstore.kafka.storage import RemoteStorageManager
from chunkstore.kafka.tasks import RemoteLogManager

__all__ = [
    "KafkaBucket", "RemoteLogManager", "RemoteLogManagerConfig", "RemoteLogMetadataManager", "RemoteLogMetadataReader",
    "RemoteStorageManager",
]  # fmt: skip
