"""Storages around other storages; ``wrapping`` is what they are made of.

* ``wrapping.guarded``: foreign errors become ours. ``retrying``, ``throttled``, ``metered``: repeated tries, pace, counts.
* ``probe``: checks that a storage really has put-if-absent before anything trusts it.
"""

__all__: list[str] = []
