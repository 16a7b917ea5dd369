"""Going back in place: the moment is the present again, on copies of what was removed, and everybody notices."""

from __future__ import annotations

import pytest

from chunkstore.config import DefragPolicy
from tests.backup_restore.in_place import described, head, rewound
from tests.support.data import pattern, problems
from tests.support.worlds import World


def test_everything_is_as_it_was(world: World) -> None:
    with world.open(rolling=8) as store:
        store.create("a", attributes={"k": 1})
        store.append("a", pattern(1, 30), writer_id="till", event_number=3)
        store.truncate("a", 3)
        store.create("b")
        for number in range(5):
            store.append("b", bytes((number,)) * 3)
        store.create("c")
        store.append("c", b"of c")
        store.table("rows").put(b"key", b"value")
        lsn = store.pin("before").lsn
        then = described(store)
        store.append("a", b"later" * 5, writer_id="till", event_number=4)
        store.truncate("a", 40)
        store.defrag("b", policy=DefragPolicy(fanout=2))
        store.seal("c")
        store.concat("b", store.info("b").length, "c")
        store.create("new")
        store.append("new", b"bytes")
        store.delete("a")
        store.table("rows").put(b"key", b"another")
        store.pin("behind")
        last = head(store)
    dry = rewound(world, lsn=lsn, dry_run=True)
    assert dry.epoch == 0 and dry.last_lsn >= last
    report = rewound(world, lsn=lsn)
    assert report == dry._replace(dry_run=False, epoch=report.epoch)
    assert report.epoch == 2
    assert {item.segment for item in report.segments} == {"a", "b", "c", "new"}
    assert report.rows == (("rows", b"key"),)
    assert report.pins == ("behind",) and report.pins_given_up == ()
    [writer] = report.writers
    assert writer == ("a", b"till", 4, 3) or writer == ("a", b"till", None, 3)
    with world.open(rolling=8) as store:
        assert described(store) == then
        assert problems(store.check("deep")) == []
        assert store.last_event_number("a", "till") == 3
        store.append("a", b"goes on", writer_id="till", event_number=4)
        store.append("b", b"goes on")
        assert store.read("a", 30, 99) == b"goes on"
        assert store.collect().chunks == 0, "the pin keeps what was copied"
        assert problems(store.check("deep")) == []
    world.forget_cache()
    with world.open() as store:
        assert store.read("b", 15, 99) == b"goes on"
        assert problems(store.check("deep")) == []
