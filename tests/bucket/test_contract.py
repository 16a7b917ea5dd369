"""What every kind of bucket promises: a folder, S3 (Ceph's gateway; in ``make proofs`` moto, too), and in ``make proofs`` HDFS."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from chunkstore.buckets import open_bucket
from chunkstore.config import MIB
from chunkstore.errors import ChunkNotFound, ChunkstoreError, InvalidArgument, Unsupported
from chunkstore_bindings.bucket.port import Bucket
from tests.bucket.conftest import Made

KEYS = ["a!", "a-b", "a/b", "a/c/d", "a/c0", "a0", "b c+%&?#=~;", "b.d/.e", "z", "ä/ö", "\uffee", "\U0001f600"]
HOSTILE = ["", "/x", "../x", "a/../b", "a/./b", ".", "..", "a/..", "a\0b", "\ud800"]
PART = bytes(range(256)) * (5 * MIB // 256)


def failed(kind: type[ChunkstoreError], call: Callable[[], object]) -> ChunkstoreError:
    """The error of a call, after a journey through pickle."""
    with pytest.raises(kind) as caught:
        call()
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, kind)
    assert (str(again), vars(again)) == (str(caught.value), vars(caught.value))
    return again


def calls(bucket: Bucket, key: str) -> list[Callable[[], object]]:
    """All that can be asked for about a key."""
    puts: list[Callable[[], object]] = [partial(bucket.put, key, b"x"), partial(bucket.put_parts, key, [b"x"])]
    return [*puts, partial(bucket.delete, key), partial(bucket.head, key), partial(bucket.read, key, 0, 1)]


def test_keys_are_listed_in_the_order_of_their_bytes(made: Made) -> None:
    for number, key in enumerate(reversed(KEYS)):
        made.bucket.put(key, b"x" * number)
    every = list(made.bucket.list())
    assert [info.key for info in every] == sorted(KEYS, key=str.encode)
    assert {info.key: info.length for info in every} == {key: number for number, key in enumerate(reversed(KEYS))}
    assert all(made.bucket.head(info.key).modified_ms // 1000 == info.modified_ms // 1000 for info in every)
    for prefix in ("", "a", "a/", "a/c", "a/c/", "a/c/d", "a/c/d/", "b.d/.", "ä", "\uffee", "c", "../", "/"):
        for after in (None, "", "a", "a-b", "a/", "a/b", "a/c", "a/zz", "b", "ä", "\U0001f600"):
            wanted = [info for info in every if info.key.startswith(prefix) and (after is None or info.key > after)]
            assert list(made.bucket.list(prefix, after=after)) == wanted, (prefix, after)


def test_reads_are_short_at_the_end_only(made: Made) -> None:
    data = bytes(range(200))
    made.bucket.put("a", data)
    made.bucket.put("empty", b"")
    for offset, length in ((0, 1 << 40), (7, 5), (199, 9), (200, 1), (201, 9), (3, 0), (1 << 62, 4)):
        assert made.bucket.read("a", offset, length) == data[offset : offset + length], (offset, length)
        assert made.bucket.read("empty", offset, length) == b""
    failed(InvalidArgument, lambda: made.bucket.read("a", -1, 1))


@pytest.mark.parametrize("key", ["a", "b", "a/c", "a/b/c"])
def test_what_is_missing_is_not_found(made: Made, key: str) -> None:
    bucket = made.bucket
    bucket.put("a/b", b"x")
    for call in (lambda: bucket.head(key), lambda: bucket.read(key, 0, 1), lambda: bucket.read(key, 0, 0)):
        assert vars(failed(ChunkNotFound, call))["chunk"] == key
    assert bucket.delete(key) == bucket.keeps_metadata  # S3 does not tell
    assert [info.key for info in bucket.list()] == ["a/b"]
    assert bucket.delete("a/b")
    assert list(bucket.list()) == []


def test_an_object_takes_the_place_of_another(made: Made) -> None:
    bucket = made.bucket
    bucket.put("a/b", b"old and longer")
    assert bucket.put_parts("a/b", [PART, bytearray(b"and a")]) == bucket.head("a/b").length == len(PART) + 5
    assert bucket.read("a/b", len(PART) - 2, 99) == PART[-2:] + b"and a"
    for data in (b"short", b""):
        assert bucket.put_parts("a/b", iter([memoryview(data)] if data else [])) == len(data)
        assert bucket.read("a/b", 0, 99) == data
    bucket.put("a/b", memoryview(b"new"))
    assert bucket.read("a/b", 0, 99) == b"new"
    assert [info.key for info in bucket.list()] == ["a/b"]
    assert made.leftovers() == []


@pytest.mark.parametrize("before", [0, 1])
def test_an_error_of_the_parts_leaves_nothing(made: Made, before: int) -> None:
    def parts() -> Iterator[bytes]:
        yield from [PART] * before
        raise FileNotFoundError("theirs")

    made.bucket.put("old", b"stays")
    for key in ("old", "new/one"):
        with pytest.raises(FileNotFoundError, match="theirs"):
            made.bucket.put_parts(key, parts())
    assert [(info.key, info.length) for info in made.bucket.list()] == [("old", 5)]
    assert made.leftovers() == []
    assert list(made.bucket.uploads()) == []


def test_metadata_come_back_or_are_refused(made: Made) -> None:
    bucket, given = made.bucket, {"Pulsar-Format": "2", "role": "a value, with: signs"}
    bucket.put("none", b"x")
    if bucket.keeps_metadata:
        bucket.put("a", b"x", given)
        bucket.put_parts("b", [b"x"], given)
        assert bucket.head("a").metadata == bucket.head("b").metadata == {"pulsar-format": "2", "role": given["role"]}
        failed(InvalidArgument, lambda: bucket.put("none", b"y", {"role": "Ä"}))
    else:
        failed(Unsupported, lambda: bucket.put("none", b"y", given))
    assert bucket.head("none").metadata == {}
    assert bucket.read("none", 0, 9) == b"x"


@pytest.mark.parametrize("key", HOSTILE)
def test_what_cannot_be_a_key_is_refused(made: Made, key: str) -> None:
    for call in calls(made.bucket, key):
        assert vars(failed(InvalidArgument, call))["argument"] == "key"
    with made.bucket as bucket:
        bucket.put("a", b"x")
        assert [info.key for info in bucket.list()] == ["a"]
    bucket.close()  # twice


NO_BUCKETS = """memory://m file:/path s3://user:secret@bucket s3://bucket?secret_key=secret file:///path?key=secret file://user:secret@host/x
ftp://user:secret@host/x hdfs://user:secret@host/x hdfs://host/x?secret=secret"""


@pytest.mark.parametrize("url", ["", *NO_BUCKETS.split()])
def test_what_is_no_bucket_is_refused_without_its_secrets(url: str) -> None:
    text = str(failed(InvalidArgument, lambda: open_bucket(url)))
    assert not any(shown in text for shown in ("user:", "secret@", "=secret"))
