"""Codecs of offloaded ledgers: PIP-17 ("v1", one ledger) and PIP-76 ("v2", streaming), and the messages inside their entries.

FORMAT.md and FORMAT_MESSAGES.md next to this file have the bytes.

Promises: what is written can be read by Pulsar's own readers; what is read is bounded and checked, and hostile or defective
objects are refused with ``Damaged`` naming object and position. Leaves out: where objects are stored, and which of them
belong to a ledger; that is the offloader's knowledge.
"""
