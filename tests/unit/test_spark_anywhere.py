"""A plan needs no container: objects that Pulsar wrote are planned from a bare directory, and read by the tasks of every read."""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path

import pytest

from chunkstore.codec.pulsar.pip76_index import ranges_of, read_index
from chunkstore.codec.pulsar.ranges import LedgerRange
from chunkstore.errors import ChunkNotFound, Damaged
from chunkstore.spark.runs import ReadTask, Sizing, WholeObject, plan_entries

pytest.importorskip("pyarrow", reason="pyarrow is not installed: Spark's batches are not tested")

from chunkstore.spark.batches import Column, read_task

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "pulsar"
NAMES = sorted(path.stem for path in FOLDER.glob("v2-*.json") if "BUGGY" not in path.stem)
COLUMNS = [Column(name) for name in ("topic", "ledger", "entry", "payload")]


def planned(root: Path, name: str, *, partitions: int = 1) -> list[ReadTask]:
    """What a bucket's own manifest would say, and the indexes that lie beside the data."""
    segments = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["segments"]
    lengths = {segment["data_file"]: segment["data_object_length"] for segment in segments}
    parts: list[LedgerRange] = []
    for segment in segments:
        index = read_index((FOLDER / segment["index_file"]).read_bytes())
        parts += ranges_of("t", segment["data_file"], index.spans())
    groups = plan_entries(
        parts,
        lambda data: WholeObject(data, lengths[data]),
        Sizing(partitions),
    )
    return [ReadTask(root.as_uri(), "", 0, tuple(group)) for group in groups]


def rows_of(tasks: list[ReadTask]) -> list[tuple[int, int, int, str]]:
    found = []
    for task in tasks:
        for batch in read_task(pickle.loads(pickle.dumps(task)), COLUMNS):
            assert set(batch.column("topic").to_pylist()) == {"t"}
            for row in batch.to_pylist():
                payload = row["payload"]
                found.append((row["ledger"], row["entry"], len(payload), hashlib.sha256(payload).hexdigest()))
    return found


def expected(name: str) -> list[tuple[int, int, int, str]]:
    segments = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["segments"]
    return [tuple(row) for segment in segments for row in segment["ledger_entry_len_sha256"]]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("partitions", [1, 3])
def test_objects_in_a_bare_directory_are_read_by_the_same_tasks(name: str, partitions: int) -> None:
    tasks = planned(FOLDER, name, partitions=partitions)
    assert 1 <= len(tasks) <= partitions
    assert rows_of(tasks) == expected(name)


def test_what_is_not_there_is_said_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ChunkNotFound, match=r"v2-zero-length-entries\.data"):
        rows_of(planned(tmp_path, "v2-zero-length-entries"))
    data = (FOLDER / "v2-zero-length-entries.data").read_bytes()
    (tmp_path / "v2-zero-length-entries.data").write_bytes(data[:-1])
    with pytest.raises(Damaged):
        rows_of(planned(tmp_path, "v2-zero-length-entries"))
    with pytest.raises(Damaged, match="100 bytes"):
        WholeObject("x", 100).pieces(90, 101)
