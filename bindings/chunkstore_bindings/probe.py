"""Does this storage really have put-if-absent? Asked before a container is made, never assumed (protocol 2.2, A13, A15).

Promises: every check goes through the storage's own calls, with 16 creates racing for one name; what fails is named in
``Unsupported``; the two probe objects are removed again. The result is plain data for FORMAT.
Leaves out: proof. A storage that passes may still break its promise under faults; one that fails must not be trusted.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial

from chunkstore import runtime
from chunkstore.errors import ChunkNotFound, ChunkstoreError, StorageUnavailable, Unsupported
from chunkstore.storage import ChunkStorage

__all__ = ["PROBE_RACERS", "PROBE_VERSION", "ProbeResult", "probe_create_if_absent"]

PROBE_VERSION = 1
PROBE_RACERS = 16
_WAIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What was found. ``winners`` of ``racers`` creates succeeded (1 is right); ``at_ms`` is a label."""

    version: int
    url: str
    medium: str
    racers: int
    winners: int
    at_ms: int

    def to_plain(self) -> dict[str, int | str]:
        """The fields as plain data, for msgpack or JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def probe_create_if_absent(storage: ChunkStorage, name_prefix: str) -> ProbeResult:
    """Probe ``storage`` with two unique names that begin with ``name_prefix`` (such as ``"orders/tmp/"``).

    Raises: ``Unsupported`` naming the check that failed; ``StorageUnavailable`` when the storage did not answer, so that
    nothing is known. Retry: safe, each probe has names of its own. At most ``_WAIT_S`` of waiting for the race.
    """
    stem = f"{name_prefix}probe-{runtime.token(8).hex()}"
    first, raced = f"{stem}-first", f"{stem}-raced"
    try:
        _check_existing_name(storage, first)
        winners = _race(storage, raced)
        _check_race(storage, raced, winners)
        _check_listing(storage, stem, [first, raced])
    finally:
        for name in (first, raced):
            # A leftover lies among the temporaries and is swept with them; the probe's own verdict counts.
            with contextlib.suppress(ChunkstoreError):
                storage.delete(name)
    return ProbeResult(
        version=PROBE_VERSION,
        url=storage.url,
        medium=storage.capabilities.medium,
        racers=PROBE_RACERS,
        winners=len(winners),
        at_ms=runtime.now_ms(),
    )


def _fail(storage: ChunkStorage, what: str) -> Unsupported:
    return Unsupported(
        f"{storage.url}: put-if-absent does not hold here: {what}. A container cannot be written safely; "
        "use another storage (or fix the gateway) and open this one read-only",
        feature="create_if_absent",
    )


def _read(storage: ChunkStorage, name: str) -> bytes:
    try:
        return storage.read(storage.open_read(name), 0, 1 << 10)
    except ChunkNotFound as error:
        raise _fail(storage, f"{name!r} was created and cannot be read") from error


def _check_existing_name(storage: ChunkStorage, name: str) -> None:
    token = runtime.token(16)
    if not storage.create_if_absent(name, b"first " + token):
        raise _fail(storage, f"creating the unused name {name!r} was refused")
    if _read(storage, name) != b"first " + token:
        raise _fail(storage, f"{name!r} does not hold what was written")
    if storage.create_if_absent(name, b"second " + token):
        raise _fail(storage, f"{name!r} existed and was created again")
    if _read(storage, name) != b"first " + token:
        raise _fail(storage, f"a refused create changed the content of {name!r}")


def _race(storage: ChunkStorage, name: str) -> list[int]:
    """The numbers of the racers that were told they created ``name``."""
    start = runtime.event()
    ready = runtime.condition()
    waiting = 0
    answers: list[bool | BaseException | None] = [None] * PROBE_RACERS

    def racer(number: int) -> None:
        nonlocal waiting
        with ready:
            waiting += 1
            ready.notify_all()
        if not start.wait(_WAIT_S):
            return
        try:
            answers[number] = storage.create_if_absent(name, b"racer %d" % number)
        except BaseException as error:  # noqa: BLE001  (reported below, in the caller's thread)
            answers[number] = error

    deadline_s = runtime.monotonic_s() + _WAIT_S
    tasks = [runtime.spawn(partial(racer, number), f"probe-{number}") for number in range(PROBE_RACERS)]
    with ready:
        while waiting < PROBE_RACERS and runtime.monotonic_s() < deadline_s:
            ready.wait(max(0.0, deadline_s - runtime.monotonic_s()))
    start.set()
    for task in tasks:
        task.join(max(0.0, deadline_s - runtime.monotonic_s()))
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        if answer is None:
            raise StorageUnavailable(
                f"{storage.url}: a create of {name!r} did not end within {_WAIT_S:g} s", object=name
            )
    return [number for number, answer in enumerate(answers) if answer is True]


def _check_race(storage: ChunkStorage, name: str, winners: list[int]) -> None:
    if len(winners) != 1:
        raise _fail(
            storage, f"of {PROBE_RACERS} concurrent creates of {name!r}, {len(winners)} were told they succeeded"
        )
    if _read(storage, name) != b"racer %d" % winners[0]:
        raise _fail(storage, f"{name!r} does not hold what the winner of the race wrote")


def _check_listing(storage: ChunkStorage, stem: str, names: list[str]) -> None:
    listed = [item.name for item in storage.list(stem).items]
    if listed != sorted(names):
        raise _fail(storage, f"listing {stem!r} right after the writes shows {listed}")
