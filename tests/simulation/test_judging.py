"""The end of a run: what is lost there is found, whatever it is, and whatever goes wrong in judging is a finding of that seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chunkstore import runtime
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import CacheDamaged, StorageUnavailable
from chunkstore.replica import Replica
from tests.judges.stored_history import StoredHistory
from tests.simulator import World, checks, finals
from tests.simulator.checks import Checks
from tests.simulator.finals import ContainerContents, container_contents
from tests.simulator.hunt import killer_of
from tests.simulator.recorder import Recorder
from tests.simulator.runs import RunResult, run_seed
from tests.simulator.watching import Watch

pytestmark = pytest.mark.proof

SEED = 13
Spoil = Callable[[ChunkedSegmentStorage | Replica, ContainerContents], ContainerContents]


def told() -> RunResult:
    return run_seed(SEED, claims=6)


def killers(result: RunResult) -> set[str]:
    return {killer_of(violation) for violation in result.violations}


def spoilt(monkeypatch: pytest.MonkeyPatch, spoil: Spoil) -> RunResult:
    """A run whose end shows something else than there is."""
    for module in (checks, finals):
        monkeypatch.setattr(module, "container_contents", lambda shown: spoil(shown, container_contents(shown)))
    return told()


def without_a_segment(_: object, found: ContainerContents) -> ContainerContents:
    gone = found.segments[0][0]
    contents = {name: data for name, data in found.contents.items() if name != gone}
    return found._replace(segments=tuple(info for info in found.segments if info[0] != gone), contents=contents)


def without_a_row(_: object, found: ContainerContents) -> ContainerContents:
    return found._replace(rows=dict.fromkeys(found.rows))


def otherwise_for_replicas(shown: object, found: ContainerContents) -> ContainerContents:
    return without_a_row(shown, found) if isinstance(shown, Replica) else found


def test_the_run_is_sound() -> None:
    assert told().violations == []


@pytest.mark.parametrize(
    ("spoil", "killer"),
    [
        (without_a_segment, "history wrong-read"),
        (without_a_row, "history stale-read"),
        (otherwise_for_replicas, "invariant 13"),
    ],
)
def test_what_the_end_does_not_show_any_more_is_found(
    monkeypatch: pytest.MonkeyPatch, spoil: Spoil, killer: str
) -> None:
    result = spoilt(monkeypatch, spoil)
    assert killer in killers(result), result.violations


def test_a_write_that_is_never_acknowledged_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    append = ChunkedSegmentStorage.append

    def refusing(store: ChunkedSegmentStorage, segment: Any, data: Any, **more: Any) -> int:
        if bytes(data).startswith(b"<heir"):
            raise StorageUnavailable("for ever")
        return append(store, segment, data, **more)

    monkeypatch.setattr(ChunkedSegmentStorage, "append", refusing)
    assert "invariant 33" in killers(told())


def test_what_asserts_an_invariant_kills_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(shown: object) -> ContainerContents:
        raise AssertionError("invariant 20: segment 's0' cannot be read")

    monkeypatch.setattr(checks, "container_contents", unreadable)
    assert "invariant 20" in killers(told())


def test_a_judge_that_stumbles_is_a_finding_and_ends_no_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumbling(*_: object, **__: object) -> None:
        raise TypeError("object of type 'NoneType' has no len()")

    monkeypatch.setattr(checks, "check_history", stumbling)
    result = told()
    assert [violation for violation in result.violations if "NoneType" in violation]
    assert killers(result) == {""}


def test_a_replica_that_looked_anew_by_name_has_told_nothing() -> None:
    with World(seed=1) as world:
        recorder = Recorder(world)
        recorder.call("r", "replica_read", "s0", (0, 9, 5, 3), lambda: 1, lambda: None)
        recorder.call("r", "replica_read", "s0", (0, 9, 5, 3), lambda: 1, lambda: b"x")
        assert [event.result for event in recorder.finish()] == [b"x"]


def test_grace_counts_from_the_label_on_the_clock_of_who_deletes() -> None:
    """Seed 1900000356: a deletion after 0.894 s of a grace of 1 s, by an owner whose clock runs at 1.1, 17 ms behind a label."""
    with World(seed=1) as world:
        kept_until = Watch(world, of=Watch(world)).invariants.kept_until
        process, grace_ns = world.process("p"), int(world.settings.gc_grace_s * 1e9)
        process.run(lambda: runtime.sleep_s(0.1))
        label_ms, labelled_ns = process.run(runtime.now_ms), world.scheduler.now
        process.run(lambda: runtime.sleep_s(0.5))
        written_ns = world.scheduler.now
        for rate in (0.5, 1.0, 1.1):
            process.clock_rate = rate
            early_ns = labelled_ns + grace_ns / rate - kept_until("p", label_ms, written_ns)
            assert 0 <= early_ns < 3_000_000
        assert kept_until("p", label_ms + 10_000, written_ns) > written_ns, (
            "a label that nobody was told: another one's"
        )
        process.clock_base_ns = 1
        assert kept_until("p", label_ms, written_ns) == 0


def test_a_judge_that_fails_at_a_call_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(*_: object) -> None:
        raise ValueError("a judge's mistake")

    monkeypatch.setattr(StoredHistory, "_parse_log", stumble)
    monkeypatch.setattr(StoredHistory, "_slot", stumble)
    assert "ended with ValueError" in told().violations[0]


def test_a_cache_whose_rot_is_met_before_its_judge_looks_stands_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 7200101: the spiller, which counts extents behind the take-over, met it first."""
    with World(seed=1) as world:
        judges = Checks(world, "steps")
        process = world.process("p")
        store = process.open()

        def rotten() -> None:
            raise CacheDamaged("rotten", object="cache")

        monkeypatch.setattr(store._container.current.store, "head", rotten)
        with pytest.raises(CacheDamaged):
            process.run(lambda: judges.after_take_over(process, store))
        world.rotten_caches = 1
        process.run(lambda: judges.after_take_over(process, store))
