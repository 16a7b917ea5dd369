"""Hostile input (house law 6): whatever lies where an object should be, recovery answers with a typed error or the right
state, in bounded time and memory. (Random and mutated bytes of every format: ``tests/fuzz``.)
"""

from __future__ import annotations

import time
import tracemalloc

import pytest

from chunkstore.config import MIB
from chunkstore.errors import Damaged, Unsupported
from chunkstore.journal import RecordKind
from chunkstore_journal.container import read_format
from chunkstore_journal.objects import LatestHint, ObjectKind, VoidedHint, decode_latest, encode_latest, encode_voided
from chunkstore_journal.record import RecordHeader, encode_record
from chunkstore_journal.wire import encode_frame
from tests.faults import tiny
from tests.faults.ground import FULL_RUN
from tests.faults.tiny import NAMES, Mode, Tiny, recover, storage_of

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
