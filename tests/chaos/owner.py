"""An owner under load: works until it is deposed, and notes what it tried and what it was told.

Run as a script it is a process that is told on its standard input when to open, one JSON document a line, and says on its
standard output how that went. Notes go to a file, unbuffered, so that they outlive ``SIGKILL``: ``T name tag`` (tried),
``A name tag offset`` (acknowledged), ``U name tag`` (unknown), ``F name tag`` (did not happen), ``C name offset`` (may be
truncated up to there), ``X text`` (something that must not be).
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from chunkstore.assembly import open_store
from chunkstore.changes import Append, TablePut
from chunkstore.config import KIB, RollingPolicy, Settings
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunkstoreError,
    Closed,
    DeadlineExceeded,
    NotOwner,
    OutcomeUnknown,
    StorageFull,
    StorageUnavailable,
)
from tests.judges.causes import hidden_cause
from tests.support.settings import tuned

CUT: Final = "cut"
SEGMENTS: Final = ("a", "b", CUT)
"""``CUT`` is truncated now and then."""
TABLE: Final = "rows"
WRITERS: Final = (b"w0", b"w1")
"""Exactly-once writers: whoever owns the container goes on with their events."""
_CALLS_AFTER_THE_FENCE: Final = 3
_MAY_PASS: Final = ("retry", "no answer from the server")
_SIZES: Final = (0, 5, 60, 400, 1500)

Note = Callable[[str], None]


def settings_of(mode: str, cache: str, **changes: Any) -> Settings:
    """Small limits, so that rolls, snapshots and collections happen all the time."""
    chosen: dict[str, Any] = {
        "journal_mode": mode,
        "cache_dir": cache,
        "op_deadline_s": 60.0,
        "resolve_s": 0.2,
        "lease_s": 0.0,
        "io_workers": 4,
        "lmdb_map_bytes": 1 << 26,
        "log_roll_bytes": 24 * KIB,
        "slot_roll_records": 64,
        "roll_interval_s_min": 0.03,
        "snapshot_bytes_min": 8 * KIB,
        "snapshot_slots_min": 30,
        "gc_grace_s": 0.0,
        "default_rolling": RollingPolicy(chunk_size_bytes_max=600),
    }
    return tuned(**{**chosen, **changes})


def draw_settings(chance: random.Random) -> dict[str, Any]:
    """What differs from owner to owner."""
    return {
        "resolve_s": chance.choice((0.0, 0.2)),
        "linger_s": chance.choice((0.0, 0.0, 0.004)),
        "gc_grace_s": chance.choice((0.0, 0.5)),
        "inline_bytes_max": chance.choice((0, 200, None)),
        "spill_bytes": chance.choice((400, 4 * KIB, 100 * KIB)),
        "spill_s": chance.choice((0.0, 0.3, 5.0)),
        "tail_cache_bytes": chance.choice((0, 2 * KIB, 1 << 20)),
    }


def event(tag: str) -> bytes:
    """An event's bytes, which follow from its tag."""
    size = _SIZES[sum(tag.encode()) % len(_SIZES)]
    return f"[{tag}:{(tag * size)[:size]}]".encode()


def prepare(store: ChunkedSegmentStorage) -> None:
    """Make the segments of a new container."""
    for name in SEGMENTS:
        store.create(name)


class Owner:
    """One ownership from open to fence. ``tag`` makes what it writes its own."""

    def __init__(self, store: ChunkedSegmentStorage, tag: str, note: Note) -> None:
        self.store = store
        self.tag = tag
        self.note = note
        self.stop = threading.Event()
        loops = (self._append, self._append, self._commit, self._write_once, self._keep_house)
        self._threads = [
            threading.Thread(target=self._run, args=(number, step), daemon=True) for number, step in enumerate(loops)
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def finish(self, timeout_s: float) -> bool:
        """Wait until every thread was told that it is not the owner any more; then close. False if one hangs."""
        end_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return False
        try:
            self.store.read(SEGMENTS[0], 0, 1)
            self.note("X a deposed owner answered a read")
        except NotOwner:
            pass
        self.store.close()
        return True

    def _run(self, number: int, step: Callable[[str, random.Random], bool]) -> None:
        chance, fenced, count = random.Random(f"{self.tag} {number}"), 0, 0
        while fenced < _CALLS_AFTER_THE_FENCE and not self.stop.is_set():
            count += 1
            tag = f"{self.tag}.{number}.{count}"
            try:
                if step(tag, chance) and fenced:
                    self.note(f"X acknowledged {tag} after it was deposed")
            except NotOwner:
                fenced += 1
            except (StorageUnavailable, DeadlineExceeded, StorageFull, OutcomeUnknown) as error:
                # A roll in between, a disk that is full or slow today, or a server that is.
                self._judge(tag, error)
            except Closed:
                return
            except Exception as error:  # noqa: BLE001  (reported by the test)
                self.note(f"X {error!r} at {tag}")
                return

    def _judge(self, tag: str, error: ChunkstoreError) -> None:
        """A bug of chunkstore's own may not pass for weather."""
        hidden = hidden_cause(error, weather=(OSError,), modules=("lmdb",))
        strange = isinstance(error, StorageUnavailable) and not any(word in str(error) for word in _MAY_PASS)
        if hidden is not None or strange:
            self.note(f"X {error!r} hides {hidden!r} at {tag}".replace("\n", " "))

    def _try(self, name: str, tag: str, call: Callable[[], int]) -> bool:
        """Note, call, note. Raises what the call raises."""
        self.note(f"T {name} {tag}")
        try:
            offset = call()
        except OutcomeUnknown:
            self.note(f"U {name} {tag}")
            raise
        except Closed:
            raise  # nobody says whether
        except ChunkstoreError:
            self.note(f"F {name} {tag}")
            raise
        self.note(f"A {name} {tag} {offset}")
        return True

    # What the threads do

    def _append(self, tag: str, chance: random.Random) -> bool:
        name = chance.choice(SEGMENTS)
        return self._try(name, tag, partial(self.store.append, name, event(tag)))

    def _commit(self, tag: str, chance: random.Random) -> bool:
        """An event and a row, or neither."""
        name, tag = SEGMENTS[0], f"row-{tag}"
        put = TablePut(TABLE, tag.encode(), b"x")

        def commit() -> int:
            self.store.commit([Append(name, event(tag)), put])
            return -1

        return self._try(name, tag, commit)

    def _write_once(self, _: str, chance: random.Random) -> bool:
        """The next event of a writer: offered again, by whoever owns the container, until it is acknowledged."""
        writer, name = chance.choice(WRITERS), SEGMENTS[1]
        number = self.store.last_event_number(name, writer) + 1
        tag = f"{writer.decode()}-{number}"
        self.note(f"T {name} {tag}")
        offset = self.store.append(name, event(tag), writer_id=writer, event_number=number)
        self.note(f"A {name} {tag} {offset}")
        return True

    def _keep_house(self, _: str, chance: random.Random) -> bool:
        self.stop.wait(0.02)
        step = chance.randrange(4)
        if step == 0:
            self.store.snapshot()
        elif step == 1:
            self.store.collect()
        elif step == 2:
            info = self.store.info(CUT)
            data = self.store.read(CUT, info.start_offset, (info.length - info.start_offset) // 2)
            offset = info.start_offset + data.rfind(b"]") + 1
            self.note(f"C {CUT} {offset}")
            self.store.truncate(CUT, offset)
        else:
            name = chance.choice(SEGMENTS)
            info = self.store.info(name)
            data = self.store.read(name, info.start_offset, 1)
            if data not in (b"", b"["):
                self.note(f"X {name} begins with {data!r} at {info.start_offset}")
        return step != 3  # reads alone are not what a deposed owner acknowledges


def _say(**answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main(root: str, mode: str, notes: str) -> None:
    """Open, serve until fenced, and again, as told."""
    fd = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(text: str) -> None:
        os.write(fd, text.encode() + b"\n")

    _say(ready=os.getpid())
    for line in sys.stdin:
        command = json.loads(line)
        settings = settings_of(mode, command["cache"], **command["settings"])
        try:
            store = open_store(root, settings=settings, create=False)
        except ChunkstoreError as error:
            _say(refused=repr(error))
            continue
        owner = Owner(store, command["tag"], note)
        _say(opened=store.epoch)
        owner.start()
        _say(fenced=owner.finish(60))


if __name__ == "__main__":
    main(*sys.argv[1:])
