"""``cat`` of a segment with damaged blocks ends in front of the first."""

from __future__ import annotations

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


def test_check_names_the_blocks(root: str, damaged: str, call: Call) -> None:
    assert call("check", root).code == 0
    found = call("check", root, "--deep", "--json", code=1).document["findings"]
    assert [(item["object"], item["position"]) for item in found] == [(damaged, BLOCK), (damaged, 5 * BLOCK)]
