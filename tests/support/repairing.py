"""A container whose journal is damaged and repaired, beside a model of what it held after each record.

Leaves out: which damage (``tests/engine/test_repair.py``).
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import chunkstore
from chunkstore.assembly import journal_records
from chunkstore.changes import Append, TablePut
from chunkstore.config import RollingPolicy, Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.following import open_replica
from chunkstore.invariants import Finding
from chunkstore.operations.repair_report import RepairReport
from chunkstore.operations.spill import spill
from chunkstore.repair import repair

__all__ = ["Model", "Place", "Segment", "broken"]


def broken(findings: Iterable[Finding]) -> list[Finding]:
    """What was cut off may be unreadable: that is remarkable, and breaks nothing. Damaged snapshots stay until they are collected."""
    return [item for item in findings if item.severity in ("damage", "leak") and "/snap/" not in item.object]


@dataclass
class Segment:
    """``data``: every byte since offset 0, those truncated away included."""

    id: int
    data: bytes = b""
    start: int = 0
    sealed: bool = False


@dataclass
class Model:
    segments: dict[str, Segment] = field(default_factory=dict)
    rows: dict[bytes, bytes] = field(default_factory=dict)


class Place:
    """A container on files, with a cache for each machine, and what it held after each record. ``inline``: appends go into records."""

    def __init__(self, mode: str, folder: Path, *, inline: bool = False) -> None:
        self.mode, self.folder, self.caches, self.inline = mode, folder, 0, inline
        folder.mkdir(parents=True, exist_ok=True)
        self.root = f"file://{folder}/root"
        self.home = folder / "root" / "default"
        self.model = Model()
        self.after: dict[int, Model] = {}
        """By lsn."""

    def settings(self, *, fresh: bool = True) -> Settings:
        self.caches += fresh
        return Settings(
            journal_mode=self.mode,  # type: ignore[arg-type]
            cache_dir=str(self.folder / f"cache-{self.caches}"),
            lease_s=0,
            gc_grace_s=0,
            lmdb_map_bytes=1 << 26,
            default_rolling=RollingPolicy(chunk_size_bytes_max=40),
            inline_bytes_max=None if self.inline else 0,
        )

    def open(self, *, fresh: bool = True) -> ChunkedSegmentStorage:
        return chunkstore.open(self.root, settings=self.settings(fresh=fresh))

    def repair(self, *, dry_run: bool = False) -> RepairReport:
        return repair(self.root, settings=self.settings(), dry_run=dry_run)

    def step(self, store: ChunkedSegmentStorage, chance: random.Random) -> None:
        """One random operation, and what it makes of the model."""
        model = self.model
        name = chance.choice("abcd")
        known = model.segments.get(name)
        what = chance.choices(
            ("append", "row", "both", "truncate", "seal", "delete", "concat", "spill"),
            (50, 8, 8, 6, 4, 3, 4, 12 * self.inline),
        )[0]
        if known is None:
            model.segments[name] = Segment(store.create(name).segment_id)
        elif what == "row":
            key, value = chance.randbytes(1)[:1], chance.randbytes(5)
            store.table("t").put(key, value)
            model.rows[key] = value
        elif what == "spill":
            self.spill(store, name, chance.choice((20, 50, 1000)))
        elif what == "truncate":
            known.start = chance.randint(known.start, len(known.data))
            store.truncate(name, known.start)
        elif what == "delete":
            store.delete(name)
            del model.segments[name]
        elif known.sealed:
            if what == "concat" and not known.start:
                target = next((n for n, s in model.segments.items() if n != name and not s.sealed), None)
                if target is not None:
                    store.concat(target, len(model.segments[target].data), name)
                    model.segments[target].data += known.data
                    del model.segments[name]
            else:
                store.unseal(name)
                known.sealed = False
        elif what == "seal":
            store.seal(name)
            known.sealed = True
        elif what == "both":
            data, value = chance.randbytes(chance.randint(1, 60)), chance.randbytes(3)
            store.commit([Append(name, data), TablePut("t", b"both", value)])
            known.data += data
            model.rows[b"both"] = value
        else:
            data = chance.randbytes(chance.randint(1, 60))
            store.append(name, data)
            known.data += data

    @staticmethod
    def spill(store: ChunkedSegmentStorage, name: str, bytes_max: int = 1 << 20) -> int:
        """Spill a segment's oldest extents; how many."""
        return spill(store._container, name, bytes_max=bytes_max).extents

    def live(self, chance: random.Random, *, epochs: int, steps: int, snapshots: bool) -> None:
        """Some epochs; the last one stays without a CLOSE."""
        for epoch in range(epochs):
            store = self.open(fresh=False)
            for number in range(steps):
                if snapshots and number == steps // 2:
                    store.snapshot()
                self.step(store, chance)
                head = store._container.current.queue.head.lsn
                self.after[head] = deepcopy(self.model)
            if epoch < epochs - 1 and chance.random() < 0.5:
                store.close()
            else:
                store._container.current.journal.close()  # as a process that was killed: nothing more is written
                store.close()

    def state_at(self, lsn: int) -> Model:
        return self.after.get(max((known for known in self.after if known <= lsn), default=0), Model())

    def judge(self, report: RepairReport) -> None:
        """Everything up to the last good record is there; behind it nothing that was never written, and what is lost is told."""
        at_cut = self.state_at(report.last_lsn)
        with self.open() as store:
            assert broken(store.check("deep")) == []
            stored = {info.name: info for info in store.segments()}
            lost = {(item.segment_id, start, stop) for item in report.segments for start, stop in item.lost}
            for name, segment in at_cut.segments.items():
                final = self.model.segments.get(name)
                if final is not None and final.id == segment.id:
                    assert stored[name].length >= len(segment.data), name
            for name, info in stored.items():
                states = [m.segments[name] for m in self.after.values() if name in m.segments]
                known = max((state for state in states if state.id == info.id), key=lambda s: len(s.data), default=None)
                if known is None:
                    continue  # made and ended again between two states that the model remembers
                kept = store.read(name, info.start_offset, 9999)
                assert kept == known.data[info.start_offset : info.length], name
                if info.length < len(known.data) and known == self.model.segments.get(name) and not report.unreadable:
                    assert (info.id, info.length, len(known.data)) in lost
            for key, value in at_cut.rows.items():
                if self.model.rows[key] == value:
                    row = store.table("t").get(key)
                    assert row is not None and row.value == value
            for info in store.segments():
                if not info.sealed:
                    store.append(info.name, b"goes on", expected_offset=info.length)
            assert broken(store.check("deep")) == []
        self.check_readers()

    def check_readers(self) -> None:
        with self.open() as store:
            store.collect()
            contents = {info.name: store.read(info.name, info.start_offset, 9999) for info in store.segments()}
            assert broken(store.check("deep")) == []
        with open_replica(self.root, settings=self.settings()) as replica:
            replica.refresh()
            assert {
                info.name: replica.read(info.name, info.start_offset, 9999) for info in replica.segments()
            } == contents
            assert broken(replica.check("deep")) == []
        assert self.repair().sound

    # Damage

    def record_at(self, lsn: int) -> tuple[Path, int, int]:
        """File, begin and end of the record with this lsn, where it lies by itself."""
        for record in journal_records(self.root):
            if record["lsn"] == lsn and not record["embedded"]:
                begin, size = record["position"], record["size"]
                assert isinstance(begin, int) and isinstance(size, int)
                return self.folder / "root" / str(record["object"]), begin, begin + size
        raise AssertionError(lsn)
