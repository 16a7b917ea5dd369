"""Rows of reserved tables (retention, quota, scrubbing, sinks), against golden bytes, the format page's tables, and hostile bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from chunkstore.config import RetentionPolicy
from chunkstore.errors import Damaged
from chunkstore.metadata import reserved
from chunkstore.metadata.codec import encode_row
from chunkstore.metadata.keys import QUOTA_KEY, RETENTION_NAMESPACE, SCRUB_KEY, table_key
from chunkstore.metadata.reserved import BEGINNING, JOB, STREAM, ScrubMark, ScrubPosition, SinkRow
from chunkstore.records.arguments import check_namespace
from chunkstore.records.names import SINKS_NAMESPACE
from chunkstore.records.segments import TableRecord

FORMAT = Path(__file__).resolve().parents[2] / "chunkstore" / "metadata" / "FORMAT.md"
A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
SINK = reserved.encode_sink(SinkRow(0, A, B, C))


def stored(value: bytes) -> bytes:
    return encode_row(TableRecord(7, value))


def policy(value: bytes) -> Any:
    return reserved.decode_policy(b"key", stored(value))


def mark(value: bytes) -> Any:
    return reserved.decode_mark(stored(value))


def sink(value: bytes) -> Any:
    return reserved.decode_sink(b"sx", value)


@pytest.mark.parametrize(
    ("encode", "decode", "content", "value"),
    [
        (reserved.encode_policy, policy, RetentionPolicy(size_bytes_max=1000), "0100000000000003e8" + "00" * 8),
        (reserved.encode_policy, policy, RetentionPolicy(age_s_max=1.5), "01" + "00" * 8 + "00000000000005dc"),
        (
            reserved.encode_policy,
            policy,
            RetentionPolicy(size_bytes_max=1 << 62, age_s_max=10**10),
            "01" + "4000000000000000" + "000009184e72a000",
        ),
        (reserved.encode_quota, None, 1000, "0100000000000003e8"),
        (reserved.encode_mark, mark, ScrubMark(BEGINNING, 1_500), "01" + "00000000000005dc" + "00" * 8),
        (
            reserved.encode_mark,
            mark,
            ScrubMark(ScrubPosition("a\u00e9", 65_536), 0),
            "01" + "00" * 8 + "0000000000010000" + "61c3a9",
        ),
        (
            reserved.encode_mark,
            mark,
            ScrubMark(ScrubPosition("x" * 255, (1 << 63) - 1), 1),
            "01" + "0000000000000001" + "7f" + "ff" * 7 + "78" * 255,
        ),
        (
            reserved.encode_sink,
            sink,
            SinkRow(0, A, B, C),
            "0200" + "00" * 8 + "61" * 16 + "62" * 16 + "63" * 16 + "00" * 16,
        ),
        (
            reserved.encode_sink,
            sink,
            SinkRow(513, A, B, C, "qü", b"d" * 16),
            "0200" + "0000000000000201" + "61" * 16 + "62" * 16 + "63" * 16 + "64" * 16 + "71c3bc",
        ),
        (
            reserved.encode_sink,
            sink,
            SinkRow((1 << 63) - 1, A, bytes(16), C),
            "0200" + "7f" + "ff" * 7 + "61" * 16 + "00" * 16 + "63" * 16 + "00" * 16,
        ),
    ],
)
def test_golden_bytes(
    encode: Callable[[Any], bytes], decode: Callable[[bytes], Any] | None, content: object, value: str
) -> None:
    assert encode(content).hex() == value
    assert decode is None or decode(bytes.fromhex(value)) == content


def test_keys() -> None:
    assert table_key(RETENTION_NAMESPACE, reserved.pattern_key("orders-*")) == b"T\x0a!retention*orders-"
    assert table_key(RETENTION_NAMESPACE, reserved.pattern_key("orders-0")) == b"T\x0a!retention=orders-0"
    assert [reserved.pattern_key(name) for name in ("*", "a**", "*a")] == [b"*", b"*a*", b"=*a"]
    assert (QUOTA_KEY, SCRUB_KEY) == (b"T\x06!quota", b"T\x06!scrub")
    assert table_key(SINKS_NAMESPACE, reserved.sink_key(STREAM, b"q")) == b"T\x06!sinkssq"
    assert (reserved.sink_key(JOB, b"\x07"), reserved.unnamed_key(0x1007)) == (b"j\x07", b"u\x07")
    assert check_namespace(SINKS_NAMESPACE) == "!sinks"


@pytest.mark.parametrize(
    ("table", "size_bytes"),
    [
        ("retention", reserved._POLICY.size),
        ("quota", reserved._QUOTA.size),
        ("scrub", reserved._SCRUB.size),
        ("sink", reserved._SINK.size),
    ],
)
def test_format_table(table: str, size_bytes: int) -> None:
    """The fields follow one another; a text may follow them."""
    text = FORMAT.read_text(encoding="utf-8").split(f"<!-- table: {table} -->\n", 1)[1].split("\n\n", 1)[0]
    rows = [(int(at), int(size or 0)) for at, size in re.findall(r"^\| (\d+) \| (\d*) ?\|", text, re.MULTILINE)]
    assert [at for at, _ in rows] == [0, *accumulate(size for _, size in rows[:-1])]
    assert sum(size for _, size in rows) == size_bytes
    assert (rows[-1] == (size_bytes, 0)) is (table in ("scrub", "sink"))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x01",
        pack(">BQQ", 2, 1, 1),
        pack(">BQQ", 0, 1, 1),
        pack(">BQQ", 1, 0, 0),
        pack(">BQQ", 1, (1 << 62) + 1, 0),
        pack(">BQQ", 1, 0, 10**13 + 1),
        pack(">BQQ", 1, 1, 1) + b"\0",
    ],
)
def test_hostile_policies_give_nothing_up(value: bytes) -> None:
    with pytest.raises(Damaged, match="set it again"):
        policy(value)
    with pytest.raises(Damaged):
        reserved.decode_policy(b"key", value)


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
def test_hostile_marks_are_no_position(value: bytes) -> None:
    for raw in (stored(value), value):
        with pytest.raises(Damaged):
            reserved.decode_mark(raw)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        SINK[:-1],
        pack(">BB", 0, 0) + bytes(72),
        pack(">BB", 1, 0) + bytes(72),
        pack(">BB", 2, 1) + bytes(72),
        pack(">BBQ", 2, 0, 1 << 63) + bytes(64),
        SINK + b"\xff",
        reserved.encode_sink(SinkRow(0, A, B, C, "x" * 256)),
    ],
)
def test_hostile_sinks(value: bytes) -> None:
    with pytest.raises(Damaged, match="!sinks"):
        sink(value)
