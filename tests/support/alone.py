"""Ending a store's background work, for tests that count what is asked or written, and for those that abandon a store."""

from __future__ import annotations

from chunkstore.engine.store import ChunkedSegmentStorage


def alone(store: ChunkedSegmentStorage, wait_s: float = 60.0) -> None:
    """End the background work of ``store`` and wait for what of it is under way: what is asked or written from here on is the
    caller's. (The keeper looks for a newer claim and the asked look for a bell now and then, which a slow machine lets happen in
    the middle of anything.)"""
    maintenance = store._maintenance
    store._made_in = None  # one that is abandoned is closed by no one, as of a killed process
    maintenance.stopping.set()
    if maintenance._keeper is not None:
        maintenance._keeper.join(wait_s)
    for background in maintenance.background:
        background.stop()
        background.join(wait_s)


def abandon(store: ChunkedSegmentStorage) -> None:
    """What the end of a process does: no call, no write, but threads end and the cache is let go, not marked clean."""
    alone(store, 5)
    container = store._container
    container.pool.close()
    container.closed = True
    for item in (container.current.store, *(retired for _, retired in container._retired)):
        item.close(clean=False)
