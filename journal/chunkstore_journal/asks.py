"""Requests to the owner, their answers and the bell, as stored (protocol 3.19; FORMAT.md, section 5).

Promises: a request or answer is one frame, at most ``REQUEST_BYTES_MAX`` long. Data classes are stored field by field and read as the types
of their fields say: decoding accepts nothing else. Leaves out: what requests mean (``chunkstore.changes.asks``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache
from heapq import nsmallest
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from chunkstore import runtime
from chunkstore.changes import Change
from chunkstore.changes.asks import Answer, Ask, AskBox, Event, Request, Result, Stage, check_ask
from chunkstore.config import MIB
from chunkstore.errors import ChunkNotFound, ChunkstoreError, Damaged, InvalidArgument, Unsupported
from chunkstore.journal import SnapshotReport
from chunkstore.records.names import ContainerNames
from chunkstore.records.reports import CollectReport, DefragReport
from chunkstore.records.segments import Pin
from chunkstore.storage import ChunkHandle, ChunkStorage, iter_listing
from chunkstore_journal import wire
from chunkstore_journal.slots import read_if_present

__all__ = [
    "ASK_VERSION",
    "KINDS",
    "REQUEST_BYTES_MAX",
    "StoredAsks",
    "decode_answer",
    "decode_request",
    "encode_answer",
    "encode_request",
]

MAGIC: Final = b"CKSA"
ASK_VERSION: Final = 1
REQUEST_BYTES_MAX: Final = 15 * MIB
KINDS: Final[Mapping[int, type]] = {
    number: kind
    for first, kinds in (
        (1, (*get_args(Ask), Event, Stage)),
        (11, (Pin, CollectReport, DefragReport, SnapshotReport)),
        (31, get_args(Change)),
    )
    for number, kind in enumerate(kinds, first)
}
"""Classes whose number is stored before their fields: they are stored only where one of several may be."""
_NUMBERS: Final = {kind: number for number, kind in KINDS.items()}
_MESSAGE_MAX: Final = 4096
_U64_MAX: Final = (1 << 64) - 1
_PLAIN: Final = (bool, int, str, bytes, NoneType)
_DIGEST: Final = Annotated[int, "of 256 bits"]
_DIGEST_BYTES: Final = 32
_KEPT_MS: Final = 24 * 3_600_000
"""An answer that keeps others from carrying its request out: a duplicate that comes later is refused as late."""


_REQUEST, _ANSWER = 1, 2
_FIELDS: Final[Mapping[int, tuple[Any, ...]]] = {
    _REQUEST: (bytes, Ask, int, int),
    _ANSWER: (int, Result, str, str, Mapping[str, bool | int | str | bytes | None]),
}


def encode_request(request: Request, container: bytes) -> bytes:
    """A request's bytes; ``container``: the uuid of that whose owner is asked. Raises ``InvalidArgument``: unreadable, or too long."""
    check_ask(request.ask)
    return _encode(_REQUEST, (container, *request))


def decode_request(data: bytes, container: bytes, *, object: str) -> Request:
    """A request to the owner of ``container``. Raises ``Damaged``, also for another's, and ``Unsupported`` (unknown version or kind)."""
    try:
        found, *request = _decode(_REQUEST, data, object)
        check_ask(request[0])
    except InvalidArgument as error:
        raise Damaged(f"the request is none: {error.message}", object=object) from error
    if found != container:
        raise Damaged("a request to the owner of another container; it was copied here", object=object)
    return Request(*request)


def encode_answer(answer: Answer) -> bytes:
    """An answer's bytes. A text that is too long is cut. Raises ``InvalidArgument`` for a result that is of another type."""
    reported: tuple[Any, ...] = ("", "", {})
    if (error := answer.error) is not None:
        fields = {name: _plain(value) for name, value in error.to_fields().items()}
        reported = (type(error).__name__, error.message[:_MESSAGE_MAX], fields)
    return _encode(_ANSWER, (answer.epoch, answer.result, *reported))


def decode_answer(data: bytes, *, object: str) -> Answer:
    """An answer. Raises ``Damaged``, ``Unsupported`` (of a newer version)."""
    epoch, result, name, message, fields = _decode(_ANSWER, data, object)
    return Answer(epoch, ChunkstoreError.from_fields(name, message, fields) if name else None, result)


def _encode(kind: int, values: tuple[Any, ...]) -> bytes:
    raw = wire.encode_frame(MAGIC, ASK_VERSION, kind, wire.pack(tuple(map(_wire, values))))
    if len(raw) > REQUEST_BYTES_MAX:
        text = f"a request of {len(raw)} bytes is longer than {REQUEST_BYTES_MAX}; ask for fewer changes at once"
        raise InvalidArgument(text, argument="changes")
    with wire.must_be_readable("request"):
        _decode(kind, raw, "request")
    return raw


def _decode(kind: int, data: bytes, object: str) -> list[Any]:
    bytes_max = REQUEST_BYTES_MAX - wire.FRAME_HEADER_BYTES
    header = wire.decode_frame_header(data, MAGIC, bytes_max, object=object, position=0)
    body = data[wire.FRAME_HEADER_BYTES :]
    wire.check_frame(data, body, version=header.version, object=object, position=0)
    if header.version != ASK_VERSION:
        text = f"{object} is of version {header.version}; this program reads {ASK_VERSION}: upgrade it"
        raise Unsupported(text, feature="ask")
    if header.kind != kind:
        raise Damaged(f"kind {header.kind} is stored where {kind} belongs", object=object)
    return _read_all(_FIELDS[kind], wire.unpack(body, object, wire.FRAME_HEADER_BYTES), object)


def _plain(value: object) -> object:
    fits = value.bit_length() < 64 if isinstance(value, int) else isinstance(value, (str, bytes, NoneType))
    return value if fits else repr(value)[:_MESSAGE_MAX]


def _wire(value: Any) -> object:
    """Plain data that ``_read`` reads as the value."""
    if isinstance(value, int):
        return value if value <= _U64_MAX else value.to_bytes(_DIGEST_BYTES, "big")
    if value is None or isinstance(value, (str, bytes)):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, Mapping):
        return dict(sorted(value.items()))
    if type(value) is tuple:
        return value if value and isinstance(value[0], (int, bytes)) else tuple(map(_wire, value))
    kind: Any = type(value)
    number = (_NUMBERS[kind],) if kind in _NUMBERS else ()
    return (*number, *(_wire(getattr(value, name)) for name in _fields(kind)))


def _read(kind: Any, value: Any, object: str) -> Any:
    """``value`` as the type ``kind``. Raises ``Damaged``, and ``Unsupported`` for a class of a number that is not known."""
    if type(value) is kind and kind in _PLAIN:
        return value
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _read_one_of(inner, value, object)
    if origin is tuple and type(value) is tuple:
        if all(type(item) is inner[0] for item in value):
            return value
        return tuple(_read(inner[0], item, object) for item in value)
    if origin is Mapping and type(value) is dict:
        return {name: _read(inner[1], item, object) for name, item in value.items()}
    if origin is Literal and value in inner:
        return value
    if kind is _DIGEST:
        is_long = type(value) is bytes and len(value) == _DIGEST_BYTES
        return int.from_bytes(value, "big") if is_long else _read(int, value, object)
    if fields := _fields(kind):
        return kind(**dict(zip(fields, _read_all(fields.values(), value, object), strict=True)))
    raise Damaged(f"{value!r:.80} is no {getattr(kind, '__name__', kind)}", object=object)


def _read_all(kinds: Collection[Any], values: Any, object: str) -> list[Any]:
    """Elements after those that are known are ignored."""
    if type(values) is not tuple or len(values) < len(kinds):
        raise Damaged(f"{values!r:.80} is no array of {len(kinds)} fields", object=object)
    return [_read(kind, value, object) for kind, value in zip(kinds, values, strict=False)]


def _read_one_of(kinds: tuple[Any, ...], value: Any, object: str) -> Any:
    if type(value) in _PLAIN and type(value) in kinds:
        return value
    plain = [kind for kind in kinds if kind not in _NUMBERS]
    if len(plain) < len(kinds) and type(value) is tuple and value and type(value[0]) is int:
        if value[0] not in KINDS:
            raise Unsupported(f"{object}: kind {value[0]} needs a newer program", feature="ask")
        if KINDS[value[0]] in kinds:
            return _read(KINDS[value[0]], value[1:], object)
    for kind in plain:
        with suppress(Damaged):
            return _read(kind, value, object)
    raise Damaged(f"{value!r:.80} is of no kind that belongs here", object=object)


@cache
def _fields(kind: Any) -> Mapping[str, Any]:
    """The names and types of a data class's fields."""
    types = get_type_hints(kind) if hasattr(kind, "__match_args__") else {}
    return types | {"digest": _DIGEST} if kind is SnapshotReport else types


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
        self._storage.put(self._names.bell, runtime.token(wire.TOKEN_BYTES))

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
            found = self._storage.read(ChunkHandle(self._names.bell, False), 0, wire.TOKEN_BYTES + 1)
        except ChunkNotFound:
            return b""
        if len(found) > wire.TOKEN_BYTES:
            # No one of ours wrote that, and a storage may take what is large for a chunk, which never changes.
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
                waiting.pop(token, None)  # the name of an answer comes after that of its request
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
            # It came twice, and a LIST may not show the answer that follows it.
            self._delete(name)
            return None
        return None if data is None else decode_request(data, self._container, object=name)

    def respond(self, token: str, answer: Answer) -> None:
        self._delete(self._names.request(token))
        self._storage.put(self._names.answer(token), encode_answer(answer))

    def _delete(self, name: str) -> None:
        with suppress(ChunkNotFound):
            self._storage.delete(name)
