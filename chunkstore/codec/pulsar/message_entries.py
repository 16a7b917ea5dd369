"""Entries of Pulsar, opened: transactions looked up, chunks put together, payloads decompressed; batches are still in one piece.

Promises: what consumers do not get (markers, aborted messages) is left out and counted; chunked messages are put together across entries
and ledgers, bounded in bytes and count; ``Damaged`` with ledger, entry and offset. Leaves out: single messages of a batch (``messages``
one by one, ``message_batches`` many at once), decryption, and removal of repeated messages, which consumers get, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeVar

from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.compression import COMPRESSIONS, DECOMPRESSED_BYTES_MAX, decompress
from chunkstore.codec.pulsar.message_metadata import Head, TxnId, broken_entry, parse_head, txn_of
from chunkstore.errors import Damaged, InvalidArgument

__all__ = [
    "CHUNKED_BYTES_MAX",
    "CHUNKED_MESSAGES_MAX",
    "UNFINISHED_NAMED_MAX",
    "Common",
    "EntryOpener",
    "MessageSummary",
    "Opened",
    "OpenedItems",
    "RawEntry",
    "Transactions",
    "TxnState",
    "Unfinished",
    "opener_of",
    "scan_transactions",
]

CHUNKED_BYTES_MAX = 2 * DECOMPRESSED_BYTES_MAX
"""Bytes of chunks that wait for the rest of their messages; beyond that the oldest message is given up, as consumers do."""
CHUNKED_MESSAGES_MAX = 1_000
"""Messages that wait for the rest of their chunks; beyond that the oldest one is given up."""
UNFINISHED_NAMED_MAX = 1_000
"""Messages without all of their chunks that a summary names; all of them are counted."""
_PIECE_COST_BYTES: Final = 128

T = TypeVar("T")
RawEntry = tuple[int, int, BytesLike]
"""Ledger, entry, and the entry's bytes; ``pip76.Entry`` is one."""
TxnState = Literal["committed", "aborted", "open"]
_COMMIT, _ABORT = 21, 22


@dataclass(frozen=True, slots=True)
class Transactions:
    """How transactions ended: ``states`` has each one that was met, by its most and least significant 64 bits.

    "open" is one whose marker was not in the input. ``|`` joins what two inputs told; an end that one of them knows counts.
    """

    states: Mapping[TxnId, TxnState] = field(default_factory=dict)

    def state(self, txn: TxnId) -> TxnState:
        """How this transaction ended; "open" where nothing is known of it."""
        return self.states.get(txn, "open")

    def those(self, state: TxnState) -> frozenset[TxnId]:
        """All transactions with this state."""
        return frozenset(txn for txn, found in self.states.items() if found == state)

    def __or__(self, other: Transactions) -> Transactions:
        states = dict(self.states)
        for txn, state in other.states.items():
            if state != "open" or txn not in states:
                states[txn] = state
        return Transactions(states)


def scan_transactions(entries: Iterable[RawEntry]) -> Transactions:
    """Which transactions ``entries`` belong to, and how they ended. Only metadata is looked at: nothing is decompressed.

    Memory: one row for each transaction. An entry that is damaged tells nothing here; reading messages raises about it.
    """
    states: dict[TxnId, TxnState] = {}
    for ledger, entry, payload in entries:
        data = payload if type(payload) is bytes else bytes(payload)
        try:
            head = parse_head(ledger, entry, data, checked=False)
            txn = txn_of(head.metadata)
            if txn is None:
                continue
            marker = head.metadata.marker_type
            if marker in (_COMMIT, _ABORT):
                parse_head(ledger, entry, data)  # so that no flipped bit ends a transaction
                states[txn] = "committed" if marker == _COMMIT else "aborted"
            else:
                states.setdefault(txn, "open")
        except Damaged:
            continue
    return Transactions(states)


class Unfinished(NamedTuple):
    """A chunked message that never was whole. ``ledger``, ``entry``: the first chunk that was met; ``found`` of ``chunks`` were there."""

    uuid: str
    ledger: int
    entry: int
    found: int
    chunks: int


@dataclass(slots=True)
class MessageSummary:
    """What an iterator left out, and met, so far; complete once it has ended.

    ``messages_aborted``, ``messages_open``: messages of transactions that were aborted, and whose marker was not there. ``markers``:
    entries that are no data. ``damaged``: rows that hold a damaged entry (``messages="lenient"``). ``unfinished``: the first thousand
    chunked messages that were not whole, of ``unfinished_count``.
    """

    messages_aborted: int = 0
    messages_open: int = 0
    markers: int = 0
    damaged: int = 0
    unfinished_count: int = 0
    unfinished: list[Unfinished] = field(default_factory=list)


class Common(NamedTuple):
    """What all messages of an entry share, under the names of their columns."""

    ledger: int
    entry: int
    producer: str | None = None
    publish_time: int | None = None
    schema_version_hex: str | None = None
    compression: str | None = None
    entry_uncompressed_size: int | None = None
    txn: TxnId | None = None
    txn_state: TxnState | None = None
    encryption_keys: int | None = None
    deliver_at: int | None = None
    broker_time: int | None = None


class Opened(NamedTuple):
    """An entry, or the last one of a chunked message. ``stored``: the entry as it was; ``data``: the payload, ``None`` for a null value.

    ``kind``: a "batch" is ``batch_size`` messages still in one piece, "raw" stays as it was stored, "damaged" has no ``head``.
    """

    kind: Literal["single", "batch", "raw", "damaged"]
    common: Common
    stored: bytes
    data: bytes | None
    head: Head | None = None
    batch_size: int = 0
    first_chunk: tuple[int, int] | None = None


@dataclass(slots=True)
class _Pending:
    """A chunked message whose last chunk has not come. ``pieces`` is ``None`` where its beginning is not in the input."""

    first: tuple[int, int]
    chunks: int
    total_bytes: int
    pieces: list[bytes] | None
    sizes: list[int]
    found: int = 0
    cost_bytes: int = 0


class OpenedItems(Iterator[T]):
    """What comes of some entries. ``summary``: what was left out so far; ``transactions``: how transactions ended, as it was known."""

    def __init__(self, items: Iterator[T], opener: EntryOpener) -> None:
        self.summary: MessageSummary = opener.summary
        self.transactions: Transactions = opener.transactions
        self._items = items

    def __next__(self) -> T:
        return next(self._items)


def opener_of(entries: Iterable[RawEntry], transactions: str, known: Transactions | None, messages: str) -> EntryOpener:
    """The opener for what a caller of an iterator asked for. Raises ``InvalidArgument``."""
    if transactions not in ("committed", "all"):
        raise InvalidArgument(f"'committed' or 'all', not {transactions!r}", argument="transactions")
    if messages not in ("strict", "lenient"):
        raise InvalidArgument(f"'strict' or 'lenient', not {messages!r}", argument="messages")
    if known is None:
        if iter(entries) is entries:
            text = "entries that can be read once only need known=scan_transactions(...) of the same entries"
            raise InvalidArgument(text, argument="known")
        known = scan_transactions(entries)
    return EntryOpener(known, everything=transactions == "all", lenient=messages == "lenient")


class EntryOpener:
    """Opens the entries of a topic in their order. ``summary`` says what was left out; ``finish`` when no entry is left."""

    def __init__(self, known: Transactions, *, everything: bool, lenient: bool) -> None:
        self.summary: MessageSummary = MessageSummary()
        self.lenient = lenient
        self.transactions = known
        self._everything = everything
        self._pending: dict[bytes, _Pending] = {}
        self._pending_bytes = 0

    def open(self, ledger: int, entry: int, payload: BytesLike) -> Opened | None:
        """What the entry holds; ``None``: no message, none that is wanted, or not yet all of it.

        Raises ``Damaged``, unless it is lenient: then the entry comes as "damaged".
        """
        data = payload if type(payload) is bytes else bytes(payload)
        try:
            head = parse_head(ledger, entry, data)
            try:
                return self._opened(ledger, entry, data, head)
            except ValueError as error:
                raise broken_entry(ledger, entry, head.begin, str(error)) from error
        except Damaged:
            if not self.lenient:
                raise
            return self.damaged(ledger, entry, data)

    def damaged(self, ledger: int, entry: int, stored: bytes) -> Opened:
        """An entry that cannot be read, as it is."""
        self.summary.damaged += 1
        return Opened("damaged", Common(ledger, entry), stored, stored)

    @property
    def waiting(self) -> frozenset[bytes]:
        """The uuids of chunked messages that have begun and are not whole yet."""
        return frozenset(uuid for uuid, pending in self._pending.items() if pending.pieces is not None)

    def finish(self) -> None:
        """No entry is left: chunked messages that wait are unfinished."""
        for uuid in list(self._pending):
            self._give_up(uuid)

    def _opened(self, ledger: int, entry: int, data: bytes, head: Head) -> Opened | None:
        metadata = head.metadata
        if metadata.HasField("marker_type"):
            self.summary.markers += 1
            return None
        batched = metadata.HasField("num_messages_in_batch")
        count = metadata.num_messages_in_batch if batched else 0
        if batched and count < 1:
            raise ValueError(f"a batch of {count} messages")
        txn = txn_of(metadata)
        state = self.transactions.state(txn) if txn is not None else None
        chunked = metadata.num_chunks_from_msg > 1
        if state is not None and state != "committed" and not self._everything:
            # Of a chunked message the last chunk counts.
            messages = max(1, count) if not chunked or metadata.chunk_id == metadata.num_chunks_from_msg - 1 else 0
            if state == "aborted":
                self.summary.messages_aborted += messages
            else:
                self.summary.messages_open += messages
            return None
        common = _common(ledger, entry, head, txn, state)
        if metadata.null_value and not batched:
            return Opened("single", common, data, None, head)
        if metadata.encryption_keys:
            # Every chunk is encrypted by itself, so chunks of encrypted messages are not joined.
            return Opened("raw", common, data, data[head.begin :], head, count)
        if chunked:
            if batched:
                raise ValueError("a chunk that is a batch")
            return self._chunk(common, head, data)
        payload = data[head.begin :]
        if not 0 <= metadata.compression < len(COMPRESSIONS):
            return Opened("raw", common, data, payload, head, count)
        payload = decompress(metadata.compression, payload, metadata.uncompressed_size)
        return Opened("batch" if batched else "single", common, data, payload, head, count)

    def _chunk(self, common: Common, head: Head, data: bytes) -> Opened | None:
        """Takes in a chunk: the message where it is the last one. Raises ``ValueError``."""
        metadata = head.metadata
        uuid, number, chunks = metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg
        total = metadata.total_chunk_msg_size
        if not (uuid and metadata.HasField("chunk_id") and 0 <= number < chunks):
            raise ValueError(f"chunk {number} of {chunks} with the uuid {uuid!r}")
        if not 0 <= total <= DECOMPRESSED_BYTES_MAX:
            raise ValueError(f"a chunked message of {total} bytes; at most {DECOMPRESSED_BYTES_MAX} are read")
        pending = self._pending.get(uuid)
        if pending is None or not number:
            if pending is not None:
                self._give_up(uuid)  # the producer began again, which it does after it reconnected
            # A message whose beginning is not there never becomes whole: its chunks are counted and not kept.
            pending = _Pending((common.ledger, common.entry), chunks, total, None if number else [], [])
            self._pending[uuid] = pending
            self._pending_bytes += _PIECE_COST_BYTES
        elif pending.pieces is not None:
            if (pending.chunks, pending.total_bytes) != (chunks, total):
                self._give_up(uuid)
                raise ValueError(f"chunk {number} says {chunks} chunks and {total} bytes, the first one did not")
            if number < len(pending.pieces):
                return None  # sent twice; consumers skip it as well
            if number > len(pending.pieces):
                found = len(pending.pieces)
                self._give_up(uuid)
                raise ValueError(f"chunk {number} of {chunks} is stored where chunk {found} is expected")
        pending.found += 1
        if pending.pieces is not None:
            pending.pieces.append(data[head.begin :])
            pending.sizes.append(metadata.uncompressed_size)
            cost_bytes = len(data) - head.begin + _PIECE_COST_BYTES
            pending.cost_bytes += cost_bytes
            self._pending_bytes += cost_bytes
        if number < chunks - 1:
            while self._pending_bytes > CHUNKED_BYTES_MAX or len(self._pending) > CHUNKED_MESSAGES_MAX:
                self._give_up(next(iter(self._pending)))
            return None
        if pending.pieces is None:
            self._give_up(uuid)
            return None
        self._forget(uuid)
        joined = b"".join(pending.pieces)
        if not 0 <= metadata.compression < len(COMPRESSIONS):
            return Opened("raw", common, data, joined, head, 0, pending.first)
        return Opened("single", common, data, _whole(pending, joined, metadata), head, 0, pending.first)

    def _forget(self, uuid: bytes) -> _Pending:
        pending = self._pending.pop(uuid)
        self._pending_bytes -= pending.cost_bytes + _PIECE_COST_BYTES
        return pending

    def _give_up(self, uuid: bytes) -> None:
        pending = self._forget(uuid)
        self.summary.unfinished_count += 1
        if len(self.summary.unfinished) < UNFINISHED_NAMED_MAX:
            name = uuid[:200].decode("utf-8", "replace")
            self.summary.unfinished.append(Unfinished(name, *pending.first, pending.found, pending.chunks))


def _whole(pending: _Pending, joined: bytes, metadata: Any) -> bytes:
    """The value of a chunked message."""
    assert pending.pieces is not None
    codec, total = metadata.compression, pending.total_bytes
    if len(joined) == total:
        return decompress(codec, joined, metadata.uncompressed_size)
    if sum(pending.sizes) == total:
        # Old producers compressed each chunk by itself, and the total is that of the value.
        return b"".join(
            decompress(codec, piece, size) for piece, size in zip(pending.pieces, pending.sizes, strict=True)
        )
    raise ValueError(f"chunks of {len(joined)} bytes together, the metadata says {total}")


def _common(ledger: int, entry: int, head: Head, txn: TxnId | None, state: TxnState | None) -> Common:
    metadata = head.metadata
    codec = metadata.compression
    return Common(
        ledger,
        entry,
        metadata.producer_name.decode(),
        metadata.publish_time,
        metadata.schema_version.hex() if metadata.HasField("schema_version") else None,
        COMPRESSIONS[codec] if 0 <= codec < len(COMPRESSIONS) else str(codec),
        metadata.uncompressed_size,
        txn,
        state,
        len(metadata.encryption_keys),
        metadata.deliver_at_time if metadata.HasField("deliver_at_time") else None,
        head.broker_time,
    )
