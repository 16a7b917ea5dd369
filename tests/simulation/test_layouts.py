"""Header files that follow the journal, step by step: what the stories with layouts look for (``tests/simulator/layouts.py``)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Final
from unittest.mock import patch

import pytest

from chunkstore.assembly import open_store_on
from chunkstore.backup.adopting import adopt
from chunkstore.backup.header_keeper import HeaderKeeper
from chunkstore.backup.imports import merge_file
from chunkstore.backup.restore import restore as restore_container
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import DeadlineExceeded, InvalidArgument, SegmentNotFound, Unsupported
from tests.judges.header_files import HeaderFiles
from tests.simulator import Process, World
from tests.simulator.checks import Checks
from tests.simulator.drawing import draw_plan
from tests.simulator.keeping import fresh_cache
from tests.simulator.layouts import Layouts
from tests.simulator.recorder import Recorder
from tests.simulator.s3 import S3Backend

_LEFT: Final = "after the take-over by heir a header lies there of 's', which is deleted"


@pytest.mark.parametrize("seed", range(6))
def test_a_deleted_segment_is_not_brought_back_by_a_power_cut(seed: int) -> None:
    """Deletions of files are not durable, the record that says that a header is gone is; and headers of others are imported."""
    with World(seed, "posix") as world:
        world.backend.overwrite("old$header", b"maxsize=100&0=old$offset.0&")
        world.backend.overwrite("old$offset.0", b"before")
        owner = world.process("owner")
        store = owner.open(layout="CODE_ONLY_UPGRADE")
        assert owner.run(lambda: store.read("old", 0, 100)) == b"before"
        owner.run(lambda: store.delete("old"))
        owner.run(store.close)
        world.power_cut()
        heir = world.process("heir")
        store = heir.open()
        with pytest.raises(SegmentNotFound):
            heir.run(lambda: store.read("old", 0, 100))


def test_what_is_about_to_be_restored_is_not_opened_empty_by_a_choice_of_layout() -> None:
    """FORMAT is there, and whoever restores dies before its OPEN; the rows that a choice puts into a first OPEN are no import's."""
    with World(1, "posix") as world:
        restorer, other = world.process("restorer"), world.process("other")
        owner = world.process("owner")
        store = owner.open()
        owner.run(lambda: store.create("s"))

        def restore() -> None:
            caches = lambda role: fresh_cache(restorer.at("n/") if role == "owner" else restorer.storage, role)  # noqa: E731
            restore_container(
                restorer.storage, restorer.at("n/"), container="c", settings=world.settings, caches=caches
            )

        restorer.start(restore)
        restorer.until(op="exists", name="n/c/epoch/*")
        restorer.crash()
        with pytest.raises(Unsupported) as raised:
            other.run(lambda: _open_at(other, "n/"))
        assert raised.value.feature == "unfinished_import"


def test_a_segment_that_is_adopted_and_cut_off_has_a_header() -> None:
    """A chunk that lies elsewhere is copied, but not what is cut off of it: nobody can read that."""
    with World(1, "s3") as world:
        owner = world.process("owner")
        store = owner.open(layout="CODE_ONLY_UPGRADE")
        there = owner.run(lambda: _open_at(owner, "n/"))
        owner.run(lambda: there.create("old"))
        owner.run(lambda: there.append("old", b"0123456789"))

        def bring() -> None:
            with adopt(store, f"{owner.root_url}/n", container="c", pins=there).source:
                merge_file(store, f"{owner.root_url}/n", source_container="c", adopt=True, settings=world.settings)
            store.truncate("old", 4)

        owner.run(bring)
        owner.crash()
        heir = world.process("heir")
        heir.open()
        (copy,) = HeaderFiles(world.backend.content, pytest.fail).files_of("old")
        assert world.backend.content(copy) == b"456789"


def test_an_import_meets_the_segments_of_headers_that_nobody_has_named() -> None:
    """Else a segment of this name would lie beside a header of others, and nobody could open any more."""
    with World(1, "s3") as world:
        world.backend.overwrite("old$header", b"maxsize=100&0=old$offset.0&")
        world.backend.overwrite("old$offset.0", b"before")
        owner = world.process("owner")
        store = owner.open(layout="CODE_ONLY_UPGRADE")
        owner.run(lambda: store.create("new"))

        def bring() -> None:
            merge_file(
                store, owner.root_url, ["new"], rename={"new": "old"}, source_container="c", settings=world.settings
            )

        with pytest.raises(InvalidArgument, match="names already: 'old'"):
            owner.run(bring)
        owner.crash()
        heir = world.process("heir")
        assert heir.run(lambda: heir.opening()().read("old", 0, 100)) == b"before"


def test_what_is_asked_of_an_owner_before_it_serves_hides_no_header() -> None:
    """Askers are heard as soon as the epoch is open, and headers are still being compared then."""
    begin = HeaderKeeper.begin

    def asked(keeper: HeaderKeeper) -> None:
        with pytest.raises(DeadlineExceeded, match="header files"):
            keeper._store.create("old")
        keeper._store.create("other")
        begin(keeper)

    with World(1, "s3") as world, patch.object(HeaderKeeper, "begin", asked):
        world.backend.overwrite("old$header", b"maxsize=100&0=old$offset.0&")
        world.backend.overwrite("old$offset.0", b"before")
        owner = world.process("owner")
        store = owner.open(layout="CODE_ONLY_UPGRADE")
        assert owner.run(lambda: store.read("old", 0, 100)) == b"before"


@pytest.mark.parametrize("late", [True, False])
def test_a_header_of_a_deleted_segment_may_be_left_where_lists_lag_and_nowhere_else(late: bool) -> None:
    """Its owner died behind the deletion, and nothing but a LIST leads the next one to it: so says the judge of the stories."""
    with World(1, "s3") as world:
        owner, heir, checks = world.process("owner"), world.process("heir"), Checks(world, "steps")
        run = SimpleNamespace(
            plan=draw_plan(1), world=world, process=world.process, checks=checks, recorder=Recorder(world)
        )
        store = owner.open(layout="CODE_ONLY_UPGRADE")
        layouts = Layouts(run)
        owner.run(lambda: store.create("s"))
        owner.run(lambda: store.append("s", b"bytes"))
        owner.run(store.close)
        header = world.backend.content("s$header")
        assert header
        store = owner.open()
        owner.run(lambda: store.delete("s"))
        owner.crash()
        assert isinstance(world.backend, S3Backend)
        world.backend.lists_late = late
        layouts.begins(heir)
        store = heir.open()
        if not late:
            assert world.backend.content("s$header") is None
            world.backend.overwrite("s$header", header)
        assert world.backend.content("s$header") == header
        heir.run(lambda: layouts.after_take_over(heir, store))
        assert world.failures == ([] if late else [f"history left-header: {_LEFT}"])


def _open_at(process: Process, folder: str) -> ChunkedSegmentStorage:
    there, settings = process.at(folder), process.world.settings_with({"layout": "CODE_ONLY_UPGRADE"})
    return open_store_on(there, container="c", settings=settings, cache=fresh_cache(there, "owner"))
