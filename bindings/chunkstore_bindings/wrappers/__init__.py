"""Storages around other storages; ``wrapping`` is what they are made of.

* ``guarded``: foreign errors become ours. ``retrying``, ``throttled``, ``metered``: patience, pace, counts.
* ``length_only``: keeps lengths and forgets contents, for tests of very large segments.
"""

__all__: list[str] = []
