"""An owner under load: appends until it is deposed, and notes what it tried and what it was told.

Run as a script it is a process that is told on its standard input when to open (``{"open": {...}}``, one JSON document a
line) and says on its standard output how that went. Notes go to a file, unbuffered, so that they outlive ``SIGKILL``:
``T name tag`` (tried), ``A name tag offset`` (acknowledged), ``U name tag`` (unknown), ``F name tag`` (did not happen),
``X text`` (something that must not be).
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from chunkstore.assembly import open_store
from chunkstore.config import KIB, RollingPolicy
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Closed, DeadlineExceeded, NotOwner, OutcomeUnknown, StorageUnavailable
from tests.support.data import problems
from tests.support.settings import tuned

SEGMENTS = ("a", "b")
THREADS = 3
CALLS_AFTER_THE_FENCE = 3

SETTINGS: dict[str, Any] = {
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
    "default_rolling": RollingPolicy(chunk_size_bytes_max=600),
}

Note = Callable[[str], None]


def prepare(store: ChunkedSegmentStorage) -> None:
    for name in SEGMENTS:
        store.create(name)


class Owner:
    """One ownership from open to fence. ``tag`` makes what it writes its own."""

    def __init__(self, store: ChunkedSegmentStorage, tag: str, note: Note) -> None:
        self.store = store
        self.tag = tag
        self.note = note
        self.stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(THREADS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def finish(self, timeout_s: float) -> bool:
        """Wait until every thread was told that it is not the owner any more; then close. False if one hangs."""
        end_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        alive = any(thread.is_alive() for thread in self._threads)
        if not alive:
            self._read_after_the_fence()
            self.store.close()
        return not alive

    def _read_after_the_fence(self) -> None:
        if self.stop.is_set():
            return
        try:
            self.store.read("a", 0, 10)
            self.note("X a deposed owner answered a read")
        except NotOwner:
            return

    def _run(self, number: int) -> None:
        chance = random.Random(f"{self.tag} {number}")
        count = fenced = unknown = 0
        while fenced < CALLS_AFTER_THE_FENCE and not self.stop.is_set():
            count += 1
            name = chance.choice(SEGMENTS)
            tag = f"{self.tag}.{number}.{count}"
            data = f"[{tag}:{'x' * chance.choice((0, 5, 400))}]".encode()
            self.note(f"T {name} {tag}")
            try:
                offset = self.store.append(name, data)
                self.note(f"A {name} {tag} {offset}")
                if fenced or unknown:
                    self.note(f"X acknowledged {tag} after it was deposed")
            except OutcomeUnknown:
                self.note(f"U {name} {tag}")
                unknown += 1
                if unknown > 1:
                    self.note(f"X unknown twice: {tag}")
            except NotOwner:
                self.note(f"F {name} {tag}")
                fenced += 1
            except (StorageUnavailable, DeadlineExceeded) as error:
                if self.stop.is_set():
                    return  # the process was killed meanwhile: what its threads still hear, nobody hears
                # A roll in between, a disk that is slow today, or a server that is: it did not happen, and may be tried again.
                self.note(f"F {name} {tag}")
                if not isinstance(error, DeadlineExceeded) and not any(word in str(error) for word in _MAY_PASS):
                    self.note(f"X {error!r} at {tag}")
            except Closed:
                if not self.stop.is_set():
                    self.note(f"X closed at {tag}")
                return
            except Exception as error:  # noqa: BLE001  (reported by the test)
                self.note(f"X {error!r} at {tag}")
                return


_MAY_PASS = ("retry", "no answer from the server")


class Verdict:
    """What all owners noted, against what is there."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.tried: set[tuple[str, str]] = set()
        self.acknowledged: dict[tuple[str, str], int] = {}
        self.unknown: set[tuple[str, str]] = set()
        self.failed: set[tuple[str, str]] = set()
        self.wrong: list[str] = []
        for line in lines:
            kind, _, rest = line.strip().partition(" ")
            if kind == "X":
                self.wrong.append(rest)
                continue
            name, tag, *offset = rest.split(" ")
            if kind == "T":
                self.tried.add((name, tag))
            elif kind == "A":
                self.acknowledged[name, tag] = int(offset[0])
            elif kind == "U":
                self.unknown.add((name, tag))
            elif kind == "F":
                self.failed.add((name, tag))

    def check(self, store: ChunkedSegmentStorage) -> None:
        """Every acknowledged append is at its offset, once; unknown ones at most once; the others are not there."""
        assert self.wrong == [], self.wrong
        assert problems(store.check("deep")) == []
        found: dict[tuple[str, str], int] = {}
        for name in SEGMENTS:
            data = store.read(name, 0, store.info(name).length)
            position = 0
            for part in data.split(b"]")[:-1]:
                assert part.startswith(b"["), (name, position, part)
                key = name, part[1:].partition(b":")[0].decode()
                assert key not in found, f"{key} is there twice"
                found[key] = position
                position += len(part) + 1
            assert position == len(data)
        lost = {key: offset for key, offset in self.acknowledged.items() if found.get(key) != offset}
        assert lost == {}, "acknowledged, and lost or moved"
        assert self.failed.isdisjoint(found), "said not to have happened, and there"
        assert found.keys() <= self.tried, "there, and never tried"


def _say(**answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main(root: str, mode: str, notes: str) -> None:
    fd = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(text: str) -> None:
        os.write(fd, text.encode() + b"\n")

    _say(ready=os.getpid())
    for line in sys.stdin:
        command = json.loads(line)
        chosen = {**SETTINGS, "cache_dir": command["cache"], "resolve_s": command["resolve_s"]}
        settings = tuned(journal_mode=mode, **chosen)
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
