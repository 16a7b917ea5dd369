"""Whatever clients are told is recorded and judged: futures, what closing a writer says, and looks that only prepare a verb."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from chunkstore.errors import ChunkstoreError, Damaged, OutcomeUnknown, StorageUnavailable
from tests.judges.events import Event
from tests.simulator import World
from tests.simulator.clients import Client
from tests.simulator.drawing import draw_plan
from tests.simulator.hunt import hunt
from tests.simulator.recorder import Recorder
from tests.simulator.runs import Run

pytestmark = pytest.mark.proof


def client_of(world: World) -> tuple[Client, Recorder]:
    recorder = Recorder(world)
    return Client(world, draw_plan(13), recorder, Random(1), "c", []), recorder


def test_futures_are_heard_of_and_judged_as_calls_are() -> None:
    with World(seed=1) as world:
        heard: list[Event] = []
        recorder = Recorder(world)
        recorder.listener = heard.append
        outcomes: list[Any] = [7, StorageUnavailable("x"), OutcomeUnknown("x"), TypeError("x"), None]
        for number, outcome in enumerate(outcomes):
            future: Future[int] = Future()
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            elif outcome is not None:
                future.set_result(outcome)
            settle = recorder.future("c", "write", "s0", (b"%d" % number, None, None, None), lambda: 1)
            settle(future)
        assert [event.outcome for event in heard] == ["ok", "failed", "unknown", "unknown"]
        assert [failure for failure in world.failures if "TypeError" in failure]
        assert [event.returned for event in recorder.finish()][-1] is None


def test_what_closing_a_writer_says_is_judged() -> None:
    def closing() -> None:
        raise Damaged("x", object="c/d/1", position=0)

    with World(seed=1) as world:
        client, _ = client_of(world)
        store: Any = SimpleNamespace(
            epoch=1,
            writer=lambda *_, **__: SimpleNamespace(
                append=lambda _: Future(), close=closing, event_number=0, _handle=SimpleNamespace(segment_id=1)
            ),
        )
        with pytest.raises(Damaged):
            client.do_writer(store)
        assert [failure for failure in world.failures if failure.startswith("closing a writer")]


def test_looks_that_prepare_a_verb_are_events() -> None:
    asked: list[tuple[str, Callable[[Client, Any], None]]] = [
        ("info", Client.do_truncate),
        ("info", Client.do_read),
        ("info", Client.do_append),
        ("info", Client.do_commit),
        ("table_get", Client.do_table_put),
    ]
    with World(seed=1) as world:
        process = world.process("p")
        store = process.open()
        client, recorder = client_of(world)

        def work() -> None:
            for number in range(draw_plan(13).segments):
                store.create(f"s{number}")
            for _ in range(40):
                for _, verb in asked:
                    with suppress(ChunkstoreError):
                        verb(client, store)

        process.run(work)
        events = recorder.finish()
        assert {kind for kind, _ in asked} <= {event.kind for event in events}
        # A row's version is known from a look that the history has: a version that was not the row's can be found out.
        looked = {event.result[1] for event in events if event.kind == "table_get" and event.result is not None}
        expected = {event.args[3] for event in events if event.kind == "table_put"} - {None, 0}
        assert expected and expected <= looked


def test_who_wakes_looks_at_everything() -> None:
    """So that a deposed owner who does not ask whether he still is one is found out."""
    assert hunt("stalereads", range(10, 70)).killer == "invariant 29"


def test_clocks_run_at_rates_of_their_own() -> None:
    run = Run(draw_plan(13, claims=12))
    assert run.run().violations == []
    assert {process.clock_rate for process in run.world.processes} > {1.0}
