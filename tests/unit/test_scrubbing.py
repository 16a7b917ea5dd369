"""The row that says where scrubbing goes on, against golden bytes and hostile ones."""

from __future__ import annotations

import re
from itertools import accumulate
from pathlib import Path
from struct import pack

import pytest

from chunkstore.errors import Damaged
from chunkstore.metadata.codec import encode_row
from chunkstore.metadata.keys import SCRUB_KEY
from chunkstore.metadata.reserved import _SCRUB, BEGINNING, ScrubMark, ScrubPosition, decode_mark, encode_mark
from chunkstore.records.segments import TableRecord

FORMAT = Path(__file__).resolve().parents[2] / "chunkstore" / "metadata" / "FORMAT.md"


def stored(value: bytes) -> bytes:
    return encode_row(TableRecord(7, value))


@pytest.mark.parametrize(
    ("mark", "value"),
    [
        (ScrubMark(BEGINNING, 1_500), "01" + "00000000000005dc" + "0000000000000000"),
        (ScrubMark(ScrubPosition("a\u00e9", 65_536), 0), "01" + "0000000000000000" + "0000000000010000" + "61c3a9"),
        (
            ScrubMark(ScrubPosition("x" * 255, (1 << 63) - 1), 1),
            "01" + "0000000000000001" + "7f" + "ff" * 7 + "78" * 255,
        ),
    ],
)
def test_golden_bytes(mark: ScrubMark, value: str) -> None:
    assert SCRUB_KEY == b"T\x06!scrub"
    assert encode_mark(mark).hex() == value
    assert decode_mark(stored(bytes.fromhex(value))) == mark


def test_format_table() -> None:
    text = FORMAT.read_text(encoding="utf-8").split("<!-- table: scrub -->\n", 1)[1].split("\n\n", 1)[0]
    rows = [(int(at), int(size or 0)) for at, size in re.findall(r"^\| (\d+) \| (\d*) ?\|", text, re.MULTILINE)]
    assert [at for at, _ in rows] == [0, *accumulate(size for _, size in rows[:-1])]
    assert rows[-1] == (_SCRUB.size, 0)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x01",
        pack(">BQQ", 1, 0, 0)[:-1],
        pack(">BQQ", 0, 0, 0),
        pack(">BQQ", 2, 0, 0),
        pack(">BQQ", 1, 1 << 63, 0),
        pack(">BQQ", 1, 0, 1 << 63) + b"a",
        pack(">BQQ", 1, 0, 5),
        pack(">BQQ", 1, 0, 5) + b"\xff",
        pack(">BQQ", 1, 0, 5) + b"a\0",
        pack(">BQQ", 1, 0, 5) + b"x" * 256,
    ],
)
def test_hostile_rows_are_no_position(value: bytes) -> None:
    for raw in (stored(value), value):
        with pytest.raises(Damaged):
            decode_mark(raw)
