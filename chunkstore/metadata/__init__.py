"""Metadata: the port (``port``), keys, codec, and the two stores that implement it (``lmdb``, ``memory``)."""

from chunkstore.metadata.port import Commit, Head, MetadataCache, MetadataStore, MetadataView, Position

__all__ = ["Commit", "Head", "MetadataCache", "MetadataStore", "MetadataView", "Position"]
