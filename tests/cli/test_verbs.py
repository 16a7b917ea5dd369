"""Every verb once, its JSON shape, and what it leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.records.segments import LayoutChunk, SegmentInfo
from tests.cli.conftest import Call

DATA = bytes(range(256)) * 40


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    path.write_bytes(DATA)
    return path


def put(call: Call, root: str, segment: str, file: Path, *options: str) -> Any:
    return call("put", root, segment, file, "--json", *options).document


def test_put_then_cat(call: Call, root: str, data_file: Path) -> None:
    assert put(call, root, "a", data_file) == {"segment": "a", "offset": 0, "length": len(DATA), "epoch": 1}
    assert call("cat", root, "a").out == DATA
    assert call("cat", root, "a", "--offset", "300", "--length", "5").out == DATA[300:305]
    assert call("cat", root, "a", "--offset", str(len(DATA))).out == b""
    assert call("cat", root, "a", "--length", "0").out == b""


def test_put_appends_and_seals(call: Call, root: str, data_file: Path) -> None:
    put(call, root, "a", data_file)
    again = put(call, root, "a", data_file, "--append", "--seal")
    assert (again["offset"], again["length"]) == (len(DATA), len(DATA))
    assert again["epoch"] > 1
    assert call("stat", root, "a", "--json").document["sealed"] is True
    assert call("cat", root, "a").out == DATA + DATA
    error = call("put", root, "a", data_file, "--append", "--json", code=1).error
    assert error["error"] == "SegmentSealed"


def test_put_refuses_an_existing_segment(call: Call, root: str, data_file: Path) -> None:
    put(call, root, "a", data_file)
    error = call("put", root, "a", data_file, "--json", code=1).error
    assert (error["error"], error["fields"]) == ("SegmentExists", {"segment": "a"})
    assert call("cat", root, "a").out == DATA


def test_resume_goes_on_where_the_stored_bytes_end(call: Call, root: str, tmp_path: Path, data_file: Path) -> None:
    (tmp_path / "half").write_bytes(DATA[:5000])
    put(call, root, "a", tmp_path / "half")
    resumed = put(call, root, "a", data_file, "--resume", "--seal")
    assert (resumed["offset"], resumed["length"]) == (5000, len(DATA) - 5000)
    assert call("cat", root, "a").out == DATA
    finished = put(call, root, "a", data_file, "--resume", "--seal")
    assert (finished["offset"], finished["length"]) == (len(DATA), 0)


@pytest.mark.parametrize(
    ("stored", "offset"), [(b"\xff" + DATA[1:50], 0), (DATA[:49] + b"\xff", 49), (DATA + b"more", len(DATA))]
)
def test_resume_refuses_another_file(
    call: Call, root: str, tmp_path: Path, data_file: Path, stored: bytes, offset: int
) -> None:
    (tmp_path / "other").write_bytes(stored)
    put(call, root, "a", tmp_path / "other")
    error = call("put", root, "a", data_file, "--resume", "--json", code=1).error
    assert error["error"] == "ContentDiffers"
    assert error["fields"] == {"segment": "a", "file": str(data_file), "offset": offset}
    assert call("cat", root, "a").out == stored


def test_ls_stat_layout(call: Call, root: str, data_file: Path) -> None:
    put(call, root, "b-1", data_file, "--chunk-size", "4096")
    put(call, root, "a", data_file)
    listed = call("ls", root, "--json").lines
    assert [item["name"] for item in listed] == ["a", "b-1"]
    assert all(tuple(item) == SegmentInfo._fields for item in listed)
    assert [item["name"] for item in call("ls", root, "b", "--json").lines] == ["b-1"]
    assert call("stat", root, "b-1", "--json").document == listed[1]
    chunks = call("layout", root, "b-1", "--json").lines
    assert all(tuple(chunk) == LayoutChunk._fields for chunk in chunks)
    assert [chunk["offset"] for chunk in chunks] == [0, 4096, 8192]
    assert sum(chunk["length"] for chunk in chunks) == len(DATA)


def test_for_people(call: Call, root: str, data_file: Path) -> None:
    """In a pipe: one line a row, tab-separated; facts one a line."""
    put(call, root, "a", data_file, "--chunk-size", "4096")
    [row] = call("ls", root).out.decode().splitlines()
    assert row.split("\t")[:4] == ["a", "0", str(len(DATA)), "open"]
    facts = dict(line.split(maxsplit=1) for line in call("stat", root, "a").out.decode().splitlines())
    assert facts["length"] == str(len(DATA))
    assert facts["stored"] == "10.0 KiB"
    assert len(call("layout", root, "a").out.splitlines()) == 3
    assert b"sound" in call("check", root).out
    assert call("containers", root).out == b"default\n"


def test_names_cannot_steer_a_terminal(call: Call, root: str, data_file: Path) -> None:
    name = "\x1b[2Jevil\nname\t\u202e"
    put(call, root, name, data_file)
    out = call("ls", root).out
    assert b"\x1b" not in out
    assert out.count(b"\n") == 1
    assert call("ls", root, "--json").lines[0]["name"] == name
    err = call("stat", root, name + "x", code=1).err
    assert b"\x1b" not in err


def test_truncate(call: Call, root: str, data_file: Path) -> None:
    put(call, root, "a", data_file, "--chunk-size", "4096")
    plan = call("truncate", root, "a", "5000", "--dry-run", "--json").document
    assert plan["bytes"] == 5000
    assert plan["requests"] == 1
    assert plan["actions"] == [{"action": "truncate", "segment": "a", "chunks": 1, "bytes": 5000}]
    assert call("stat", root, "a", "--json").document["start_offset"] == 0
    done = call("truncate", root, "a", "5000", "--json").document
    assert (done["start_offset"], done["chunk_count"]) == (5000, 2)
    assert call("cat", root, "a").out == DATA[5000:]
    error = call("cat", root, "a", "--offset", "4999", "--json", code=1).error
    assert error["fields"] == {"segment": "a", "start_offset": 5000, "offset": 4999}
    assert call("truncate", root, "a", str(len(DATA) + 1), "--json", code=1).error["error"] == "BadOffset"
    assert call("truncate", root, "a", str(len(DATA) + 1), "--dry-run", "--json", code=1).error["error"] == "BadOffset"


def test_seal_and_unseal(call: Call, root: str, data_file: Path) -> None:
    put(call, root, "a", data_file)
    assert call("seal", root, "a", "--json").document["sealed"] is True
    assert call("unseal", root, "a", "--json").document["sealed"] is False
    error = call("unseal", root, "a", "--json", code=1).error
    assert error["message"] == "segment 'a' is not sealed: there is nothing to undo"
    assert call("seal", root, "b", "--json", code=1).error["error"] == "SegmentNotFound"


def test_concat(call: Call, root: str, data_file: Path) -> None:
    put(call, root, "a", data_file)
    put(call, root, "b", data_file)
    assert call("concat", root, "a", "b", "--json", code=1).error["error"] == "SegmentNotSealed"
    call("seal", root, "b")
    assert call("concat", root, "a", "b", "--json").document["length"] == 2 * len(DATA)
    assert [item["name"] for item in call("ls", root, "--json").lines] == ["a"]
    assert call("cat", root, "a").out == DATA + DATA


def test_rm(call: Call, root: str, data_file: Path) -> None:
    put(call, root, "a", data_file)
    plan = call("rm", root, "a", "--dry-run", "--json").document
    assert (plan["bytes"], plan["requests"]) == (len(DATA), 1)
    assert call("cat", root, "a").out == DATA
    assert call("rm", root, "a", "--json").document == {"segment": "a", "deleted": True, "bytes": len(DATA)}
    assert call("ls", root, "--json").lines == []
    assert call("rm", root, "a", "--json", code=1).error["error"] == "SegmentNotFound"
    assert call("rm", root, "a", "--dry-run", "--json", code=1).error["error"] == "SegmentNotFound"
    put(call, root, "a", data_file)  # the name is free at once


def test_check_is_clean(call: Call, root: str, data_file: Path) -> None:
    put(call, root, "a", data_file)
    for option in ("--quick", "--exists", "--deep"):
        assert call("check", root, option, "--json").document == {"ok": True, "level": option[2:], "findings": []}
    assert call("check", root, "--json").document["level"] == "quick"


def chunk_files(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "store" / "default" / "d").rglob("*") if path.is_file()]


def test_check_finds_a_missing_and_a_changed_chunk(call: Call, root: str, data_file: Path, tmp_path: Path) -> None:
    put(call, root, "a", data_file, "--seal")
    [chunk] = chunk_files(tmp_path)
    chunk.write_bytes(DATA[:-1] + b"\0")
    assert call("check", root, "--quick", "--json").document["ok"] is True
    document = call("check", root, "--deep", "--json", code=1).document
    assert document["ok"] is False
    [finding] = document["findings"]
    assert list(finding) == ["invariant", "severity", "segment", "chunk", "object", "position", "message"]
    assert finding["invariant"] == 20
    assert finding["segment"] == "a"
    chunk.unlink()
    assert call("check", root, "--exists", "--json", code=1).document["findings"][0]["invariant"] == 20
    assert b"DAMAGED" in call("check", root, "--exists", code=1).out


def test_journal_snapshot_owner_containers(call: Call, root: str, data_file: Path) -> None:
    put(call, root, "a", data_file)
    put(call, root, "b", data_file, "--container", "other")
    report = call("snapshot", root, "--json").document
    assert list(report) == ["name", "lsn", "hash", "digest", "rows", "size_bytes"]
    assert len(report["digest"]) == 64
    assert report["rows"] >= 2
    records = call("journal", root, "--json").lines
    assert all(len(record["hash"]) == 32 and len(record["digest"]) == 64 for record in records)
    assert [record["kind"] for record in records[:2]] == ["OPEN", "OPS"]
    assert [record["lsn"] for record in records] == sorted(record["lsn"] for record in records)
    assert {record["epoch"] for record in records} == {1, 2}
    assert {record["epoch"] for record in call("journal", root, "--epoch", "2", "--json").lines} == {2}
    assert len(call("journal", root).out.splitlines()) == len(records)
    for epoch in ("99", "0", "-1"):
        assert call("journal", root, "--epoch", epoch, "--json", code=1).error == {
            "error": "NoSuchEpoch",
            "message": f"no records of epoch {epoch}: there are those of 1, 2",
            "fields": {"epoch": int(epoch)},
        }
    result = call("journal", root, "--epoch", "99", code=1)
    assert (result.out, result.err) == (b"", b"chunkstore: no records of epoch 99: there are those of 1, 2\n")
    owner = call("owner", root, "--json").document
    assert (owner["claimed_epoch"], owner["opened_epoch"], owner["lease"]["released"]) == (2, 2, True)
    assert b"released by pid" in call("owner", root).out
    assert call("containers", root, "--json").lines == [{"container": "default"}, {"container": "other"}]


def test_looking_claims_nothing(call: Call, root: str, data_file: Path) -> None:
    put(call, root, "a", data_file)
    for arguments in (
        ("ls", root),
        ("stat", root, "a"),
        ("layout", root, "a"),
        ("cat", root, "a"),
        ("check", root),
        ("journal", root),
        ("owner", root),
        ("rm", root, "a", "--dry-run"),
        ("truncate", root, "a", "9", "--dry-run"),
    ):
        call(*arguments)
    assert call("owner", root, "--json").document["claimed_epoch"] == 1


def test_usage(call: Call, root: str, data_file: Path) -> None:
    put(call, root, "a", data_file)
    put(call, root, "b", data_file)
    call("truncate", root, "a", "100")
    used = call("usage", root, "--json").document
    assert list(used) == list(chunkstore.Usage._fields)
    assert (used["segments"], used["live_bytes"], used["dead_head_bytes"]) == (2, 2 * len(DATA) - 100, 100)
    assert used["journal_bytes"] > 0 and used["listed_ms"] > 0 and used["orphan_bytes"] is None
    one = call("usage", root, "a", "--json").document
    assert (one["live_bytes"], one["garbage_bytes"]) == (len(DATA) - 100, None)
    text = call("usage", root, "b").out.decode()
    assert text.split()[:3] == ["live", "10.0", "KiB"] and "garbage" not in text
    assert call("usage", root, "c", "--json", code=1).error["error"] == "SegmentNotFound"


def test_quota(call: Call, root: str, data_file: Path) -> None:
    call("put", root, "a", data_file)
    assert call("quota", "set", root, "11000", "--json").document == {"quota_bytes": 11000}
    assert call("usage", root, "--json").document["quota_bytes"] == 11000
    assert call("put", root, "b", data_file, "--json", code=1).error["error"] == "StorageFull"
    assert call("quota", "rm", root, "--json").document == {"removed": True}
    assert call("quota", "rm", root, "--json", code=1).error["error"] == "NoQuota"
    assert call("quota", "set", root, "0", "--json", code=2).error["error"] == "InvalidArgument"


def test_retention(call: Call, root: str, data_file: Path) -> None:
    call("put", root, "orders-0", data_file, "--chunk-size", "4096")
    assert call("retention", "ls", root, "--json").out == b""
    of_size = {"name": "orders-*", "size_bytes_max": 3000, "age_s_max": None}
    arguments = ("retention", "set", root, "orders-*", "--size-bytes-max", "3000", "--json")
    assert call(*arguments).document == of_size
    call("retention", "set", root, "other", "--age-s-max", "0.5")
    of_age = {"name": "other", "size_bytes_max": None, "age_s_max": 0.5}
    assert call("retention", "ls", root, "--json").lines == [of_size, of_age]
    assert call("retention", "ls", root).out == b"orders-*\t3000\t\nother\t\t0.5\n"
    planned = call("retention", "apply", root, "--dry-run", "--json").document
    assert (planned["bytes"], planned["requests"], planned["segments"], planned["refused"]) == (4096, 1, 1, [])
    [action] = planned["actions"]
    assert (action["action"], action["segment"], action["offset"]) == ("truncate", "orders-0", 4096)
    assert call("stat", root, "orders-0", "--json").document["start_offset"] == 0
    assert b"would truncate  1 of 1 segments" in call("retention", "apply", root, "--dry-run").out
    assert call("retention", "apply", root, "--json").document == planned
    assert call("stat", root, "orders-0", "--json").document["start_offset"] == 4096
    assert b"truncated  0 of 1 segments" in call("retention", "apply", root).out
    assert call("retention", "rm", root, "other", "--json").document == {"name": "other", "removed": True}
    gone = call("retention", "rm", root, "other", "--json", code=1).error
    assert (gone["error"], gone["fields"]) == ("NoSuchPolicy", {"name": "other"}) and "retention ls" in gone["message"]
    assert call("retention", "ls", root, "--json").lines == [of_size]
    for wrong in (("set", root, "a"), ("set", root, "a", "--size-bytes-max", "0"), ("rm", root, "")):
        assert call("retention", *wrong, "--json", code=2).error["error"] == "InvalidArgument"


def test_pictures(call: Call, root: str, tmp_path: Path) -> None:
    with chunkstore.open(root) as store:
        store.create("a", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=100))
        store.append("a", bytes(250))
        store.create("empty")
    svg = tmp_path / "a.svg"
    assert len(call("layout", root, "a", "--json", "--svg", svg).lines) == 3
    text = svg.read_text()
    assert text.startswith("<svg ") and "bytes 0 to 250, 3 chunks" in text
    assert call("layout", root, "empty", "--svg", svg).out == b"" and "0 chunks" in svg.read_text()
    drawn = call("layout", root, "a", "--draw").out.decode().splitlines()
    assert "3 chunks" in drawn[0] and "\u2588" in drawn[1] and len(drawn) == 4
    assert call("usage", root, "--histogram", code=2).code == 2
    nowhere = call("layout", root, "a", "--svg", tmp_path / "no" / "x.svg", "--json", code=2).error
    assert nowhere["error"] == "InvalidArgument"
    two_documents = call("layout", root, "a", "--svg", "-", "--json", code=2).error
    assert two_documents["error"] == "InvalidArgument"
    call("layout", root, "a", "--svg", svg)
    assert call("layout", root, "a", "--svg", "-").out == svg.read_bytes()
