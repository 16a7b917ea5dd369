"""Planted bugs with foreign chunks: one story with an adoption, a take-over, merges and collections notices each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkstore import DefragPolicy, open_replica
from chunkstore.backup import backup
from chunkstore.changes import Adopt, AdoptedChunk
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Conflict, Damaged, RootUnavailable, Unsupported
from chunkstore.metadata.roots import scan_roots
from chunkstore.names import chunk_id
from chunkstore.records import RootRecord
from tests.simulator.mutants import Mutant, Patch, planted
from tests.support.adopted import SOURCE, adopt_segment, another_format, build_source, url_of
from tests.support.worlds import World

pytestmark = pytest.mark.proof

_ADOPT, _COLLECT = "chunkstore.operations.adopt", "chunkstore.operations.collect"
BUGS: dict[str, tuple[Patch, ...]] = {
    "collect-deletes-theirs": (
        Patch(
            f"{_COLLECT}:Collection.step",
            "_delete_objects(container, names, garbage.lsn)",
            "[container.storage.inner.delete(item.object.partition('/')[2]) for item in found.foreign.values()]",
        ),
    ),
    "never-counted-off": (Patch(f"{_ADOPT}:forget_references", "if found is not None:", "if False:"),),
    "counted-off-too-early": (Patch(f"{_ADOPT}:_count", "root.references + chunks,", "root.references + min(chunks, 0),"),),
    "row-dropped-while-named": (
        Patch(f"{_ADOPT}:end_roots", "if not root.references]", "]"),
        Patch(f"{_ADOPT}:_plan_end", "root.references or", ""),
    ),
    "adopted-from-a-root-that-goes": (Patch(f"{_ADOPT}:_open_root", "or root.state != ACTIVE", ""),),
    "crc-ignored": (Patch(f"{_ADOPT}:make_foreign", "None if item.borders is None else record.crc32c", "None"),),
    "any-container-will-do": (Patch("chunkstore.registry:Roots.confirm", "if found != root.uuid:", "if False:"),),
    "changes-let-through": (Patch("chunkstore_bindings.wrappers.routed:_own", "if _is_foreign(name):", "if False:"),),
    "sweep-wants-them-listed": (
        Patch("chunkstore.upkeep.sweep:_require_sound", "record.kind == KIND_OBJECT and", ""),
    ),
    "backup-looks-elsewhere": (
        Patch("chunkstore.names:BackupNames.object_of", "self.chunk(identity)", "record.object"),
    ),
}  # fmt: skip


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[World]:
    world = World("memory", "append", tmp_path)
    try:
        yield world
    finally:
        world.close()


def test_the_story_is_sound(ground: World) -> None:
    tell(ground)


@pytest.mark.parametrize("bug", BUGS)
def test_each_bug_is_noticed(ground: World, bug: str) -> None:
    mutant = Mutant(bug, bug, ("posix-append",), BUGS[bug])
    with planted(mutant), pytest.raises((AssertionError, ChunkstoreError, pytest.fail.Exception)):
        tell(ground)


def tell(world: World) -> None:
    """Adopt, back up, take over, merge and collect, adopt what is going, and meet what is not as it was."""
    world.defaults["foreign_roots"] = (url_of(world),)
    data = build_source(world)
    theirs = world.objects(f"{SOURCE}/d/")
    released: list[str] = []

    def give_up(root: RootRecord) -> bool:
        released.append(root.pin)
        return len(released) > 1  # nobody answers the first time

    first = world.open(gc_grace_s=0.0)
    adoption = adopt_segment(world, first, "gone")
    adopt_segment(world, first, "stays")
    backup(first, f"file://{world.tmp_path}/vault")
    first.delete("gone")
    world.crash(first)
    with world.open(gc_grace_s=0.0) as store:
        store._container.release_root = give_up
        with pytest.raises(Unsupported):
            store.read_context.storage.delete(next(store.layout("stays")).name)
        assert store.collect().chunks == 4
        assert world.objects(f"{SOURCE}/d/") == theirs
        assert (store.check("deep"), released, store.usage().foreign_bytes) == ([], [], len(data))
        _meet_damage(world, store)
        store.create("lost")
        orphan = store.read_context.names.chunk(chunk_id(1, 1, 99, 1))
        world.raw_storage().create(orphan)
        assert store.sweep(delete=True, age_s_min=0.0).deleted == 1
        store.defrag("stays", policy=DefragPolicy(fanout=2))
        store.collect()
        assert len(released) == 1
        with pytest.raises(Conflict):
            store.commit([Adopt("lost", adoption.root, (AdoptedChunk("x", 1, None),))])
        store._container.roots_asked_s.clear()
        store.collect()
        assert (len(released), store.look(lambda view: list(scan_roots(view)))) == (2, [])
        assert (store.read("stays", 0, 100), store.check("deep")) == (data, [])
    assert world.objects(f"{SOURCE}/d/") == theirs
    with open_replica(f"file://{world.tmp_path}/vault", settings=world.settings(metadata="lmdb")) as view:
        assert view.read("stays", 0, 100) == data


def _meet_damage(world: World, store: ChunkedSegmentStorage) -> None:
    """Other bytes, then another container, where the source is; and back again."""
    name = list(store.layout("stays"))[1].name.partition("/")[2]
    format_ = world.names(SOURCE).format
    before, marker = world.content(name), world.content(format_)
    world.overwrite(name, b"X" * len(before))
    with pytest.raises(Damaged):
        store.read("stays", 0, 100)
    world.overwrite(name, before)
    world.overwrite(format_, another_format(world))
    with world.replica() as other, pytest.raises(RootUnavailable):
        other.read("stays", 0, 100)
    world.overwrite(format_, marker)
