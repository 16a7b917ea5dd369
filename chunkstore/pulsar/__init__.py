"""Ledgers of Pulsar: offloaded to the engine or to a bucket, and read from both.

``OffloadWriter`` writes at the owner; ``LedgerReader`` and ``open_ledger`` read at the owner or a replica; ``plan`` says which bytes
hold which entries, for readers in other processes. ``ManagedLedger`` offloads whole ledgers from a source; ``PulsarBucket`` reads what
Pulsar's own offloaders wrote. Promises: an entry is acknowledged once its block is durable and fenced. A block is there as a whole or
not at all. FORMAT.md next to this file has the bytes of the table rows. Leaves out: ledgers that are in BookKeeper.
"""

from chunkstore.codec.pulsar.frames import Entry
from chunkstore.codec.pulsar.offload_metadata import OffloadContext
from chunkstore.pulsar.bucket import PulsarBucket
from chunkstore.pulsar.container import (
    ContainerOffloader,
    ContainerSource,
    LedgerReader,
    LedgerSummary,
    open_ledger,
    remove_ledger,
)
from chunkstore.pulsar.contexts import LedgerNotFound
from chunkstore.pulsar.ledger_rows import offload_context
from chunkstore.pulsar.ledgers import (
    DirectorySource,
    LedgerSource,
    MemorySource,
    Position,
    SourceLedger,
)
from chunkstore.pulsar.managed import ManagedLedger, ManagedLedgerConfig
from chunkstore.pulsar.offload_ledger import LedgerOffloader, NullLedgerOffloader
from chunkstore.pulsar.offload_metrics import OffloadMetrics
from chunkstore.pulsar.permits import FlowPermits, OffloadReadHandle
from chunkstore.pulsar.planning import Block, LedgerRange, TopicPlanner, TopicPosition, plan
from chunkstore.pulsar.policies import OffloadPolicies
from chunkstore.pulsar.pulsar_objects import PulsarObjects
from chunkstore.pulsar.read_handle import ReadHandle
from chunkstore.pulsar.streaming import (
    OfferResult,
    OffloadException,
    OffloadHandle,
    OffloadResult,
    StreamingPolicy,
    streaming_offload,
)
from chunkstore.pulsar.streaming_offloader import StreamingOffloader, stream_directory
from chunkstore.pulsar.writer import OffloadWriter

__all__ = [
    "Block",
    "ContainerOffloader",
    "ContainerSource",
    "DirectorySource",
    "Entry",
    "FlowPermits",
    "LedgerNotFound",
    "LedgerOffloader",
    "LedgerRange",
    "LedgerReader",
    "LedgerSource",
    "LedgerSummary",
    "ManagedLedger",
    "ManagedLedgerConfig",
    "MemorySource",
    "NullLedgerOffloader",
    "OfferResult",
    "OffloadContext",
    "OffloadException",
    "OffloadHandle",
    "OffloadMetrics",
    "OffloadPolicies",
    "OffloadReadHandle",
    "OffloadResult",
    "OffloadWriter",
    "Position",
    "PulsarBucket",
    "PulsarObjects",
    "ReadHandle",
    "SourceLedger",
    "StreamingOffloader",
    "StreamingPolicy",
    "TopicPlanner",
    "TopicPosition",
    "offload_context",
    "open_ledger",
    "plan",
    "remove_ledger",
    "stream_directory",
    "streaming_offload",
]
