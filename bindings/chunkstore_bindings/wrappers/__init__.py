"""Storages around other storages; ``wrapping`` is what they are made of.

* ``wrapping.guarded``: foreign errors become ours. ``retrying``, ``throttled``, ``metered``: repeated tries, pace, counts.
"""

__all__: list[str] = []
