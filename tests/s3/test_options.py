"""What an s3:// root says, and that nothing secret that is pasted into one ever comes back out."""

from __future__ import annotations

import pickle

import pytest

from chunkstore.config import Settings
from chunkstore.errors import InvalidArgument
from chunkstore.registry import open_storage
from chunkstore_bindings.s3.options import S3Options, parse_root


def test_everything_at_once() -> None:
    options = parse_root(
        "s3://my-bucket/logs/2026%20a/?endpoint_url=http://127.0.0.1:7480&region=eu-central-1&profile=prod&path_style=false"
        "&storage_class=STANDARD_IA&sse=aws:kms&sse_kms_key_id=arn:aws:kms:eu:1:key/x&request_payer=requester&concurrency=9"
        "&part_size_bytes=8388608&multipart_bytes_min=16777216&read_timeout_s=2.5&tries_max=7"
    )
    assert options == S3Options(
        bucket="my-bucket",
        prefix="logs/2026 a",
        endpoint_url="http://127.0.0.1:7480",
        region="eu-central-1",
        profile="prod",
        path_style=False,
        storage_class="STANDARD_IA",
        sse="aws:kms",
        sse_kms_key_id="arn:aws:kms:eu:1:key/x",
        request_payer="requester",
        concurrency=9,
        part_size_bytes=8 << 20,
        multipart_bytes_min=16 << 20,
        read_timeout_s=2.5,
        tries_max=7,
    )
    assert options.key("c/FORMAT") == "logs/2026 a/c/FORMAT"
    again = parse_root(options.url)
    assert (again.bucket, again.prefix, again.endpoint_url, again.region, again.profile) == (
        options.bucket,
        options.prefix,
        options.endpoint_url,
        options.region,
        options.profile,
    )
    assert again.path_style is False


def test_the_least() -> None:
    for root in ("s3://bucket", "s3://bucket/", "S3://bucket//"):
        options = parse_root(root)
        assert (options.bucket, options.prefix, options.endpoint_url) == ("bucket", "", None)
        assert options.url == "s3://bucket"
        assert options.key("a/b") == "a/b"
    assert parse_root("s3://b1").use_path_style is False
    assert parse_root("s3://b1?endpoint_url=https://minio.example").use_path_style is True
    assert parse_root("s3://b1?endpoint_url=https://minio.example&path_style=false").use_path_style is False


@pytest.mark.parametrize(
    ("root", "argument"),
    [
        ("s3://", "bucket"),
        ("s3:///prefix", "bucket"),
        ("s3://b", "bucket"),
        ("s3://-bucket", "bucket"),
        ("s3://bucket/../up", "name"),
        ("s3://bucket/a//b", "name"),
        ("s3://bucket?", "root"),
        ("s3://bucket?region", "root"),
        ("s3://bucket/x#y", "root"),
        ("s3://bucket?regoin=x", "root"),
        ("s3://bucket?region=a&region=b", "region"),
        ("s3://bucket?region=a b", "region"),
        ("s3://bucket?path_style=maybe", "path_style"),
        ("s3://bucket?concurrency=many", "concurrency"),
        ("s3://bucket?concurrency=0", "concurrency"),
        ("s3://bucket?part_size_bytes=1000", "part_size_bytes"),
        ("s3://bucket?sse=rot13", "sse"),
        ("s3://bucket?sse_kms_key_id=x", "sse_kms_key_id"),
        ("s3://bucket?request_payer=me", "request_payer"),
        ("s3://bucket?endpoint_url=ftp://x", "endpoint_url"),
        ("s3://bucket?endpoint_url=http://x:99999999", "endpoint_url"),
        ("s3://bucket?endpoint_url=localhost:80", "endpoint_url"),
        ("s3://bucket?deadline_s=nan", "deadline_s"),
    ],
)
def test_refused(root: str, argument: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_root(root) if root != "s3://bucket?" else parse_root("s3://bucket?=")
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    "root",
    [
        "s3://AKIAIOSFODNN7EXAMPLE:sesame@bucket/prefix",
        "s3://bucket/prefix?aws_secret_access_key=sesame",
        "s3://bucket/prefix?sesame",
        "s3://bucket/prefix?sesame=1",
        "s3://bucket?endpoint_url=http://AKIAIOSFODNN7EXAMPLE:sesame@host",
        "s3://bucket?endpoint_url=http://host?key=sesame",
        "s3://bucket?region=sesame sesame",
        "s3://bucket?profile=sesame%0a",
        "s3://bucket?sse=sesame",
        "s3://bucket?concurrency=sesame",
        "s3://bucket?region=x&region=sesame",
    ],
)
def test_what_was_pasted_into_the_wrong_place_stays_out_of_errors(root: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        open_storage(root, Settings())
    error: BaseException | None = caught.value
    while error is not None:
        # An option may be *named* as the user named it; a value never appears.
        text = f"{error} {error!r} {getattr(error, 'args', '')}"
        assert "sesame" not in text.replace("no option 'sesame'", "")
        assert "AKIA" not in text
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_an_unknown_profile_is_named_as_what_is_wrong() -> None:
    with pytest.raises(InvalidArgument, match="ProfileNotFound"):
        open_storage("s3://bucket?profile=nobody-has-this", Settings())


def test_options_can_be_shown_and_sent() -> None:
    options = parse_root("s3://bucket/p?endpoint_url=http://h:1")
    assert pickle.loads(pickle.dumps(options)) == options
    assert "bucket" in repr(options)
