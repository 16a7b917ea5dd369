"""A storage that fails on demand: at one chosen call a process dies, a reply is lost, a write is torn, or space runs out.

Every call is recorded, so that a test learns how many there are by running once without a fault: a call that the engine
makes tomorrow lengthens every enumeration by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, TypeVar

from chunkstore.checksum import BytesLike
from chunkstore.errors import StorageFull, StorageUnavailable
from chunkstore.storage import ChunkHandle, ChunkStorage
from tests.support.forwarding import Forwarding

T = TypeVar("T")
When = Callable[[str, str], bool]

_CHANGING = frozenset(
    ("create", "create_if_absent", "put", "write", "sync", "harden", "delete", "truncate", "compose", "concat")
)
_FILLING = frozenset(("create", "create_if_absent", "put", "write", "compose"))


class Dead(BaseException):
    """The process has died. Nothing may swallow this: whoever goes on after it is a ghost."""


class Outcome(Enum):
    """What happens at the chosen call."""

    CRASH_BEFORE = "crash before"
    """The process dies; the call had no effect."""
    CRASH_AFTER = "crash after"
    """The call took effect; then the process dies."""
    ERROR_BEFORE = "error before"
    """``StorageUnavailable``, no effect."""
    ERROR_AFTER = "error after"
    """The call took effect, but its reply is lost: ``StorageUnavailable``."""
    TORN = "torn"
    """Half of the bytes arrive; then the process dies."""
    SHORT = "short"
    """Half of the bytes arrive; then ``StorageFull``: the disk filled up on the way."""
    FULL = "full"
    """``StorageFull`` once, no effect."""
    STAYS_FULL = "stays full"
    """``StorageFull`` for this and every later call that needs space, until ``heal``."""
    OUTAGE = "outage"
    """``StorageUnavailable`` for this and every later call, until ``heal``."""
    POWER_NOTHING = "power cut, nothing unsynced is kept"
    """All processes of the machine die; the call has no effect. Only on a disk with a durable layer."""
    POWER_NAMES = "power cut, names without contents"
    POWER_CONTENTS = "power cut, contents without names"
    POWER_SOME = "power cut, by chance"
    POWER_OTHERS = "power cut, by another chance"


_SYSTEM_CALLS_FOR_SPACE = frozenset(("creat", "pwrite", "temporary", "link"))
_SYSTEM_CALLS_THAT_LOOK = frozenset(("stat", "pread", "readdir"))
_POWER_CUTS = tuple(item for item in Outcome if item.value.startswith("power cut"))
_LASTING = (Outcome.OUTAGE, Outcome.STAYS_FULL)


class Call(NamedTuple):
    """One call, as recorded. ``step``: the system call it is, where those are counted."""

    operation: str
    names: tuple[str, ...]
    tearable: bool
    step: str = ""


def outcomes_of(call: Call) -> tuple[Outcome, ...]:
    """What can happen at such a call."""
    if call.operation not in _CHANGING or call.step in _SYSTEM_CALLS_THAT_LOOK:
        return (Outcome.CRASH_BEFORE, Outcome.ERROR_BEFORE)
    found = [Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER, Outcome.ERROR_BEFORE, Outcome.ERROR_AFTER]
    if call.step in _SYSTEM_CALLS_FOR_SPACE if call.step else call.operation in _FILLING:
        found += [Outcome.FULL, Outcome.STAYS_FULL]
    if call.tearable:
        found += [Outcome.TORN, Outcome.SHORT]
    if call.step:
        found += _POWER_CUTS
    return tuple(found)


class Faults:
    """Which call fails, and how. Thread-safe. Until ``watch`` or ``inject`` none does."""

    def __init__(self) -> None:
        self.trace: list[Call] = []
        self.dead = False
        self.fired = False
        self._lock = threading.Lock()
        self._watching = False
        self._when: int | When = -1
        self._outcome: Outcome | None = None
        self._second: tuple[int | When, Outcome] | None = None
        self.fired_at = -1
        self.fired_twice = False
        self._lasting: Outcome | None = None

    def watch(self) -> None:
        """Record calls from now on, without a fault."""
        with self._lock:
            self.trace = []
            self._watching = True

    def inject(self, when: int | When, outcome: Outcome) -> None:
        """Record calls from now on, and let ``outcome`` happen once: at call number ``when`` (from 0), or at the first
        call for which ``when(operation, name)`` holds."""
        self.watch()
        with self._lock:
            self._when, self._outcome = when, outcome
            self.fired = self.fired_twice = False

    def second(self, when: int | When, outcome: Outcome) -> None:
        """Let ``outcome`` happen, too."""
        with self._lock:
            self._second = (when, outcome)

    def heal(self) -> None:
        """No faults any more (a dead process stays dead)."""
        with self._lock:
            self._watching = False
            self._when, self._outcome, self._lasting, self._second = -1, None, None, None

    def kill(self) -> None:
        """The process dies now: every later call raises ``Dead``."""
        self.dead = True

    def _step(self, operation: str, names: tuple[str, ...], tearable: bool, *, step: str = "") -> Outcome | None:
        """A call is about to be made: what shall happen to it. Raises ``Dead``."""
        with self._lock:
            if self.dead:
                raise Dead
            index = len(self.trace)
            if self._watching:
                self.trace.append(Call(operation, names, tearable, step))
            needs_space = step in _SYSTEM_CALLS_FOR_SPACE if step else operation in _FILLING
            if self._lasting is Outcome.OUTAGE or (self._lasting is Outcome.STAYS_FULL and needs_space):
                return self._lasting
            if not self._watching:
                return None
            outcome = self._due(index, Call(operation, names, tearable, step))
            if outcome in (Outcome.OUTAGE, Outcome.STAYS_FULL):
                self._lasting = outcome
            if outcome in (Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER, Outcome.TORN) or outcome in _POWER_CUTS:
                self.dead = True  # already now: calls in other threads that come later find a dead process
            return outcome

    def _due(self, index: int, call: Call) -> Outcome | None:
        if not self.fired:
            if self._outcome is not None and self._is_due(self._when, index, self._outcome, call):
                self.fired, self.fired_at = True, index
                return self._outcome
        elif self._second is not None and not self.fired_twice:
            when, outcome = self._second
            if self._is_due(when, index - self.fired_at, outcome, call):
                self.fired_twice = True
                return outcome
        return None

    @staticmethod
    def _is_due(when: int | When, index: int, outcome: Outcome, call: Call) -> bool:
        if not isinstance(when, int):
            return any(when(call.operation, name) for name in call.names)
        # Threads may change the order of calls from run to run: then the next call that this can happen to is meant.
        return index >= when and (outcome in _LASTING or outcome in outcomes_of(call))


def happen(outcome: Outcome | None, what: str, call: Callable[[], T], half: Callable[[], object] | None) -> T:
    """Let this happen to a call (None: nothing does). ``half``: does half of what the call does."""
    if outcome is None:
        return call()
    if outcome is Outcome.CRASH_BEFORE:
        raise Dead
    if outcome in (Outcome.ERROR_BEFORE, Outcome.OUTAGE):
        raise StorageUnavailable(f"injected before {what}")
    if outcome in (Outcome.FULL, Outcome.STAYS_FULL):
        raise StorageFull(f"injected: no space for {what}")
    if outcome in (Outcome.TORN, Outcome.SHORT):
        assert half is not None
        half()
        if outcome is Outcome.TORN:
            raise Dead
        raise StorageFull(f"injected: no space for the rest of {what}")
    call()
    if outcome is Outcome.CRASH_AFTER:
        raise Dead
    raise StorageUnavailable(f"injected: the reply to {what} was lost")


class FaultyChunkStorage(Forwarding, Faults):
    """A storage whose calls may fail. Thread-safe."""

    def __init__(self, inner: ChunkStorage) -> None:
        Forwarding.__init__(self, inner)
        Faults.__init__(self)

    def _perform(
        self,
        operation: str,
        names: tuple[str, ...],
        call: Callable[[], T],
        half: Callable[[], object] | None,
    ) -> T:
        outcome = self._step(operation, names, half is not None)
        return happen(outcome, f"{operation} of {', '.join(names)}", call, half)

    def around(self, operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        return self._perform(operation, tuple(names), call, None)

    def create(self, name: str, data: BytesLike | None = None) -> ChunkHandle:
        # Where chunks can grow, creating one with content is no more atomic than writing to it.
        half: Callable[[], object] | None = None
        if data is not None and self.inner.capabilities.append:
            part = bytes(data[: len(data) // 2])
            half = lambda: self.inner.create(name, part)  # noqa: E731
        return self._perform("create", (name,), lambda: self.inner.create(name, data), half)

    def write(self, handle: ChunkHandle, offset: int, data: BytesLike) -> int:
        part = bytes(data[: len(data) // 2])
        return self._perform(
            "write",
            (handle.name,),
            lambda: self.inner.write(handle, offset, data),
            lambda: self.inner.write(handle, offset, part),
        )
