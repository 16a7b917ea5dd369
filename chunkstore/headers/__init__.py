"""Header files of the layout that Pravega had before PDP-34: segments in from them, and out to them.

The bytes of a header: ``chunkstore/codec/ROLLING_HEADER.md``. The public names are in ``chunkstore.backup``.
"""
