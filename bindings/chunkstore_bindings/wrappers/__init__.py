"""Storages around other storages; ``wrapping`` is what they are made of.

* ``wrapping.guarded``: foreign errors become ours. ``retrying``, ``throttled``, ``metered``: patience, pace, counts.
"""

__all__: list[str] = []
