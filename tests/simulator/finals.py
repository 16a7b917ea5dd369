"""The end of a run: what the heir writes, and everything that a container shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, DeadlineExceeded, OutcomeUnknown
from tests.simulator.clients import KEYS, TABLE
from tests.simulator.recorder import Recorder
from tests.simulator.world import Process, World

T = TypeVar("T")

_ATTEMPTS: Final = 100


class ContainerContents(NamedTuple):
    """All that a container shows. ``segments``: (name, id, start offset, length, sealed); ``rows``: value and version, or None."""

    segments: tuple[tuple[str, int, int, int, bool], ...]
    contents: dict[str, bytes]
    rows: dict[bytes, tuple[bytes, int] | None]


def container_contents(shown: ChunkedSegmentStorage | Replica) -> ContainerContents:
    """Read all of it. A segment that cannot be read raises ``AssertionError``: faults are over."""
    segments = tuple(
        (info.name, info.id, info.start_offset, info.length, info.sealed)
        for info in patiently(lambda: list(shown.segments()))
    )
    contents: dict[str, bytes] = {}
    for name, _, start, _, _ in segments:
        try:
            contents[name] = patiently(partial(shown.read, name, start, 1 << 20))
        except ChunkstoreError as error:
            raise AssertionError(f"invariant 20: segment {name!r} cannot be read: {error!r}") from error
    table = shown.table(TABLE)
    rows = {key: patiently(partial(table.get, key)) for key in KEYS}
    return ContainerContents(
        segments, contents, {key: None if row is None else (row.value, row.version) for key, row in rows.items()}
    )


def write(recorder: Recorder, store: ChunkedSegmentStorage) -> None:
    """Append to every segment that is open, and put a row: without faults each is acknowledged in bounded time (invariant 33)."""

    def insist(kind: str, name: str, key: bytes) -> None:
        for attempt in range(_ATTEMPTS):
            data = b"<heir.%s.%d>" % (key, attempt)
            if kind == "append":
                args: tuple[Any, ...] = (data, None, None, None)
                call: Callable[[], Any] = partial(store.append, name, data)
            else:
                args, call = (TABLE, key, data, None), partial(store.table(TABLE).put, key, data)
            try:
                recorder.call("heir", kind, name, args, lambda: store.epoch, call, owner="heir")
                return
            except (DeadlineExceeded, OutcomeUnknown):
                # The drawn deadline may be shorter than any commit takes here: then it is enough that it stands.
                if _stands(store, kind, name, key, data):
                    return
            except ChunkstoreError as error:
                raise AssertionError(
                    f"invariant 33: without faults, {kind} of {name!r} was answered {error!r}"
                ) from error
        raise AssertionError(f"invariant 33: without faults, {kind} of {name!r} was never acknowledged")

    for info in patiently(lambda: list(store.segments())):
        if not info.sealed:
            insist("append", info.name, info.name.encode())
    insist("table_put", "", KEYS[0])


def _stands(store: ChunkedSegmentStorage, kind: str, name: str, key: bytes, data: bytes) -> bool:
    if kind == "append":
        info = patiently(lambda: store.info(name))
        return data in patiently(lambda: store.read(name, info.start_offset, 1 << 20))
    row = patiently(lambda: store.table(TABLE).get(key))
    return row is not None and row.value == data


def calmly(world: World, call: Callable[[], Any], process: Process) -> Any:
    """A call of a process that nothing stands in the way of: its answer, or None and a failure of the run."""
    job = process.start(call, "judge")
    try:
        job.run_to_end()
    except AssertionError as error:
        world.fail(f"invariant 33: without faults, {error}")
        return None
    if isinstance(job.error, AssertionError) and str(job.error).startswith(("invariant ", "history ")):
        world.fail(str(job.error))
        return None
    if job.error is not None:
        world.fail(f"after all faults: {job.error!r}")
        return None
    return job.value


def patiently(call: Callable[[], T]) -> T:
    """A call in spite of drawn deadlines shorter than what it may have to wait for: a roll of the journal, a record of a read."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return call()
        except DeadlineExceeded:
            pass
    return call()
