"""A stage for named schedules: owners that append tagged events in a simulated world, and the judgement at the end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import pytest

from chunkstore.config import JournalMode
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import (
    BadOffset,
    ChunkstoreError,
    Closed,
    DeadlineExceeded,
    NotOwner,
    StorageFull,
    StorageUnavailable,
)
from chunkstore.journal import RecordKind
from chunkstore.metadata.port import Commit, Position
from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkStorage
from chunkstore_journal.history import Opened, Sealed, Streams
from chunkstore_journal.payloads import SealPayload
from chunkstore_journal.record import Record, decode_slot
from chunkstore_journal.recovery import commit_of
from tests.simulator import Call, Job, Process, Weather, World
from tests.simulator.posix import PosixBackend
from tests.simulator.world import StorageKind
from tests.support.settings import tuned

T = TypeVar("T")
SEGMENT = "orders"
ALL = ("s3-slot", "posix-slot", "posix-append")
S3 = ("s3-slot",)
SLOT = ("s3-slot", "posix-slot")
POSIX = ("posix-slot", "posix-append")
APPEND = ("posix-append",)


def worlds(*kinds: str) -> pytest.MarkDecorator:
    """Run a test that takes a ``scene`` in each of these worlds."""
    return pytest.mark.parametrize("scene", kinds, indirect=True)


_EVENT = re.compile(rb"<[^<>]*>")
_DID_NOT_HAPPEN = (NotOwner, StorageUnavailable, StorageFull, BadOffset, DeadlineExceeded, Closed)


class Violation(AssertionError):
    """What must hold does not."""


class Seen(NamedTuple):
    """A call that has taken effect."""

    process: str
    op: str
    step: str
    name: str
    data: bytes | None
    result: Any
    late: bool


class Event:
    """One event that a client asks for. ``epoch``: of the owner that acknowledged it."""

    def __init__(self, scene: Scene, tag: str) -> None:
        self.tag = tag
        self.data = b"<%s>" % tag.encode()
        self.asked = 0
        self.answered: int | None = None
        self.epoch = 0
        self.error: BaseException | None = None
        self.job: Job[None] | None = None
        self._scene = scene
        scene.events.append(self)

    def ask(self, store: ChunkedSegmentStorage, call: Callable[[bytes], int] | None = None) -> None:
        """Ask for it, in a task of the owner's process. Raises what the owner answers."""
        self.asked = self._scene.tick()
        self.error = None
        try:
            if call is None:
                store.append(SEGMENT, self.data)
            else:
                call(self.data)
        except ChunkstoreError as error:
            self.error = error
            raise
        self.answered = self._scene.tick()
        self.epoch = store.epoch

    @property
    def outcome(self) -> str:
        """Either "acknowledged", "refused" (it did not happen), or "unknown"."""
        if self.answered is not None:
            return "acknowledged"
        return "refused" if isinstance(self.error, _DID_NOT_HAPPEN) else "unknown"

    def failure(self) -> BaseException:
        """Wait for it to fail."""
        assert self.job is not None
        return self.job.failure()

    def acknowledged(self) -> None:
        """Wait for it to be acknowledged. Raises ``Violation`` if it is not."""
        assert self.job is not None
        self.job.run_to_end()
        if self.outcome != "acknowledged":
            raise Violation(f"{self.tag} was not acknowledged: {self.error!r}") from self.error


class Owner:
    """A process that has the container open."""

    def __init__(self, scene: Scene, process: Process, store: ChunkedSegmentStorage) -> None:
        self.scene = scene
        self.process = process
        self.store = store

    @property
    def epoch(self) -> int:
        """The epoch it believes to own."""
        return self.store.epoch

    def begin(self, tag: str, call: Callable[[bytes], int] | None = None) -> Event:
        """Let a client ask for an event (by ``call``, if given); it goes on whenever the world does."""
        event = Event(self.scene, tag)
        event.job = self.process.start(lambda: event.ask(self.store, call), f"append {tag}")
        return event

    def append(self, *tags: str) -> None:
        """Append events, which must be acknowledged."""
        for tag in tags:
            self.begin(tag).acknowledged()

    def until_decided(self) -> Call:
        """Held: its next record is decided, and it is about to hear of it (the look behind its write, or the put itself)."""
        if self.scene.slot:
            return self.process.until_record("reply")
        return self.process.until(op="exists", name=self.scene.names.epoch(self.epoch + 1), stage="reply")

    def run(self, call: Callable[[ChunkedSegmentStorage], T]) -> T:
        """Let it do something and answer."""
        return self.process.run(lambda: call(self.store))

    def content(self) -> list[str]:
        """The events it reads."""
        return self.scene.events_of(self.run(lambda store: store.read(SEGMENT, 0, 1 << 20)))


class Scene:
    """A world with its clients; ``judge`` says whether what must hold did hold."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.events: list[Event] = []
        self.calls: list[Seen] = []
        self._ticks = 0
        self._openers = 0
        world.observers.append(self._observe)

    def _observe(self, call: Call, result: Any, late: bool) -> None:
        self.calls.append(Seen(call.process.name, call.op, call.step, call.name, call.data, result, late))

    def tick(self) -> int:
        """A number larger than all before."""
        self._ticks += 1
        return self._ticks

    # Who and what is there

    @property
    def names(self) -> ContainerNames:
        return self.world.names

    @property
    def slot(self) -> bool:
        return self.world.mode == "slot"

    @property
    def s3(self) -> bool:
        return self.world.kind == "s3"

    @property
    def posix(self) -> PosixBackend:
        assert isinstance(self.world.backend, PosixBackend)
        return self.world.backend

    def owner(self, name: str, machine: str = "host", **settings: Any) -> Owner:
        """A new process opens the container as an owner."""
        process = self.world.process(name, machine)
        return Owner(self, process, process.open(**settings))

    def first(self, name: str = "z", *tags: str, **settings: Any) -> Owner:
        """The first owner of all, with the segment made and events in it."""
        owner = self.owner(name, **settings)
        owner.run(lambda store: store.create(SEGMENT))
        owner.append(*tags)
        return owner

    def opening(self, name: str, machine: str = "other", **settings: Any) -> tuple[Process, Job[ChunkedSegmentStorage]]:
        """A new process begins to open the container."""
        process = self.world.process(name, machine)
        return process, process.start(process.opening(**settings), "open")

    def served(self, process: Process, job: Job[ChunkedSegmentStorage]) -> Owner:
        """An owner, once its opening has ended well."""
        return Owner(self, process, job.result())

    # What lies on the storage

    def content(self, name: str) -> bytes:
        """What is visible under a name, which must exist."""
        found = self.world.backend.content(name)
        assert found is not None, f"{name} is not there"
        return found

    def there(self, name: str) -> bool:
        """Whether a name is visible."""
        return self.world.backend.content(name) is not None

    def streams(self) -> Streams:
        """The journal, for looking."""
        return Streams(self.world.observer_storage(), self.names, self.world.format)

    def decided(self, epoch: int) -> Opened | SealPayload | None:
        """What slot 0 of an epoch holds: its OPEN, who voided it, or nothing yet."""
        found = self.streams().slot0(epoch)
        return found.payload if isinstance(found, Sealed) else found

    def opened(self, epoch: int) -> Opened:
        """The OPEN of an epoch, which must be there."""
        found = self.decided(epoch)
        assert isinstance(found, Opened), f"epoch {epoch} is not open: {found!r}"
        return found

    def records(self, epoch: int) -> list[Record]:
        """Every record that lies in a stream now, whether it counts or not, without OPEN and SEALs."""
        streams = self.streams()
        if not self.slot:
            return list(streams.log_reader(epoch, 0)) if self.there(self.names.log(epoch)) else []
        found = []
        for name in self.world.backend.names():
            place = self.names.parse_slot(name)
            if place is not None and place[0] == epoch and place[1] > 0:
                record = streams.read_slot(*place)
                if record.header.kind is not RecordKind.SEAL:
                    found.append(record)
        return found

    def seal(self, epoch: int) -> int | None:
        """The lowest index of a stream that holds a SEAL; None if there is none."""
        streams = self.streams()
        for name in self.world.backend.names():
            place = self.names.parse_slot(name)
            if place is None or place[0] != epoch or place[1] == 0:
                continue
            if streams.read_slot(*place).header.kind is RecordKind.SEAL:
                return place[1]
        return None

    def commit_in(self, call: Call) -> Commit:
        """What a record would commit that is on its way."""
        assert call.data is not None
        at = 0 if self.slot else len(self.content(call.name))
        record = decode_slot(call.data, object=call.name, container=self.world.format.uuid, at=at)
        header = record.header
        end = 0 if self.slot else at + len(call.data)
        position = Position(header.lsn, record.hash, header.epoch, header.index + 1, end)
        return commit_of(record, position, object=call.name, at=0)

    def seen(self, *, op: str = "", step: str = "", name: str = "", process: str = "") -> list[Seen]:
        """The calls that took effect so far, of these kinds."""
        return [
            call
            for call in self.calls
            if op in ("", call.op)
            and step in ("", call.step)
            and name in ("", call.name)
            and process in ("", call.process)
        ]

    # The judgement

    @staticmethod
    def events_of(data: bytes) -> list[str]:
        """The events in a segment's bytes. Raises ``Violation`` for anything that is not a whole event."""
        found = _EVENT.findall(data)
        if b"".join(found) != data:
            raise Violation(f"bytes of nobody, or half an event: {data!r}")
        return [item[1:-1].decode() for item in found]

    def opener(self, machine: str) -> Owner:
        """Somebody new, on this machine, takes over."""
        self._openers += 1
        return self.owner(f"judge {self._openers}", machine)

    def judge(self, *, damaged: str = "") -> list[str]:
        """Open the container without any cache, then on every machine; compare; return the events in history, in order."""
        places = ["elsewhere", *self.world.machines]
        history: list[str] | None = None
        for place in places:
            owner = self.opener(place)
            found = owner.content()
            if history is not None and found != history:
                raise Violation(f"on {place} history is {found}, and it was {history}")
            history = found
            self._check_events(history)
        self._check_replica(owner, found, damaged)
        return found

    def _check_replica(self, owner: Owner, history: list[str], damaged: str) -> None:
        replica = self.replica("judging replica", "nowhere else")
        found = replica.content()
        if found != history:
            raise Violation(f"a replica sees {found}, the owner {history}")
        findings = owner.run(lambda store: [item for item in store.check("deep") if item.severity == "damage"])
        if {item.object for item in findings} != ({damaged} if damaged else set()):
            raise Violation(f"check says {findings}")

    def _check_events(self, history: list[str]) -> None:
        for event in self.events:
            count = history.count(event.tag)
            if count > 1:
                raise Violation(f"{event.tag} is in history {count} times: {history}")
            if event.outcome == "acknowledged" and count == 0:
                raise Violation(f"{event.tag} was acknowledged and is lost: {history}")
            if event.outcome == "refused" and count == 1:
                raise Violation(f"{event.tag} was refused and is in history: {history}")
        strangers = set(history) - {event.tag for event in self.events}
        if strangers:
            raise Violation(f"nobody asked for {strangers}")
        self._check_order(history)

    def _check_order(self, history: list[str]) -> None:
        place = {tag: index for index, tag in enumerate(history)}
        known = [event for event in self.events if event.tag in place]
        for early in known:
            for late in known:
                if early.answered is not None and early.answered < late.asked and place[early.tag] > place[late.tag]:
                    raise Violation(f"{early.tag} was acknowledged before {late.tag} was asked for: {history}")

    def replica(self, name: str = "replica", machine: str = "far away") -> Follower:
        """A new process follows the container."""
        process = self.world.process(name, machine)
        return Follower(self, process, process.replica())


class Follower:
    """A process that follows the container."""

    def __init__(self, scene: Scene, process: Process, replica: Replica) -> None:
        self.scene = scene
        self.process = process
        self.replica = replica

    def refresh(self) -> int:
        """Catch up; the lsn reached."""
        return self.process.run(self.replica.refresh)

    def content(self) -> list[str]:
        """The events it shows now."""
        return self.scene.events_of(self.process.run(lambda: self.replica.read(SEGMENT, 0, 1 << 20)))

    def position(self) -> tuple[int, bytes, int]:
        """Its lsn, hash and state digest."""
        head = self.replica._follower.store.head()
        return head.position.lsn, head.position.hash, head.digest


@contextmanager
def scene_of(
    kind: str,
    seed: int | str = 3,
    *,
    weather: Weather | None = None,
    lmdb_folder: str | None = None,
    wrap: Callable[[ChunkStorage], ChunkStorage] | None = None,
    append_journal: bool = True,
    fence_by_stat: bool = True,
    remote: bool = False,
    **changes: Any,
) -> Iterator[Scene]:
    """A scene in one of the worlds of ``ALL``; ``changes`` are settings, the rest is as for ``World``."""
    storage, _, word = kind.partition("-")
    mode: JournalMode = "append" if word == "append" else "slot"
    place: StorageKind = "s3" if storage == "s3" else "posix"
    usual = {"journal_mode": mode, "op_deadline_s": 5.0, "lease_s": 0, "collect_s": 0, "ask_s": 0, "io_workers": 4}
    usual["inline_bytes_max"] = 0  # most schedules look at chunks
    settings = tuned(**{**usual, **changes})
    with World(
        seed,
        place,
        settings=settings,
        weather=weather,
        lmdb_folder=lmdb_folder,
        wrap=wrap,
        append_journal=append_journal,
        fence_by_stat=fence_by_stat,
        remote=remote,
    ) as world:
        assert world.mode == mode
        yield Scene(world)
