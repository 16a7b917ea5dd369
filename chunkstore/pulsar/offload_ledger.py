"""Ledger-based offload (PIP-17): where a closed ledger goes as a whole, under a UUID of its own.

``LedgerOffloader`` is Pulsar's interface. Promises: a ledger is there as a whole or not at all; a failed attempt deletes what it wrote, and
its UUID finds what is left. Leaves out: which UUID is recorded when (``managed``), where it goes (``container``, ``pulsar_objects``).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final
from urllib.parse import quote_plus

from chunkstore.codec.pulsar.offload_metadata import OffloadContext
from chunkstore.config import MIB
from chunkstore.errors import ChunkstoreError, InvalidArgument, Unsupported
from chunkstore.pulsar.contexts import dashed, uuid_bytes
from chunkstore.pulsar.cursors import in_background
from chunkstore.pulsar.read_handle import ReadHandle
from chunkstore.runtime import Future

__all__ = [
    "LedgerOffloader",
    "NullLedgerOffloader",
    "managed_ledger_name",
    "uuid_text",
]

_THREAD: Final = "chunkstore-offload"
DRIVER_KEY: Final = "managedLedgerOffloadDriver"


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

        return in_background(run, _THREAD)

    def read_offloaded(
        self, ledger_id: int, uuid_or_context: object, driver_metadata: Mapping[str, str] | None = None
    ) -> Future[ReadHandle]:
        """The ledger, to be read, of PIP-17's UUID or PIP-76's ``OffloadContext``. Retry: safe."""
        if isinstance(uuid_or_context, OffloadContext) and uuid_or_context.driver and driver_metadata is None:
            driver_metadata = dict(uuid_or_context.driver.properties)
        self._check_driver(driver_metadata)
        name = uuid_text(uuid_or_context)
        return in_background(partial(self.do_read, ledger_id, name), _THREAD)

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
        return in_background(partial(self.do_delete, ledger_id, name), _THREAD)

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


def uuid_text(value: object) -> str:
    """A UUID as Pulsar writes it in keys: lower case, with dashes. Raises ``InvalidArgument``."""
    return dashed(uuid_bytes(value))


def managed_ledger_name(topic: str) -> str:
    """The name of a topic's managed ledger: ``tenant/namespace/persistent/NAME`` of ``persistent://tenant/namespace/NAME``."""
    domain, separator, rest = topic.partition("://")
    *place, name = rest.split("/", 2)
    return "/".join((*place, domain, quote_plus(name, safe="*"))) if separator else topic
