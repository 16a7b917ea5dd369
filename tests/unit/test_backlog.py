"""The count of extents that wait to be spilled: never too low, whoever settles what at the same time."""

from __future__ import annotations

from chunkstore.config import Settings
from chunkstore.operations.backlog import Arrival, Backlog


def test_what_comes_after_a_mark_is_left_whoever_else_settles() -> None:
    backlog = Backlog(Settings())
    backlog.came("a", 10, 1)
    backlog.came("a", 5, 0)  # goes on with the same extent
    first, second = backlog.mark("a"), backlog.mark("a")
    backlog.came("a", 7, 1)
    for _ in range(2):
        backlog.settle("a", first)
        assert backlog.total() == (1, 7)
    backlog.settle("a", second)
    assert backlog.total() == (1, 7) and list(backlog.held()) == ["a"]
    backlog.settle("a", backlog.mark("a"))
    assert backlog.total() == (0, 0) and not backlog.held()


def test_a_mark_says_nothing_of_another_segment_of_the_name() -> None:
    backlog = Backlog(Settings())
    backlog.came("a", 10, 1)
    stale = backlog.mark("a")
    backlog.settle("a", stale)
    backlog.came("a", 3, 1)
    backlog.settle("a", stale)
    assert backlog.total() == (1, 3)


def test_what_a_concat_moves_is_the_targets_and_as_old_as_it_was() -> None:
    backlog = Backlog(Settings())
    backlog.came("a", 10, 2, since_s=-5.0)
    backlog.came("b", 1, 1)
    backlog.count(Arrival("b", source="a"))
    backlog.count(Arrival("b", source="none"))
    assert backlog.total() == (3, 11) and backlog.mark("a") is None
    assert backlog.held()["b"].since_s == -5.0
