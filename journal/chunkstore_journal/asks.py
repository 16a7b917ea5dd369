"""Requests to the owner, their answers and the bell: stored bytes, and where they lie (protocol 3.19; FORMAT.md, section 4).

Promises: a request or answer is one frame, at most ``REQUEST_BYTES_MAX`` long; decoding accepts nothing else, whatever the bytes are,
and checks a request's arguments as making one does. Leaves out: what requests mean (``chunkstore.asks``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import nsmallest
from struct import Struct
from typing import Final, TypeVar

from chunkstore import runtime
from chunkstore.asks import (
    Answer,
    Ask,
    AskAppend,
    AskBox,
    AskCollect,
    AskCommit,
    AskDefrag,
    AskPin,
    AskSession,
    AskSnapshot,
    AskStage,
    AskUnpin,
    Plain,
    Request,
    check_ask,
)
from chunkstore.changes import Attach, Change, Concat, Create, EndSession, Replace, Seal, TablePut
from chunkstore.config import MIB, RollingPolicy
from chunkstore.errors import ChunkNotFound, ChunkstoreError, Damaged, InvalidArgument, Unsupported
from chunkstore.names import ContainerNames
from chunkstore.records import AttributeValue
from chunkstore.sessions import SessionChunk
from chunkstore.storage import ChunkHandle, ChunkStorage, iter_listing
from chunkstore_journal.slots import read_if_present
from chunkstore_journal.wire import (
    FRAME_HEADER_BYTES,
    TOKEN_BYTES,
    Fields,
    check_frame,
    decode_frame_header,
    encode_frame,
    must_be_readable,
    pack,
    refuse,
    unpack,
)

__all__ = [
    "ASK_VERSION",
    "REQUEST_BYTES_MAX",
    "StoredAsks",
    "decode_answer",
    "decode_request",
    "encode_answer",
    "encode_request",
]

V = TypeVar("V")

MAGIC: Final = b"CKSA"
ASK_VERSION: Final = 1
REQUEST_BYTES_MAX: Final = 15 * MIB
_REQUEST, _ANSWER = 1, 2
_MESSAGE_MAX: Final = 4096
_TEXT_MAX: Final = 1 << 16
_PLAIN_DEPTH_MAX: Final = 4
_KEPT_MS: Final = 24 * 3_600_000
"""An answer that keeps others from carrying its request out: a duplicate that comes later is refused as late."""


def encode_request(request: Request, container: bytes) -> bytes:
    """A request's bytes; ``container``: the uuid of that whose owner is asked.

    Raises ``InvalidArgument`` for what ``decode_request`` would refuse, and for one that is too long."""
    check_ask(request.ask)
    raw = encode_frame(
        MAGIC, ASK_VERSION, _REQUEST, pack((container, request.made_ms, request.wait_ms, *_wire_of(request.ask)))
    )
    if len(raw) > REQUEST_BYTES_MAX:
        text = f"a request of {len(raw)} bytes is longer than {REQUEST_BYTES_MAX}; ask for fewer changes at once"
        raise InvalidArgument(text, argument="changes")
    with must_be_readable("request"):
        decode_request(raw, container, object="request")
    return raw


def decode_request(data: bytes, container: bytes, *, object: str) -> Request:
    """A request to the owner of ``container``.

    Raises ``Damaged``, also for another container's, and ``Unsupported`` for one of a version or kind that this program does not know."""
    fields = _body(data, _REQUEST, object)
    if fields.raw(16) != container:
        refuse("a request to the owner of another container; it was copied here", object, FRAME_HEADER_BYTES)
    made_ms, wait_ms, kind = fields.whole(), fields.whole(), fields.whole()
    if kind not in _READERS:
        raise Unsupported(f"{object}: a request of kind {kind} needs a newer program", feature="ask")
    try:
        ask = _READERS[kind](fields, object)
        check_ask(ask)
    except InvalidArgument as error:
        raise Damaged(f"the request is none: {error.message}", object=object) from error
    return Request(ask, made_ms, wait_ms)


def encode_answer(answer: Answer) -> bytes:
    """An answer's bytes. A text that is too long is cut. Raises ``InvalidArgument`` for a result that is not plain data."""
    error = answer.error
    told = None
    if error is not None:
        fields = {name: _told(value) for name, value in error.to_fields().items()}
        told = (type(error).__name__, error.message[:_MESSAGE_MAX], tuple(fields.items()))
    raw = encode_frame(MAGIC, ASK_VERSION, _ANSWER, pack((answer.epoch, told, answer.result)))
    with must_be_readable("answer"):
        decode_answer(raw, object="answer")
    return raw


def decode_answer(data: bytes, *, object: str) -> Answer:
    """An answer. Raises ``Damaged``, ``Unsupported`` (of a newer version)."""
    fields = _body(data, _ANSWER, object)
    epoch, told, result = fields.whole(), fields.take(), fields.array()
    if told is None:
        return Answer(epoch, None, tuple(_plain(item, object) for item in result))
    parts = Fields(told, "the answer's error", object, FRAME_HEADER_BYTES)
    name, message = parts.text(_TEXT_MAX), parts.text(_MESSAGE_MAX)
    given: dict[str, Plain] = {}
    for item in parts.array():
        pair = Fields(item, "a field of the answer's error", object, FRAME_HEADER_BYTES)
        field, value = pair.text(_TEXT_MAX), _plain(pair.take(), object)
        given[field] = value
    return Answer(epoch, ChunkstoreError.told(name, message, given), ())


def _body(data: bytes, kind: int, object: str) -> Fields:
    header = decode_frame_header(data, MAGIC, REQUEST_BYTES_MAX - FRAME_HEADER_BYTES, object=object, position=0)
    body = data[FRAME_HEADER_BYTES:]
    check_frame(data, body, version=header.version, object=object, position=0)
    if header.version != ASK_VERSION:
        text = f"{object} is of version {header.version}; this program reads {ASK_VERSION}: upgrade it"
        raise Unsupported(text, feature="ask")
    if header.kind != kind:
        refuse(f"kind {header.kind} is stored where {kind} belongs", object, 0)
    return Fields(unpack(body, object, FRAME_HEADER_BYTES), "the request", object, FRAME_HEADER_BYTES)


def _told(value: object) -> Plain:
    return value if value is None or isinstance(value, (bool, int, str, bytes)) else repr(value)[:_MESSAGE_MAX]


def _plain(value: object, object: str, depth: int = 0) -> Plain:
    if value is None or isinstance(value, (bool, int, str, bytes)):
        return value
    if isinstance(value, tuple) and depth < _PLAIN_DEPTH_MAX:
        return tuple(_plain(item, object, depth + 1) for item in value)
    return refuse("the answer is not plain data", object, FRAME_HEADER_BYTES)


# What a request asks for: its number, then its arguments


def _wire_of(ask: Ask) -> tuple[object, ...]:
    match ask:
        case AskSession(holder, ttl_ms):
            return (1, holder, ttl_ms)
        case AskCommit(changes, once):
            return (2, tuple(map(_wire_of_change, changes)), _wire_of_change(once))
        case AskPin(name, note, lasts_ms, holder):
            return (3, name, note, lasts_ms, holder)
        case AskUnpin(name):
            return (4, name)
        case AskCollect():
            return (5,)
        case AskDefrag(segment):
            return (6, segment)
        case AskSnapshot():
            return (7,)
        case AskStage(session_id, runs):
            return (8, session_id, tuple(tuple(map(_wire_of_chunk, run)) for run in runs))
        case AskAppend():
            return (9, *ask)


def _read_commit(fields: Fields, object: str) -> AskCommit:
    changes = tuple(_change_of(item, object) for item in fields.array())
    once = _change_of(fields.take(), object)
    if not isinstance(once, TablePut):
        refuse("its once-only condition is not a table row", object, FRAME_HEADER_BYTES)
    return AskCommit(changes, once)


def _read_stage(fields: Fields, object: str) -> AskStage:
    session_id, runs = fields.whole(), list[tuple[SessionChunk, ...]]()
    for run in fields.array():
        if not isinstance(run, tuple):
            fields.wrong("an array of arrays of chunks")
        runs.append(tuple(_chunk_of(chunk, object) for chunk in run))
    return AskStage(session_id, tuple(runs))


def _read_append(fields: Fields, object: str) -> AskAppend:
    name, segment_id, data = fields.text(_TEXT_MAX), fields.whole(), fields.raw()
    return AskAppend(name, segment_id, data, fields.raw(), fields.whole(), _or_none(fields.take(), int, object))


def _read_defrag(fields: Fields, object: str) -> AskDefrag:
    return AskDefrag(_or_none(fields.take(), str, object))


_READERS: Final[Mapping[int, Callable[[Fields, str], Ask]]] = {
    1: lambda fields, _: AskSession(fields.text(_TEXT_MAX), fields.whole()),
    2: _read_commit,
    3: lambda fields, _: AskPin(fields.text(_TEXT_MAX), fields.text(_TEXT_MAX), fields.whole(), fields.text(_TEXT_MAX)),
    4: lambda fields, _: AskUnpin(fields.text(_TEXT_MAX)),
    5: lambda *_: AskCollect(),
    6: _read_defrag,
    7: lambda *_: AskSnapshot(),
    8: _read_stage,
    9: _read_append,
}


def _or_none(value: object, kind: type[V], object: str) -> V | None:
    if value is not None and type(value) is not kind:
        refuse(f"{value!r:.80} is neither nil nor of type {kind.__name__}", object, FRAME_HEADER_BYTES)
    return value


# Changes: their number, then their arguments


def _wire_of_change(change: Change) -> tuple[object, ...]:
    match change:
        case Create(name, rolling, attributes, 0):
            return (1, name, rolling and rolling.chunk_size_bytes_max, tuple(sorted(attributes.items())))
        case Create():
            raise InvalidArgument("a segment that begins above 0 cannot be asked for", argument="changes")
        case Attach(name, session_id, chunks, expected_offset):
            return (2, name, session_id, tuple(map(_wire_of_chunk, chunks)), expected_offset)
        case Replace(name, start, stop, old, new, session_id):
            return (3, name, start, stop, old, tuple(_wire_of_chunk(item) for item in new), session_id)  # type: ignore[arg-type]
        case Seal(name):
            return (4, name)
        case Concat(target, source, offset):
            return (5, target, source, offset)
        case EndSession(session_id):
            return (6, session_id)
        case TablePut(namespace, key, value, expected_version):
            return (7, namespace, key, value, expected_version)
        case _:
            raise InvalidArgument(f"{type(change).__name__} cannot be asked for", argument="changes")


def _wire_of_chunk(chunk: SessionChunk) -> tuple[object, ...]:
    crcs = chunk.border_crcs
    return (chunk.id, chunk.length, chunk.crc32c, Struct(f">{len(crcs)}I").pack(*crcs))


def _chunk_of(item: object, object: str) -> SessionChunk:
    fields = Fields(item, "a chunk", object, FRAME_HEADER_BYTES)
    identity, length, crc, packed = fields.raw(), fields.whole(), fields.whole(), fields.raw()
    if len(packed) % 4:
        fields.wrong("a row of CRCs")
    return SessionChunk(identity, length, crc, Struct(f">{len(packed) // 4}I").unpack(packed))


def _change_of(item: object, object: str) -> Change:
    fields = Fields(item, "a change", object, FRAME_HEADER_BYTES)
    kind = fields.whole()
    if kind == 7:
        namespace, key, value = fields.text(_TEXT_MAX), fields.raw(), fields.raw()
        return TablePut(namespace, key, value, _or_none(fields.take(), int, object))
    if kind == 6:
        return EndSession(fields.whole())
    if not 1 <= kind <= 5:
        raise Unsupported(f"{object}: a change of kind {kind} needs a newer program", feature="ask")
    name = fields.text(_TEXT_MAX)
    if kind == 1:
        size = _or_none(fields.take(), int, object)
        return Create(
            name, None if size is None else RollingPolicy(chunk_size_bytes_max=size), _attributes(fields, object)
        )
    if kind == 2:
        session_id, chunks = fields.whole(), tuple(_chunk_of(chunk, object) for chunk in fields.array())
        return Attach(name, session_id, chunks, _or_none(fields.take(), int, object))
    if kind == 3:
        start, stop, old = fields.whole(), fields.whole(), fields.array()
        if not all(type(identity) is bytes for identity in old):
            fields.wrong("an array of chunks' ids")
        new = tuple(_chunk_of(chunk, object) for chunk in fields.array())
        return Replace(name, start, stop, old, new, fields.whole())  # type: ignore[arg-type]
    if kind == 4:
        return Seal(name)
    return Concat(name, fields.text(_TEXT_MAX), _or_none(fields.take(), int, object))


def _attributes(fields: Fields, object: str) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {}
    for item in fields.array():
        pair = Fields(item, "an attribute", object, FRAME_HEADER_BYTES)
        name, value = pair.text(_TEXT_MAX), pair.take()
        if not isinstance(value, (int, bytes, str)) or isinstance(value, bool):
            pair.wrong("an attribute's value")
        found[name] = value
    return found


class StoredAsks(AskBox):
    """The box of one container, of this uuid, on its storage."""

    def __init__(self, storage: ChunkStorage, names: ContainerNames, container: bytes) -> None:
        self._storage = storage
        self._names = names
        self._container = container

    def send(self, token: str, request: Request) -> None:
        if not self._storage.create_if_absent(self._names.request(token), encode_request(request, self._container)):
            raise InvalidArgument(f"request {token} exists already", argument="token")

    def ring(self) -> None:
        self._storage.put(self._names.bell, runtime.token(TOKEN_BYTES))

    def answer(self, token: str) -> Answer | None:
        name = self._names.answer(token)
        data = read_if_present(self._storage, name, size_max=REQUEST_BYTES_MAX)
        return None if data is None else decode_answer(data, object=name)

    def withdraw(self, token: str, *, keep_answer: bool) -> None:
        self._delete(self._names.request(token))
        if not keep_answer:
            self._delete(self._names.answer(token))

    def is_succeeded(self, epoch: int) -> bool:
        return self._storage.exists(self._names.epoch(epoch + 1))

    def bell(self) -> bytes:
        try:
            found = self._storage.read(ChunkHandle(self._names.bell, False), 0, TOKEN_BYTES + 1)
        except ChunkNotFound:
            return b""
        if len(found) > TOKEN_BYTES:
            # Nobody of ours wrote that, and a storage may take what is large for a chunk, which never changes.
            self._delete(self._names.bell)
        return found

    def waiting(self, most: int) -> list[str]:
        waiting: dict[str, None] = {}
        answers: list[tuple[int, str]] = []
        newest_ms = 0
        for info in iter_listing(self._storage, self._names.ask_prefix()):
            newest_ms = max(newest_ms, info.modified_ms or 0)
            found = self._names.parse_ask(info.name)
            if found is None:
                continue
            token, is_answer = found
            if is_answer:
                waiting.pop(token, None)  # the name of an answer comes behind that of its request
                if info.modified_ms is not None:
                    answers.append((info.modified_ms, info.name))
            elif len(waiting) > most:
                break
            else:
                waiting[token] = None
        # By the storage's own clock, which may be any: the bell was rung for what waits now.
        for modified_ms, name in nsmallest(most, answers):
            if newest_ms - modified_ms > _KEPT_MS:
                self._delete(name)
        return list(waiting)[:most]

    def request(self, token: str) -> Request | None:
        name = self._names.request(token)
        data = read_if_present(self._storage, name, size_max=REQUEST_BYTES_MAX)
        if data is not None and self._storage.exists(self._names.answer(token)):
            # It came twice, and a LIST may not show the answer that stands behind it.
            self._delete(name)
            return None
        return None if data is None else decode_request(data, self._container, object=name)

    def respond(self, token: str, answer: Answer) -> None:
        self._delete(self._names.request(token))
        self._storage.put(self._names.answer(token), encode_answer(answer))

    def _delete(self, name: str) -> None:
        try:
            self._storage.delete(name)
        except ChunkNotFound:
            return
