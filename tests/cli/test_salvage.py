"""``cat`` of a segment with damaged blocks: up to the first, or around them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import chunkstore
from chunkstore.config import KIB
from tests.cli.conftest import Call

BLOCK = 64 * KIB
CONTENT = random.Random(5).randbytes(5 * BLOCK + 100)


@pytest.fixture
def damaged(root: str, tmp_path: Path, call: Call) -> str:
    """A segment whose second block, and its last, have a wrong bit."""
    (tmp_path / "content").write_bytes(CONTENT)
    call("put", root, "a", tmp_path / "content")
    with chunkstore.open_replica(root) as replica:
        [chunk] = replica.layout("a")
    path = tmp_path / "store" / chunk.name
    stored = bytearray(path.read_bytes())
    stored[BLOCK] ^= 1
    stored[-1] ^= 128
    path.write_bytes(stored)
    return chunk.name


def test_cat_ends_in_front_of_the_damage(root: str, damaged: str, call: Call) -> None:
    result = call("cat", root, "a", "--json", code=1)
    assert result.out == CONTENT[:BLOCK]
    assert result.error["error"] == "Damaged"
    assert result.error["fields"] == {
        "object": damaged, "position": BLOCK, "segment": "a", "start": BLOCK, "stop": 2 * BLOCK,
    }  # fmt: skip
    assert (
        call("cat", root, "a", "--offset", str(2 * BLOCK), "--length", str(BLOCK)).out == CONTENT[2 * BLOCK : 3 * BLOCK]
    )


def test_salvage_leaves_out_what_is_damaged_and_says_so(root: str, damaged: str, call: Call) -> None:
    result = call("cat", root, "a", "--salvage", "--json", code=1)
    assert result.out == CONTENT[:BLOCK] + CONTENT[2 * BLOCK : 5 * BLOCK]
    told = [json.loads(line) for line in result.err.splitlines()]
    assert [item["error"] for item in told] == ["BytesSkipped"] * 2
    assert [(item["fields"]["start"], item["fields"]["stop"]) for item in told] == [
        (BLOCK, 2 * BLOCK),
        (5 * BLOCK, len(CONTENT)),
    ]
    assert told[0]["fields"]["object"] == damaged
    in_words = call("cat", root, "a", "--salvage", "--offset", str(BLOCK + 9), "--length", str(BLOCK), code=1)
    assert in_words.out == CONTENT[2 * BLOCK : 2 * BLOCK + 9]
    assert f"bytes {BLOCK + 9} to {2 * BLOCK} of segment 'a' left out".encode() in in_words.err
    assert call("cat", root, "a", "--salvage", "--length", "70").out == CONTENT[:70]


def test_check_names_the_blocks(root: str, damaged: str, call: Call) -> None:
    assert call("check", root).code == 0
    found = call("check", root, "--deep", "--json", code=1).document["findings"]
    assert [(item["object"], item["position"]) for item in found] == [(damaged, BLOCK), (damaged, 5 * BLOCK)]
