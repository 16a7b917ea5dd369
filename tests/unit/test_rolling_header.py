"""Header files: every byte, both ways; what is refused, and where; the page that describes them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.codec import rolling_header as rolling
from chunkstore.codec.rolling_header import (
    ChunkEntry,
    ConcatEntry,
    HeaderEntry,
    MaxSizeEntry,
    decode_header,
    encode_header,
)
from chunkstore.errors import Damaged, InvalidArgument
from tests.support.header_files import decode_entries

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "chunkstore" / "codec" / "ROLLING_HEADER.md").read_text(encoding="utf-8")
GOLDEN: dict[str, str] = json.loads((ROOT / "tests" / "golden" / "rolling_header.json").read_text(encoding="utf-8"))

SAMPLES: dict[str, tuple[HeaderEntry, ...]] = {
    "two chunks": (MaxSizeEntry(100), ChunkEntry(0, "seg$offset.0"), ChunkEntry(100, "seg$offset.100")),
    "no chunk": (MaxSizeEntry(1 << 27),),
    "without end": (MaxSizeEntry((1 << 63) - 1), ChunkEntry(0, "seg$offset.0")),
    "concatenated": (
        MaxSizeEntry(100), ChunkEntry(0, "t$offset.0"), ChunkEntry(100, "t$offset.100"), ConcatEntry(2, 200), MaxSizeEntry(50),
        ChunkEntry(0, "src$offset.0"), ChunkEntry(50, "src$offset.50"), ChunkEntry(300, "t$offset.300"),
    ),
    "concat failed": (MaxSizeEntry(100), ChunkEntry(0, "t$offset.0"), ConcatEntry(1, 90), ChunkEntry(90, "t$offset.90")),
    "truncated": (MaxSizeEntry(100), ChunkEntry(300, "scope/stream/0.#epoch.0$offset.300")),
    "other names": (ChunkEntry(0, "a=b/ü$offset.0"),),
}  # fmt: skip


def table(name: str) -> list[list[str]]:
    part = TEXT.split(f"<!-- table: {name} -->\n", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in part.splitlines()[2:]]


# The page


def test_files_are_named_as_described() -> None:
    names = {row[0]: row[1].strip("`") for row in table("files")}
    assert names["header"] == f"<segment>{rolling.HEADER_SUFFIX}"


@pytest.mark.parametrize("row", table("entries"), ids=lambda row: row[0])
def test_entries_are_as_described(row: list[str]) -> None:
    example = row[2].strip("`").encode()
    kinds = {"`maxsize`": MaxSizeEntry, "`concat`": ConcatEntry, "offset": ChunkEntry}
    (entry,) = decode_entries(example)
    assert type(entry) is kinds[row[0]]
    assert encode_header([entry]) == example


@pytest.mark.parametrize("row", table("meanings"), ids=lambda row: row[0])
def test_headers_mean_what_is_described(row: list[str]) -> None:
    chunks = [item.strip().split(" ") for item in row[1].split(",") if item.strip()]
    assert decode_header(row[0].strip("`").encode()).chunks == tuple((int(at), name) for at, name in chunks)


def test_limits_are_as_described() -> None:
    (mib, entries), (name_bytes,) = (
        re.findall(r"at most (\d+) MiB and ([\d,]+) entries", TEXT)[0],
        re.findall(r"at most (\d+) bytes, no `&`", TEXT),
    )
    assert int(mib) << 20 == rolling.HEADER_BYTES_MAX
    assert int(entries.replace(",", "")) == rolling.HEADER_ENTRIES_MAX
    assert int(name_bytes) == rolling.NAME_BYTES_MAX


# Bytes


def test_golden_bytes() -> None:
    assert {name: encode_header(entries).hex() for name, entries in SAMPLES.items()} == GOLDEN
    # As the code before PDP-34 wrote it.
    assert GOLDEN["two chunks"] == (
        "6d617873697a653d31303026303d736567246f66667365742e30263130303d736567246f66667365742e31303026"
    )


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes_are_read(name: str) -> None:
    assert decode_entries(bytes.fromhex(GOLDEN[name])) == SAMPLES[name]


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (b"", 0),
        (b"&", 0),
        (b"maxsize=5", 0),
        (b"maxsize=5&0=seg$off", 10),
        (b"maxsize=5&&0=a&", 10),
        (b"maxsize=0&", 0),
        (b"maxsize=-1&", 0),
        (b"maxsize=9223372036854775808&", 0),
        (b"maxsize=1e3&", 0),
        (b"maxsize=&", 0),
        (b"maxsize&", 0),
        (b"0=a&=b&", 4),
        (b"0=a&1=&", 4),
        (b"-1=a&", 0),
        (b"+1=a&", 0),
        (b" 1=a&", 0),
        (b"1_0=a&", 0),
        (b"\xd9\xa1=a&", 0),  # a digit, but not one of ours
        (b"9223372036854775808=a&", 0),
        (b"99999999999999999999999=a&", 0),
        (b"size=a&", 0),
        (b"0=a&concat=1&", 4),
        (b"0=a&concat=1@&", 4),
        (b"0=a&concat=@1&", 4),
        (b"0=a&concat=-1@5&", 4),
        (b"0=a&concat=1@5@6&", 4),
        (b"0=../x&", 0),
        (b"0=/etc/passwd&", 0),
        (b"0=a//b&", 0),
        (b"0=a/./b&", 0),
        (b"0=a\0b&", 0),
        (b"0=\xff&", 0),
        (b"0=\xed\xa0\x80&", 0),  # half a surrogate pair
        (b"0=" + b"x" * 901 + b"&", 0),
        (b"0=" + "ü".encode() * 451 + b"&", 0),
        (b"5=a&4=b&", 4),
        (b"0=a&10=a&", 4),
        (b"0=t&concat=1@9223372036854775807&0=a&concat=2@9223372036854775807&0=b&1=c&", 70),
        (b"0=t&100=u&concat=4@200&0=a&100=b&concat=2@200&0=c&100=d&", 46),
    ],
)
def test_what_cannot_be_is_refused_by_its_position(data: bytes, position: int) -> None:
    with pytest.raises(Damaged) as refused:
        decode_header(data, object="s$header")
    assert (refused.value.object, refused.value.position) == ("s$header", position)


@pytest.mark.parametrize(
    "entry",
    [
        MaxSizeEntry(0), MaxSizeEntry(1 << 63), ConcatEntry(-1, 0), ConcatEntry(0, True), ChunkEntry(-1, "a"), ChunkEntry(0, ""),
        ChunkEntry(0, "a&b"), ChunkEntry(0, "../a"), ChunkEntry(0, "\ud800"), ChunkEntry(0, "ü" * 451), ChunkEntry(0, b"a"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_what_could_not_be_read_is_not_written(entry: HeaderEntry) -> None:
    with pytest.raises(InvalidArgument):
        encode_header([entry])


# Any header

NUMBERS = st.integers(0, rolling.NUMBER_MAX)
NAMES = st.from_regex(r"[^&/\0\ud800-\udfff]{1,20}(/[^&/\0\ud800-\udfff]{1,20}){0,2}", fullmatch=True).filter(
    lambda name: not {".", ".."} & set(name.split("/"))
)
ENTRIES = st.one_of(
    st.builds(MaxSizeEntry, st.integers(1, rolling.NUMBER_MAX)),
    st.builds(ConcatEntry, st.one_of(st.integers(0, 3), NUMBERS), NUMBERS),
    st.builds(ChunkEntry, NUMBERS, NAMES),
)


@given(st.lists(ENTRIES, min_size=1, max_size=12))
def test_entries_come_back(entries: list[HeaderEntry]) -> None:
    data = encode_header(entries)
    assert decode_entries(data) == tuple(entries)
    assert encode_header(decode_entries(data)) == data


@given(st.binary(max_size=40) | st.text("maxsizecont=@&019/.", max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        entries = decode_entries(data)
    except Damaged as error:
        assert 0 <= error.position <= len(data)
        return
    assert decode_entries(encode_header(entries)) == entries


# The reference: what the old code does, one entry at a time
