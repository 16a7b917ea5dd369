"""Header files of the old layout at a run's root: some lie there before anything happens, and then headers follow the journal.

Every header of others is an event of the history before it begins: a commit that nobody has heard of yet. It happens once, or never.

Promises: behind each opening, and at the end, headers lead to what history says, but for those that somebody else has changed meanwhile; at
every step nobody deletes a chunk that a header lists, and nobody changes a file of others (a header of theirs: before it is imported).
Leaves out: what a header leads to (``tests.judges.header_files``), whether a segment comes back (``tests.judges.checker``).
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any, Final, Protocol

from chunkstore.engine import ChunkedSegmentStorage
from tests.judges.events import Event
from tests.judges.header_files import HeaderFiles, header_key, segment_of, segments_of
from tests.simulator.checks import Checks
from tests.simulator.drawing import Plan
from tests.simulator.finals import calmly
from tests.simulator.recorder import Recorder
from tests.simulator.s3 import S3Backend
from tests.simulator.wire import Call, WiredProcess
from tests.simulator.world import Process, World

__all__ = ["Layouts"]

_DELETING: Final = frozenset(("DELETE", "unlink", "remove"))
_ALONE: Final = "old-0"
"""A segment of the old layout that nobody names before the end."""
_MENDERS: Final = 3


class _Run(Protocol):
    """What is asked of a run (``roots``)."""

    plan: Plan
    world: World
    recorder: Recorder
    checks: Checks

    def process(self, name: str, machine: str) -> Process: ...

    def shut_down(self) -> int: ...


class Layouts:
    """Of one run, whose root is empty but for the container. Puts headers of others there, and judges from then on."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._world = run.world
        self._judge = HeaderFiles(run.world.backend.content, run.world.fail)
        self._others: dict[str, bytes] = {}
        self._data: dict[str, bytes] = {}
        self._gone: list[str] = []
        self._since: dict[Process, tuple[int, int]] = {}
        """When each owner's last claim began, and the last record of history then."""
        self._touched: dict[str, dict[WiredProcess | None, int]] = defaultdict(dict)
        """By file: who has changed it last when; None: a request that came late."""
        self._put_old_segments(Random(f"old layout {run.plan.seed}"))
        run.world.observers.append(self._observe)

    def _put_old_segments(self, random: Random) -> None:
        process = self._run.process("old-code", "host0")
        usual = [f"s{number}" for number in range(self._run.plan.segments) if random.random() < 0.5]
        for name in (*usual, _ALONE):
            pieces = [b"<%s-%d>" % (name.encode(), number) for number in range(random.randrange(1, 4))]
            header, offset = b"maxsize=%d&" % random.choice((10, 100)), 0
            for piece in pieces:
                header += b"%d=%s$offset.%d&" % (offset, name.encode(), offset)
                self._others[f"{name}$offset.{offset}"] = piece
                offset += len(piece)
            self._others[f"{name}$header"] = header
            self._data[name] = b"".join(pieces)
            comes = (("create", name, (0,)), ("append", name, (self._data[name], None, None, None)))
            self._run.recorder.events.append(Event("old-code", "commit", "", (comes,), 0, None, "unknown", None, 0))

        def put() -> None:
            for file, data in self._others.items():
                process.storage.put(file, data)

        process.run(put)
        process.crash()

    # What happens

    def begins(self, process: Process) -> None:
        """Somebody asks for the container."""
        self._since[process] = self._world.scheduler.now, self._run.checks.stored.lsn

    def _observe(self, call: Call, result: Any, late: bool) -> None:
        if isinstance(result, BaseException) or not call.changes or call.step.startswith("fsync"):
            return
        if call.step in _DELETING and self._world.names.parse_chunk(call.name) is not None:
            self._deleted(call)
        self._touched[call.name][None if late else call.process] = self._world.scheduler.now
        if call.name in self._others:
            self._changed(call)

    def _changed(self, call: Call) -> None:
        """A file of others: headers may be changed once they are imported, and are ours from then on."""
        name = segment_of(call.name)
        if name is not None and header_key(name) in self._run.checks.stored.rows:
            del self._others[call.name]
        else:
            self._world.fail(f"history changed-others: {call!r}, which is none of ours")

    def _deleted(self, call: Call) -> None:
        """A chunk goes: headers have followed its removal, where the disk had room for them."""
        process = call.process
        faults = self._world.faults
        if (faults.active and faults.fired.get("disk_full")) or not isinstance(process, Process):
            return
        for name in {name for file in self._world.backend.names() if (name := segment_of(file)) is not None}:
            if call.name in self._judge.files_of(name) and not self._disturbed(f"{name}$header", process):
                self._world.fail(f"history lost-for-header: {call!r}, which the header of {name!r} lists")

    def _disturbed(self, file: str, process: Process) -> bool:
        """Whether anybody else has changed a file since this owner's claim began."""
        since, _ = self._since.get(process, (0, 0))
        return any(when >= since for other, when in self._touched[file].items() if other is not process)

    def after_take_over(self, process: Process, store: ChunkedSegmentStorage) -> None:
        """An owner is about to serve: all headers were compared; what was asked of it meanwhile, and changed, comes later."""
        stored = self._run.checks.stored
        if stored.top != store.epoch:
            return  # there is a newer one
        before = stored.rows_at(self._since[process][1])
        headers = {name for file in self._world.backend.names() if (name := segment_of(file)) is not None}
        backend = self._world.backend
        unseen = bool(self._world.faults.weather.stale_list) or (isinstance(backend, S3Backend) and backend.lists_late)
        for name in sorted(headers.union(segments_of(before))):
            if unseen and name not in segments_of(stored.rows):
                continue  # only a LIST shows the header of a segment that is gone; the next one does, an hour later
            files = [f"{name}$header", *self._judge.files_of(name)]
            key = b"S" + name.encode()
            if before.get(key) == stored.rows.get(key) and not any(self._disturbed(file, process) for file in files):
                self._judge.judge(stored, name, f"after the take-over by {process.name}", exact=True)

    # The end

    def finish(self) -> None:
        """Everybody dies, on a file system of a power cut, again and again; whoever comes next mends what is left. The last one closes."""
        if self._world.failures:
            return
        self._run.shut_down()
        for number in range(_MENDERS):
            if self._world.kind == "posix":
                self._world.power_cut()
            process = self._run.process(f"mender{number}", "host-of-the-mender")
            calmly(self._world, lambda process=process, number=number: self._mend(process, number), process)  # type: ignore[misc]
            if self._world.failures:
                return
            process.crash()
        for name in segments_of(self._run.checks.stored.rows):
            self._judge.judge(self._run.checks.stored, name, "behind the last close", exact=True)
        for file, data in self._others.items():
            if self._world.backend.content(file) != data:
                self._world.fail(f"history changed-others: {file} is none of ours, and has changed")

    def _mend(self, process: Process, number: int) -> None:
        """Open and look; the first one takes in what nobody has named, and deletes it and another one behind their headers' backs;
        then their chunks go."""
        self.begins(process)
        store = process.opening(
            op_deadline_s=600.0, resolve_s=60.0, lease_s=0.0, ask_s=0.0, collect_s=0.0, gc_grace_s=0.0
        )()
        self.after_take_over(process, store)
        if number == 0:
            if store.read(_ALONE, 0, 1 << 16) != self._data[_ALONE]:
                self._world.fail(f"history other-header: {_ALONE!r} is taken in with other bytes than it had")
            self._gone = sorted({_ALONE, *[info.name for info in store.segments()][-1:]})
            for name in self._gone:
                store.delete(name)
        for name in self._gone:
            if store.exists(name):
                self._world.fail(f"history back-again: {name!r} was deleted, and is there again by a header")
        if number == 0:
            store.collect()
        if number == _MENDERS - 1:
            store.close()
