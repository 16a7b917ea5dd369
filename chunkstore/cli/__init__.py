"""The command line: ``chunkstore VERB ROOT ...``, also ``python -m chunkstore``.

Promises: exit code 0 done, 1 damaged or failed, 2 misuse, 130 interrupted; results on stdout, everything else on
stderr; with ``--json`` stdout carries one JSON document (lists: one a line) and errors are JSON, too. Verbs that only
read never claim a container. Leaves out: everything that is not a matter of words and tables (``chunkstore.assembly``).
"""

from __future__ import annotations

from chunkstore.cli.app import main

__all__ = ["main"]
