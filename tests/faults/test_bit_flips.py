"""Damage: bits of every byte of every object flipped, objects cut and removed, hints that lie (protocol A4, house law 6).

Required of recovery: exactly the state that was there, or a loud error. After a clean close there is no exception. In a
container killed in the middle the last record of log.a is the one exception: it cannot be told from a torn write, so it is
cut, and the report says so.

By default one bit of each byte of the journal is flipped, another one from byte to byte; ``CHUNKSTORE_FAULTS=full`` flips all eight.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chunkstore.assembly import open_store_on
from chunkstore.errors import ChunkstoreError, Damaged, Unsupported
from chunkstore.metadata.memory import MemoryMap, MemoryMetadataCache, MemoryShelf
from chunkstore_journal.objects import LatestHint, VoidedHint, decode_latest, encode_latest, encode_voided
from tests.faults import tiny
from tests.faults.ground import FULL_RUN
from tests.faults.tiny import NAMES, Recovered, Tiny, recover, settings, storage_of
from tests.support.data import problems
from tests.support.worlds import Mode, ShelfCache

SHARES = 4
LOUD = (Damaged, Unsupported)

pytestmark = pytest.mark.usefixtures("inline")


def flipped(data: bytes, *, every: bool = FULL_RUN) -> Iterator[tuple[int, bytes]]:
    """(byte position, the data with one bit of it flipped) for every bit, or for one in each byte."""
    copy = bytearray(data)
    for position in range(len(copy)):
        for bit in range(8) if every else (position * 5 % 8,):
            copy[position] ^= 1 << bit
            yield position, bytes(copy)
            copy[position] ^= 1 << bit


def outcome(made: Tiny, objects: dict[str, bytes], shelf: MemoryShelf | None = None) -> Recovered | ChunkstoreError:
    """What recovery says. Anything but a loud error or a result fails the test."""
    try:
        return recover(objects, made.mode, shelf)
    except LOUD as error:
        return error


def check_exact_or_loud(made: Tiny, objects: dict[str, bytes], what: str, shelf: MemoryShelf | None = None) -> bool:
    """Whether it was loud."""
    try:
        found = outcome(made, objects, shelf)
    except BaseException as error:
        error.add_note(what)
        raise
    if isinstance(found, ChunkstoreError):
        return True
    assert found.state == made.state, what
    return False


@pytest.mark.proof
@pytest.mark.parametrize("share", range(SHARES))
def test_every_bit_of_a_closed_container(mode: Mode, share: int) -> None:
    made = tiny.make(mode, closed=True)
    loud = 0
    for name, data in made.metadata.items():
        for position, damaged in flipped(data):
            if position % SHARES != share:
                continue
            loud += check_exact_or_loud(made, {**made.objects, name: damaged}, f"{name}, byte {position}")
    assert loud


def copy_shelf(shelf: MemoryShelf) -> MemoryShelf:
    copy = MemoryShelf()
    for key, content in shelf._stores.items():
        copy._stores[key] = copy_content(content)
    return copy


def copy_content(content: MemoryMap) -> MemoryMap:
    made = MemoryMap()
    made.count, made.clean, made.content = content.count, content.clean, content.content
    return made


def read_all(made: Tiny, objects: dict[str, bytes], shelf: MemoryShelf) -> tuple[bytes | Damaged, list[str]] | None:
    """What "log" holds, or why not, and the objects that a deep check finds damaged; None: the container does not open."""
    with storage_of(objects) as storage:
        try:
            with open_store_on(
                storage,
                take_over=True,
                settings=settings(made.mode),
                cache=ShelfCache(storage, "default", "owner", copy_shelf(shelf)),
            ) as store:
                found: bytes | Damaged
                try:
                    found = store.read("log", 0, 100)
                except Damaged as error:
                    found = error
                return found, [finding.object for finding in problems(store.check("deep"))]
        except LOUD:
            return None


@pytest.mark.proof
def test_every_bit_of_extents_is_verified_where_nothing_is_replayed(mode: Mode) -> None:
    """The machine that closed the container knows the rows: what it reads is right, or ``Damaged`` says which record is not."""
    made = tiny.make(mode, closed=True)
    names = [name for name, data in made.metadata.items() if b"hello " in data or b"world" in data]
    assert len(names) == 2
    damaged_reads = 0
    for name in names:
        data = made.objects[name]
        for text in (b"hello ", b"world"):
            at = data.find(text)
            for position in range(max(at, 0), at + len(text) if at >= 0 else 0):
                for bit in range(8):
                    damaged = data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]
                    read = read_all(made, {**made.objects, name: damaged}, made.shelf)
                    if read is None:
                        continue
                    assert isinstance(read[0], Damaged) and name in read[0].object, (name, position, bit)
                    assert any(name in item for item in read[1]), (name, position, bit)
                    damaged_reads += 1
    assert damaged_reads == 8 * len(b"hello world")


@pytest.mark.proof
def test_every_bit_of_a_record_with_extents_that_nobody_closed(mode: Mode) -> None:
    """The last record is adopted with its bytes, which move into the next OPEN; or it is cut off as torn, and that is said."""
    made = tiny.make(mode, closed=False, behind=b", and more")
    whole = made.content["log"]
    newest = max(name for name, data in made.metadata.items() if b", and more" in data)
    data = made.objects[newest]
    begin = data.rindex(b"CKSJ")
    cut = 0
    assert read_all(made, made.objects, MemoryShelf()) == (whole, [])
    for position, damaged in flipped(data):
        if position < begin or (position % 3 and not FULL_RUN):
            continue
        read = read_all(made, {**made.objects, newest: damaged}, MemoryShelf())
        if read is not None:
            assert read == (whole[: -len(b", and more")], []) and mode == "append", position
            cut += 1
    assert (cut > 0) == (mode == "append")


def newest_log(made: Tiny) -> str:
    return max(name for name in made.objects if name.endswith("log.a"))


def last_record_at(made: Tiny) -> int:
    """Where the last record of the newest log.a begins."""
    data = made.objects[newest_log(made)]
    return data.rindex(b"CKSJ")


@pytest.mark.proof
def test_every_bit_of_a_killed_container(mode: Mode) -> None:
    """The former stream and the rest are as above; the newest stream is looked at here."""
    made = tiny.make(mode, closed=False)
    flips = cut = 0
    for name, data in made.metadata.items():
        if "0003/" not in name:
            continue
        for position, damaged in flipped(data):
            flips += 1
            found = outcome(made, {**made.objects, name: damaged})
            if isinstance(found, ChunkstoreError) or found.state == made.state:
                continue
            what = f"{name}, byte {position}"
            assert mode == "append", what
            assert name == newest_log(made), what
            assert position >= last_record_at(made), what
            assert found.report.tail_cut is not None, what
            assert found.report.tail_cut.bytes == len(data) - last_record_at(made)
            assert found.state == made.states[-2]
            cut += 1
    assert flips > 1000
    assert (cut > 0) == (mode == "append")


def test_every_object_removed_from_a_closed_container(mode: Mode) -> None:
    """Names do not vanish by themselves, but people delete files: what is missed is missed aloud."""
    made = tiny.make(mode, closed=True)
    silent = []
    for name in made.metadata:
        objects = {other: data for other, data in made.objects.items() if other != name}
        with storage_of(objects) as storage:
            cache = ShelfCache(storage, "default", "owner", MemoryShelf())
            try:
                with open_store_on(storage, settings=settings(mode), cache=cache) as store:
                    if tiny.rows_of(store._container.current.store) != made.state:
                        silent.append(name)
            except LOUD:
                continue
            except BaseException as error:
                error.add_note(name)
                raise
    assert silent == []


def test_every_object_truncated(mode: Mode) -> None:
    """An object cut short is an error, or not needed. A log.a cut short is a history that ends earlier: nothing but a
    cache (or a snapshot) can know better, and a cut inside a record is reported."""
    for closed in (True, False):
        made = tiny.make(mode, closed=closed)
        for name, data in made.metadata.items():
            step = 1 if FULL_RUN else 3 if len(data) < 200 else 13
            for length in range(0, len(data), step):
                objects = {**made.objects, name: data[:length]}
                what = f"{name} cut to {length} of {len(data)}"
                assert_loud_with_cache = name.endswith("log.a") and name == newest_log(made)
                if not assert_loud_with_cache:
                    check_exact_or_loud(made, objects, what)
                    continue
                found = outcome(made, objects)
                if not isinstance(found, ChunkstoreError) and found.state != made.state:
                    assert tiny.unplaced(found.state) in [tiny.unplaced(state) for state in made.states], what
                    boundary = length == 0 or data[length : length + 4] == b"CKSJ"
                    assert (found.report.tail_cut is None) == boundary, what
                known = outcome(made, objects, copy_shelf(made.shelf))
                assert isinstance(known, ChunkstoreError) or known.state == made.state, what


def test_zeros_after_the_last_record_are_space_that_was_set_aside() -> None:
    for closed in (True, False):
        made = tiny.make("append", closed=closed)
        name = newest_log(made)
        for count in (1, 16, 4096):
            found = recover({**made.objects, name: made.objects[name] + bytes(count)}, "append")
            assert found.state == made.state
            assert found.report.tail_cut is None


def test_a_lost_format_is_not_made_anew(mode: Mode) -> None:
    made = tiny.make(mode, closed=True)
    objects = {name: data for name, data in made.objects.items() if name != NAMES.format}
    with storage_of(objects) as storage:
        with pytest.raises(Damaged) as caught:
            open_store_on(
                storage, settings=settings(mode), cache=MemoryMetadataCache(bytes(16), "here", shelf=MemoryShelf())
            )
        assert caught.value.object == NAMES.format
        assert tiny.objects_of(storage) == objects


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
            assert not check_exact_or_loud(made, {**made.objects, NAMES.latest: data}, f"a hint {wrong}")
    for previous, epoch in ((0, 1 << 60), (1 << 60, 1 << 61), (2, 3), (3, 4), (3, 1 << 60)):
        data = encode_voided(VoidedHint(previous, epoch))
        assert not check_exact_or_loud(made, {**made.objects, NAMES.voided: data}, "a hint")
