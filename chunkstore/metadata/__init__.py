"""Metadata: the port (``port``), keys, codec, and the store that implements it on an ordered map, which is in LMDB or in memory."""
