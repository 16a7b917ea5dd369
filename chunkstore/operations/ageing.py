"""How long ago something was committed, as far as our own clock can vouch for it (protocol 3.14.2, A14).

Promises: never longer ago than it is. Labels of time come from the clocks of owners, which may be wrong; so an age counts on our monotonic
clock, from the later of the label and our own first OPEN: rolls and take-overs from ourselves begin nothing anew.
Leaves out: what ends by its age (``collect``, ``pins``).
"""

from __future__ import annotations

from chunkstore import runtime
from chunkstore.operations.container import OwnedContainer

__all__ = ["is_older"]


def is_older(container: OwnedContainer, key: bytes, lsn: int, time_ms: int, age_s: float) -> bool:
    """Whether at least ``age_s`` have passed since the record ``lsn``, with the label ``time_ms``, was committed. ``key`` names what was
    committed: no two commits have the same."""
    now_s = runtime.monotonic_s()
    # A label of ours counts by the clocks of its own epoch: wall clocks are set, and only these two were read together.
    starts = container.starts
    start = next((start for start in reversed(starts) if start.lsn < lsn), starts[0])
    began_s = start.at_s + max(0, time_ms - start.at_ms) / 1000
    if began_s > now_s:
        # A label of the future: the clock ran ahead when it was made. The age counts from when that is noticed.
        began_s = container.noticed_s.setdefault(key, now_s)
    if now_s - began_s < age_s:
        return False
    container.noticed_s.pop(key, None)
    return True
