"""Two owners on one machine: the older one applies its last record while the newer one takes over; and rows that contradict."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from chunkstore_journal.takeover import TakeOver
from tests.support.data import problems
from tests.support.hooked import in_thread, replace_steps
from tests.support.worlds import World


@pytest.mark.parametrize("moment", ["before the rows are read", "behind it"])
def test_a_record_applied_by_its_owner_during_the_take_over(
    world: World, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The record was decided before the claim; it is the one that the newer owner's OPEN embeds."""
    if world.mode != "append":
        return  # only APPEND streams have a record that OPEN embeds
    first = world.open()
    first.create("a")
    first.create("b")
    applying, go, applied = threading.Event(), threading.Event(), threading.Event()

    def late(*arguments: Any, **named: Any) -> Any:
        applying.set()
        assert go.wait(60)
        try:
            return before.apply(*arguments, **named)
        finally:
            applied.set()

    before = replace_steps(first, apply=late)
    thread, found = in_thread(lambda: first.append("a", b"the last words"))
    assert applying.wait(60)

    def let_it_apply() -> None:
        go.set()
        assert applied.wait(60)

    digest_after = TakeOver._embedded
    digests: list[Any] = []

    def meanwhile(self: TakeOver, *arguments: Any) -> Any:
        if moment == "before the rows are read":
            let_it_apply()
        digests.append(digest_after(self, *arguments))
        let_it_apply()
        return digests[-1]

    monkeypatch.setattr(TakeOver, "_embedded", meanwhile)
    second = world.open()
    assert digests
    thread.join(60)
    assert found == [0]
    assert second.read("a", 0, 99) == b"the last words"
    second.append("b", b"x")
    assert problems(second.check("deep")) == []
    second.close()
    world.forget_cache()
    with world.open() as third:
        assert third.read("a", 0, 99) == b"the last words"
        assert problems(third.check("deep")) == []
        assert third.report.findings == ()
