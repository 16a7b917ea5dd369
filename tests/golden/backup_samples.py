"""One fixed value of everything that backups store, beside its bytes in ``backup.json``: they change only together with a version."""

from __future__ import annotations

import json
from pathlib import Path

from chunkstore.backup import files
from chunkstore.backup.files import ExportHeader
from chunkstore.backup.selection import Choice
from chunkstore.metadata.port import Position
from tests.golden.journal_samples import CONTAINER, HASH

__all__ = ["GOLDEN", "HEADER", "ROWS", "SMALL_OBJECTS"]

HEADER = ExportHeader(
    CONTAINER,
    "orders",
    "s3://bucket/prefix",
    Position(41, HASH, 3, 42, 9000),
    (0xD1 << 248) | 0x1234,
    1_700_000_000_000,
    Choice(("logs-*", "orders-0"), "persistent://a/b"),
    "export-x",
)
ROWS = ((b"C" + bytes(28), b"chunk 0"), (b"Sorders-0", b"segment"), (b"T\x01nkey", b"value"))

SMALL_OBJECTS = {
    "marker": (files.MARKER, (CONTAINER, "orders", 1_700_000_000_000)),
    "running": (files.RUNNING, (41, 1_700_000_000_000, "host-a", 77)),
    "done": (files.DONE, (True, 41, HASH, 1_700_000_000_000, 3, 8, 800, 2, 200)),
    "void": (files.DONE, (False,)),
    "newest": (files.NEWEST, ("ab" * 16,)),
}
"""Kinds and fields of the small objects."""

GOLDEN: dict[str, bytes] = {
    name: bytes.fromhex(text)
    for name, text in json.loads((Path(__file__).parent / "backup.json").read_text(encoding="ascii")).items()
}
