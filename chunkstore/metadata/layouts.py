"""What a container does with header files of the old layout: one row without a key in the reserved table namespace ``!layout`` (FORMAT.md
beside this file, "Layouts").

Promises: a row that cannot be read stops everybody who would own the container. Leaves out: header files (``chunkstore.backup``).
"""

from __future__ import annotations

from typing import Final

from chunkstore.config import Layout, Settings
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.metadata.codec import decode_table
from chunkstore.metadata.keys import LAYOUT_KEY
from chunkstore.metadata.port import MetadataView

__all__ = ["IMPORTED", "choose_layout", "decode_layout", "encode_layout", "find_layout"]

_VERSION: Final = 1
_CODES: Final[dict[Layout, int]] = {"CODE_ONLY_UPGRADE": 1, "LAYOUT_UPGRADE": 2}
"""Those that are recorded. Zero is never valid."""
IMPORTED: Final = b"\1"
"""The value of a row that says that a header is imported already."""


def encode_layout(layout: Layout) -> bytes:
    """The value of the row."""
    return bytes((_VERSION, _CODES[layout]))


def decode_layout(raw: bytes) -> Layout:
    """What the row says. Raises ``Damaged``."""
    value = decode_table(LAYOUT_KEY, raw).value
    for layout in _CODES:
        if value == encode_layout(layout):
            return layout
    raise Damaged("not a layout of a known version; use a newer program", object=f"metadata row {LAYOUT_KEY!r}")


def find_layout(view: MetadataView) -> Layout | None:
    """What was chosen for this container; None: nothing, it has nothing to do with header files. Raises ``Damaged``."""
    raw = view.get(LAYOUT_KEY)
    return None if raw is None else decode_layout(raw)


def choose_layout(view: MetadataView, settings: Settings) -> Layout:
    """What an owner, or a replica, with these settings does. "INSTALL_NEW" is what was chosen before, if anything was.

    Raises ``InvalidArgument`` behind a LAYOUT_UPGRADE, which is not taken back; ``Damaged``.
    """
    found = find_layout(view)
    if found == "LAYOUT_UPGRADE" and settings.layout in ("NO_UPGRADE", "CODE_ONLY_UPGRADE"):
        text = (
            "this container went through LAYOUT_UPGRADE, which is irreversible: its header files are not kept up, so "
            f"layout={settings.layout!r} would be wrong; leave the layout away, or export the headers (export_headers) to go back by hand"
        )
        raise InvalidArgument(text, argument="layout")
    return found if found is not None and settings.layout in ("INSTALL_NEW", "NO_UPGRADE") else settings.layout
