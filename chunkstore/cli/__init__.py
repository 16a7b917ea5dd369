"""The command ``chunkstore``. Exit code 0 done, 1 damaged or failed, 2 misuse, 130 interrupted; results on stdout, everything else on
stderr. Verbs that only read never claim a container.
"""

from __future__ import annotations

from chunkstore.cli.app import main

__all__ = ["main"]
