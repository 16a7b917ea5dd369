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
    Header,
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


def test_a_concatenated_segment() -> None:
    header = decode_header(bytes.fromhex(GOLDEN["concatenated"]))
    assert header.size_bytes_max == 100
    assert [chunk.offset for chunk in header.chunks] == [0, 100, 200, 250, 300]


def test_fifteen_concats_of_which_every_second_failed() -> None:
    """Ten chunks each, and after every third a chunk of the segment's own."""
    entries: list[HeaderEntry] = [MaxSizeEntry(10)]
    wanted: list[ChunkEntry] = []
    length = 0

    def own() -> None:
        nonlocal length
        entry = ChunkEntry(length, f"t$offset.{length}")
        entries.append(entry)
        wanted.append(entry)
        length += 10

    own()
    for number in range(15):
        entries.append(ConcatEntry(10, length))
        if number % 2 == 0:
            entries.append(MaxSizeEntry(7))
            for at in range(0, 50, 5):
                entries.append(ChunkEntry(at, f"s{number}$offset.{at}"))
                wanted.append(ChunkEntry(length + at, f"s{number}$offset.{at}"))
            length += 50
        if number % 3 == 2:
            own()
    assert decode_header(encode_header(entries)) == Header(10, tuple(wanted))


def test_keys_that_are_words_are_read_in_any_case() -> None:
    header = decode_header(b"MaxSize=5&0=a&CONCAT=1@5&maxSIZE=9&0=b&")
    assert header == Header(5, (ChunkEntry(0, "a"), ChunkEntry(5, "b")))


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


def test_long_headers_are_refused_before_they_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolling, "HEADER_ENTRIES_MAX", 3)
    assert len(decode_entries(b"0=a&1=b&2=c&")) == 3
    with pytest.raises(Damaged, match="4 entries"):
        decode_entries(b"0=a&1=b&2=c&3=d&")
    with pytest.raises(InvalidArgument, match="4 entries"):
        encode_header([ChunkEntry(at, f"n{at}") for at in range(4)])
    monkeypatch.setattr(rolling, "HEADER_BYTES_MAX", 11)
    with pytest.raises(Damaged, match="12 bytes"):
        decode_entries(b"0=a&1=b&2=c&")
    with pytest.raises(InvalidArgument, match="12 bytes"):
        encode_header([ChunkEntry(at, "abc"[at]) for at in range(3)])


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


@given(st.lists(st.tuples(st.integers(0, 50), NAMES), unique_by=lambda item: item[1]), st.none() | st.integers(1, 99))
def test_a_segments_chunks_come_back(steps: list[tuple[int, str]], size: int | None) -> None:
    chunks: list[ChunkEntry] = []
    for step, name in steps:
        chunks.append(ChunkEntry(step + (chunks[-1].offset if chunks else 0), name))
    entries: list[HeaderEntry] = [*([] if size is None else [MaxSizeEntry(size)]), *chunks]
    if entries:
        assert decode_header(encode_header(entries)) == Header(size, tuple(chunks))


@given(st.binary(max_size=40) | st.text("maxsizecont=@&019/.", max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        entries = decode_entries(data)
    except Damaged as error:
        assert 0 <= error.position <= len(data)
        return
    assert decode_entries(encode_header(entries)) == entries


# The reference: what the old code does, one entry at a time


def as_the_old_code(entries: list[HeaderEntry]) -> list[int]:
    offsets: list[int] = []
    shift = left = all_of_it = 0
    for entry in entries:
        if isinstance(entry, ConcatEntry):
            shift, left, all_of_it = entry.length, entry.chunk_count, entry.chunk_count
        elif isinstance(entry, ChunkEntry):
            offset = entry.offset
            if offset != 0 and left == all_of_it:
                shift = left = all_of_it = 0
            elif left > 0:
                left -= 1
                offset += shift
            offsets.append(offset)
    return offsets


SMALL_ENTRIES = st.one_of(
    st.builds(ConcatEntry, st.integers(0, 3), st.integers(0, 9)), st.builds(ChunkEntry, st.integers(0, 3), st.just("x"))
)


@given(st.lists(SMALL_ENTRIES, min_size=1, max_size=10))
def test_markers_are_applied_as_the_old_code_does(drawn: list[HeaderEntry]) -> None:
    entries = [
        ChunkEntry(entry.offset, f"n{number}") if isinstance(entry, ChunkEntry) else entry
        for number, entry in enumerate(drawn)
    ]
    offsets, data = as_the_old_code(entries), encode_header(entries)
    if offsets == sorted(offsets):
        assert [chunk.offset for chunk in decode_header(data).chunks] == offsets
    else:
        with pytest.raises(Damaged, match="below the one before"):
            decode_header(data)
