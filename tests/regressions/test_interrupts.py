"""Whoever is interrupted between planning and the queue leaves nothing behind: no segment, row or roll that waits for ever."""

from __future__ import annotations

import pytest

from chunkstore.changes import Append
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.operations.pending import PendingOp
from tests.regressions.test_commit_queue import Interrupt
from tests.support.data import problems
from tests.support.worlds import World


def interrupt_entering(monkeypatch: pytest.MonkeyPatch, store: ChunkedSegmentStorage, moment: str) -> None:
    """Whoever enters the queue next is interrupted on the way in, or right behind it."""
    queue = store._container.current.queue
    enter = queue.enter

    def interrupted(op: PendingOp) -> None:
        monkeypatch.setattr(queue, "enter", enter)
        if moment == "behind":
            enter(op)
        raise Interrupt

    monkeypatch.setattr(queue, "enter", interrupted)


moments = pytest.mark.parametrize("moment", ["before", "behind"])


@moments
@pytest.mark.parametrize("then", ["commit", "append"])
def test_an_append_interrupted_at_the_queue(
    world: World, monkeypatch: pytest.MonkeyPatch, moment: str, then: str
) -> None:
    """Before the queue its segment waited for it for ever, or the next append was planned behind bytes that nobody had committed;
    behind it, nobody led."""
    store = world.open(op_deadline_s=60.0)
    store.create("s")
    store.append("s", b"0123")
    interrupt_entering(monkeypatch, store, moment)
    with pytest.raises(Interrupt):
        store.append("s", b"AAAA")
    # Where an append enters before it is written, this one never was.
    content = b"0123AAAA" if moment == "behind" and world.appends else b"0123"
    if then == "commit":
        # Changes of several segments wait until nothing is undecided on theirs.
        assert store.commit([Append("s", b"BBBB")]) == [len(content)]
    else:
        assert store.append("s", b"BBBB") == len(content)
    assert store.append("s", b"CCCC") == len(content) + 4
    assert store.read("s", 0, 99) == content + b"BBBBCCCC"
    assert store._container.current.queue.idle
    assert problems(store.check("deep")) == []
