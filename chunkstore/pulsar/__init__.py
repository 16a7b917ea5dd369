"""Ledgers as offload segments on the engine: a topic's entries as PIP-76 objects that are chunkstore segments.

``OffloadWriter`` writes at the owner, ``LedgerReader`` and ``open_ledger`` read at the owner or a replica, ``plan`` says which
bytes hold which entries, for readers in other processes. Promises: an entry is acknowledged once its block is durable and fenced,
a block is there as a whole or not at all, and a writer that died is gone on from exactly there. Bytes of the contexts: FORMAT.md
beside this file. Leaves out: when to offload (policies), ledgers that live in BookKeeper, other formats than PIP-76.
"""

from chunkstore.pulsar.bucket import PulsarBucket
from chunkstore.pulsar.contexts import LedgerNotFound
from chunkstore.pulsar.planning import Block, LedgerRange, TopicPlanner, TopicPosition, plan
from chunkstore.pulsar.read_handle import ReadHandle
from chunkstore.pulsar.reader import LedgerReader, LedgerSummary, open_ledger
from chunkstore.pulsar.writer import OffloadWriter

__all__ = [
    "Block",
    "LedgerNotFound",
    "LedgerRange",
    "LedgerReader",
    "LedgerSummary",
    "OffloadWriter",
    "PulsarBucket",
    "ReadHandle",
    "TopicPlanner",
    "TopicPosition",
    "open_ledger",
    "plan",
]
