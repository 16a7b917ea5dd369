"""The row that says what is done with header files, against golden bytes and hostile ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.config import Layout
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.metadata.codec import encode_table
from chunkstore.metadata.keys import LAYOUT_KEY, imported_key
from chunkstore.metadata.layouts import IMPORTED, choose_layout, decode_layout, encode_layout
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.metadata.port import Head, Position
from chunkstore.records import TableRecord

FORMAT = Path(chunkstore.__file__).parent / "metadata" / "FORMAT.md"
CODE_ONLY: Layout = "CODE_ONLY_UPGRADE"
LAYOUT: Layout = "LAYOUT_UPGRADE"


@pytest.mark.parametrize(("layout", "value"), [(CODE_ONLY, b"\x01\x01"), (LAYOUT, b"\x01\x02")])
def test_golden_bytes(layout: Layout, value: bytes) -> None:
    assert LAYOUT_KEY == b"T\x07!layout"
    assert imported_key("é") == b"T\x07!layout\xc3\xa9"
    assert IMPORTED == b"\x01"
    assert encode_layout(layout) == value
    assert decode_layout(encode_table(TableRecord(1, value))) == layout
    text = FORMAT.read_text(encoding="utf-8").split("<!-- table: layout -->\n", 1)[1].split("\n\n", 1)[0]
    assert re.search(rf"\b{value[1]} {layout}\b", text)


@pytest.mark.parametrize("value", [b"", b"\x01", b"\x01\x00", b"\x01\x03", b"\x02\x01", b"\x01\x01\x00"])
def test_what_is_not_known_stops_whoever_opens(value: bytes) -> None:
    with pytest.raises(Damaged, match="newer program"):
        decode_layout(encode_table(TableRecord(1, value)))


@pytest.mark.parametrize(
    ("recorded", "asked", "chosen"),
    [
        (None, "INSTALL_NEW", "INSTALL_NEW"),
        (None, CODE_ONLY, CODE_ONLY),
        (None, LAYOUT, LAYOUT),
        (CODE_ONLY, "INSTALL_NEW", CODE_ONLY),
        (CODE_ONLY, "NO_UPGRADE", CODE_ONLY),
        (CODE_ONLY, LAYOUT, LAYOUT),
        (LAYOUT, "INSTALL_NEW", LAYOUT),
        (LAYOUT, LAYOUT, LAYOUT),
        (LAYOUT, CODE_ONLY, None),
        (LAYOUT, "NO_UPGRADE", None),
    ],
)
def test_every_change_of_layout(recorded: Layout | None, asked: Layout, chosen: Layout | None) -> None:
    store = MemoryMetadataCache(bytes(16), "here", shelf=MemoryShelf()).create()
    if recorded is not None:
        store.load([(LAYOUT_KEY, encode_table(TableRecord(1, encode_layout(recorded))))])
    store.finish_load(Head(Position(1, bytes(16), 1, 0, 0), 0))
    settings = chunkstore.Settings(layout=asked)
    with store.view() as view:
        if chosen is not None:
            assert choose_layout(view, settings) == chosen
            return
        with pytest.raises(InvalidArgument, match="irreversible"):
            choose_layout(view, settings)


@pytest.mark.parametrize("layout", ["no_upgrade", "", None, 1])
def test_other_values_are_refused(layout: Any) -> None:
    with pytest.raises(InvalidArgument, match="layout"):
        chunkstore.Settings(layout=layout)
