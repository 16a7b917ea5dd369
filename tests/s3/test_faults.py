"""A network that loses, cuts, stalls and crawls between the binding and a server: nothing is invented, nothing hangs.

The server is Ceph's gateway wherever what it has carried out is looked at afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from chunkstore.errors import ChunkExists, StorageUnavailable
from chunkstore.storage import ChunkHandle, ConcatArgument
from tests.s3.conftest import Connect, Proxied, begins_upload, is_completion, is_conditional, is_part
from tests.support.data import fails_in_time
from tests.support.servers.s3server import S3Server

pytestmark = pytest.mark.proof

MIB = 1 << 20
PARTS = {"part_size_bytes": 5 * MIB, "multipart_bytes_min": 5 * MIB}
QUICK = {"connect_timeout_s": 1, "read_timeout_s": 1, "deadline_s": 2}
"""For calls that must fail: a busy server may need longer for what it does."""


def data(size: int) -> bytes:
    return random.Random(size).randbytes(size)


# Single requests


def test_a_lost_reply_is_recognised_as_our_own_success(rgw: S3Server, proxied: Proxied, connect: Connect) -> None:
    proxy = proxied(rgw)
    storage = connect(rgw, proxy)
    creates: list[Callable[[str, bytes], object]] = [storage.create_if_absent, storage.create]
    for number, create in enumerate(creates):
        lost = proxy.lose_reply(is_conditional)
        assert create(f"n/{number}", b"mine")
        assert lost.fired == 1
        assert storage.read(ChunkHandle(f"n/{number}", False), 0, 10) == b"mine"
    lost = proxy.lose_reply(lambda request: request.method == "PUT", times=2)
    storage.put("hint", b"there")
    assert lost.fired == 2


def test_a_lost_reply_about_somebody_elses_object_is_a_loss(rgw: S3Server, proxied: Proxied, connect: Connect) -> None:
    proxy = proxied(rgw)
    storage = connect(rgw, proxy)
    other = connect(rgw, bucket=storage.options.bucket)
    for name, theirs in (("a", b"theirs"), ("b", b"the same bytes")):
        assert other.create_if_absent(name, theirs)
        proxy.lose_reply(is_conditional)
        # Equal bytes of another call are another call's, too: the token tells them apart.
        assert storage.create_if_absent(name, b"the same bytes") is False
    proxy.lose_reply(is_conditional)
    with pytest.raises(ChunkExists):
        storage.create("a", b"theirs")


def test_a_request_that_lands_late_changes_nothing(rgw: S3Server, proxied: Proxied, connect: Connect) -> None:
    proxy = proxied(rgw)
    storage = connect(rgw, proxy, read_timeout_s=1, tries_max=100)
    held = proxy.hold(is_conditional)
    assert storage.create_if_absent("name", b"frozen") is True
    # Once more, or as often as a server needs longer than that.
    assert len([request for request in proxy.requests if is_conditional(request)]) >= 2
    before = rgw.client.head_object(Bucket=storage.options.bucket, Key="name")
    held.release()
    assert held.answered.wait(240), "it has not landed"
    after = rgw.client.head_object(Bucket=storage.options.bucket, Key="name")
    assert (before["LastModified"], before["Metadata"]) == (after["LastModified"], after["Metadata"])


def test_large_uploads_survive_resets_and_lost_replies(rgw: S3Server, proxied: Proxied, connect: Connect) -> None:
    proxy = proxied(rgw)
    storage = connect(rgw, proxy, **PARTS)
    content = data(17 * MIB)
    rules = [
        proxy.lose_reply(is_part),
        proxy.lose_request(is_part),
        proxy.lose_reply(is_completion),
        proxy.lose_reply(begins_upload),
    ]
    storage.create("large", content)
    assert [rule.fired for rule in rules] == [1, 1, 1, 1]
    assert rgw.client.get_object(Bucket=storage.options.bucket, Key="large")["Body"].read() == content
    proxy.heal()
    storage.create("small", data(MIB))
    lost = proxy.lose_reply(is_completion)
    assert storage.concat([ConcatArgument("large", 17 * MIB), ConcatArgument("small", MIB)]) == 18 * MIB
    assert lost.fired == 1
    assert rgw.client.get_object(Bucket=storage.options.bucket, Key="large")["Body"].read() == content + data(MIB)


# Deadlines


def test_a_black_hole_ends_with_the_deadline(rgw: S3Server, proxied: Proxied, connect: Connect) -> None:
    proxy = proxied(rgw)
    patient = connect(rgw, proxy)
    patient.put("there", b"x" * 1000)
    storage = connect(rgw, proxy, bucket=patient.options.bucket, tries_max=50, **QUICK, **PARTS)
    proxy.set(black_hole=True)
    handle = ChunkHandle("there", False)
    fails_in_time(
        StorageUnavailable,
        lambda: storage.read(handle, 0, 10),
        lambda: storage.create_if_absent("new", b"x"),
        lambda: storage.create("large", data(6 * MIB)),
        storage.list,
        at_once=True,
    )
    proxy.heal()
    assert patient.read(handle, 0, 10) == b"x" * 10
