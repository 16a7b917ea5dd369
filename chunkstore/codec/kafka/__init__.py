"""Codecs of Kafka's files: what a broker keeps on its disks, and what tiered storage keeps in a bucket and in its metadata topic.

FORMAT.md next to this file has the bytes of record batches; FORMAT_FILES.md those of indexes, snapshots, checkpoints, metadata records
and the bucket layout.

Promises: what is written, a broker reads; what is read is bounded and checked, and hostile objects are refused with ``Damaged``
naming object and position. Leaves out: where the objects are stored.
"""
