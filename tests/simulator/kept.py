"""The end of what was kept: everything beside history, each backup and each restored container by itself.

Promises: called once faults are over and the history was judged: what was shown at a record is what history was there; backups that count
are read, the newest is restored without its original, and goes on; what was half restored is gone on with, or refused; exports name
chunks that are there; a copy that has rotted, or is short, becomes no container. Leaves out: steps on the way (``keeping``, ``keepers``).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from chunkstore.assembly import open_store_on
from chunkstore.backup.exporting import ExportReport, read_export
from chunkstore.config import Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunksMissing, ChunkstoreError, Damaged, InvalidArgument, PastCollected, Unsupported
from chunkstore.following import open_replica_on
from chunkstore.metadata.keys import CHUNK, SEGMENT, TABLE, VISIBLE_SEGMENTS
from chunkstore.names import BackupNames
from chunkstore.replica import Replica
from tests.judges.imports import AS_IT_IS
from tests.judges.kept_states import Projected, Shown, differences, remains, shown_state
from tests.judges.stored_records import CHUNK_FIELDS, SEGMENT_FIELDS, decode_row
from tests.simulator.finals import calmly
from tests.simulator.keeping import BACKUPS, Keeping, Observation, Target, fresh_cache
from tests.simulator.roots import RootRun
from tests.simulator.world import Process

__all__ = ["judge"]

_BACKUPS_READ: Final = 3
_BEHIND_SEGMENTS: Final = bytes((SEGMENT[0] + 1,))
_MORE: Final = b"<more>"


def judge(run: RootRun, keeping: Keeping) -> None:
    """See the module. Failures go to the run's world."""
    if run.world.failures or run.checks.past is None:
        return
    run.world.advance(float(run.plan.timeout_s) * 1200)
    end = _End(run, keeping)
    end.read_backups()
    for target in keeping.targets:
        end.finish(target)
    counting = sorted(keeping.root.counting.values(), key=lambda item: item[0])
    if counting:
        newest = Target("alone/", counting[-1][0], of_backup=True)
        end.finish(newest)
        end.spoil(newest.lsn, sorted(counting[-1][1]))
    for item in keeping.shown:
        end.compare(item)
    for report in keeping.exports:
        end.compare_export(report)


class _End:
    """Of one run."""

    def __init__(self, run: RootRun, keeping: Keeping) -> None:
        self._run = run
        self._world = run.world
        self._keeping = keeping
        self._container = run.world.container
        self._writers = tuple(writer.name for writer in run.writers)
        # Deadlines are drawn, and some are shorter than what restoring takes.
        self._settings: Settings = run.world.settings_with(
            {"op_deadline_s": 600.0, "resolve_s": 60.0, "lease_s": 0.0, "ask_s": 0.0, "collect_s": 0.0}
        )

    def _process(self) -> Process:
        return self._run.process(f"keeper{len(self._world.processes)}", "host-of-the-keeper")

    # Backups

    def read_backups(self) -> None:
        """Those of the newest states are read where they lie."""
        counting = sorted((lsn, run) for run, (lsn, _) in self._keeping.root.counting.items())
        for lsn, backup in counting[-_BACKUPS_READ:]:
            process = self._process()
            calmly(self._world, lambda process=process, lsn=lsn, run=backup: self._read(process, lsn, run), process)  # type: ignore[misc]

    def _read(self, process: Process, lsn: int, backup: str) -> None:
        storage = process.at(BACKUPS)
        cache = fresh_cache(storage, "past")
        with open_replica_on(
            storage, container=self._container, settings=self._settings, cache=cache, at_lsn=lsn
        ) as view:
            self._keeping.shown.append(Observation(shown_state(view, f"backup {backup}", self._writers), versions=True))
            for finding in view.check("deep"):
                self._world.fail(f"history broken-backup: backup {backup} of lsn {lsn}: {finding}")

    # What is restored

    def finish(self, target: Target) -> None:
        """Go on with it, and with what it is made of."""
        process = self._process()
        calmly(self._world, lambda: self._finish(process, target), process)
        if target.whole and not self._world.failures:
            other = self._process()
            calmly(self._world, lambda: self._reopen(other, target), other)

    def _finish(self, process: Process, target: Target) -> None:
        told = target.whole
        try:
            if target.founded is None:
                target.make(process, self._settings)
            if told and target.founded is None:
                self._world.fail(f"history half-restored: {target.folder} was said to be whole, and was gone on with")
            target.whole = True
        except InvalidArgument as error:
            if error.argument == "new_root":
                target.whole = True
            elif error.argument != "lsn" or not target.adopts:
                assert target.of_backup, f"history other-past: {error!r}"  # its backup was given up
        except Unsupported as error:
            if error.feature != "pin" or told:
                raise  # else nobody answers any more who could keep for it what it adopts
        except (PastCollected, ChunksMissing):
            if target.of_backup and target.lsn in {lsn for lsn, _ in self._keeping.root.counting.values()}:
                raise
        if self._world.backend.content(f"{target.folder}{self._container}/FORMAT") is None:
            return
        try:
            store = self._open(process, target.folder)
        except Unsupported as error:
            # What it was made of is gone, and nobody opens it.
            if target.whole or error.feature != "unfinished_import":
                raise
            return
        target.whole = True  # perhaps nobody was told so
        with store:
            what = f"what was restored in {target.folder}"
            shown = shown_state(store, what, self._writers, point=(target.lsn, b""))
            item = Observation(shown, versions=False, plan=target.plan, cut=target.cut, founded=target.founded)
            self._keeping.shown.append(item)
            self._sound(store, target)
            target.expected = self._go_on(store, shown)
            self._sound(store, target)

    def _open(self, process: Process, folder: str) -> ChunkedSegmentStorage:
        new, cache = process.at(folder), fresh_cache(process.at(folder), "owner")
        return open_store_on(new, container=self._container, create=False, settings=self._settings, cache=cache)

    def _sound(self, store: ChunkedSegmentStorage, target: Target) -> None:
        for finding in store.check("deep"):
            if finding.severity in ("damage", "leak"):
                self._world.fail(f"history broken-restore: {target.folder}: {finding}")
        epoch = store.epoch
        for info in store.segments():
            if not 0 < info.id >> 32 <= epoch:
                self._world.fail(f"history kept-ids: segment {info.name!r} of {target.folder} has the id {info.id}")

    def _go_on(self, store: ChunkedSegmentStorage, shown: Shown) -> dict[str, bytes]:
        """Used numbers write nothing; everything else is as in any container. Returns what it holds then."""
        expected = {}
        for name, segment in shown.segments.items():
            for writer, (number, offset) in segment.events.items():
                found = store.append(name, _MORE, writer_id=writer, event_number=number)
                if (found, store.info(name).length) != (offset, segment.length):
                    self._world.fail(f"history repeated-event: {writer}'s {number} of {name!r} was appended again")
            expected[name] = (segment.data or b"") + (b"" if segment.sealed else _MORE)
            if not segment.sealed:
                store.append(name, _MORE)
        for number in range(4):
            name = f"made-{number}"
            store.create(name)
            store.append(name, _MORE * number)
            expected[name] = _MORE * number
        ids = [info.id for info in store.segments()]
        if len(set(ids)) < len(ids):
            self._world.fail(f"history kept-ids: segments share an id: {sorted(ids)}")
        store.table("facts").put(b"made", _MORE)
        self._compare(store, expected)
        return expected

    def _reopen(self, process: Process, target: Target) -> None:
        storage = process.at(target.folder)
        with open_replica_on(
            storage, container=self._container, settings=self._settings, cache=fresh_cache(storage, "replica")
        ) as replica:
            self._compare(replica, target.expected)

    def _compare(self, store: ChunkedSegmentStorage | Replica, expected: dict[str, bytes]) -> None:
        found = {info.name: store.read(info.name, info.start_offset, 1 << 24) for info in store.segments()}
        if found != expected:
            self._world.fail(f"history broken-restore: it went on as {found}, that should be {expected}")

    def spoil(self, lsn: int, needed: list[str]) -> None:
        """A copy rots, another is short: neither becomes a container."""
        names, backend = BackupNames(self._container), self._world.backend
        rows = self._run.checks.stored.rows_at(lsn)
        hidden = {decode_row(raw, SEGMENT_FIELDS)[1] for key, raw in rows.items() if key[:2] == SEGMENT + b"\0"}

        def comes(name: str) -> bool:
            """What an import has not ended is copied, and taken in by nobody."""
            found = names.parse_copy(name)
            raw = None if found is None else rows.get(CHUNK + found[0])
            return raw is not None and decode_row(raw, CHUNK_FIELDS)[6] not in hidden

        copies = [name for name in needed if comes(name) and backend.content(BACKUPS + name)]
        if not copies or self._run.plan.bindings:
            return
        name = BACKUPS + self._run.random.choice(copies)
        whole = backend.content(name) or b""
        for number, spoiled in enumerate((whole[:-1] + bytes((whole[-1] ^ 1,)), whole[:-1])):
            backend.overwrite(name, spoiled)
            process = self._process()
            target = Target(f"spoiled{number}/", lsn, of_backup=True)
            calmly(self._world, lambda process=process, target=target: self._spoiled(process, target, name), process)  # type: ignore[misc]
            backend.overwrite(name, whole)

    def _spoiled(self, process: Process, target: Target, name: str) -> None:
        try:
            target.make(process, self._settings)
            self._world.fail(f"history broken-restore: {name} was spoiled, and is taken in")
        except (Damaged, ChunksMissing):
            pass
        except ChunkstoreError as error:
            self._world.fail(f"history wrong-refusal: {name} was spoiled, and restoring it was answered {error!r}")
        if self._world.backend.content(f"{target.folder}{self._container}/FORMAT") is not None:
            with suppress(Unsupported):
                self._open(process, target.folder)
                self._world.fail(f"history half-restored: {target.folder} was refused, and is served")

    # Beside history

    def compare(self, item: Observation) -> None:
        """One thing that was shown."""
        shown, checks = item.shown, self._run.checks
        stored, past = checks.stored, checks.past
        assert past is not None
        if shown.hash and not stored.holds(shown.lsn, shown.hash):
            self._world.fail(f"history other-past: {shown.what} shows lsn {shown.lsn}, which is no point of history")
            return
        if item.founded is not None:
            for line in remains(shown, item.founded):
                self._world.fail(f"history other-state: {shown.what}: {line}")
            return
        state, rows = past.at(shown.lsn), stored.rows_at(shown.lsn)
        if item.cut or item.plan != AS_IT_IS:
            made = Projected(state, item.plan)
            lines = remains(shown, made) if item.cut else differences(shown, made, made.rows(rows), versions=False)
        else:
            lines = differences(shown, state, rows, versions=item.versions)
        for line in lines:
            self._world.fail(f"history other-state: {shown.what}, at lsn {shown.lsn}: {line}")

    def compare_export(self, report: ExportReport) -> None:
        """Its rows are those of its record; what they name is there as long as its pin is."""
        found = read_export(report.path)
        rows = dict(found)
        before = self._run.checks.stored.rows_at(report.lsn)
        if wrong := [key for key, raw in rows.items() if before.get(key) != raw]:
            self._world.fail(f"history other-state: an export of lsn {report.lsn} holds other rows: {wrong[:3]}")
        whole = found.header.choice.is_everything
        if whole and [key for key in before if key not in rows and _is_users(key)]:
            self._world.fail(f"history other-state: an export of lsn {report.lsn} holds too few rows")
        count = sum(decode_row(raw, SEGMENT_FIELDS)[11] for key, raw in rows.items() if key[:1] == SEGMENT)
        chunks = {key[1:]: decode_row(raw, CHUNK_FIELDS)[2] for key, raw in rows.items() if key[:1] == CHUNK}
        if count != len(chunks):
            self._world.fail(
                f"history other-state: an export of lsn {report.lsn} holds {len(chunks)} of {count} chunks"
            )
        for identity, length in chunks.items():
            found_at = self._run.checks.stored.adopted(before[CHUNK + identity])
            own = self._world.backend.content(self._world.names.chunk(identity))
            data = own if found_at is None else self._world.content_at(*found_at[:2])
            if self._run.checks.stored.extents.is_extent(before[CHUNK + identity]):
                data = self._run.checks.stored.extent(before[CHUNK + identity])
            if data is None or len(data) < length:
                name = self._world.names.chunk(identity)
                self._world.fail(
                    f"history lost-export: {name} is gone, which a pinned export of lsn {report.lsn} names"
                )


def _is_users(key: bytes) -> bool:
    return VISIBLE_SEGMENTS <= key < _BEHIND_SEGMENTS or (key[:1] == TABLE and not key[2:].startswith(b"!"))
