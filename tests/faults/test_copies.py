"""A root that is copied while it is in use: original and copy go on side by side, with one cache directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import chunkstore
from chunkstore.engine.store import ChunkedSegmentStorage
from tests.support.data import problems

pytestmark = pytest.mark.proof


def opened(root: Path, cache: Path, *, create: bool = False) -> ChunkedSegmentStorage:
    settings = chunkstore.Settings(cache_dir=str(cache), lease_s=0)
    return chunkstore.open(f"file://{root}", create=create, settings=settings)


def content(store: ChunkedSegmentStorage) -> dict[str, bytes]:
    return {info.name: bytes(store.read(info.name, 0, info.length)) for info in store.segments()}


def test_original_and_copy_go_on(tmp_path: Path) -> None:
    """Stores were found by the container's uuid alone: the original journaled from the copy's rows."""
    root, cache = tmp_path / "root", tmp_path / "cache"
    original = opened(root, cache, create=True)
    original.create("a")
    original.append("a", b"before;")
    place = tmp_path / "copy"
    shutil.copytree(root, place)
    copy = opened(place, cache)
    copy.append("a", b"the copy's;")
    copy.create("only in the copy")
    copy.append("only in the copy", b"x")
    original.create("only in the original")
    original.append("a", b"the original's;")
    original.append("only in the original", b"y")
    copy.append("a", b"more;")
    wanted = (
        {"a": b"before;the original's;", "only in the original": b"y"},
        {"a": b"before;the copy's;more;", "only in the copy": b"x"},
    )
    assert (content(original), content(copy)) == wanted
    original.close()
    copy.close()
    for use in (cache, tmp_path / "no cache"):
        for where, known in zip((root, place), wanted, strict=True):
            with opened(where, use) as store:
                assert content(store) == known
                assert problems(store.check("deep")) == []


def test_a_copy_does_not_believe_what_the_original_has_seen_since(tmp_path: Path) -> None:
    """A cache that is ahead of its root's journal says that records were lost. The original's says nothing about the copy."""
    root, cache, place = tmp_path / "root", tmp_path / "cache", tmp_path / "copy"
    with opened(root, cache, create=True) as original:
        original.create("a")
        shutil.copytree(root, place)
        original.append("a", b"the original's")
    with opened(place, cache) as copy:
        assert copy.report.source == "journal"
        assert copy.report.findings == ()
        assert content(copy) == {"a": b""}
    with opened(root, cache) as original:
        assert original.report.source == "cache"
        assert content(original) == {"a": b"the original's"}
