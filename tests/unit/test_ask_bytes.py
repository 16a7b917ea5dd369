"""Stored requests and answers: golden bytes, garbage with right checksums, other versions."""

from __future__ import annotations

import pickle
from functools import partial

import msgpack
import pytest

from chunkstore.changes.asks import Answer
from chunkstore.errors import ChunkstoreError, Conflict, Damaged, Unsupported
from chunkstore_journal import asks
from chunkstore_journal.asks import decode_answer, decode_request, encode_answer, encode_request
from chunkstore_journal.wire import FRAME_HEADER_BYTES, encode_frame
from tests.golden.journal_samples import ANSWERS, ASKS, CONTAINER, GOLDEN


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
    told = decode_answer(frame(2, (4, None, "NewerError", "text", {"a": 1})), object="x").error
    assert type(told) is ChunkstoreError and str(told) == "text"
    odd = encode_answer(Answer(4, Conflict("a", expected=[1], found=1 << 64), None))
    found = decode_answer(odd, object="x").error
    assert isinstance(found, Conflict) and (found.expected, found.found) == ("[1]", str(1 << 64))


def frame(kind: int, body: object, version: int = 1) -> bytes:
    whole = (CONTAINER, body, 1, 2) if kind == 1 else body
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
        assert decode_request(frame(1, (*value[1], "later")), CONTAINER, object="x") == sample._replace(
            made_ms=1, wait_ms=2
        )
    with pytest.raises(Unsupported, match="upgrade"):
        decode_request(frame(1, JOB, version=2), CONTAINER, object="x")
    with pytest.raises(Unsupported, match="kind 99"):
        decode_request(frame(1, (99,)), CONTAINER, object="x")
    with pytest.raises(Unsupported, match="kind 98"):
        decode_request(frame(1, (1, ((98, "a"),), PUT)), CONTAINER, object="x")
    with pytest.raises(Damaged, match="kind"):
        decode_request(GOLDEN["answer/done"], CONTAINER, object="x")
    with pytest.raises(Damaged, match="another container"):
        decode_request(GOLDEN["ask/collect"], bytes(16), object="x")


SEAL, PUT, JOB = (35, "a"), (41, "sink", b"k", b"v", 0), (4, "collect", None)
CHUNK = (bytes(28), 1, 1, ())


@pytest.mark.parametrize(
    "body",
    [
        None,
        (),
        SEAL,
        (4,),
        (4, "collect"),
        (4, "retention", None),
        (4, "defrag", ""),
        (2, "holder", -1),
        (2, "h" * 300, 1000),
        (2, "h", True),
        (1, (SEAL,), None),
        (1, (JOB,), PUT),
        (1, (SEAL,), (*PUT[:4], None)),
        (1, (SEAL,), (41, "!blocks", b"k", b"v", 0)),
        (1, ((35, "bad\0name"),), PUT),
        (1, ((33, "a", 9, ((b"short", 1, 1, ()),), None),), PUT),
        (1, ((33, "a", 9, ((bytes(28), 1, 1, (1 << 40,)),), None),), PUT),
        (1, ((31, "a", (0,), {}, 0),), PUT),
        (1, ((31, "a", None, {"x": True}, 0),), PUT),
        (1, ((31, "a", None, {b"x": 1}, 0),), PUT),
        (1, ((34, "a", 0, 1, (5,), (), 9),), PUT),
        (1, ((34, "a", 0, 1, (bytes(28),), ((bytes(28), ((0, 1), (0, 5))),), None),), PUT),
        (1, ((38, "a", "\0staged/0000000000000009/short", None),), PUT),
        (1, ((38, "\0staged/0000000000000009/" + "0" * 32, "a", None),), PUT),
        (1, ((32, "a", "x", None),), PUT),
        (3, "", (0, 0, 0, "h", "", ())),
        (3, "p", (0, 0, -1, "h", "", ())),
        (3, "", None),
        (1, ((32, "a", b"x", None),), (5, -5, b"w", 1)),
        (1, ((32, "a", b"x", None),), (5, 5, b"w", 0)),
        (1, ((32, "a", b"x", None), SEAL), (5, 5, b"w", 1)),
        (1, (SEAL,), (5, 5, b"w", 1)),
        (1, ((32, "a", bytes((4 << 20) + 1), None),), (5, 5, b"w", 1)),
        (1, (), (6, 9, ((),))),
        (1, (), (6, 9, ((CHUNK,),))),
        (1, (SEAL,), (6, 9, ((CHUNK,),))),
    ],
)
def test_what_is_no_request_is_damage(body: object) -> None:
    with pytest.raises(Damaged):
        decode_request(frame(1, body), CONTAINER, object="x")
