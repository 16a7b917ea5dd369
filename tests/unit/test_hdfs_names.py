"""Names that HDFS cannot hold, roots and their options."""

from __future__ import annotations

import pytest

from chunkstore.errors import InvalidArgument
from chunkstore_bindings.hdfs import HdfsChunkStorage
from chunkstore_bindings.hdfs.root import parse_root


@pytest.mark.parametrize(
    "name", [".chunkstore-tmp", ".chunkstore-tmp/x", "x" * 256, "a/" + "é" * 128, "a\uf03ab", "\ud800"]
)
def test_impossible_names(name: str) -> None:
    with pytest.raises(InvalidArgument):
        HdfsChunkStorage("hdfs://nn/x").exists(name)


def test_roots() -> None:
    root = parse_root("hdfs://NN.example:9870/a%20b/c/?user=alice&replication=3&block_size_bytes=1048576")
    assert (root.base_url, root.path, root.url) == (
        "http://nn.example:9870",
        "/a b/c",
        "hdfs://nn.example:9870/a%20b/c",
    )
    assert (root.user, root.file_parameters) == ("alice", {"replication": 3, "blocksize": 1 << 20})
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
