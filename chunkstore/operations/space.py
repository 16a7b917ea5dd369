"""Room: the quota, the disks' reserves, and safe mode, in which nothing is added until space has been given back.

Promises
* With a quota (the stored one, else ``Settings.quota_bytes``) an operation that adds bytes of chunks is refused (``StorageFull``)
  unless it fits; so committed chunks never take more than the quota and what threads have under way. With ``free_bytes_min`` and
  ``cache_free_bytes_min`` nothing is added while a disk has less than that left.
* What adds nothing (truncate, delete, seal, collect, closing) is never refused for these reasons, and has room for its records on a disk
  that somebody else filled: an object in the container, the reserve, is deleted for it when the disk has less left than it holds.
* Spilling, which gives space back only once the journal's records can go, leaves what those records need: half the reserve where somebody
  waits for it, all of it in the background.
* Safe mode ends by itself, a twentieth after where it began.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.config import KIB, MIB, Settings
from chunkstore.errors import CacheDamaged, ChunkstoreError, StorageFull
from chunkstore.metadata.port import MetadataStore
from chunkstore.metadata.reserved import find_quota
from chunkstore.observer import Observer
from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkStorage

__all__ = ["Reserve", "Room", "SpaceGuard"]

_RESERVE_BYTES_MAX: Final = 16 * MIB
_RESERVE_SHARE: Final = 4
_HYSTERESIS: Final = 20
_CACHE_SHARE: Final = 16
"""Of the cache's reserve, what even a truncation leaves: a commit whose cache fails after it has an unknown outcome."""


class Room(NamedTuple):
    """The last fields of a ``Usage``."""

    quota_bytes: int | None
    free_bytes: int | None
    safe_mode: bool | None


class Reserve:
    """An object that takes up space on a local disk until a record needs that. Its bytes mean nothing; anybody may delete it."""

    def __init__(self, storage: ChunkStorage, names: ContainerNames, settings: Settings) -> None:
        self._storage = storage
        self._name = names.reserve
        self.size_bytes: int = min(settings.free_bytes_min // _RESERVE_SHARE, _RESERVE_BYTES_MAX)
        self._kept = False

    def is_needed(self) -> bool:
        """Whether the disk has less left than the reserve holds."""
        free_bytes = self._storage.free_bytes() if self.size_bytes else None
        return free_bytes is not None and free_bytes < self.size_bytes

    def make_room(self) -> None:
        """Give it up if it is needed. Raises nothing: without room, what needed it says so."""
        with suppress(ChunkstoreError):
            if self.is_needed():
                self._kept = False
                self._storage.delete(self._name)

    def keep(self) -> None:
        """Make it, unless it is there. Raises nothing: a disk that is too full for it makes safe mode begin earlier."""
        with suppress(ChunkstoreError):
            if self._kept or not self.size_bytes or self._storage.free_bytes() is None:
                return
            if not self._storage.exists(self._name):
                # Not zeros: some file systems store those in no space at all.
                block = runtime.token(min(self.size_bytes, 64 * KIB))
                self._storage.put(self._name, (block * (self.size_bytes // len(block) + 1))[: self.size_bytes])
            self._kept = True


class SpaceGuard:
    """One per container. Thread-safe: figures may be a moment old, and are then corrected by the next look."""

    def __init__(self, storage: ChunkStorage, names: ContainerNames, settings: Settings, observer: Observer) -> None:
        self._storage = storage
        self._settings = settings
        self._observer = observer
        self._lock = runtime.lock()
        self.reserve: Reserve = Reserve(storage, names, settings)
        self._credit_bytes = 0
        """What may be added, and one byte, before the totals have to be read again: nothing grows but by what is admitted."""
        self._admitted_bytes = 0
        """All that was ever admitted."""
        self._low = {"storage": "", "cache": "", "quota": ""}
        self.reason: str = ""
        """Why nothing may be added, in words; empty outside safe mode."""
        self.shed: Callable[[], None] = lambda: None
        """Lets go of what a journal on a full disk holds, for a collection that follows."""
        self._quota_bytes: int | None = None
        """In force; 0: none; None: to be read."""
        self.watchful: bool = True
        """Whether what adds has to be admitted at all: in safe mode, and unless there is no quota."""

    @property
    def disk_low(self) -> bool:
        """Whether the storage's disk, not the quota, is what began safe mode."""
        return bool(self._low["storage"])

    def look(self, store: MetadataStore, adds: int) -> None:
        """Ask the disks. Raises ``StorageFull`` where the cache disk has no room for any commit, and what ``free_bytes`` raises."""
        if adds < 0:
            self.reserve.make_room()
        settings, least = self._settings, self._settings.tuning.cache_free_bytes_min
        free_bytes = self._storage.free_bytes() if settings.free_bytes_min else None
        self._judge("storage", free_bytes, settings.free_bytes_min, self.reserve.size_bytes)
        free_bytes = store.free_bytes()
        self._judge("cache", free_bytes, least, 0)
        if free_bytes is not None and free_bytes < least // _CACHE_SHARE:
            raise StorageFull(f"{self._low['cache']}; free some space or move cache_dir", object="cache")

    def admit(self, store: MetadataStore, adds: int) -> None:
        """Let in what adds so many bytes of chunks. Raises ``StorageFull``."""
        with self._lock:
            if adds < self._credit_bytes and not self.reason:
                self._credit_bytes -= adds
                self._admitted_bytes += adds
                return
            before_bytes = self._admitted_bytes
        try:
            quota_bytes, left_bytes = self.measure_quota(store)
        except CacheDamaged:
            quota_bytes = left_bytes = 0  # what is planned on this cache meets it, too, and comes again after a rebuild
        if quota_bytes:
            soft_bytes = quota_bytes // _HYSTERESIS
            if left_bytes < max(adds, 1):
                what = f"quota_bytes={quota_bytes} leaves room for {max(left_bytes, 0)} bytes"
                if left_bytes < soft_bytes:
                    with self._lock:
                        turned = self._note("quota", what)
                    if turned:
                        self._observer.safe_mode(self.reason)
                raise StorageFull(
                    f"{what}, and {adds} are asked for; truncate or delete, then collect, or raise the quota",
                    object="quota",
                )
            with self._lock:
                # What others were admitted since the totals were read is not in them.
                self._admitted_bytes += adds
                if quota_bytes == self._quota_bytes:
                    self._credit_bytes = max(0, left_bytes - soft_bytes - (self._admitted_bytes - before_bytes))
        self.refuse()

    def leave_room(self, size_bytes: int, *, background: bool) -> None:
        """Raise ``StorageFull`` where writing so many bytes leaves a local disk less than freeing space needs. ``background``: no caller
        waits for it, and the reserve stays. Raises what ``free_bytes`` raises, too."""
        # In the background, more than the reserve holds, by what records and block sizes add: below that the next record would give it up.
        least_bytes = self.reserve.size_bytes * 5 // 4 if background else self.reserve.size_bytes // 2
        if not background:
            self.reserve.make_room()
        free_bytes = self._storage.free_bytes() if least_bytes else None
        if free_bytes is not None and free_bytes < size_bytes + least_bytes:
            raise StorageFull(
                f"the storage disk has {free_bytes} bytes left, too few for {size_bytes} more; truncate or delete, then collect",
                object="",
            )

    def refuse(self) -> None:
        """Raise ``StorageFull`` in safe mode."""
        if self.reason:
            cache = self.reason == self._low["cache"]
            how = "free some space or move cache_dir" if cache else "truncate or delete, then collect"
            raise StorageFull(f"safe mode: {self.reason}; {how}", object="cache" if cache else "")

    def forget_quota(self) -> None:
        """The stored quota may have changed: the next operation that adds reads it."""
        with self._lock:
            self._quota_bytes, self._credit_bytes, self.watchful = None, 0, True

    def measure_quota(self, store: MetadataStore) -> tuple[int, int]:
        """The quota in force (0: none), and what it leaves, negative above it; safe mode ends here when that is enough.

        Raises ``Damaged`` (the stored quota), and what views raise."""
        with self._lock:  # around the view: an older one never replaces what a newer one showed
            with store.view() as view:
                totals, stored = view.totals, find_quota(view)
            quota_bytes = self._settings.quota_bytes if stored is None else stored
            if quota_bytes != self._quota_bytes:
                self._quota_bytes, self._credit_bytes = quota_bytes, 0
            left_bytes = quota_bytes - totals.live_bytes - totals.garbage_bytes - totals.dead_head_bytes
            is_enough = not quota_bytes or left_bytes >= max(1, quota_bytes // _HYSTERESIS)
            turned = self._note("quota", "" if is_enough else self._low["quota"])
        if turned:
            self._observer.safe_mode(self.reason)
        return quota_bytes, left_bytes

    def tend(self, store: MetadataStore) -> None:
        """Called now and then: what began or ended since, and the reserve made again where there is room. Raises as ``look``."""
        try:
            self.look(store, 0)
        finally:
            self.measure_quota(store)
            if not self.disk_low:
                self.reserve.keep()

    def room(self, store: MetadataStore) -> Room:
        """What is known now."""
        with suppress(ChunkstoreError):
            self.tend(store)
        return Room(self._quota_bytes or None, self._storage.free_bytes(), bool(self.reason))

    def _judge(self, disk: str, free_bytes: int | None, least: int, reserve_bytes: int) -> None:
        mark = least + least // _HYSTERESIS + reserve_bytes if self._low[disk] else least
        reason = ""
        if free_bytes is not None and free_bytes < mark:
            name = "free_bytes_min" if disk == "storage" else "cache_free_bytes_min"
            fewer = f"fewer than {name}={least}"
            if free_bytes >= least:
                fewer = f"fewer than the {mark} that end it ({name}={least})"
            reason = f"the {disk} disk has {free_bytes} bytes left, {fewer}"
        with self._lock:
            turned = self._note(disk, reason)
        if turned:
            self._observer.safe_mode(self.reason)

    def _note(self, what: str, reason: str) -> bool:
        """Take down why nothing may be added; whether safe mode began or ended by it. The lock is held."""
        self._low[what] = reason
        before, self.reason = self.reason, next(filter(None, self._low.values()), "")
        self.watchful = bool(self.reason) or self._quota_bytes != 0
        return bool(before) != bool(self.reason)
