"""``scrub``: what it finds, what a copy repairs, and its exit code."""

from __future__ import annotations

import shutil
from pathlib import Path

import chunkstore
from tests.cli.conftest import Call


def test_scrub_finds_and_repairs(call: Call, root: str, tmp_path: Path) -> None:
    with chunkstore.open(root, settings=chunkstore.Settings(inline_bytes_max=0)) as store:
        store.create("a")
        store.append("a", b"12345")
        (chunk,) = store.layout("a")
    copy = (tmp_path / "copy").as_uri()
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    sound = call("scrub", root, "--json").document
    assert sound.pop("began_at") > 0
    assert sound == {
        "ok": True, "chunks": 1, "size_bytes": 5, "findings": [], "repaired": 0, "position": None, "done": True
    }  # fmt: skip
    (tmp_path / "store" / chunk.name).write_bytes(b"1x345")
    found = call("scrub", root, "--json", code=1).document
    (finding,) = found["findings"]
    assert finding.pop("message").startswith("the block of 5 bytes does not have the recorded CRC32C")
    assert finding == {
        "invariant": 20, "severity": "damage", "segment": "a", "chunk": chunk.name, "object": chunk.name, "position": 0,
        "start": 0, "stop": 5, "repaired": False,
    }  # fmt: skip
    assert not found["ok"]
    assert b"default: DAMAGED (1 chunks, 5 B, 0 repaired)" in call("scrub", root, code=1).out
    for words in (["scrub", root], ["check", root, "--deep"]):
        assert b"scrub ROOT --repair-from" in call(*words, code=1).err, "what to type next"
    repaired = call("scrub", root, "--repair-from", copy, "--rate", "1e9", "--json").document
    assert (repaired["ok"], repaired["repaired"], repaired["findings"][0]["repaired"]) == (True, 1, True)
    assert call("cat", root, "a").out == b"12345"
    stopped = call("scrub", root, "--bytes-max", "1", "--json").document
    assert (stopped["done"], stopped["position"]) == (False, {"segment": "a", "offset": 5})
    assert b"up to byte 5 of a" not in call("scrub", root).out, "it goes on to the end"


def test_misuse(call: Call, root: str) -> None:
    chunkstore.open(root).close()
    claimed = call("owner", root, "--json").document["claimed_epoch"]
    for option in ("--rate", "--bytes-max"):
        error = call("scrub", root, option, "0", "--take-over", "--json", code=2).error
        assert (error["error"], error["fields"]) == ("InvalidArgument", {"argument": option})
    for copy in ("/no/url", root + "-not-there", root):
        error = call("scrub", root, "--repair-from", copy, "--take-over", "--json", code=2).error
        assert error["error"] == "InvalidArgument" and copy in error["message"]
    assert call("owner", root, "--json").document["claimed_epoch"] == claimed, "nobody is fenced for what is refused"
    assert call("scrub", root + "-not-there", "--json", code=1).error["error"] == "ContainerNotFound"
