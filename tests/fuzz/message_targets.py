"""The decoder of Pulsar's messages, one by one and as Arrow batches: entries of a topic with fields, sizes and checksums changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from chunkstore.codec.pulsar import message_batches, message_entries
from chunkstore.codec.pulsar.frames import Entry
from chunkstore.codec.pulsar.messages import iter_messages
from chunkstore.config import MIB
from chunkstore.errors import Damaged
from tests.fuzz.chance import Chance, mangled
from tests.fuzz.target import Gate, Spy, Target
from tests.support.pulsar_entries import CODECS, compressed, entry_of, marker, metadata_bytes, proto, single
from tests.support.pulsar_messages import arrow_rows

__all__ = ["MESSAGE_TARGETS"]

_BATCH = [
    single(b"value %d" % number, key=f"key {number}", properties=[("a", "1"), ("b", "é")], event_time=1 << 40, sequence_id=number)
    for number in range(6)
] + [single(b"", null_value=1, key="AAH/", key_b64=1, ordering_key=b"o"), single(b"", compacted_out=1)]  # fmt: skip
_NAMES = (
    "compression", "uncompressed_size", "batch", "chunks", "chunk", "chunked_bytes", "marker", "txn_most", "txn_least", "null_value",
    "encryption_keys", "key_b64", "event_time", "sequence_id",
)  # fmt: skip


def _metadata(chance: Chance, values: dict[str, Any]) -> bytes:
    """Metadata with one or two fields changed, or with wrong bytes."""
    for _ in range(chance.below(3)):
        name = chance.one_of(_NAMES)
        values = {**values, name: chance.number(int(values.get(name) or 0))}
    values["encryption_keys"] = min(3, max(0, values.get("encryption_keys") or 0)) or None
    raw = metadata_bytes(**values)
    what = chance.random()
    if what < 0.1:
        return mangled(chance, raw)
    if what < 0.15:
        return raw + proto(
            {"new": chance.one_of((1, 4, 5, 11, 99, 1000))}, {"new": chance.one_of((chance.number(), b"\xff" * 9))}
        )
    return raw


def _content(chance: Chance) -> tuple[bytes, dict[str, Any]]:
    what = chance.below(8)
    if what == 0:
        return chance.randbytes(chance.below(40)), {}
    if what == 1:
        number = chance.below(3)
        return b"%03d" % number, {"uuid": chance.one_of(("u", "v")), "chunks": 3, "chunk": number, "chunked_bytes": 9}
    count = 1 + chance.below(len(_BATCH))
    raw = b"".join(_BATCH[-count:])
    if chance.random() < 0.4:
        raw = mangled(chance, raw, b"".join(_BATCH))
    return raw, {"batch": count}


def _entry(chance: Chance) -> bytes:
    if chance.random() < 0.05:
        return marker(chance.one_of((21, 22, 30)), (0, chance.below(3)), (0, 0)).payload
    raw, values = _content(chance)
    codec = chance.one_of(CODECS)
    if chance.random() < 0.2:
        values |= {"txn_most": 0, "txn_least": chance.below(3)}
    values |= {"uncompressed_size": len(raw), "compression": CODECS.index(codec)}
    content = compressed(codec, raw)
    if chance.random() < 0.15:
        content = mangled(chance, content)
    broker = (1, 2) if chance.random() < 0.5 else None
    made = entry_of(_metadata(chance, values), content, broker=broker, crc=chance.random() < 0.9)
    return mangled(chance, made) if chance.random() < 0.1 else made


def _make(several: int, chance: Chance) -> bytes:
    """Whether to be lenient, then entries, each after its length in two bytes."""
    made = [_entry(chance)[:60_000] for _ in range(1 + chance.below(several))]
    return bytes((chance.below(2),)) + b"".join(len(entry).to_bytes(2, "big") + entry for entry in made)


def _entries(data: bytes) -> Iterator[Entry]:
    at, number = 1, 0
    while at < len(data):
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        yield Entry(number // 4, number % 4, data[at + 2 : end])
        at, number = end, number + 1


def _decode(data: bytes, gate: Gate) -> None:
    entries = list(_entries(data))
    last = (-1, -1)
    for row in iter_messages(entries, transactions="all", messages="lenient" if data[:1] == b"\1" else "strict"):
        assert last <= (row.ledger, row.entry)
        assert not row.damaged or data[:1] == b"\1"
        last = row.ledger, row.entry


def _decode_arrow(data: bytes, gate: Gate) -> Callable[[], None] | None:
    entries = list(_entries(data))
    wide, message_batches._WIDTH_MIN = message_batches._WIDTH_MIN, 0
    try:
        found = list(message_batches.message_batches(entries, messages="lenient" if data[:1] == b"\1" else "strict"))
    finally:
        message_batches._WIDTH_MIN = wide
    if data[:1] == b"\1":
        return partial(_same, entries, found)
    return None


def _same(entries: list[Entry], found: list[Any]) -> None:
    assert arrow_rows(iter(found)) == list(iter_messages(entries, messages="lenient"))


MESSAGE_TARGETS: tuple[Target, ...] = (
    Target(
        "pulsar-message", "lengths, the checksum, metadata that is whole", partial(_make, 3), _decode, (Damaged,),
        (Spy(message_entries, "_common"),), memory_bytes=MIB,
    ),
    Target(
        "pulsar-message-arrow", "lengths, the checksum, metadata that is whole", partial(_make, 12), _decode_arrow, (Damaged,),
        (Spy(message_batches, "step"),), each=10, memory_bytes=4 * MIB,
    ),
)  # fmt: skip
