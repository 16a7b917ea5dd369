"""The decoders of PIP-17: the index, and blocks one by one and as Arrow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from chunkstore.codec.pulsar import pip17, windows
from chunkstore.codec.pulsar.pip17 import LedgerObjectReader, build_ledger_index, read_ledger_index
from chunkstore.codec.pulsar.windows import BlockReader
from chunkstore.errors import Damaged
from tests.fuzz.chance import Chance
from tests.fuzz.offload_targets import damaged_index, damaged_pair, decode_blocks
from tests.fuzz.target import Gate, Spy, Target
from tests.support.pip17 import Pair, encode_ledger, fixtures
from tests.support.pip76 import source_of

__all__ = ["PIP17_TARGETS"]


def _make_index(chance: Chance) -> bytes:
    return damaged_index(chance, chance.one_of(_PAIRS).index_bytes)


def _decode_index(data: bytes, gate: Gate) -> Callable[[], None] | None:
    try:
        found = read_ledger_index(data)
    except Damaged as error:
        assert 0 <= error.position <= len(data), error.position
        return None
    return partial(_index_again, found)


def _index_again(found: pip17.LedgerIndex) -> None:
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
_PAIRS = (*_SMALL, *fixtures())


def _make_pair(chance: Chance) -> bytes:
    pair = chance.one_of(_SMALL)
    return damaged_pair(chance, pair.index_bytes, pair.data)


def _reader_of(data: bytes) -> tuple[BlockReader, bytes]:
    end = 4 + int.from_bytes(data[:4], "big")
    return LedgerObjectReader(source_of(data[end:]), read_ledger_index(data[4:end]), window_bytes=4096), data[end:]


PIP17_TARGETS: tuple[Target, ...] = (
    Target(
        "pip17-index", "magic, both lengths, header length, counts", _make_index, _decode_index, (),
        (Spy(pip17, "decode_metadata"),),
    ),
    Target(
        "pip17-blocks", "the index, lengths, a block header", _make_pair, partial(decode_blocks, _reader_of), (Damaged,),
        (Spy(windows, "scan_entries"),),
    ),
)  # fmt: skip
