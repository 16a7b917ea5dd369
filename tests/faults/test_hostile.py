"""Hostile input (house law 6): whatever lies where an object should be, recovery answers with a typed error or the right
state, in bounded time and memory. Bytes are random, or framed properly around rubbish, so that decoders get to see them.
"""

from __future__ import annotations

import random
import time
import tracemalloc

import msgpack
import pytest

from chunkstore.checksum import DIGEST_MODULUS, row_digest
from chunkstore.config import MIB
from chunkstore.errors import ChunkstoreError, Damaged, Unsupported
from chunkstore.journal import Batch, OpCode, RecordKind
from chunkstore.metadata.keys import chunk_key, garbage_key, pin_key, segment_key, session_key, table_key
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.metadata.port import Op, RowChange
from chunkstore.names import chunk_id
from chunkstore_journal.container import read_format
from chunkstore_journal.objects import LatestHint, ObjectKind, VoidedHint, decode_latest, encode_latest, encode_voided
from chunkstore_journal.record import RecordHeader, encode_record
from chunkstore_journal.service import ContainerJournal
from chunkstore_journal.wire import encode_frame
from tests.faults import tiny
from tests.faults.ground import FULL_RUN
from tests.faults.tiny import NAMES, Mode, Tiny, recover, settings, storage_of

TRIES = 400 if FULL_RUN else 60
TYPED = (Damaged, Unsupported)
SECONDS = 2.0
"""Of the processor; by the clock it may be longer, where the machine has other things to do."""
SECONDS_BY_THE_CLOCK = 60.0
PEAK_BYTES = 160 * MIB

pytestmark = pytest.mark.usefixtures("inline")


class Began:
    """When something began."""

    def __init__(self) -> None:
        self._cpu_s, self._clock_s = time.thread_time(), time.monotonic()

    def lately(self) -> bool:
        """Whether it has not taken too long by now."""
        return time.thread_time() - self._cpu_s < SECONDS and time.monotonic() - self._clock_s < SECONDS_BY_THE_CLOCK


def try_it(made: Tiny, name: str, data: bytes, what: str) -> bool:
    """Whether recovery refused. Anything else than the state (or an earlier one, with a tail cut off) fails the test."""
    began = Began()
    try:
        found = recover({**made.objects, name: data}, made.mode)
    except TYPED as error:
        print(f"{what} as {name}: {error}")
        return True
    except BaseException as error:
        error.add_note(f"{what} as {name}: {data[:60]!r}")
        raise
    finally:
        assert began.lately(), f"{what} as {name} took too long: {data[:60]!r}"
    if found.state != made.state:
        assert name.endswith("log.a"), f"{what} as {name} was believed: {data[:60]!r}"
        assert found.report.tail_cut is not None or not data
        assert found.state in made.states
    return False


def random_value(chance: random.Random, depth: int = 0) -> object:
    kind = chance.randrange(9 if depth < 4 else 7)
    if kind == 0:
        return chance.choice((0, 1, -1, 255, 1 << 31, (1 << 63) - 1, (1 << 64) - 1, -(1 << 63)))
    if kind == 1:
        return chance.randbytes(chance.choice((0, 1, 16, 28, 300)))
    if kind == 2:
        return chance.choice(("", "default", "slot", "append", "../../etc/passwd", "\0", "x" * 1000, "default/FORMAT"))
    if kind == 3:
        return chance.choice((True, False, None))
    if kind == 4:
        return chance.random()
    if kind in (5, 6):
        return chance.randrange(100)
    if kind == 7:
        return {str(n): random_value(chance, depth + 1) for n in range(chance.randrange(4))}
    return [random_value(chance, depth + 1) for _ in range(chance.randrange(20))]


def test_random_bytes(mode: Mode) -> None:
    made = tiny.make(mode, closed=True)
    chance = random.Random(1)
    refused = 0
    for name in made.metadata:
        for number in range(TRIES):
            size = chance.choice((0, 1, 4, 15, 16, 17, 100, 175, 176, 300, 4096, 70_000))
            data = chance.randbytes(size)
            if number % 3 == 0:
                # With the right beginning, so that more than the magic is looked at.
                data = made.objects[name][: chance.randrange(1, 40)] + data
            refused += try_it(made, name, data, "random bytes")
    assert refused


def test_framed_rubbish(mode: Mode) -> None:
    """Small objects whose frame and CRC are right, around anything that msgpack can say."""
    made = tiny.make(mode, closed=True)
    chance = random.Random(2)
    places = {
        NAMES.format: ObjectKind.FORMAT,
        NAMES.latest: ObjectKind.LATEST,
        NAMES.voided: ObjectKind.VOIDED,
        NAMES.lease: ObjectKind.LEASE,
        NAMES.epoch(3): ObjectKind.CLAIM,
    }
    for name, kind in places.items():
        for _ in range(TRIES * 3):
            body = (
                msgpack.packb(random_value(chance))
                if chance.random() < 0.3
                else mutated(chance, made.objects[name][16:])
            )
            try_it(made, name, encode_frame(b"CKSO", 1, kind, body), "framed rubbish")


def mutated(chance: random.Random, body: bytes) -> bytes:
    """The array in ``body`` with one element replaced, removed or doubled."""
    values = list(msgpack.unpackb(body))
    at = chance.randrange(len(values))
    what = chance.randrange(4)
    if what == 0:
        del values[at]
    elif what == 1:
        values.insert(at, values[at])
    else:
        values[at] = random_value(chance)
    return bytes(msgpack.packb(values))


BOMBS = {
    "array of 2**32": b"\xdd\xff\xff\xff\xff",
    "map of 2**32": b"\xdf\xff\xff\xff\xff",
    "4 GiB of bytes": b"\xc6\xff\xff\xff\xff",
    "4 GiB of text": b"\xdb\xff\xff\xff\xff",
    "deep nesting": b"\x91" * 60_000,
    "deep maps": b"\x81\xa0" * 30_000,
    "many empty arrays": b"\xdc\xff\xff" + b"\x90" * 0xFFFF,
    "nested wide arrays": b"\x9f" * 50_000,
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_bombs_cost_neither_time_nor_memory(mode: Mode, bomb: bytes) -> None:
    made = tiny.make(mode, closed=True)
    data: dict[str, bytes] = {
        NAMES.format: encode_frame(b"CKSO", 1, ObjectKind.FORMAT, bomb),
        NAMES.latest: encode_frame(b"CKSO", 1, ObjectKind.LATEST, bomb),
        NAMES.voided: encode_frame(b"CKSO", 1, ObjectKind.VOIDED, bomb),
    }
    for name in made.metadata:
        if "/j/" in name and name.endswith((".s", ".a")):
            data[name] = record_around(made, name, bomb)
        elif name.endswith(".sn"):
            data[name] = encode_frame(b"CKSN", 1, 1, bomb)
    for name, hostile in data.items():
        tracemalloc.start()
        try:
            try_it(made, name, hostile, "a bomb")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < PEAK_BYTES, name


def record_around(made: Tiny, name: str, payload: bytes) -> bytes:
    """A journal record of this place, right in everything but its payload."""
    with storage_of(made.objects) as storage:
        uuid = read_format(storage, NAMES).uuid
    slot = NAMES.parse_slot(name)
    epoch, index = slot if slot is not None else (NAMES.parse_log(name) or 0, 1)
    kind = RecordKind.OPEN if index == 0 else RecordKind.OPS
    header = RecordHeader(kind, 0, uuid, epoch, index, index + 1, index, bytes(16), 0, bytes(16), 0)
    return encode_record(header, payload)[0]


def test_hints_that_point_elsewhere(mode: Mode) -> None:
    """LATEST and VOIDED with right checksums and wrong facts cost time, not truth."""
    made = tiny.make(mode, closed=True)
    real = decode_latest(made.objects[NAMES.latest], object=NAMES.latest)
    names = (
        "",
        "x",
        "../../etc/passwd",
        "/etc/passwd",
        "default/FORMAT",
        "default/snap/LATEST",
        "a//b",
        "\0",
        "n" * 900,
    )
    for wrong in (
        *(real.snapshot._replace(name=name) for name in names),
        real.snapshot._replace(lsn=(1 << 64) - 1),
        real.snapshot._replace(lsn=0),
        real.snapshot._replace(epoch=(1 << 64) - 1),
        real.snapshot._replace(index=0),
        real.snapshot._replace(end=(1 << 64) - 1),
        real.snapshot._replace(hash=bytes(16)),
        real.snapshot._replace(digest=5),
    ):
        for epoch in (0, 3, 1 << 40, (1 << 64) - 1):
            data = encode_latest(LatestHint(wrong, epoch))
            assert not try_it(made, NAMES.latest, data, f"a hint {wrong}")
    for previous, epoch in ((0, 1 << 60), (1 << 60, 1 << 61), (2, 3), (3, 4), (3, 1 << 60)):
        assert not try_it(made, NAMES.voided, encode_voided(VoidedHint(previous, epoch)), "a hint")


def random_op(chance: random.Random) -> Op:
    def number() -> int:
        return chance.choice((0, 1, 2, 5, 64, (1 << 32) + 1, (1 << 63) - 1, (1 << 64) - 1))

    identity = chunk_id(chance.choice((1, (1 << 32) + 1)), chance.randrange(4), chance.randrange(3), 0)
    added = tuple((number(), identity) for _ in range(chance.randrange(3)))
    return chance.choice(
        (
            (int(OpCode.CREATE), number(), "name"),
            (int(OpCode.APPEND), number(), number(), number(), added),
            (int(OpCode.ATTACH), number(), number(), number(), added),
            (int(OpCode.TRUNCATE), number(), number()),
            (int(OpCode.CONCAT), number(), number(), number()),
            (int(OpCode.DELETE), number()),
            (int(OpCode.COLLECT), garbage_key(chance.randrange(9), 0), number()),
            (int(OpCode.REPLACE), number(), number(), number(), added),
            (int(OpCode.SEAL), number()),
        )
    )


def random_row(chance: random.Random) -> RowChange:
    key = chance.choice(
        (
            segment_key("log"),
            segment_key("new"),
            chunk_key(chunk_id((1 << 32) + 1, 1, 1, 0)),
            garbage_key(chance.randrange(9), 0),
            session_key(chance.randrange(9)),
            pin_key("pin"),
            table_key("rows", b"key"),
        )
    )
    return key, None if chance.random() < 0.3 else chance.randbytes(chance.choice((0, 1, 20, 200)))


def test_records_that_make_no_sense(mode: Mode) -> None:
    """A well-formed history of nonsense: what it says cannot be right, but reading it must end, and end with an answer."""
    made = tiny.make(mode, closed=True)
    chance = random.Random(3)
    for number in range(TRIES * 2):
        with storage_of(made.objects) as storage:
            format_ = read_format(storage, NAMES)
            cache = MemoryMetadataCache(format_.uuid, "here", shelf=MemoryShelf())
            owner = ContainerJournal(storage, NAMES, format_, cache, settings(mode)).take_over(own=None)
            known = dict(made.state.rows)
            digest = owner.store.head().digest
            try:
                for _ in range(chance.randrange(1, 4)):
                    rows = dict(random_row(chance) for _ in range(chance.randrange(4)))
                    for key, value in rows.items():
                        old = known.pop(key, None)
                        digest -= row_digest(key, old) if old is not None else 0
                        if value is not None:
                            digest += row_digest(key, value)
                            known[key] = value
                    digest %= DIGEST_MODULUS
                    ops = [random_op(chance) for _ in range(chance.randrange(1, 4))]
                    owner.journal.append(Batch(RecordKind.OPS, ops, list(rows.items()), digest, 0))
            except ChunkstoreError:
                continue  # refused when it is written: better still
            owner.journal.close()
            objects = tiny.objects_of(storage)
        began = Began()
        try:
            recover(objects, mode)
        except TYPED:
            pass
        except BaseException as error:
            error.add_note(f"number {number}")
            raise
        assert began.lately()
