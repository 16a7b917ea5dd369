"""Names in HDFS and back, roots and their options."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.errors import InvalidArgument
from chunkstore_bindings.filesystem.tree import walk_names
from chunkstore_bindings.hdfs.names import Page, begin_after, escape, in_order, to_path, unescape
from chunkstore_bindings.hdfs.root import parse_root

PARTS = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda part: part not in (".", "..")
)
ODD = st.text("ab-.:;~0129/\x7fé日\U0001f40d", min_size=1, max_size=6).map(lambda text: text.strip("/"))


@given(PARTS)
def test_escapes_invert(name: str) -> None:
    text = escape(name)
    assert text.isascii()
    assert ":" not in text
    assert unescape(text) == name


@given(PARTS, PARTS)
def test_escapes_keep_the_order(one: str, other: str) -> None:
    assert (one < other) == (escape(one) < escape(other))


@given(st.text("ab;:~0129fé", max_size=10))
def test_only_what_escape_makes_is_unescaped(text: str) -> None:
    plain = unescape(text)
    assert plain is None or escape(plain) == text


def test_the_engines_names_stay_as_they_are() -> None:
    for name in (
        "FORMAT",
        "epoch/0000000000000000/0000000000000001",
        "d/3f/1-2-a-0123abcd",
        "j/0/1/0.s",
        "j/0/1/log.a",
    ):
        assert to_path("/data", name) == f"/data/{name}"
    assert to_path("", "a:b;c~d\x7fé") == "/a;0b;1c~0d~1~20000e9"


@pytest.mark.parametrize(
    "name", [".chunkstore-tmp", ".chunkstore-tmp/x", "a/.chunkstore-tmp/x", "x" * 256, "a/" + "é" * 40, "\ud800"]
)
def test_impossible_names(name: str) -> None:
    with pytest.raises(InvalidArgument):
        to_path("/data", name)


class Tree:
    """A name node's listing of these files, as it pages them: raw names in order, folders without a slash."""

    def __init__(self, names: list[str], page: int) -> None:
        self.page = page
        self.fetches = 0
        self.paths = [escape(name) for name in names]

    def fetch(self, folder: str, behind: str) -> Page:
        self.fetches += 1
        stem = escape(folder)
        found: dict[str, str] = {}
        for path in self.paths:
            if path.startswith(stem):
                head, slash, _ = path[len(stem) :].partition("/")
                found[head] = "DIRECTORY" if slash else "FILE"
        wanted = [name for name in sorted(found) if name > behind]
        statuses = [{"pathSuffix": name, "type": found[name]} for name in wanted[: self.page]]
        return Page(statuses, more=len(wanted) > self.page)


def walk(tree: Tree, prefix: str, after: str | None) -> Iterator[str]:
    """As ``Files.walk``."""

    def names_in(folder: str) -> Iterator[str]:
        begin = begin_after(folder, prefix, after)
        return (name for name, _ in in_order(partial(tree.fetch, folder), begin))

    return walk_names(names_in, prefix=prefix, after=after)


def _tree(names: list[str]) -> list[str]:
    """Names that can be files side by side: none is a folder of another."""
    good = sorted({name for name in names if name and "//" not in name and not {".", ".."} & set(name.split("/"))})
    return [name for name in good if not any(other.startswith(name + "/") for other in good)]


@given(st.lists(ODD, max_size=30), ODD, st.none() | ODD, st.integers(1, 4))
def test_walks_are_in_order_and_complete(names: list[str], prefix: str, after: str | None, page: int) -> None:
    kept = _tree(names)
    for chosen in ("", prefix, prefix + "/"):
        if "//" in chosen or chosen.startswith("/") or {".", ".."} & set(chosen.split("/")[:-1]):
            continue
        wanted = [name for name in kept if name.startswith(chosen) and (after is None or name > after)]
        assert list(walk(Tree(kept, page), chosen, after)) == wanted


def test_a_walk_begins_near_its_start() -> None:
    tree = Tree([f"d/{number:05d}" for number in range(2_000)], 10)
    assert next(walk(tree, "d/", "d/01500")) == "d/01501"
    assert tree.fetches <= 3
    tree.fetches = 0
    assert next(walk(tree, "d/0180", None)) == "d/01800"
    assert tree.fetches <= 3
    tree.fetches = 0
    assert len(list(walk(tree, "d/0180", None))) == 10
    assert tree.fetches <= 4, "and it ends near its end"


def test_roots() -> None:
    root = parse_root("hdfs://NN.example:9870/a%20b/c/?user=alice&replication=3&block_size_bytes=1048576")
    assert (root.base_url, root.path, root.url) == (
        "http://nn.example:9870",
        "/a b/c",
        "hdfs://nn.example:9870/a%20b/c",
    )
    assert (root.user, root.file_parameters) == ("alice", {"replication": 3, "blocksize": 1 << 20})
    assert not root.concat_consumes
    assert root.guarded
    assert not parse_root("hdfs://nn/x?guard=none").guarded
    assert parse_root("hdfs://nn/x?concat=consume").concat_consumes
    assert parse_root("hdfs://nn").base_url == "http://nn:9870"
    assert parse_root("hdfs://nn?tls=yes").base_url == "https://nn:9871"
    assert parse_root("hdfs://[::1]:50070/x").base_url == "http://[::1]:50070"
    assert parse_root("hdfs://nn/").path == ""


@pytest.mark.parametrize(
    "url",
    [
        "hdfs://",
        "hdfs:///path",
        "hdfs://nn:port/x",
        "hdfs://nn:99999/x",
        "hdfs://nn:0/x",
        "hdfs://name node/x",
        "hdfs://nn\\x/x",
        "hdfs://[::1/x",
        "hdfs://ñn/x",
        "hdfs://alice@nn/x",
        "hdfs://alice:sesame@nn/x",
        "hdfs://nn/x#y",
        "hdfs://nn//x",
        "hdfs://nn/a/../b",
        "hdfs://nn/a:b",
        "hdfs://nn/a%3Ab",
        "hdfs://nn/%ff",
        "hdfs://nn/x?delegation=sesame",
        "hdfs://nn/x?sesame",
        "hdfs://nn/x?user=sesame&user=alice",
        "hdfs://nn/x?user=sesame open",
        "hdfs://nn/x?user=alice&token_file=/sesame",
        "hdfs://nn/x?append=sesame",
        "hdfs://nn/x?concat=sesame",
        "hdfs://nn/x?guard=sesame",
        "hdfs://nn/x?replication=0",
        "hdfs://nn/x?replication=sesame",
        "hdfs://nn/x?block_size_bytes=1",
        "hdfs://nn/x?user=",
    ],
)
def test_bad_roots(url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_root(url)
    assert caught.value.argument == "root"
    assert "sesame" not in str(caught.value)
