"""Ledger-based offload (PIP-17): where a closed ledger goes as a whole, under a UUID of its own.

``LedgerOffloader`` is Pulsar's interface; ``ContainerOffloader`` writes a container's offload segments in PIP-76's format. Promises: a
ledger is there as a whole or not at all; a failed attempt deletes what it wrote, and its UUID finds what is left.
Leaves out: which UUID is recorded when (``managed``), buckets (``pulsar_objects``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote_plus

from chunkstore import runtime
from chunkstore.changes import Create
from chunkstore.codec.pulsar.encoding import EncodedBlock
from chunkstore.codec.pulsar.offload_metadata import OffloadContext
from chunkstore.config import MIB
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Conflict, Damaged, InvalidArgument, Unsupported
from chunkstore.pulsar.contexts import Context, check_topic, dashed, data_segment, iter_contexts, uuid_bytes
from chunkstore.pulsar.filling import Filled, SegmentFiller
from chunkstore.pulsar.read_handle import ReadHandle
from chunkstore.pulsar.reader import open_ledger
from chunkstore.pulsar.removal import CONTAINER, delete_attempt
from chunkstore.pulsar.writer import completion
from chunkstore.runtime import Future

__all__ = [
    "ContainerOffloader",
    "LedgerOffloader",
    "NullLedgerOffloader",
    "in_background",
    "managed_ledger_name",
    "uuid_text",
]

DRIVER_KEY: Final = "managedLedgerOffloadDriver"
_SEGMENT_BYTES_MAX: Final = 1 << 40
_BLOCK_BYTES_MAX: Final = 1 * MIB


def in_background(call: Callable[[], Any]) -> Future[Any]:
    """The future of what ``call`` returns, from a thread of its own; from the caller's where the system gives no more threads."""
    future = runtime.future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001  (carried to the waiting thread)
            future.set_exception(error)
        else:
            future.set_result(result)

    if runtime.spawn_if_possible(run, "chunkstore-offload") is None:
        run()
    return future


class LedgerOffloader:
    """Takes closed ledgers as a whole. Thread-safe. Implement ``do_offload``, ``do_read`` and ``do_delete``, each of which runs in a thread
    with arguments that were checked; or the three methods of PIP-17, which return futures.

    ``driver_name`` names it in contexts; ``block_bytes_max`` is the longest block, in bytes, which ``ManagedLedger`` sets. A UUID is
    16 bytes, text or ``uuid.UUID``; ``do_*`` get it as Pulsar writes it.
    """

    driver_name = "none"
    block_bytes_max = 64 * MIB

    @property
    def driver_metadata(self) -> Mapping[str, str]:
        """What contexts keep and give back; never credentials. What is stored never chooses what is opened: metadata of another
        bucket or driver is ``Unsupported``."""
        return {DRIVER_KEY: self.driver_name}

    def offload(self, read_handle: ReadHandle, uuid: object, extra_metadata: Mapping[str, str]) -> Future[None]:
        """Write a whole ledger, which is closed and not empty. Durable when the future ends. A failed attempt deletes what it wrote, as far
        as it can. Retry: with another UUID."""
        name = uuid_text(uuid)

        def run() -> None:
            if not read_handle.closed or read_handle.last_add_confirmed < 0:
                raise InvalidArgument(f"ledger {read_handle.ledger} is open or empty", argument="read_handle")
            try:
                self.do_offload(read_handle, name, extra_metadata)
            except Exception:
                with suppress(ChunkstoreError):
                    self.do_delete(read_handle.ledger, name)
                raise

        return in_background(run)

    def read_offloaded(
        self, ledger_id: int, uuid_or_context: object, driver_metadata: Mapping[str, str] | None = None
    ) -> Future[ReadHandle]:
        """The ledger, to be read, of PIP-17's UUID or PIP-76's ``OffloadContext``. Retry: safe."""
        if isinstance(uuid_or_context, OffloadContext) and uuid_or_context.driver and driver_metadata is None:
            driver_metadata = dict(uuid_or_context.driver.properties)
        self._check_driver(driver_metadata)
        name = uuid_text(uuid_or_context)
        return in_background(lambda: self.do_read(ledger_id, name))

    def delete_offloaded(
        self, uuid: object, driver_metadata: object = None, *, ledger_id: int | None = None
    ) -> Future[None]:
        """Delete what an attempt wrote, finished or not, index first. Of one that is gone: nothing. Retry: safe.

        PIP-17's order ``(ledger_id, uuid)`` is known by its int.
        """
        if isinstance(uuid, int):
            return self.delete_offloaded(driver_metadata, ledger_id=uuid)
        self._check_driver(driver_metadata)
        name = uuid_text(uuid)
        return in_background(lambda: self.do_delete(ledger_id, name))

    def do_offload(self, handle: ReadHandle, uuid: str, extra_metadata: Mapping[str, str]) -> None:
        """See ``offload``: where this raises, ``do_delete`` follows."""
        raise Unsupported("no offloader is configured: ManagedLedgerConfig(offloader=...)", feature="offload")

    def do_read(self, ledger: int, uuid: str) -> ReadHandle:
        """See ``read_offloaded``."""
        raise Unsupported(f"offloader {self.driver_name!r} reads nothing", feature="offload")

    def do_delete(self, ledger: int | None, uuid: str) -> None:
        """See ``delete_offloaded``."""
        raise Unsupported(f"offloader {self.driver_name!r} deletes nothing", feature="offload")

    def _check_driver(self, given: object) -> None:
        """Of a bucket its name counts, as with Pulsar; elsewhere the driver's."""
        if given is not None and not isinstance(given, Mapping):
            raise InvalidArgument(f"driver metadata is a mapping, not {given!r}", argument="driver_metadata")
        own = self.driver_metadata
        key = "bucket" if "bucket" in own else DRIVER_KEY
        if given and given.get(key) != own[key]:
            text = f"{key} of the ledger is {given.get(key)!r}, this offloader's is {own[key]!r}"
            raise Unsupported(text, feature="driver")


class NullLedgerOffloader(LedgerOffloader):
    """Offloads nothing: each call is ``Unsupported``."""


class ContainerOffloader(LedgerOffloader):
    """Offloads the ledgers of ``topic`` into a container: segments ``offload/TOPIC/UUID`` and ``-index``, and a context once both are
    whole, so that ``LedgerReader`` and Spark read them. Extra metadata become attributes of the data segment. Blocks have at most 1 MiB.

    A ledger that offload segments hold a part of is a ``Conflict``, extra metadata of another topic ``InvalidArgument``.
    """

    driver_name = CONTAINER

    def __init__(self, store: ChunkedSegmentStorage, topic: str) -> None:
        self.topic: str = check_topic(topic)
        self._store = store
        self._completing = runtime.lock()

    def do_offload(self, handle: ReadHandle, uuid: str, extra_metadata: Mapping[str, str]) -> None:
        named = managed_ledger_name(self.topic)
        if extra_metadata.get("ManagedLedgerName", named) != named:
            raise InvalidArgument(f"this offloader is for {named}, not {extra_metadata}", argument="extra_metadata")
        self._contexts_without(handle.ledger)
        name = data_segment(self.topic, uuid_bytes(uuid))
        filled: list[Filled] = []

        def put(block: EncodedBlock) -> None:
            if filled:
                raise Unsupported(f"ledger {handle.ledger} is too long for one offload segment", feature="offload")
            self._store.append_many(name, block.buffers, expected_offset=block.offset)

        block_bytes = min(self.block_bytes_max, _BLOCK_BYTES_MAX)
        filler = SegmentFiller(put, filled.append, segment_bytes_max=_SEGMENT_BYTES_MAX, block_bytes=block_bytes)
        self._store.commit([Create(name, attributes=dict(extra_metadata))])
        for entry in handle.iter_entries():
            filler.append(handle.ledger, entry.entry, entry.payload)
        filler.complete()
        last = filler.lasts.get(handle.ledger)
        if last != handle.last_add_confirmed:
            text = f"its entries end with {last}, not {handle.last_add_confirmed}"
            raise Damaged(text, object=f"ledger {handle.ledger}")
        with self._completing:  # sequence numbers are taken one by one
            contexts = self._contexts_without(handle.ledger)
            sequence = contexts[-1].sequence + 1 if contexts else 0
            begun = Context(self.topic, sequence, uuid_bytes(uuid), complete=False)
            done = begun.completed(filled[0].data_length, len(filled[0].index_data), filled[0].ranges)
            self._store.commit(completion(done, filled[0]))

    def do_read(self, ledger: int, uuid: str) -> ReadHandle:
        return open_ledger(self._store, self.topic, ledger, data_segment(self.topic, uuid_bytes(uuid)))

    def do_delete(self, ledger: int | None, uuid: str) -> None:
        delete_attempt(self._store, self.topic, uuid_bytes(uuid))

    def _contexts_without(self, ledger: int) -> list[Context]:
        contexts = iter_contexts(self._store, self.topic)
        for context in contexts:
            if any(item.ledger == ledger for item in context.ranges):
                raise Conflict(f"ledger {ledger}", expected="not offloaded", found=context.data)
        return contexts


def uuid_text(value: object) -> str:
    """A UUID as Pulsar writes it in keys: lower case, with dashes. Raises ``InvalidArgument``."""
    return dashed(uuid_bytes(value))


def managed_ledger_name(topic: str) -> str:
    """The name of a topic's managed ledger: ``tenant/namespace/persistent/NAME`` of ``persistent://tenant/namespace/NAME``."""
    domain, separator, rest = topic.partition("://")
    *place, name = rest.split("/", 2)
    return "/".join((*place, domain, quote_plus(name, safe="*"))) if separator else topic
