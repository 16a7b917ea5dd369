"""The operations on segments, one verb a module, over the ports. ``chunkstore.engine.store`` is the face in front of them."""

__all__: list[str] = []
