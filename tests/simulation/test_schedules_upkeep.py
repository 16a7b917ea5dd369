"""Named schedules: readers over truncation and collection, and crashes of what moves chunks (protocol 3.18: 33, 43)."""

from __future__ import annotations

from functools import partial

import pytest

from chunkstore.config import RollingPolicy
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import SegmentTruncated
from tests.simulation.crashing import Story, at_every_call
from tests.simulation.scene import ALL, SEGMENT, Owner, Scene, scene_of, worlds
from tests.support.merging import merge

_TAGS = ("a1", "b2", "c3", "d4")
_CHUNKS = tuple(b"<%s>" % tag.encode() for tag in _TAGS)
_WHOLE = b"".join(_CHUNKS)
_ROLLING = RollingPolicy(chunk_size_bytes_max=len(_CHUNKS[0]))
_CUT = len(_WHOLE) - len(_CHUNKS[-1])


@pytest.mark.parametrize("removed", ["within its grace", "collected", "merged and collected"])
@pytest.mark.parametrize("reader", ["owner", "replica"])
@worlds(*ALL)
def test_33_delete_grace_reader(scene: Scene, reader: str, removed: str) -> None:
    """A read stands before its first chunk; what it is about to read is truncated (or merged) away, and collected."""
    z = scene.owner("z", gc_grace_s=3600 if removed == "within its grace" else 0)
    z.run(lambda store: store.create(SEGMENT, rolling=_ROLLING))
    z.append(*_TAGS)
    far = scene.replica()
    process, read = (z.process, z.store.read) if reader == "owner" else (far.process, far.replica.read)
    gate = process.gate(op="read*", name="*/d/*")
    job = process.start(lambda: read(SEGMENT, 0, 1 << 20))
    reading = scene.world.reach(gate)
    before = {name for name in scene.world.backend.names() if "/d/" in name}
    if removed == "merged and collected":
        z.run(lambda store: store.commit([merge(store, SEGMENT, 0, len(_CHUNKS) - 1)]))
    else:
        z.run(lambda store: store.truncate(SEGMENT, _CUT))
    z.run(lambda store: store.collect())
    gone = before - set(scene.world.backend.names())
    assert (reading.name in gone) == (removed != "within its grace")
    reading.release()
    job.run_to_end()
    if removed == "collected":
        assert isinstance(job.error, SegmentTruncated), "of what is gone, no byte"
        assert z.run(lambda store: store.read(SEGMENT, _CUT, 1 << 20)) == _CHUNKS[-1]
    else:
        assert (job.error, job.value) == (None, _WHOLE)


class _Moving:
    """Half of the events are in a segment, half in another one, which is spliced behind it; then all but the last is cut off."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.done = 0
        self.owner = scene.owner("z", gc_grace_s=0, snapshots_kept=1)
        self.owner.run(self._prepare)

    def _prepare(self, store: ChunkedSegmentStorage) -> None:
        for name, chunks in ((SEGMENT, _CHUNKS[:2]), ("source", _CHUNKS[2:])):
            store.create(name, rolling=_ROLLING)
            for chunk in chunks:
                store.append(name, chunk)
        store.seal("source")

    def move(self, store: ChunkedSegmentStorage) -> None:
        """Go on from wherever it stands."""
        if store.exists("source"):
            store.concat(SEGMENT, len(_WHOLE) // 2, "source")
        self.done = max(self.done, 1)
        store.truncate(SEGMENT, _CUT)
        self.done = 2
        store.collect()

    def judge(self) -> None:
        """Each step has happened or not, and what was answered has; whoever comes next goes on to the end."""
        found = self.scene.owner("n", "other", gc_grace_s=0, snapshots_kept=1)
        steps = self._look(found)
        assert steps >= self.done
        found.run(self.move)
        assert self._look(found) == 2
        self.scene.owner("last", "host", gc_grace_s=0).run(self._look_whole)

    @staticmethod
    def _look(owner: Owner) -> int:
        info = owner.run(lambda store: store.info(SEGMENT))
        content = owner.run(lambda store: store.read(SEGMENT, info.start_offset, 1 << 20))
        assert content == _WHOLE[info.start_offset : info.length]
        source = owner.run(lambda store: store.exists("source") and store.read("source", 0, 1 << 20))
        if info.length < len(_WHOLE):
            assert (info.start_offset, info.length, source) == (0, len(_WHOLE) // 2, _WHOLE[len(_WHOLE) // 2 :])
            return 0
        assert source is False, "all or nothing"
        assert info.start_offset in (0, _CUT)
        return 2 if info.start_offset else 1

    @staticmethod
    def _look_whole(store: ChunkedSegmentStorage) -> None:
        assert [item for item in store.check("deep") if item.severity == "damage"] == []
        assert store.read(SEGMENT, _CUT, 1 << 20) == _CHUNKS[-1]


@pytest.mark.parametrize("kind", ALL)
def test_43_concat_crash_points(kind: str) -> None:
    def begin(scene: Scene) -> Story:
        moving = _Moving(scene)
        owner = moving.owner
        return Story(owner.process, owner.process.start(lambda: moving.move(owner.store)), moving.judge)

    assert at_every_call(partial(scene_of, kind), begin) > 5
