"""``pulsar decode``: both formats, from files and from URLs of every scheme, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chunkstore.config import Settings
from chunkstore.registry import open_storage
from tests.cli.conftest import Call
from tests.support.fake_webhdfs import FakeWebHdfs
from tests.support.pip17 import FOLDER, METADATA, Fixture, encode_ledger, fixtures
from tests.support.servers.s3server import S3Server

V1 = fixtures()
MIXED = next(fixture for fixture in V1 if fixture.name == "v1-mixed-1000")
KEY = "cd077c24-00b0-31e5-b39c-0682fc6b71a5-ledger-13"


@pytest.mark.parametrize("fixture", V1, ids=lambda fixture: fixture.name)
def test_every_v1_pair(call: Call, fixture: Fixture) -> None:
    path = FOLDER / fixture.name
    lines = call("pulsar", "decode", f"{path}.data", f"{path}.index", "--json").lines
    assert lines == [
        {"ledger": None, "entry": entry, "length": length, "sha256": digest}
        for entry, length, digest in fixture.manifest["entry_id_len_sha256"]
    ]


def test_people_see_the_topic(call: Call, tmp_path: Path) -> None:
    out = call("pulsar", "decode", FOLDER / "v1-mixed-1000.data", FOLDER / "v1-mixed-1000.index").out.splitlines()
    assert out[0].split() == [b"topic", b"tenant/ns/persistent/topic"]
    assert len(out) == 1001
    assert out[2].split(b"\t")[:3] == [b"", b"1", b"450"]
    assert b"topic" not in call("pulsar", "decode", FOLDER / "v1-one.data", FOLDER / "v1-one.index").out
    metadata = replace(METADATA, custom=(("pulsar/managed-ledger", b"\x1b[2J\xff"),))
    pair = encode_ledger([b"x"], metadata=metadata)
    for name, data in (("d", pair.data), ("i", pair.index_bytes)):
        (tmp_path / name).write_bytes(data)
    assert call("pulsar", "decode", tmp_path / "d", tmp_path / "i").out.startswith("topic  \\x1b[2J\ufffd\n".encode())


@pytest.fixture(params=["file", "hdfs", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A root's URL, with options where the scheme has some."""
    if request.param == "s3":
        server = request.getfixturevalue("moto")
        assert isinstance(server, S3Server)
        yield server.root(server.make_bucket(), "off loaded".replace(" ", "%20"))
    elif request.param == "hdfs":
        with FakeWebHdfs() as fake:
            yield fake.root("/root/off%20loaded")
    else:
        yield (tmp_path / "off loaded").as_uri()


def test_urls_of_every_scheme(call: Call, folder: str) -> None:
    storage = open_storage(folder, Settings())
    for name, content in ((KEY, MIXED.data), (f"{KEY}-index", MIXED.index_bytes)):
        storage.create(name, content)
    storage.sync([KEY, f"{KEY}-index"])
    before = storage.list().items
    path, question, query = folder.partition("?")
    data, index = (f"{path}/{name}{question}{query}" for name in (KEY, f"{KEY}-index"))
    lines = call("pulsar", "decode", data, index, "--json").lines
    assert [[line["entry"], line["length"], line["sha256"]] for line in lines] == MIXED.manifest["entry_id_len_sha256"]
    assert call("pulsar", "decode", FOLDER / "v1-mixed-1000.data", index, "--json").lines == lines
    error = call("pulsar", "decode", index, index, "--json", code=1).error
    assert error["error"] == "Damaged"
    assert error["fields"]["object"].endswith(f"{KEY}-index")
    assert "endpoint_url" not in error["message"]
    assert call("pulsar", "decode", f"{path}/none{question}{query}", index, "--json", code=1).out == b""
    assert storage.list().items == before
    storage.close()


def test_the_wrong_index(call: Call) -> None:
    v1, v2 = FOLDER / "v1-one", FOLDER / "v2-one-ledger-one-segment"
    for data, index, named in ((v1, v2, "PIP-17"), (v2, v1, "PIP-76")):
        error = call("pulsar", "decode", f"{data}.data", f"{index}.index", "--json", code=1).error
        assert (error["error"], error["fields"]["object"]) == ("Damaged", f"{data}.data")
        assert f"this is a block of {named}" in error["message"]
    error = call("pulsar", "decode", f"{v1}.index", f"{v1}.data", "--json", code=1).error
    assert (error["error"], error["fields"]["position"]) == ("Damaged", 0)


def test_what_is_no_objects_url(call: Call) -> None:
    for url in ("s3://bucket", "s3://bucket/", "memory://root/name", "nowhere://a/b", "hdfs:///x", "file://host/x"):
        assert call("pulsar", "decode", url, url, "--json", code=2).error["error"] == "InvalidArgument", url


def test_the_streaming_offloaders_defect_has_a_name(call: Call) -> None:
    name = FOLDER / "v2-multi-block-one-ledger-BUGGY-OFFSETS"
    error = call("pulsar", "decode", f"{name}.data", f"{name}.index", "--json", code=1).error
    assert error["error"] == "Damaged"
    assert "written by Pulsar's streaming offloader with wrong offsets (W1)" in error["message"]
