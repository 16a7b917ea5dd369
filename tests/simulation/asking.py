"""Somebody who asks, in the scenes of named schedules (protocol 3.19): a process far away that commits a session's chunk and its row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from chunkstore.assembly import open_asker_on
from chunkstore.changes import Attach, Change, EndSession, TablePut
from chunkstore.changes.asks import Answer
from chunkstore.engine.owner import Asker
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore_journal.asks import StoredAsks, decode_answer
from tests.simulation.scene import SEGMENT, Event, Owner, Scene
from tests.simulator import Job

LOOKING = 0.05
"""How often the owners of these tests look, in seconds."""
_PATIENCE_S = 20.0


def once(value: bytes, expected: int = 0) -> TablePut:
    """The row of whoever asks."""
    return TablePut("sink", b"query", value, expected)


def version_of(owner: Owner) -> int:
    """The version of that row, which must be there."""
    row = owner.run(lambda store: store.table("sink").get(b"query"))
    assert row is not None
    return row.version


class Asking:
    """The asker, with its process."""

    def __init__(self, scene: Scene, name: str = "q") -> None:
        self.scene = scene
        self.process = scene.world.process(name, "far away")
        opening = self.process.opening_replica()
        self.asker: Asker = self.process.run(lambda: open_asker_on(self.process.storage, opening()))

    def written(self, tag: str) -> tuple[Change, ...]:
        """A session with one chunk that holds an event, and what attaches it to the segment; an owner must look."""

        def write() -> tuple[Change, ...]:
            writer = self.asker.session(tag, wait_s=_PATIENCE_S)
            chunk = writer.write_chunk(self.process.storage, 0, b"<%s>" % tag.encode())
            return Attach(SEGMENT, writer.session_id, (chunk,)), EndSession(writer.session_id)

        return self.process.run(write)

    def begin(self, tag: str, changes: Sequence[Change], row: TablePut, *, wait_s: float = _PATIENCE_S) -> Event:
        """Ask for a commit, which is judged as the event ``tag``; it goes on whenever the world does."""
        event = Event(self.scene, tag)
        event.job = self.again(event, changes, row, wait_s=wait_s)
        return event

    def again(
        self, event: Event, changes: Sequence[Change], row: TablePut, *, wait_s: float = _PATIENCE_S
    ) -> Job[None]:
        """Ask for the same again."""
        asker = self.asker

        def ask() -> None:
            event.ask(cast("ChunkedSegmentStorage", asker.replica), lambda _: asker.commit(changes, row, wait_s=wait_s))

        event.job = self.process.start(ask, f"ask for {event.tag}")
        return event.job

    def begun(
        self, tag: str, changes: Sequence[Change], row: TablePut, *, wait_s: float = _PATIENCE_S
    ) -> tuple[Event, str]:
        """As ``begin``; the request is stored by now. Returns its name, too."""
        gate = self.process.gate(op="put", name="*/ask/bell", stage="send")
        event = self.begin(tag, changes, row, wait_s=wait_s)
        self.scene.world.reach(gate).release()
        (name,) = (name for name in self.scene.world.backend.names() if self._is_request(name))
        return event, name

    def _is_request(self, name: str) -> bool:
        place = self.scene.names.parse_ask(name)
        return place is not None and not place[1]

    @property
    def box(self) -> StoredAsks:
        """Where it asks."""
        box = self.asker._box
        assert isinstance(box, StoredAsks)
        return box

    def answers(self, request: str, process: str) -> list[Answer]:
        """What a process has answered to a request, whatever became of it."""
        puts = self.scene.seen(op="put", name=f"{request}.r", process=process)
        return [decode_answer(call.data, object=call.name) for call in puts if call.data]
