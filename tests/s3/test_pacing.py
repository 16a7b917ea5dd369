"""A server that refuses a share of all requests: what a client waits is planned apart from what it sends, and has a bound."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Lock

import pytest
from botocore import exceptions as sdk

from chunkstore_bindings.s3.refusals import refusal_of
from chunkstore_bindings.wrappers.retrying import RetryingChunkStorage
from tests.s3.conftest import Answers, At
from tests.s3.test_mistakes import refusal
from tests.support.clock import stopped_clock
from tests.support.servers.answering import http


@pytest.mark.parametrize(
    ("told", "dated", "seconds"),
    [
        ("7", "", 7),
        ("Wed, 21 Oct 2015 07:28:30 GMT", "Wed, 21 Oct 2015 07:28:00 GMT", 30),
        ("Wed, 21 Oct 2015 07:28:00 GMT", "", 0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", "never", 0),
        ("-7", "", 0),
        ("9" * 5000, "", 0),
        ("soon", "", 0),
    ],
)
def test_a_server_says_when_to_come_back(told: str, dated: str, seconds: float) -> None:
    headers = {"retry-after": told} | ({"date": dated} if dated else {})
    answer = {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": headers}}
    found = refusal_of(sdk.ClientError(answer, "PutObject"))
    assert found.retry_after_s == seconds
    assert found.error("n").retry_after_s == seconds  # type: ignore[attr-defined]


def test_20_clients_of_a_server_that_refuses_half_all_finish(at: At, answering: Answers) -> None:
    random, lock, refused = Random(18), Lock(), 0

    def answer(line: str) -> bytes:
        nonlocal refused
        with lock:
            busy = random.random() < 0.5
            refused += busy
        return refusal("503 Slow Down", "SlowDown") if busy else http("200 OK", b"", 'ETag: "e"', keep=True)

    server = answering(answer)
    storages = [RetryingChunkStorage(at(server, tries_max=4, deadline_s=3600)) for _ in range(20)]
    with stopped_clock() as clock, ThreadPoolExecutor(20) as pool:
        assert list(pool.map(lambda item: [item.put(f"n{n}", b"x") for n in range(5)], storages)) == [[None] * 5] * 20
    assert len(server.requests) == 100 + refused < 300
    assert sum(clock.slept_s) < 0.15 * len(server.requests)
