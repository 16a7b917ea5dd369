"""The clients inside an owner: threads that append, commit, seal, join, truncate and collect, and note every answer.

Promises: an attempt is noted before the call and its outcome after it. What an error says about the outcome is taken at its
word (``NotOwner``, ``StorageUnavailable``, ``DeadlineExceeded``: it did not happen; ``OutcomeUnknown``: nobody knows), so that the judge
can hold chunkstore to it. Leaves out: judging.
"""

from __future__ import annotations

import random
import traceback
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from chunkstore import runtime
from chunkstore.changes import Append, TablePut
from chunkstore.config import RollingPolicy
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import (
    BadOffset,
    ChunkstoreError,
    Closed,
    Conflict,
    DeadlineExceeded,
    NotOwner,
    OutcomeUnknown,
    SegmentExists,
    SegmentNotFound,
    SegmentNotSealed,
    SegmentSealed,
    SegmentTruncated,
    StorageFull,
    StorageUnavailable,
)
from tests.chaos.notes import Notes
from tests.chaos.plan import (
    CHAINS,
    GROWING,
    JOINED,
    LOGS,
    PAIR,
    PART_PREFIX,
    TABLE,
    WRITERS,
    event_tag,
    frame,
    writer_segment,
)
from tests.judges.causes import hidden_cause
from tests.judges.events import error_fields

__all__ = ["Clients"]

_DID_NOT_HAPPEN: Final = (
    BadOffset,
    Conflict,
    DeadlineExceeded,
    SegmentExists,
    SegmentNotFound,
    SegmentNotSealed,
    SegmentSealed,
    SegmentTruncated,
    StorageFull,
    StorageUnavailable,
)
_PART_AGE_MS: Final = 15_000
_CALLS_AFTER_THE_FENCE: Final = 2


class Clients:
    """Everything that runs inside one ownership. ``rate`` is about how many operations a second all threads make."""

    def __init__(
        self, store: ChunkedSegmentStorage, notes: Notes, tag: str, rate: float, verified: Callable[[], dict[str, int]]
    ) -> None:
        self.store = store
        self._notes = notes
        self._tag = tag
        self.verified = verified
        """Offsets below which the judge needs nothing any more."""
        self._stopping = runtime.event()
        self.fenced = runtime.event()
        chance = random.Random(tag)
        loops = [
            _Writer(self, WRITERS[0::2]),
            _Writer(self, WRITERS[1::2]),
            _Plain(self),
            _Builder(self),
            _Housekeeper(self),
        ]
        self._loops = loops
        self._pause_s = len(loops) / rate
        for number, loop in enumerate(loops):
            loop.prefix = f"{tag}.{number}"
            loop.chance = random.Random(chance.random())
        self._tasks: list[runtime.Task] = []

    def start(self) -> None:
        """Begin."""
        self._tasks = [runtime.spawn(loop.run, f"client-{loop.prefix}") for loop in self._loops]

    def stop(self, timeout_s: float) -> bool:
        """Let every thread finish its call; False if one hangs longer than ``timeout_s``."""
        self._stopping.set()
        end_s = runtime.monotonic_s() + timeout_s
        for task in self._tasks:
            task.join(timeout=max(0.0, end_s - runtime.monotonic_s()))
        return not any(task.is_alive() for task in self._tasks)

    def rest(self, chance: random.Random) -> bool:
        """Pause as the rate wants it; False when the clients are to end."""
        return not self._stopping.wait(min(2.0, chance.expovariate(1.0 / self._pause_s)))

    def attempt(self, identity: str, kind: str, call: Callable[[], Any], *details: object) -> tuple[str, Any]:
        """Note, call, note. Returns ("ok", result), ("no", the error) or ("un", None)."""
        store, notes = self.store, self._notes
        notes.write("try", identity, kind, store.epoch, *details)
        try:
            result = call()
        except OutcomeUnknown as error:
            self._judge(identity, error)
            notes.write("un", identity, str(error)[:200])
            return "un", None
        except (NotOwner, Closed) as error:
            notes.write("no", identity, type(error).__name__, [])
            self.fenced.set()
            return "no", error
        except _DID_NOT_HAPPEN as error:
            self._judge(identity, error)
            notes.write("no", identity, type(error).__name__, error_fields(error), str(error)[:200])
            return "no", error
        except Exception:  # noqa: BLE001  (whatever it is, it is reported as a violation)
            notes.write("bad", identity, traceback.format_exc()[-1500:])
            return "bad", None
        notes.write("ok", identity, store.epoch, result if isinstance(result, (int, str, list)) else None)
        return "ok", result

    def _judge(self, identity: str, error: ChunkstoreError) -> None:
        """A bug of chunkstore's own may not pass for weather: what the disk says, and the metadata store, are weather."""
        hidden = hidden_cause(error, weather=(OSError,), modules=("lmdb",))
        if hidden is not None:
            self._notes.write("bad", identity, f"{error!r} hides {hidden!r}"[:1500])

    def must_not(self, what: str) -> None:
        """Note something that must not be."""
        self._notes.write("bad", self._tag, what)


class _Loop:
    """One thread. Goes on for a few calls after the fence: a deposed owner must refuse every one of them."""

    prefix = ""
    chance: random.Random

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self.store = clients.store
        self._count = 0

    def run(self) -> None:
        after = 0
        try:
            while self.clients.rest(self.chance) and after < _CALLS_AFTER_THE_FENCE:
                after += self.clients.fenced.is_set()
                self.step()
        except Exception:  # noqa: BLE001  (a client must not die unseen)
            self.clients.must_not(f"client {self.prefix}: {traceback.format_exc()[-1500:]}")

    def step(self) -> None:
        raise NotImplementedError

    def next_tag(self) -> str:
        self._count += 1
        return f"{self.prefix}.{self._count}"

    def attempt(self, kind: str, call: Callable[[], Any], *details: object) -> tuple[str, Any]:
        return self.clients.attempt(self.next_tag(), kind, call, *details)

    def look(self, segment: str) -> tuple[str, Any]:
        return self.attempt("look", lambda: list(_info(self.store, segment)), segment)

    def append(self, kind: str, segment: str) -> tuple[str, Any]:
        tag = self.next_tag()
        return self.clients.attempt(tag, kind, lambda: self.store.append(segment, frame(tag)), segment)


class _Writer(_Loop):
    """Exactly-once writers: the same numbered events whoever owns the container, repeated until they are acknowledged."""

    def __init__(self, clients: Clients, writers: tuple[str, ...]) -> None:
        super().__init__(clients)
        self._writers = writers
        self._next: dict[str, int] = {}

    def step(self) -> None:
        writer = self.chance.choice(self._writers)
        segment = writer_segment(writer)
        if writer not in self._next:
            outcome, last = self.attempt("last", lambda: self.store.last_event_number(segment, writer), segment, writer)
            if outcome != "ok":
                return
            self._next[writer] = last + 1
        number = self._next[writer]
        data = frame(event_tag(writer, number))
        outcome, _ = self.attempt(
            "event",
            lambda: self.store.append(segment, data, writer_id=writer, event_number=number),
            segment,
            writer,
            number,
        )
        if outcome == "ok":
            self._next[writer] = number + 1
        elif outcome == "un" and self.chance.random() < 0.3:
            del self._next[writer]


class _Plain(_Loop):
    """Plain appends of unique events, commits over two segments and a row, and looks at what is there."""

    def step(self) -> None:
        choice = self.chance.random()
        if choice < 0.55:
            self.append("plain", self.chance.choice((*LOGS, *LOGS, *JOINED)))
        elif choice < 0.7:
            self._pair()
        elif choice < 0.85:
            self.look(self.chance.choice(GROWING))
        else:
            self._read_tail(self.chance.choice(LOGS))

    def _read_tail(self, segment: str) -> None:
        outcome, info = self.look(segment)
        if outcome == "ok":
            start = max(info[1], info[2] - 300)
            self.attempt("read", lambda: _sum(self.store.read(segment, start, 300)), segment, start, 300)

    def _pair(self) -> None:
        tag = self.next_tag()
        outcome, row = self.attempt("get", lambda: _row(self.store, CHAINS[2]), CHAINS[2])
        if outcome != "ok":
            return
        version, value = _link(tag, row)
        changes = (
            Append(PAIR[0], frame(f"{tag}.a")),
            Append(PAIR[1], frame(f"{tag}.b")),
            TablePut(TABLE, CHAINS[2].encode(), value.encode(), version),
        )
        self.clients.attempt(tag, "pair", lambda: self.store.commit(changes)[:2], CHAINS[2], version, value)


def _row(store: ChunkedSegmentStorage, key: str) -> list[Any] | None:
    """Value and version of a row."""
    row = store.table(TABLE).get(key.encode())
    return None if row is None else [row.value.decode(), row.version]


def _link(tag: str, row: list[Any] | None) -> tuple[int, str]:
    """The version that the next value of a row expects, and that value."""
    value, version = row or ("", 0)
    return version, f"{tag} {value.split(' ')[0]}"


def _sum(data: bytes) -> list[int]:
    return [len(data), zlib.crc32(data)]


class _Builder(_Loop):
    """Parts: created, filled, sealed, joined to another segment or deleted. And chains of table rows."""

    def step(self) -> None:
        if self.chance.random() < 0.3:
            self._link()
        else:
            self._part()

    def _link(self) -> None:
        tag = self.next_tag()
        key = self.chance.choice(CHAINS[:2])
        outcome, row = self.attempt("get", lambda: _row(self.store, key), key)
        if outcome == "ok":
            version, value = _link(tag, row)
            table = self.store.table(TABLE)
            put = partial(table.put, key.encode(), value.encode(), expected_version=version)
            self.clients.attempt(tag, "put", put, key, version, value)

    def _part(self) -> None:
        chance, store = self.chance, self.store
        part = PART_PREFIX + self.next_tag()
        rolling = RollingPolicy(chunk_size_bytes_max=chance.choice((300, 900, 5000)))
        if self.attempt("create", lambda: store.create(part, rolling=rolling).segment_id, part)[0] != "ok":
            return
        for _ in range(chance.randrange(5)):
            if not self.clients.rest(chance) or self.append("part", part)[0] == "un":
                return
        if chance.random() < 0.15:
            return  # left behind for the housekeeper
        if self.attempt("seal", lambda: store.seal(part), part)[0] != "ok":
            return
        if self.append("part", part)[0] == "ok":
            self.clients.must_not(f"an append to {part} was acknowledged after its seal was")
        if chance.random() < 0.2:
            self.attempt("delete", lambda: store.delete(part), part)
            return
        if chance.random() < 0.1:
            # Not from the beginning any more, so it can be joined to nothing.
            outcome, info = self.look(part)
            if outcome == "ok":
                self.attempt("truncate", lambda: store.truncate(part, info[2]), part, info[2])
                self.attempt("delete", lambda: store.delete(part), part)
            return
        target = chance.choice(JOINED)
        for _ in range(5):
            outcome, info = self.look(target)
            if outcome != "ok":
                return
            offset = info[2]
            outcome, error = self.attempt("concat", partial(store.concat, target, offset, part), part, target, offset)
            if not isinstance(error, BadOffset):
                return


class _Housekeeper(_Loop):
    """Truncates what was verified, deletes parts left behind, collects, writes snapshots."""

    def step(self) -> None:
        chance, store = self.chance, self.store
        choice = chance.random()
        if choice < 0.25:
            self.attempt("collect", store.collect)
        elif choice < 0.35:
            self.attempt("snapshot", store.snapshot)
        elif choice < 0.6:
            verified = self.clients.verified()
            segment = chance.choice(GROWING)
            offset = verified.get(segment, 0)
            if offset:
                self.attempt("truncate", lambda: store.truncate(segment, offset), segment, offset)
        elif choice < 0.8:
            outcome, part = self.attempt("left", self._left_behind)
            if outcome == "ok" and part:
                self.attempt("delete", lambda: store.delete(part), part)
        else:
            self.attempt("fronts", self._read_fronts)

    def _left_behind(self) -> str:
        now_ms = runtime.now_ms()
        old = [info.name for info in self.store.segments(prefix=PART_PREFIX) if now_ms - info.created_at > _PART_AGE_MS]
        return self.chance.choice(old) if old else ""

    def _read_fronts(self) -> None:
        for segment in GROWING:
            info = self.store.info(segment)
            if info.start_offset < info.length:
                self.store.read(segment, info.start_offset, 200)


def _info(store: ChunkedSegmentStorage, segment: str) -> tuple[int, int, int, bool]:
    info = store.info(segment)
    return info.id, info.start_offset, info.length, info.sealed
