"""Manifests of lakes: their bytes, chains that stay short, hostile ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from chunkstore.errors import Damaged, InvalidArgument, Unsupported
from chunkstore.spark import lake_files
from chunkstore.spark.lake_files import Commit, LakeFile, LakeFolder, Manifest, Pointer, digest_of, file_name
from chunkstore.spark.positions import Reached, StreamOffset
from chunkstore_bindings.memory import MemoryChunkStorage

FORMAT = Path(lake_files.__file__).with_name("FORMAT.md")
UUID = "c" * 32
GOLDEN = (
    b'{"version":1,"lake":"x","number":2,"source":{"framing":"lines","segments":"a"},"schema":"{}","offsets":{"version":1,"container":"'
    b'cccccccccccccccccccccccccccccccc","epoch":3,"lsn":9,"segments":{"a":{"id":7,"at":5}}},"commits":[{"number":2,"token":"'
    b'0000000000000002","files":[["f0000000002-0000000000000002-01234567.parquet",99,3]]}],"before":{"number":1,"token":"'
    b'0000000000000001","digest":"dddddddddddddddddddddddddddddddd","bytes":17}}'
)


def token(number: int) -> str:
    return f"{number:016x}"


def commit(number: int, *files: LakeFile) -> Commit:
    return Commit(number, token(number), files)


def offsets(at: int) -> StreamOffset:
    return StreamOffset({"a": Reached(7, at)}, {}, UUID, 3, 9)


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> LakeFolder:
    return LakeFolder(MemoryChunkStorage(f"memory://{request.node.name}"), "x", UUID)


def test_golden_bytes(folder: LakeFolder) -> None:
    file = LakeFile("f0000000002-0000000000000002-01234567.parquet", 99, 3)
    source = {"segments": "a", "framing": "lines"}
    manifest = Manifest("x", 2, source, "{}", offsets(5), (commit(2, file),), Pointer(1, token(1), "d" * 32, 17))
    pointer = folder.put(token(2), manifest)
    assert pointer == Pointer(2, token(2), digest_of(GOLDEN).hex(), len(GOLDEN))
    assert folder.manifest(pointer) == manifest
    assert digest_of(b"").hex() == "cae66941d9efbd404e4d88758ea67670"


def test_the_format_page_names_every_field() -> None:
    table = FORMAT.read_text(encoding="utf-8").split("<!-- table: manifest -->\n", 1)[1].split("\n\n", 1)[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(json.loads(GOLDEN))


def test_chains_stay_short_and_tell_all(folder: LakeFolder) -> None:
    newest: tuple[Manifest, Pointer] | None = None
    held = 0
    for number in range(1, 131):
        files = (LakeFile(file_name(number, token(number)), number, 1),)
        manifest = folder.manifest_behind(newest, commit(number, *files), offsets(number))
        newest = manifest, folder.put(token(number), manifest)
        held += len(manifest.commits)
        assert len(manifest.commits) == number & -number
        assert [item.number for item in folder.commits(manifest)] == list(range(1, number + 1))
        assert [item.number for item in folder.commits(manifest, number // 2)] == list(
            range(number // 2 + 1, number + 1)
        )
        length, at = 1, manifest.before
        while at is not None:
            length, at = length + 1, folder.manifest(at).before
        assert length == number.bit_count()
    assert held < 130 * 5


def test_a_manifest_has_a_bound(folder: LakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = folder.manifest_behind(None, commit(1), offsets(1))
    monkeypatch.setattr(lake_files, "_BYTES_MAX", 20)
    with pytest.raises(InvalidArgument, match="begin another lake"):
        folder.put(token(1), manifest)
    with pytest.raises(Damaged, match="21 bytes"):
        folder.manifest(Pointer(1, token(1), "d" * 32, 21))


def broken(**changes: Any) -> bytes:
    return json.dumps(json.loads(GOLDEN) | changes).encode()


def file_named(name: object) -> bytes:
    return broken(commits=[{"number": 2, "token": token(2), "files": [[name, 1, 1]]}])


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", Damaged),
        (b"[" * 100_000, Damaged),
        (b"[]", Damaged),
        (broken(version=2), Unsupported),
        (broken(lake="y"), Damaged),
        (broken(number=3), Damaged),
        (broken(number=True), Damaged),
        (broken(source=None), Damaged),
        (broken(offsets={}), Damaged),
        (broken(commits=[]), Damaged),
        (broken(commits=[{"number": 2, "token": "x", "files": []}]), Damaged),
        (broken(before=None), Damaged),
        (broken(before={"number": 1, "token": token(1), "digest": "d", "bytes": 1}), Damaged),
        (file_named("../../../etc/passwd"), Damaged),
        (file_named("f0000000001-0000000000000002-01234567.parquet"), Damaged),
        (file_named("m0000000002-0000000000000002.json"), Damaged),
        (file_named(7), Damaged),
        (broken(commits=[{"number": 2, "token": token(2), "files": [[file_name(2, token(2)), -1, 1]]}]), Damaged),
    ],
)
def test_hostile_manifests(data: bytes, kind: type[Exception]) -> None:
    storage = MemoryChunkStorage("memory://hostile-manifests")
    storage.put(f"x/{UUID}/m0000000002-{token(2)}.json", data)
    with pytest.raises(kind):
        LakeFolder(storage, "x", UUID).manifest(Pointer(2, token(2), digest_of(data).hex(), len(data)))


def test_strangers_stay(folder: LakeFolder) -> None:
    storage = MemoryChunkStorage("memory://test_strangers_stay")
    manifest = folder.manifest_behind(None, commit(1), offsets(1))
    newest = manifest, folder.put(token(1), manifest)
    manifest = folder.manifest_behind(newest, commit(2), offsets(2))
    folder.put(token(2), manifest)
    there = {
        "notes.txt": True,
        f"f0000000001-{token(1)}-00000000.parquet": False,
        f"f0000000001-{token(5)}-00000000.parquet": False,
        f"m0000000001-{token(5)}.json": False,
        f"f0000000002-{token(5)}-00000000.parquet": True,
        f"f0000000003-{token(5)}-00000000.parquet": True,
    }
    for name in there:
        storage.put(folder.path(name), b"x")
    assert folder.clean(folder.commits(manifest)) == 3
    assert {name: storage.exists(folder.path(name)) for name in there} == there
    assert folder.manifest(newest[1]) == newest[0]
