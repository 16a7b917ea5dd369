"""The judge of the chaos run: a real container whose clients' notes are in order, and each kind of lie planted into them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from copy import copy, deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chunkstore import runtime
from chunkstore.assembly import open_store_on
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.registry import open_storage
from tests.chaos.clients import Clients
from tests.chaos.keeping import KeepingChunkStorage
from tests.chaos.ledger import Ledger
from tests.chaos.notes import Notes
from tests.chaos.plan import GROWING, Mode
from tests.chaos.survey import Survey, survey
from tests.chaos.verdict import Verdict
from tests.support.settings import tuned

pytestmark = pytest.mark.proof

Lines = list[list[Any]]


class Run:
    """Three lives of one process, with collections between; its notes are read, spoilt, and judged."""

    def __init__(self, folder: Path, mode: Mode) -> None:
        self.folder = folder
        self.mode: Mode = mode
        self.container, self.kept = str(folder / "container"), str(folder / "kept")
        self.path = folder / "notes" / "p0-1.notes"
        self.path.parent.mkdir()
        self.drawn: dict[str, Any] = {"journal_mode": mode, "lease_s": 0.0, "gc_grace_s": 0.0, "snapshots_kept": 1}
        self.drawn["inline_bytes_max"] = 0  # what lies in records is collected later than these lives last
        notes = Notes(str(self.path))
        for life in range(3):
            self._live(notes, life)
        notes.close()
        self.lines: Lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        began_s = runtime.monotonic_s()
        self.survey = survey(f"file://{self.container}", str(folder), {"lease_s": 0.0})
        self.times = began_s, runtime.monotonic_s()

    def _live(self, notes: Notes, life: int) -> None:
        settings = tuned(cache_dir=str(self.folder / "cache"), **self.drawn)
        notes.write("opening", 0.0, os.getpid())
        inner = open_storage(f"file://{self.container}", settings)
        storage = KeepingChunkStorage(inner, self.container, self.kept)
        store = open_store_on(storage, settings=settings, close_storage=True)
        notes.write("opened", store.epoch, "cache", 0, None, [])
        clients = Clients(store, notes, f"p0-1.{life}", 1e9, dict)
        loops = clients._loops
        if not life:
            for name in GROWING:
                clients.attempt(f"first.{name}", "create", partial(_create, store, name), name)
        for number in range(40):
            loops[number % 4].step()
        for name in GROWING:
            end = store.info(name).length
            clients.attempt(f"cut.{life}.{name}", "truncate", partial(store.truncate, name, end), name, end)
        for _ in range(2):
            store.snapshot()
            store.collect()
        store.close()

    def judge(self, found: Survey | None = None) -> list[str]:
        self.path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        ledger = Ledger(str(self.path.parent))
        ledger.read()
        verdict = Verdict(mode=self.mode, folder=self.container, kept=self.kept, container="default")
        verdict.judge(ledger, found or self.survey, *self.times)
        return verdict.violations

    def answered(self, *kinds: str) -> tuple[list[Any], list[Any]]:
        """The first call of one of these kinds that was acknowledged: its question, its answer."""
        tried = {line[2]: line for line in self.lines if line[1] == "try" and line[3] in kinds}
        answer = next(line for line in self.lines if line[1] == "ok" and line[2] in tried)
        return tried[answer[2]], answer


def _create(store: ChunkedSegmentStorage, name: str) -> int:
    return store.create(name).segment_id


@pytest.fixture(scope="module", params=["slot", "append"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture
def run(made: Run) -> Run:
    spoilt = copy(made)
    spoilt.lines = deepcopy(made.lines)
    return spoilt


def test_a_run_in_order_is_in_order_though_much_of_it_was_collected(run: Run) -> None:
    assert run.judge() == []
    assert os.path.isdir(os.path.join(run.kept, "default", "j"))
    assert os.path.isdir(os.path.join(run.kept, "default", "d"))


def forgotten(run: Run) -> None:
    tried, answer = run.answered("plain")
    run.lines = [line for line in run.lines if line is not tried and line is not answer]


def never_written(run: Run) -> None:
    at_s = run.lines[-1][0]
    run.lines += [[at_s, "try", "x.1", "plain", 1, "log-0"], [at_s, "ok", "x.1", 9, 0]]


def refused(run: Run) -> None:
    answer = run.answered("plain", "event", "part")[1]
    answer[1:] = ["no", answer[2], "StorageFull", []]


def elsewhere(run: Run) -> None:
    run.answered("plain")[1][4] += 1


def torn_pair(run: Run) -> None:
    run.answered("pair")[1][4][0] += 1


def reordered(run: Run) -> None:
    tried, answer = run.answered("plain")
    tried[0], answer[0] = run.lines[-1][0], run.lines[-1][0] + 1.0


def other_bytes(run: Run) -> None:
    run.answered("read")[1][4][1] ^= 1


def other_row(run: Run) -> None:
    run.lines += [[run.lines[-1][0], "row", "chain-pair", "never put", 9, 9]]


def stale_look(run: Run) -> None:
    answer = next(line for line in run.lines if line[1] == "ok" and isinstance(line[4], list) and len(line[4]) == 4)
    answer[4][2] += 1


def zombie(run: Run) -> None:
    at_s = run.lines[-1][0]
    run.lines += [[at_s, "try", "x.1", "get", 1, "none"], [at_s, "ok", "x.1", 1, None]]


def replica_wrong(run: Run) -> None:
    run.lines += [[run.lines[-1][0], "seen", "log-0", 0, 5, 12345, 20]]


def replica_back(run: Run) -> None:
    at_s = run.lines[-1][0]
    run.lines += [[at_s, "shows", 20, {"log-0": 9999}, at_s], [at_s, "shows", 19, {"log-0": 0}, at_s]]


def replica_stale(run: Run) -> None:
    at_s = run.lines[-1][0]
    run.lines += [[at_s + 1, "shows", 1, {}, at_s + 1]]


def said_so_itself(run: Run) -> None:
    run.lines += [[run.lines[-1][0], "bad", "p0", "something"]]


SPOILERS: list[tuple[Callable[[Run], None], str]] = [
    (forgotten, "history invented"),
    (never_written, "history lost-ack"),
    (refused, "history resurrected"),
    (elsewhere, "history wrong-answer"),
    (torn_pair, "history wrong-answer"),
    (reordered, "history "),
    (other_bytes, "history wrong-read"),
    (other_row, "history wrong-read"),
    (stale_look, "history "),
    (zombie, "was tried after epoch"),
    (replica_wrong, "history wrong-read"),
    (replica_back, "history phantom"),
    (replica_stale, "stale"),
    (said_so_itself, "something"),
]


@pytest.mark.parametrize(("spoil", "words"), SPOILERS, ids=[spoil.__name__ for spoil, _ in SPOILERS])
def test_what_is_wrong_is_named(run: Run, spoil: Callable[[Run], None], words: str) -> None:
    spoil(run)
    found = run.judge()
    assert any(words in violation for violation in found), found


def test_what_the_survey_does_not_find_is_named(run: Run) -> None:
    segments = dict(run.survey.segments)
    segments.pop("log-1")
    assert any("history wrong-read" in violation for violation in run.judge(run.survey._replace(segments=segments)))
