"""What only a bucket in S3 has: pages, unfinished uploads, metadata, permissions, and what each call costs in requests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from chunkstore.buckets import open_bucket
from chunkstore.config import MIB
from chunkstore.errors import AccessDenied, InvalidArgument
from tests.bucket.conftest import S3Made
from tests.bucket.test_contract import calls, failed
from tests.s3.conftest import is_completion
from tests.support.servers.s3server import S3Server


def test_a_page_of_a_thousand_is_one_request(s3: S3Made) -> None:
    keys = [f"k{number:04}" for number in range(1001)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: s3.put(f"root/{key}"), keys))
    assert [info.key for info in s3.bucket.list()] == keys
    assert s3.spent() == ["GET"] * 2
    assert [info.key for info in s3.bucket.list("k0")] == keys[:1000]
    assert s3.spent() == ["GET"]
    assert [info.key for info in s3.bucket.list(after="k0999")] == keys[1000:]
    assert next(iter(s3.bucket.list())).key == "k0000"
    assert s3.spent() == ["GET"] * 2


def test_calls_cost_what_they_say(s3: S3Made) -> None:
    for call, spent in (
        (partial(s3.bucket.put, "a", b"x" * MIB), "PUT"),
        (partial(s3.bucket.head, "a"), "HEAD"),
        (partial(s3.bucket.read, "a", 5, 2 * MIB), "GET"),
        (partial(s3.bucket.put_parts, "a", [bytes(5 * MIB), b"x"]), "POST PUT PUT POST"),
        (partial(s3.bucket.put_parts, "a", [b"x"]), "POST PUT POST"),
        (partial(s3.bucket.delete, "a"), "DELETE"),
    ):
        call()
        assert s3.spent() == spent.split()


@pytest.mark.parametrize("s3", ["rgw"], indirect=True)
def test_keys_of_others_are_listed_as_they_are(s3: S3Made) -> None:
    strange = ["/absolute", "a//b", "a/b/", "dots/../up", "new\nline", "tab\tü", "we ird+%2F&?#"]
    for key in ["root/", "rooted", *(f"root/{key}" for key in strange)]:
        s3.put(key)
    assert [info.key for info in s3.bucket.list()] == sorted(strange)
    for key in ("a//b", "a/b/", "new\nline", "tab\tü", "we ird+%2F&?#"):
        assert s3.bucket.read(key, 0, 9) == b"data"
        assert s3.bucket.delete(key)
    assert [info.key for info in s3.bucket.list()] == ["/absolute", "dots/../up"]


def test_unfinished_uploads_are_seen_and_given_up(s3: S3Made) -> None:
    client, bucket = s3.server.client, s3.bucket
    ids = [
        client.create_multipart_upload(Bucket=s3.name, Key=key)["UploadId"] for key in ("root/a/b", "root/c", "other")
    ]
    short = [bytes(5 * MIB - 1), b"not the first"]
    assert vars(failed(InvalidArgument, lambda: bucket.put_parts("short", short)))["argument"] == "parts"
    found = list(bucket.uploads())
    assert [(upload.key, upload.upload_id) for upload in found] == [("a/b", ids[0]), ("c", ids[1])]
    begun_s = client.list_multipart_uploads(Bucket=s3.name)["Uploads"][0]["Initiated"].timestamp()
    assert all(abs(upload.started_ms / 1000 - begun_s) < 3_600 for upload in found)
    assert [upload.key for upload in bucket.uploads("c")] == ["c"]
    assert list(bucket.list()) == []
    for upload in [*found, *found]:
        bucket.abort_upload(upload.key, upload.upload_id)
    assert list(bucket.uploads()) == []
    assert s3.leftovers() == ["other"]


def test_a_completion_whose_answer_was_lost_is_recognised(s3: S3Made) -> None:
    s3.bucket.put("a", b"x" * 4)
    lost = s3.proxy.lose_reply(is_completion)
    assert s3.bucket.put_parts("a", [b"data"], {"role": "index"}) == 4
    assert lost.fired == 1
    assert s3.bucket.read("a", 0, 9) == b"data"
    assert s3.bucket.head("a").metadata == {"role": "index"}


def test_a_missing_permission_is_one_line(rgw: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    root = rgw.root(rgw.make_bucket())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "some-other-secret")
    with open_bucket(root) as bucket:
        listings = [lambda: next(bucket.list()), lambda: next(bucket.uploads())]
        for call in [*listings, *calls(bucket, "a"), lambda: bucket.abort_upload("a", "u")]:
            text = str(failed(AccessDenied, call))
            assert "check credentials" in text
            assert not any(word in text for word in ("\n", "some-other-secret"))
        assert bucket.url == root
