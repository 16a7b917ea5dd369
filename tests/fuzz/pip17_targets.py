"""The decoders of PIP-17: the index, and blocks one by one and as Arrow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct

from chunkstore.codec.pulsar import pip17_index, windows
from chunkstore.codec.pulsar.pip17_index import build_ledger_index, read_ledger_index
from chunkstore.codec.pulsar.pip17_reader import LedgerObjectReader
from chunkstore.codec.pulsar.windows import BlockReader
from chunkstore.errors import Damaged
from tests.fuzz.chance import Chance, mangled
from tests.fuzz.offload_targets import damaged_data, damaged_message, decode_blocks, i32, i64
from tests.fuzz.target import Gate, Spy, Target
from tests.support.pip17 import Pair, encode_ledger, fixtures
from tests.support.pip76 import source_of

__all__ = ["PIP17_TARGETS"]

_HEAD = Struct(">Iiqqii")
_ROW = Struct(">qiq")
_MAGIC = b"\xfb\xdb\xab\xcb"
_Parsed = tuple[int, bytes, list[tuple[int, int, int]]]


def _parsed(raw: bytes) -> _Parsed:
    """The data object's length, the metadata, the rows."""
    _, _, data_length, _, count, size = _HEAD.unpack_from(raw)
    rows = [_ROW.unpack_from(raw, _HEAD.size + size + number * _ROW.size) for number in range(count)]
    return data_length, raw[_HEAD.size : _HEAD.size + size], [(a, b, c) for a, b, c in rows]


def _built(chance: Chance, parsed: _Parsed, lies: float) -> bytes:
    data_length, metadata, rows = parsed
    counts = [i32(chance.number(told)) if chance.random() < lies else told for told in (len(rows), len(metadata))]
    body = metadata + b"".join(_ROW.pack(i64(first), i32(part), i64(offset)) for first, part, offset in rows)
    return _HEAD.pack(0xDE47DE47, _HEAD.size + len(body), i64(data_length), 128, *counts) + body


def _make_index(chance: Chance) -> bytes:
    data_length, metadata, rows = chance.one_of(_PARSED)
    rows = list(rows)
    for _ in range(1 + chance.below(2)):
        what = chance.below(6)
        if what == 0:
            data_length = chance.number(data_length)
        elif what == 1:
            metadata = damaged_message(chance, metadata) if chance.random() < 0.7 else mangled(chance, metadata)
        elif what == 2:
            rows.insert(chance.below(len(rows) + 1), chance.one_of(rows) if rows else (0, 1, 0))
        elif rows:
            place = chance.below(len(rows))
            row = list(rows[place])
            row[what - 3] = chance.number(row[what - 3])
            rows[place] = (row[0], row[1], row[2])
    raw = _built(chance, (data_length, metadata, rows), 0.03)
    return mangled(chance, raw) if chance.random() < 0.1 else raw


def _decode_index(data: bytes, gate: Gate) -> Callable[[], None] | None:
    try:
        found = read_ledger_index(data)
    except Damaged as error:
        assert 0 <= error.position <= len(data), error.position
        return None
    return partial(_index_again, found)


def _index_again(found: pip17_index.LedgerIndex) -> None:
    assert read_ledger_index(build_ledger_index(found)) == found
    spans = found.spans()
    assert [span.start for span in spans] == [0, *(span.end for span in spans)][: len(spans)]
    assert spans[0].first_entry == 0
    assert found.data_length == spans[-1].end


# --- data objects ----------------------------------------------------------------------------------------------------

_SMALL: tuple[Pair, ...] = (
    encode_ledger([bytes((number,)) * (5 + 9 * number) for number in range(20)], block_bytes_max=512),
    encode_ledger([b""] * 40, block_bytes_max=256),
    encode_ledger([b"before", bytes(700), b"after", b""], block_bytes_max=300),
    encode_ledger([b"one"]),
)
_PARSED = [_parsed(pair.index_bytes) for pair in (*_SMALL, *fixtures())]


def _make_pair(chance: Chance) -> bytes:
    """The index's length in four bytes, the index, the data. The index fits the data's length, mostly."""
    pair = chance.one_of(_SMALL)
    data = damaged_data(chance, pair.data, _MAGIC)
    length, metadata, rows = _parsed(pair.index_bytes)
    if chance.random() < 0.15:
        place = chance.below(len(rows))
        first, part, offset = rows[place]
        rows[place] = (first + chance.below(3) - 1, part, offset + chance.one_of((0, 0, 4, 12, 128)))
    if chance.random() < 0.7:
        data = data[:length].ljust(length, b"\x00")
    else:
        length = len(data)
    index = _built(chance, (length, metadata, rows), 0)
    return len(index).to_bytes(4, "big") + index + data


def _reader_of(data: bytes) -> tuple[BlockReader, bytes]:
    end = 4 + int.from_bytes(data[:4], "big")
    return LedgerObjectReader(source_of(data[end:]), read_ledger_index(data[4:end]), window_bytes=4096), data[end:]


PIP17_TARGETS: tuple[Target, ...] = (
    Target(
        "pip17-index", "magic, both lengths, header length, counts", _make_index, _decode_index, (),
        (Spy(pip17_index, "decode_ledger_metadata"),),
    ),
    Target(
        "pip17-blocks", "the index, lengths, a block header", _make_pair, partial(decode_blocks, _reader_of), (Damaged,),
        (Spy(windows, "scan_entries"),),
    ),
)  # fmt: skip
