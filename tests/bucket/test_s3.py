"""What only a bucket in S3 has: pages, unfinished uploads, metadata, permissions, and what each call costs in requests."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from chunkstore.buckets import open_bucket
from chunkstore.config import MIB
from chunkstore.errors import AccessDenied, InvalidArgument, StorageUnavailable
from tests.bucket.conftest import S3Made
from tests.bucket.test_contract import calls, failed
from tests.s3.conftest import is_completion
from tests.support.servers.answering import Answering, http
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


@pytest.mark.proof
@pytest.mark.parametrize("s3", ["rgw"], indirect=True)
def test_uploads_are_listed_page_by_page(s3: S3Made) -> None:
    keys = [f"root/k{number // 3:04}" for number in range(1100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: s3.server.client.create_multipart_upload(Bucket=s3.name, Key=key), keys))
    found = list(s3.bucket.uploads())
    assert sorted(f"root/{upload.key}" for upload in found) == keys
    assert len({upload.upload_id for upload in found}) == len(keys)
    assert s3.spent() == ["GET"] * 2


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


def _page(line: str) -> bytes:
    """A page of a server that has 100,000 keys."""
    after = re.search(r"start-after=[^&]*-(\d+)", line)
    first = 100_000 if after is None else int(after[1]) + 1
    found = "".join(
        f"<Contents><Key>//f%0A-{number}</Key><LastModified>2026-01-02T03:04:05Z</LastModified><Size>7</Size></Contents>"
        for number in range(first, first + 1000)
    )
    more = f"<EncodingType>url</EncodingType><IsTruncated>{'true' if first < 199_000 else 'false'}</IsTruncated>"
    return http("200 OK", f"<ListBucketResult>{more}{found}</ListBucketResult>".encode(), keep=True)


@pytest.mark.proof
def test_a_hundred_thousand_foreign_keys_are_a_hundred_pages(s3_environment: None) -> None:
    with Answering(_page) as server, open_bucket(f"s3://bucket?endpoint_url={server.url}") as bucket:
        wanted = (f"//f\n-{number}" for number in range(100_000, 200_000))
        assert all(info.key == key for info, key in zip(bucket.list(), wanted, strict=True))
        assert len(server.requests) == 100


def test_a_list_of_uploads_without_end_is_none(s3_environment: None) -> None:
    more = b"<IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker>"
    page = http("200 OK", b"<ListMultipartUploadsResult>%b</ListMultipartUploadsResult>" % more)
    with Answering(lambda _: page) as server, open_bucket(f"s3://bucket?endpoint_url={server.url}") as bucket:
        failed(StorageUnavailable, lambda: list(bucket.uploads()))
