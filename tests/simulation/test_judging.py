"""The end of a run: what is lost there is found, whatever it is, and whatever goes wrong in judging is a finding of that seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import StorageUnavailable
from chunkstore.replica import Replica
from tests.simulator import checks, finals
from tests.simulator.finals import ContainerContents, container_contents
from tests.simulator.hunt import killer_of
from tests.simulator.runs import RunResult, run_seed

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
