"""Rows of sinks, against golden bytes and hostile ones."""

from __future__ import annotations

import re
from itertools import accumulate
from pathlib import Path
from struct import pack

import pytest

from chunkstore.errors import Damaged
from chunkstore.metadata.keys import table_key
from chunkstore.metadata.reserved import (
    _SINK,
    JOB,
    STREAM,
    SinkRow,
    decode_sink,
    encode_sink,
    sink_key,
    unnamed_key,
)
from chunkstore.records.arguments import check_namespace
from chunkstore.records.names import SINKS_NAMESPACE

FORMAT = Path(__file__).resolve().parents[2] / "chunkstore" / "metadata" / "FORMAT.md"
A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


@pytest.mark.parametrize(
    ("row", "value"),
    [
        (SinkRow(0, A, B, C), "0200" + "00" * 8 + "61" * 16 + "62" * 16 + "63" * 16 + "00" * 16),
        (
            SinkRow(513, A, B, C, "qü", b"d" * 16),
            "0200" + "0000000000000201" + "61" * 16 + "62" * 16 + "63" * 16 + "64" * 16 + "71c3bc",
        ),
        (
            SinkRow((1 << 63) - 1, A, bytes(16), C),
            "0200" + "7f" + "ff" * 7 + "61" * 16 + "00" * 16 + "63" * 16 + "00" * 16,
        ),
    ],
)
def test_golden_bytes(row: SinkRow, value: str) -> None:
    assert encode_sink(row).hex() == value
    assert decode_sink(b"sx", bytes.fromhex(value)) == row


def test_keys() -> None:
    assert table_key(SINKS_NAMESPACE, sink_key(STREAM, b"q")) == b"T\x06!sinkssq"
    assert (sink_key(JOB, b"\x07"), unnamed_key(0x1007)) == (b"j\x07", b"u\x07")
    assert check_namespace(SINKS_NAMESPACE) == "!sinks"


def test_format_table() -> None:
    text = FORMAT.read_text(encoding="utf-8").split("<!-- table: sink -->\n", 1)[1].split("\n\n", 1)[0]
    rows = [(int(at), int(size or 0)) for at, size in re.findall(r"^\| (\d+) \| (\d*) ?\|", text, re.MULTILINE)]
    assert [at for at, _ in rows] == [0, *accumulate(size for _, size in rows[:-1])]
    assert rows[-1] == (_SINK.size, 0)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        encode_sink(SinkRow(0, A, B, C))[:-1],
        pack(">BB", 0, 0) + bytes(72),
        pack(">BB", 1, 0) + bytes(72),
        pack(">BB", 2, 1) + bytes(72),
        pack(">BBQ", 2, 0, 1 << 63) + bytes(64),
        encode_sink(SinkRow(0, A, B, C)) + b"\xff",
        encode_sink(SinkRow(0, A, B, C, "x" * 256)),
    ],
)
def test_hostile_rows(value: bytes) -> None:
    with pytest.raises(Damaged, match="!sinks"):
        decode_sink(b"sq", value)
