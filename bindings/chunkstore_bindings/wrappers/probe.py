"""Does this storage really have put-if-absent? Asked before a container is made, never assumed (protocol 2.2, A13, A15).

Promises: every check goes through the storage's own calls, with 16 creates racing for one name; what fails is named in
``Unsupported``; the two probe objects are removed again. The result is plain data for FORMAT. A storage on a server is
asked again at every open, with one conditional put of FORMAT's own bytes, and probed in full when it is another server or
another way to it than the one that FORMAT names.
Leaves out: proof. A storage that passes may still break its promise under faults; one that fails must not be trusted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Protocol, runtime_checkable

from chunkstore import runtime
from chunkstore.errors import ChunkNotFound, ChunkstoreError, Unsupported
from chunkstore.storage import ChunkStorage
from chunkstore_bindings.wrappers.wrapping import layers

__all__ = [
    "PROBE_RACERS",
    "PROBE_VERSION",
    "ServerBacked",
    "confirm_storage",
    "probe_create_if_absent",
    "probe_storage",
]

PROBE_VERSION = 1
PROBE_RACERS = 16


@runtime_checkable
class ServerBacked(Protocol):
    """What a binding offers whose server is operated by others: it may be replaced, or configured anew, between two opens."""

    def server_identity(self) -> Mapping[str, str]:
        """Which server, and by which way. When it changes, the probe of before says nothing any more."""
        ...

    def check_root(self) -> str:
        """Look for rules of the server that work against a container; what was seen. Raises ``Unsupported`` naming one."""
        ...


def _server_of(storage: ChunkStorage) -> ServerBacked | None:
    for layer in layers(storage):
        if isinstance(layer, ServerBacked):
            return layer
    return None


def probe_storage(storage: ChunkStorage, name_prefix: str) -> dict[str, int | str]:
    """Everything there is to know before a container is made: ``probe_create_if_absent``, and what is on a server.

    Raises as ``probe_create_if_absent``. Returns plain data for FORMAT.
    """
    server = _server_of(storage)
    rules = None if server is None else server.check_root()
    found = probe_create_if_absent(storage, name_prefix)
    if server is not None and rules is not None:
        found |= {"lifecycle": rules, **server.server_identity()}
    return found


def confirm_storage(
    storage: ChunkStorage, format_name: str, format_bytes: bytes, probed: Mapping[str, object], name_prefix: str
) -> None:
    """Before a container is opened that exists: is its storage still what the probe saw? One create that is refused, where all is well.

    ``format_bytes`` are those of FORMAT, ``probed`` is what it says. Storages without a server are not asked.
    Raises as ``probe_create_if_absent``, ``Unsupported`` also for a rule of the server's. Retry: safe.
    """
    server = _server_of(storage)
    if server is None:
        return
    server.check_root()
    # The same bytes: a server that ignores the condition does no harm by it, and betrays itself.
    created = storage.create_if_absent(format_name, format_bytes)
    changed = any(probed.get(name) != value for name, value in server.server_identity().items())
    if created or changed:
        # "Created" may also be an attempt whose answer was lost, recognised by its bytes: the full probe decides.
        probe_create_if_absent(storage, name_prefix)


def probe_create_if_absent(storage: ChunkStorage, name_prefix: str) -> dict[str, int | str]:
    """Probe ``storage`` with two unique names that begin with ``name_prefix`` (such as ``"orders/tmp/"``). Returns plain data, of which
    ``at_ms`` is a label.

    Raises: ``Unsupported`` naming the check that failed; ``StorageUnavailable`` when the storage did not answer, so that
    nothing is known. Retry: safe, each probe has names of its own.
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
            # A leftover is among the temporaries and is swept with them; the probe's own verdict counts.
            with contextlib.suppress(ChunkstoreError):
                storage.delete(name)
    return {
        "version": PROBE_VERSION,
        "url": storage.url,
        "medium": storage.capabilities.medium,
        "racers": PROBE_RACERS,
        "winners": len(winners),
        "at_ms": runtime.now_ms(),
    }


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
    """The numbers of the racers whose creation of ``name`` was reported as done. Each call ends by the binding's own deadline."""
    pool = runtime.pool("chunkstore-probe", PROBE_RACERS - 1)  # the first one runs here
    try:
        calls = [partial(storage.create_if_absent, name, b"racer %d" % number) for number in range(PROBE_RACERS)]
        return [number for number, won in enumerate(pool.run_all(calls)) if won]
    finally:
        pool.close()


def _check_race(storage: ChunkStorage, name: str, winners: list[int]) -> None:
    if len(winners) != 1:
        raise _fail(storage, f"of {PROBE_RACERS} concurrent creates of {name!r}, {len(winners)} succeeded")
    if _read(storage, name) != b"racer %d" % winners[0]:
        raise _fail(storage, f"{name!r} does not hold what the winner of the race wrote")


def _check_listing(storage: ChunkStorage, stem: str, names: list[str]) -> None:
    listed = [item.name for item in storage.list(stem).items]
    if listed != sorted(names):
        raise _fail(storage, f"listing {stem!r} right after the writes shows {listed}")
