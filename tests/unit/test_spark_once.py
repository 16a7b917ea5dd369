"""Exactly once, without Spark and without a storage: kills, lost answers and late ones between, against a model of what a query brings."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.changes import Attach, Change, Create, EndSession, TablePut
from chunkstore.changes.asks import Ask, AskCommit, AskSession, Result
from chunkstore.changes.sessions import SessionChunk
from chunkstore.engine.owner import end_session
from chunkstore.errors import Conflict, OutcomeUnknown, SegmentExists, SegmentNotFound
from chunkstore.metadata.reserved import SinkRow
from chunkstore.operations.tables import TableEntry
from chunkstore.records.names import session_chunk_id
from chunkstore.records.segments import OpenSession
from chunkstore.spark.chunks_out import Content, Output
from chunkstore.spark.committing import Job, MicroBatch, Version, commit, session_of

HERE, THERE = b"h" * 16, b"t" * 16


class Container:
    """What an owner makes of commits, in memory; an ``Owner``."""

    container = "default"

    def __init__(self, uuid: bytes = HERE) -> None:
        self.uuid = uuid
        self.rows: dict[bytes, TableEntry] = {}
        self.open: dict[int, OpenSession] = {}
        self.segments: dict[str, list[bytes]] = {}
        self.lsn = 0
        self.certain_lsn = 1 << 60
        self.answers: list[str] = []
        """What becomes of the next commits: lost (nothing happens), unheard (it happens), late (it may happen yet)."""
        self.late: list[tuple[Sequence[Change], TablePut | None]] = []

    def state(self) -> Any:
        return self

    def table(self, namespace: str) -> Any:
        return self.rows

    def is_certain(self, version: int) -> bool:
        return version <= self.certain_lsn

    def sessions(self) -> list[OpenSession]:
        return list(self.open.values())

    def exists(self, segment: str) -> bool:
        return segment in self.segments

    def run(self, ask: Ask, *, wait_s: float = 0.0) -> Result:
        match ask:
            case AskSession(holder):
                self.lsn += 1
                self.open[self.lsn] = OpenSession(self.lsn, holder, 1 << 50, 1 << 50)
                return self.lsn
            case AskCommit(changes, TablePut() | None as once):
                self.commit(changes, once)
        return 0

    def find_session(self, holder: str) -> int:
        found = [item.id for item in self.open.values() if item.holder == holder]
        return found[0] if found else session_of(self, holder)

    def commit(self, changes: Sequence[Change], once: TablePut | None) -> None:
        answer = self.answers.pop(0) if self.answers else "heard"
        if answer == "late":
            self.late.append((changes, once))
        if answer in ("heard", "unheard"):
            self.apply(changes, once)
        if answer != "heard":
            raise OutcomeUnknown("nobody answered", subject="commit")

    def apply(self, changes: Sequence[Change], once: TablePut | None) -> None:
        stored = None if once is None else self.rows.get(once.key)
        if once is not None and (0 if stored is None else stored.version) != once.expected_version:
            raise Conflict("row", expected=once.expected_version, found=stored)
        segments = {name: list(chunks) for name, chunks in self.segments.items()}
        ended = set()
        for change in changes:
            if isinstance(change, Create):
                if change.name in segments:
                    raise SegmentExists(change.name)
                segments[change.name] = []
            elif isinstance(change, Attach):
                if change.name not in segments:
                    raise SegmentNotFound(change.name)
                if change.session_id not in self.open:
                    raise Conflict("session", expected="open", found="ended")
                segments[change.name] += [chunk.id for chunk in change.chunks]
            elif isinstance(change, EndSession):
                if change.session_id not in self.open:
                    raise Conflict("session", expected="open", found="ended")
                ended.add(change.session_id)
        self.segments = segments
        for session_id in ended:
            del self.open[session_id]
        self.lsn += 1
        if once is not None:
            self.rows[once.key] = TableEntry(once.key, once.value, self.lsn)


def written(session_id: int, *numbers: int, segment: str = "s") -> Job:
    chunks = tuple(SessionChunk(session_chunk_id(session_id, number, 0), 1, 0) for number in numbers)
    return Job(session_id, ((Output(segment, chunks),),))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["heard", "lost", "unheard", "late"]),
        st.sampled_from(["goes on", "killed"]),
        st.booleans(),
    ),
    max_size=12,
)


@given(STEPS, st.integers(0, 3))
def test_every_micro_batch_is_there_once_whatever_is_killed(steps: list[tuple[str, str, bool]], back: int) -> None:
    container = Container()
    number, run = 0, 0
    batch_of: dict[bytes, int] = {}
    for brought, (answer, fate, fires) in enumerate(steps):
        session_id = container.find_session("query")
        tasks = written(session_id, brought)
        output = tasks.outputs[0][0]
        assert isinstance(output, Output)
        batch_of[output.chunks[0].id] = number
        if fires and container.late:
            with suppress(Conflict):
                container.apply(*container.late.pop(0))
        container.answers = [answer]
        try:
            commit(container, MicroBatch("q", "q", number, HERE, f"run {run}"), tasks)
        except (OutcomeUnknown, Conflict):
            fate = "killed"  # the query ends; it is started again
        if fate == "killed":
            run += 1
        else:
            number += 1
    for item in container.late:
        with suppress(Conflict):
            container.apply(*item)
    found = [batch_of[chunk] for chunk in container.segments.get("s", [])]
    assert found == list(range(len(found)))
    assert len(found) in (number, number + 1)  # the last one may be there before Spark knows
    if found and back:
        before = dict(container.segments)
        container.answers = []
        for wrong in {len(found) - 1 - back, len(found) + back} - {-1}:
            if wrong >= 0:
                tasks = written(container.find_session("query"), 1_000 + wrong)
                with pytest.raises(Conflict) as caught:
                    commit(container, MicroBatch("q", "q", wrong, HERE, "run"), tasks)
                assert (caught.value.expected, caught.value.found) == (len(found), wrong)
        assert container.segments == before


def incoming(batch: int, *, query: str = "q", container: bytes = HERE) -> MicroBatch:
    return MicroBatch("sink", query, batch, container)


STORED = SinkRow(7, HERE, bytes(16), bytes(16), "q")


@pytest.mark.parametrize(
    ("stored", "brought", "numbers"),
    [
        (None, incoming(3), (0, 3)),
        (STORED, incoming(6), (8, 6)),
        (STORED, incoming(9), (8, 9)),
        (STORED, incoming(7, query="r"), ("q", "r")),
        (STORED, incoming(0, query="r"), ("q", "r")),
        (STORED, incoming(8, container=THERE), (HERE.hex(), THERE.hex())),
        (STORED, incoming(7, container=THERE), (HERE.hex(), THERE.hex())),
    ],
)
def test_a_refusal_says_both(stored: SinkRow | None, brought: MicroBatch, numbers: object) -> None:
    with pytest.raises(Conflict, match="checkpoint") as caught:
        brought.judge(stored, Content())
    assert (caught.value.expected, caught.value.found) == numbers


@pytest.mark.parametrize("content", [Content(), Content(2, 4), Content(3, 3)])
def test_other_rows_under_a_known_number_are_refused_with_the_way_out(content: Content) -> None:
    container, application = Container(), "nightly"
    sessions = [container.find_session(str(number)) for number in range(4)]

    def job(number: int, content: Content) -> Job:
        plain = written(sessions[number], number)
        return plain._replace(outputs=(*plain.outputs, (content,)))

    commit(container, incoming(0), job(0, Content(2, 3)))
    commit(container, Version(application, 7, HERE), job(1, Content(2, 3)))
    before = dict(container.rows)
    with pytest.raises(Conflict, match=r"newer checkpoint back.*new checkpoint"):
        commit(container, incoming(0)._replace(run="run 2"), job(2, content))
    with pytest.raises(Conflict, match=rf"version 7 of '{application}'.*another txnAppId"):
        commit(container, Version(application, 7, HERE), job(2, content))
    assert container.rows == before
    assert commit(container, Version(application, 6, HERE), job(3, content)) == "done", (
        "of older versions the row does not say the rows"
    )


def test_a_job_is_committed_once_by_its_version_and_a_late_attach_is_refused() -> None:
    container = Container()
    first = container.find_session("1")
    assert commit(container, Version("app", 3, HERE), written(first, 1)) == "commit"
    again = container.find_session("2")
    assert commit(container, Version("app", 3, HERE), written(again, 1)) == "done"
    assert container.open.keys() == set(), "what was written again is nobody's"
    assert not end_session(container, again)
    with pytest.raises(Conflict, match="ended"):
        commit(container, Version("app", 4, HERE), written(again, 1))
    assert [len(chunks) for chunks in container.segments.values()] == [1]


def test_a_commit_whose_outcome_is_unknown_is_decided_by_giving_up() -> None:
    for answer, stays in (("late", 0), ("unheard", 1)):
        container = Container()
        session_id = container.find_session("1")
        container.answers = [answer]
        with pytest.raises(OutcomeUnknown):
            commit(container, Version(None, session_id, HERE), written(session_id, 1))
        assert end_session(container, session_id) == (not stays)
        for item in container.late:
            with pytest.raises(Conflict):
                container.apply(*item)
        assert sum(map(len, container.segments.values())) == stays
