"""Claiming an epoch and deciding all streams below it (protocol 3.4 T0 to T2, P1, P2, A1, A10).

Promises: a claim is a put-if-absent of the next name of a dense sequence that is never deleted, so an epoch has one
owner token for ever. When ``decide_below`` returns P, stream P is OPEN and every stream between P and us is void, so
that no later OPEN can insert itself. LIST is never asked.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from chunkstore import runtime
from chunkstore.errors import ChunkNotFound, ChunkstoreError, Damaged, NotOwner, StorageUnavailable
from chunkstore.journal import RecordKind, TailCut
from chunkstore.metadata.port import Position
from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkStorage
from chunkstore_journal.history import ZERO_HASH, Opened, Streams, probe_dense
from chunkstore_journal.objects import (
    Claim,
    LatestHint,
    VoidedHint,
    decode_latest,
    decode_voided,
    encode_claim,
    encode_voided,
)
from chunkstore_journal.payloads import SealPayload, encode_seal
from chunkstore_journal.record import Record, RecordHeader, encode_record
from chunkstore_journal.slots import put_decided, race_backoff, read_hint

__all__ = [
    "ClaimAttempt",
    "ClosedStream",
    "claim_next",
    "claim_own_next",
    "decide_below",
    "encode_seal_record",
    "find_top",
    "moved",
    "new_attempt",
    "next_below",
    "read_latest",
    "read_voided",
]


@dataclass(frozen=True, slots=True)
class ClosedStream:
    """How the previous stream ends for us: the cut, and the one record after it that our OPEN embeds (A15)."""

    end: Position
    embedded: Record | None = None
    embedded_data: bytes = b""
    tail_cut: TailCut | None = None


@dataclass(slots=True)
class ClaimAttempt:
    """One claim from its first put on. Every byte string it offers for a name stays the same when it is offered again."""

    claim: Claim
    data: bytes
    identity: bytes = b""
    """What our claim's object was distinguished by when we had made it; empty where its name can mean no other."""
    previous_epoch: int | None = None
    closed: ClosedStream | None = None
    open_data: bytes = b""
    """The OPEN record, once built: its fate may be unknown, so no other may be offered."""
    log_is_durable: bool = False
    """APPEND: our stream's file was created and synced. Only then may OPEN be offered."""

    @property
    def epoch(self) -> int:
        """The epoch that is claimed."""
        return self.claim.epoch


def new_attempt(epoch: int) -> ClaimAttempt:
    """A fresh claim with a token of its own."""
    who = runtime.identity()
    claim = Claim(epoch, runtime.token(16), who.host[:255], who.pid, who.boot_id[:255], runtime.now_ms())
    return ClaimAttempt(claim, encode_claim(claim))


def moved(storage: ChunkStorage, names: ContainerNames, epoch: int) -> StorageUnavailable:
    """What is said when our own claim is not where we made it."""
    return StorageUnavailable(
        f"our claim of epoch {epoch} is no longer visible under {storage.url}: the root or the folder of container "
        f"{names.container!r} was moved, unmounted or replaced. Check what is stored there now, and open it again",
        object=names.epoch(epoch),
    )


def _identify(storage: ChunkStorage, names: ContainerNames, attempt: ClaimAttempt) -> None:
    """Remember our claim as the object that it is. Raises ``StorageUnavailable``.

    Should another tree be there already, with a claim of this epoch: it has an OPEN, too, and ours will be refused.
    """
    try:
        attempt.identity = storage.identity(names.epoch(attempt.epoch))
    except ChunkNotFound as missing:
        raise moved(storage, names, attempt.epoch) from missing


def read_latest(storage: ChunkStorage, names: ContainerNames) -> LatestHint | None:
    """The LATEST hint."""
    return read_hint(storage, names.latest, decode_latest)


def read_voided(storage: ChunkStorage, names: ContainerNames) -> VoidedHint | None:
    """The VOIDED hint."""
    return read_hint(storage, names.voided, decode_voided)


def find_top(storage: ChunkStorage, names: ContainerNames, hint: int) -> int:
    """T0: the highest claimed epoch, 0 when there is none. ``hint`` only saves requests; a wrong one costs two."""
    if hint and not storage.exists(names.epoch(hint)):
        hint = 0
    return probe_dense(lambda epoch: storage.exists(names.epoch(epoch)), hint)


def claim_next(storage: ChunkStorage, names: ContainerNames, top: int, *, deadline_s: float) -> ClaimAttempt:
    """T1 for an opener: claim ``top + 1``, climbing past faster claimants.

    Raises: ``StorageFull``, ``StorageUnavailable``, ``Undecided`` (the claim may still land; then it stays unused and is voided).
    """
    backoff = race_backoff(deadline_s)
    epoch = top + 1
    while True:
        if epoch > 1:
            # P6: the maker of the claim below may have died before it was durable; the sequence must survive without holes.
            storage.harden(names.epoch(epoch - 1))
        attempt = new_attempt(epoch)
        if put_decided(storage, names.epoch(epoch), attempt.data, deadline_s=deadline_s) == attempt.data:
            _identify(storage, names, attempt)
            return attempt
        # Another process claims at the same time: duels cost only time, and the pause ends them.
        if not backoff.pause():
            raise StorageUnavailable(f"lost every race for epochs up to {epoch}", object=names.epoch(epoch))
        epoch = probe_dense(lambda n: storage.exists(names.epoch(n)), epoch) + 1


def claim_own_next(storage: ChunkStorage, names: ContainerNames, attempt: ClaimAttempt, *, deadline_s: float) -> None:
    """T1 for a self-take-over: this epoch or none (A1). A foreign claim is never climbed over.

    Raises: ``NotOwner``, ``StorageFull``, ``StorageUnavailable``, ``Undecided`` (ask again with the same attempt).
    """
    if put_decided(storage, names.epoch(attempt.epoch), attempt.data, deadline_s=deadline_s) != attempt.data:
        raise NotOwner(epoch=attempt.epoch - 1, owner=attempt.epoch)
    _identify(storage, names, attempt)


def encode_seal_record(streams: Streams, attempt: ClaimAttempt, epoch: int, index: int) -> bytes:
    """The SEAL of this attempt for a slot; the same bytes every time (invariant 27). A SEAL has no lsn."""
    claim = attempt.claim
    payload = encode_seal(SealPayload(claim.epoch, claim.token, claim.host, claim.pid))
    header = RecordHeader(
        RecordKind.SEAL, 0, streams.container, epoch, index, 0, 0, ZERO_HASH, 0, claim.token, claim.time_ms
    )
    return encode_record(header, payload)[0]


def decide_below(
    streams: Streams,
    attempt: ClaimAttempt,
    *,
    hint: VoidedHint | None,
    deadline_s: float,
    check_opened: Callable[[int], None],
) -> int:
    """T2: the newest opened epoch below ours (0: none). Voids what is undecided; leaves the hint for the next claimant.

    ``check_opened`` is asked before an epoch is voided; it raises if it was seen open. Raises ``Damaged``, ``StorageFull``, ``Undecided``.
    """
    storage, names = streams.storage, streams.names
    epoch = attempt.epoch - 1
    while epoch > 0:
        found = streams.slot0(epoch)
        if found is None:
            check_opened(epoch)
            _require_never_opened(streams, epoch)
            data = encode_seal_record(streams, attempt, epoch, 0)
            found = streams.decode_slot0(epoch, put_decided(storage, names.slot(epoch, 0), data, deadline_s=deadline_s))
        else:
            # P6: we are about to rely on an OPEN or a void that another process wrote, so it must survive a power cut.
            storage.harden(names.slot(epoch, 0))
        if isinstance(found, Opened):
            break
        epoch = next_below(streams, epoch, hint)
    if epoch < attempt.epoch - 1:
        with suppress(ChunkstoreError):  # a hint: without it the next claimant walks
            storage.put(names.voided, encode_voided(VoidedHint(epoch, attempt.epoch)))
    return epoch


def _require_never_opened(streams: Streams, epoch: int) -> None:
    """Raise ``Damaged`` when a stream without slot 0 has records: it was opened, and voiding it would drop them for ever."""
    storage, names = streams.storage, streams.names
    if streams.mode == "slot":
        used = storage.exists(names.slot(epoch, 1))
    else:
        try:
            used = storage.stat(names.log(epoch)).length > 0
        except ChunkNotFound:
            used = False
    # Its owner may be at work this very moment: then slot 0 is there by now.
    if used and streams.slot0(epoch) is None:
        raise Damaged(
            "this stream has records, but its OPEN is missing: the storage lost names",
            object=names.slot(epoch, 0),
        )


def next_below(streams: Streams, epoch: int, hint: VoidedHint | None) -> int:
    """The next epoch to look at below the void ``epoch``. The hint's facts are permanent: any copy is true for ever."""
    if hint is None or not hint.previous_epoch < epoch <= hint.epoch:
        return epoch - 1
    if hint.previous_epoch and not isinstance(streams.slot0(hint.previous_epoch), Opened):
        return epoch - 1
    return hint.previous_epoch
