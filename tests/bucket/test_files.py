"""What only folders have: links, other people's files, permissions. And HDFS, in ``make proofs``."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chunkstore.buckets import open_bucket
from chunkstore.errors import AccessDenied, InvalidArgument, RootUnavailable, Unsupported
from chunkstore_bindings.bucket.port import Bucket
from tests.bucket.test_contract import calls, failed
from tests.support.files import failing
from tests.support.servers.hdfs import hdfs_or_end


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def bucket(root: Path) -> Bucket:
    return open_bucket(f"file://{root}")


def noted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, note: Callable[[Any], None]) -> None:
    """Have the first argument of each call noted before the call is made."""
    real = getattr(module, name)

    def call(first: Any, *given: Any, **more: Any) -> Any:
        note(first)
        return real(first, *given, **more)

    monkeypatch.setattr(module, name, call)


def keys(bucket: Bucket, prefix: str = "") -> list[str]:
    return [info.key for info in bucket.list(prefix)]


def test_no_link_is_followed(bucket: Bucket, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    bucket.put("plain", b"x")
    assert keys(bucket) == ["plain"]
    assert keys(bucket, "folder/") == []
    for call in calls(bucket, "file") + calls(bucket, "folder/secret"):
        failed(Unsupported, call)
    assert (outside / "secret").read_bytes() == b"secret"


def test_what_is_no_object_is_not_listed(bucket: Bucket, root: Path) -> None:
    bucket.put("a/b", b"x")
    (root / os.fsdecode(b"\xff\xfe")).write_bytes(b"no UTF-8")
    (root / ".chunkstore-tmp" / "x").write_bytes(b"of a process that was killed")
    os.mkfifo(root / "pipe")
    assert keys(bucket) == keys(bucket, "a/") == ["a/b"]
    assert keys(bucket, "a\0/") == keys(bucket, "\ud800/") == []
    for call in calls(bucket, ".chunkstore-tmp/x"):
        failed(InvalidArgument, call)
    assert not bucket.delete("a")
    assert not bucket.delete("pipe")
    for key in ("a", "a/b/c", "a/b/c/d", "n" * 300):
        failed(InvalidArgument, partial(bucket.put, key, b"no file and folder at once, and no long names"))
    assert keys(bucket) == ["a/b"]


def test_a_root_that_is_missing_is_named_and_made_by_the_first_object(tmp_path: Path) -> None:
    with open_bucket(f"file://{tmp_path}/such") as bucket:
        assert bucket.url == f"file://{tmp_path}/such"
        for call in (lambda: keys(bucket), *calls(bucket, "a")[2:]):
            assert bucket.url in str(failed(RootUnavailable, call))
        bucket.put("a/b", b"x")
        assert keys(bucket) == ["a/b"]


def test_a_missing_permission_is_named(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put("open/a", b"x")
    bucket.put("shut/b", b"x")

    def guard(path: object) -> None:
        if "shut" in str(path):
            raise PermissionError(13, "Permission denied", path)

    noted(monkeypatch, os, "open", guard)
    assert keys(bucket, "open/") == ["open/a"]
    failed(AccessDenied, lambda: keys(bucket))
    failed(AccessDenied, lambda: bucket.read("shut/b", 0, 1))
    monkeypatch.setattr(os, "replace", failing(errno.EACCES))
    assert "permission" in str(failed(AccessDenied, lambda: bucket.put("shut/b", b"y")))


@pytest.mark.proof
def test_hdfs_says_what_it_cannot_do() -> None:
    hdfs = hdfs_or_end()
    root = hdfs.root()
    with open_bucket(root) as bucket:
        failed(RootUnavailable, lambda: keys(bucket))
        bucket.put("a/b", b"x")
        for key in ("a", "a/b/c", "a:b", ".chunkstore-tmp/x", "n" * 300):
            failed(InvalidArgument, partial(bucket.put, key, b"y"))
        assert not bucket.delete("a")
        assert keys(bucket) == ["a/b"]
    hdfs.ask("PUT", "/" + root.rpartition("/")[2] + "/a", "SETPERMISSION", permission="700")
    with open_bucket(root + "?user=somebody") as bucket:
        failed(AccessDenied, lambda: keys(bucket))
        for call in calls(bucket, "a/b"):
            failed(AccessDenied, call)
