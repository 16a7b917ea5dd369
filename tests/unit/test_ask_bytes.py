"""Stored requests and answers: golden bytes, garbage with right checksums, other versions."""

from __future__ import annotations

import pickle
from functools import partial

import msgpack
import pytest

from chunkstore.asks import AskCommit, AskDefrag, AskPin, AskSession, AskStage, Request
from chunkstore.changes import Append, Create, Delete, NewChunk, Replace, TablePut
from chunkstore.config import MIB
from chunkstore.errors import ChunkstoreError, Conflict, Damaged, InvalidArgument, Unsupported
from chunkstore_journal import asks
from chunkstore_journal.asks import decode_answer, decode_request, encode_answer, encode_request
from chunkstore_journal.wire import FRAME_HEADER_BYTES, encode_frame
from tests.golden.journal_samples import ANSWERS, ASKS, CONTAINER, GOLDEN

ONCE = TablePut("sink", b"k", b"v", 0)


@pytest.mark.parametrize("name", sorted(ASKS))
def test_requests_are_written_and_read(name: str) -> None:
    raw = encode_request(ASKS[name], CONTAINER)
    assert raw == GOLDEN[f"ask/{name}"]
    assert decode_request(raw, CONTAINER, object="x") == ASKS[name]


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_answers_are_written_and_read(name: str) -> None:
    raw, sample = encode_answer(ANSWERS[name]), ANSWERS[name]
    assert raw == GOLDEN[f"answer/{name}"]
    found = decode_answer(raw, object="x")
    assert (found.epoch, found.result) == (sample.epoch, sample.result)
    assert (type(found.error), str(found.error)) == (type(sample.error), str(sample.error))
    if found.error is not None and sample.error is not None:
        assert found.error.to_fields() == sample.error.to_fields()
        assert pickle.loads(pickle.dumps(found.error)).to_fields() == sample.error.to_fields()


def test_errors_this_program_does_not_know_and_fields_that_are_no_plain_data() -> None:
    told = decode_answer(frame(asks._ANSWER, (4, ("NewerError", "text", (("a", 1),)), ())), object="x").error
    assert type(told) is ChunkstoreError and str(told) == "text"
    odd = encode_answer(ANSWERS["done"]._replace(error=Conflict("a", expected=[1], found=object), result=()))
    found = decode_answer(odd, object="x").error
    assert isinstance(found, Conflict) and found.expected == "[1]"


def frame(kind: int, body: object, version: int = 1) -> bytes:
    whole = (CONTAINER, *body) if kind == 1 else body  # type: ignore[misc]
    return encode_frame(asks.MAGIC, version, kind, msgpack.packb(whole))


@pytest.mark.parametrize("name", ["commit", "pin", "refused"])
def test_every_flipped_bit_and_every_cut_is_damage(name: str) -> None:
    sample = GOLDEN[f"{'ask' if name in ASKS else 'answer'}/{name}"]
    decode = partial(decode_request, container=CONTAINER) if name in ASKS else decode_answer
    raw = bytearray(sample)
    for bit in range(len(raw) * 8):
        raw[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            decode(bytes(raw), object="x")
        raw[bit // 8] ^= 1 << bit % 8
    for length in range(len(raw)):
        with pytest.raises(Damaged):
            decode(sample[:length], object="x")
    with pytest.raises(Damaged):
        decode(sample + b"\0", object="x")


def test_newer_ones_are_read_if_minor_and_refused_if_major() -> None:
    for name, sample in ASKS.items():
        value = msgpack.unpackb(GOLDEN[f"ask/{name}"][FRAME_HEADER_BYTES:], use_list=False)
        assert decode_request(frame(1, (*value[1:], "later")), CONTAINER, object="x") == sample
    with pytest.raises(Unsupported, match="upgrade"):
        decode_request(frame(1, (1, 2, 5), version=2), CONTAINER, object="x")
    with pytest.raises(Unsupported, match="kind 99"):
        decode_request(frame(1, (1, 2, 99)), CONTAINER, object="x")
    with pytest.raises(Unsupported, match="change of kind 99"):
        decode_request(frame(1, (1, 2, 2, ((99, "a"),), (7, "sink", b"k", b"v", 0))), CONTAINER, object="x")
    with pytest.raises(Damaged, match="kind"):
        decode_request(GOLDEN["answer/done"], CONTAINER, object="x")
    with pytest.raises(Damaged, match="another container"):
        decode_request(GOLDEN["ask/collect"], bytes(16), object="x")


@pytest.mark.parametrize(
    "body",
    [
        (1, 2),
        (1, 2, 1, "holder", -1),
        (1, 2, 1, "h" * 300, 1000),
        (1, 2, 1, "h", 0),
        (1, 2, 2, ((4, "a"),), (4, "a")),
        (1, 2, 2, ((4, "a"),), (7, "sink", b"k", b"v", None)),
        (1, 2, 2, ((4, "a"),), (7, "!blocks", b"k", b"v", 0)),
        (1, 2, 2, ((4, "bad\0name"),), (7, "sink", b"k", b"v", 0)),
        (1, 2, 2, ((2, "a", 9, ((b"short", 1, 1, b""),), None),), (7, "sink", b"k", b"v", 0)),
        (1, 2, 2, ((2, "a", 9, ((bytes(28), 1, 1, b"123"),), None),), (7, "sink", b"k", b"v", 0)),
        (1, 2, 2, ((1, "a", 0, ()),), (7, "sink", b"k", b"v", 0)),
        (1, 2, 2, ((1, "a", None, (("x", 1.5),)),), (7, "sink", b"k", b"v", 0)),
        (1, 2, 2, ((1, "a", None, (("x", True),)),), (7, "sink", b"k", b"v", 0)),
        (1, 2, 2, ((3, "a", 0, 1, (5,), (), 9),), (7, "sink", b"k", b"v", 0)),
        (1, 2, 2, 7, (7, "sink", b"k", b"v", 0)),
        (1, 2, 3, "", "", 0, (), "h"),
        (1, 2, 3, "p", "", 0, (("a", -1),), "h"),
        (1, 2, 4, ""),
        (1, 2, 6, 5),
        (1, 2, 8, 9),
        (1, 2, 9, "a", 5, b"x", b"w", 1),
        (1, 2, 9, "a", -5, b"x", b"w", 1, None),
        (1, 2, 9, "a", 5, b"x", b"w", 0, None),
        (1, 2, 9, "a", 5, b"x", b"", 1, None),
        (1, 2, 9, "a", 5, b"x", b"w", 1, -1),
        (1, 2, 9, "a", 5, "x", b"w", 1, None),
        (1, 2, 9, "", 5, b"x", b"w", 1, None),
        (1, 2, 9, "a", 5, bytes((4 << 20) + 1), b"w", 1, None),
        (1, 2, 8, 9, ()),
        (1, 2, 8, 9, ((),)),
        (1, 2, 8, 9, (7,)),
        (1, 2, 8, 9, (((bytes(28), 1, 1, b""),),)),
        (1, 2, 2, ((5, "a", "\0staged/0000000000000009/short", None),), (7, "sink", b"k", b"v", 0)),
        (1, 2, 2, ((5, "\0staged/0000000000000009/" + "0" * 32, "a", None),), (7, "sink", b"k", b"v", 0)),
    ],
)
def test_what_is_no_request_is_damage(body: object) -> None:
    with pytest.raises(Damaged):
        decode_request(frame(1, body), CONTAINER, object="x")


def test_what_no_reader_would_accept_is_not_written() -> None:
    old, new = bytes(range(28)), NewChunk(bytes(28), ((0, 1), (0, 5)))  # type: ignore[arg-type]
    for ask in (
        AskCommit((Append("a", b"x"),), ONCE),
        AskCommit((Delete("a"),), ONCE),
        AskCommit((Replace("a", 0, 1, (old,), (new,)),), ONCE),
        AskCommit((), TablePut("sink", b"k", b"v")),
        AskCommit((TablePut("sink", b"k", b"other"),), TablePut("!scrub", b"k", b"v", 0)),
        AskCommit((Create("s", start_offset=1),), ONCE),
        AskSession("", 1000),
        AskSession("h", 0),
        AskPin("", "", 0, "h"),
        AskDefrag(""),
        AskStage(9, ()),
        AskStage(9, [()]),  # type: ignore[arg-type]
        AskStage(9, (ASKS["stage"].ask.runs[0],) * 2),  # type: ignore[union-attr]
        object(),
    ):
        with pytest.raises(InvalidArgument):
            encode_request(Request(ask, 1, 2), CONTAINER)  # type: ignore[arg-type]
    many = tuple(TablePut("sink", b"%d" % number, bytes(1 * MIB - 100)) for number in range(16))
    with pytest.raises(InvalidArgument, match="longer than"):
        encode_request(Request(AskCommit(many, ONCE), 1, 2), CONTAINER)
