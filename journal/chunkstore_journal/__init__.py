"""The journal of a container: stored records, snapshots and small objects, and (above them) claims, streams and recovery.

Promises: every stored byte is versioned, checksummed and described in FORMAT.md next to this file. Importing the package
itself loads nothing; import the modules. Leaves out: what the operations mean (the engine).
"""

from __future__ import annotations

__all__: list[str] = []
