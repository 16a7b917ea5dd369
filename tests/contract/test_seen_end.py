"""The end that an owner's cache has seen: its file, and that it tells of a rolled back root whatever became of the rows (protocol A17)."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import chunkstore
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import RolledBack
from chunkstore.metadata import cachedir
from chunkstore.metadata.cachedir import decode_end, encode_end
from chunkstore.metadata.port import Head, Position
from tests.support.scripts import ENVIRONMENT
from tests.unit.test_metadata_codec import table

HEAD = Head(Position(0x0102030405060708, bytes(range(16)), 7, 0x1F, 4711), (1 << 256) - 2)
GOLDEN = bytes.fromhex(json.loads((Path(__file__).parents[1] / "golden" / "seen_end.json").read_text())["end"])


def test_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert encode_end(HEAD) == GOLDEN
    assert decode_end(GOLDEN) == HEAD
    sizes = [int(row[1]) for row in table("end")]
    assert [int(row[0]) for row in table("end")] == [sum(sizes[:number]) for number in range(len(sizes))]
    assert sum(sizes) == len(GOLDEN)
    for bit in range(8 * len(GOLDEN)):
        assert decode_end((int.from_bytes(GOLDEN, "big") ^ 1 << bit).to_bytes(len(GOLDEN), "big")) is None
    assert decode_end(GOLDEN[:-1]) is decode_end(GOLDEN + b"x") is decode_end(b"") is None
    monkeypatch.setattr(cachedir, "_VERSION", 2)
    assert decode_end(GOLDEN) is None


def opened(folder: Path, *, accept: bool = False) -> ChunkedSegmentStorage:
    settings = chunkstore.Settings(cache_dir=str(folder / "cache"), lease_s=0, op_deadline_s=2)
    return chunkstore.open(f"file://{folder}/root", settings=settings, accept_rollback=accept)


GO_ON = """
import os
from tests.contract.test_seen_end import *
store = opened(Path({folder!r}))
store.append("a", b"seen;")
store.seal("a")
os.kill(os.getpid(), signal.SIG{end})
store.close()
"""


ROWS = ("sound", "rotten", "deleted", "rebuilt", "held")


@pytest.mark.parametrize(
    ("end", "rows"),
    [
        ("KILL", "sound"),
        *(("CONT", rows) for rows in (*ROWS, "without the file")),
    ],
)
def test_a_rolled_back_root_is_told(tmp_path: Path, rows: str, end: str) -> None:
    with opened(tmp_path) as store:
        store.create("a")
    shutil.copytree(tmp_path / "root", tmp_path / "backup")
    script = GO_ON.format(folder=str(tmp_path), end=end)
    ended = subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, check=False)
    assert ended.returncode == (-signal.SIGKILL if end == "KILL" else 0)
    (state,) = (tmp_path / "cache").glob("*/owner/*/STATE")
    if rows == "rotten":
        state.with_name("data.mdb").write_bytes(b"rot" * 9000)
    elif rows in ("deleted", "rebuilt"):
        shutil.rmtree(state.parent)
    elif rows == "without the file":
        (file,) = state.parents[1].glob("END-*")
        file.write_bytes(file.read_bytes()[::-1])
    owner = opened(tmp_path) if rows in ("rebuilt", "held") else None
    if owner is not None and rows == "rebuilt":
        assert owner.report.source == "journal"
        owner.close()
    shutil.rmtree(tmp_path / "root")
    shutil.copytree(tmp_path / "backup", tmp_path / "root")
    for _ in range(2):
        with pytest.raises(RolledBack, match="older than what the local cache has seen"):
            opened(tmp_path)
    with opened(tmp_path, accept=True) as store:
        assert any(finding.startswith("accepted: ") for finding in store.report.findings)
        store.append("a", b"x;")
    with opened(tmp_path) as store:
        assert (store.report.source, store.report.findings) == ("cache", ())
        assert store.read("a", 0, 9) == b"x;"
    if owner is not None:
        owner.close()
