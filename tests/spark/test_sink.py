"""Writing as Spark does it, without a JVM: a live owner in this process, tasks with a context of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa

import chunkstore
from chunkstore.assembly import describe_owner
from chunkstore.errors import (
    Conflict,
    InvalidArgument,
    SegmentSealed,
    StorageUnavailable,
)
from chunkstore.spark.sink import BatchWriter
from tests.support.spark_tasks import _schema, home, store, told, write_batch, write_micro_batch

__all__ = ["home", "store"]

Options = dict[str, str]


def options(home: Path, **more: str) -> Options:
    return {"path": f"file://{home}/root", **more}


def rows(**columns: Sequence[object]) -> pa.Table:
    return pa.table({name: pa.array(items) for name, items in columns.items()})


def text(store: chunkstore.ChunkedSegmentStorage, name: str = "s") -> bytes:
    return store.read(name, 0, 1 << 30)


def test_rows_keep_their_order_and_are_attached_by_partition(
    store: chunkstore.ChunkedSegmentStorage, home: Path
) -> None:
    names = ["a", "b", "a", "c", "a", "b"]
    one = rows(segment=names, value=[b"%d;" % number for number in range(6)])
    two = rows(segment=["b", "b"], value=[b"x" * 100, b"y" * 200])
    for framing, tail in (("none", b""), ("lines", b"\n")):
        before = {name: store.info(name).length if store.exists(name) else 0 for name in "abc"}
        write_batch(options(home, framing=framing, chunkBytes="64"), one, two)
        found = {name: store.read(name, before[name], 1 << 20) for name in "abc"}
        assert found == {
            "a": b"0;%b2;%b4;%b" % (tail, tail, tail),
            "b": b"1;%b5;%b" % (tail, tail) + b"x" * 100 + tail + b"y" * 200 + tail,
            "c": b"3;" + tail,
        }
    assert {chunk.length for chunk in store.layout("b") if chunk.offset} >= {64}
    assert store.sessions() == []
    assert store.epoch == 1


@pytest.mark.parametrize(
    ("table", "more", "argument"),
    [
        (rows(segment=["a"], value=["x\ny"]), {"framing": "lines"}, "value"),
        (rows(segment=["a", "b"], value=["x", None]), {}, "value"),
        (rows(segment=["a", None], value=["x", "y"]), {}, "segment"),
        (rows(segment=["a" * 256], value=["x"]), {}, "segment"),
        (rows(segment=[f"s{number}" for number in range(10_001)], value=["x"] * 10_001), {}, "segment"),
    ],
)
def test_bad_rows_are_refused_and_nothing_is_visible(
    store: chunkstore.ChunkedSegmentStorage, home: Path, table: pa.Table, more: Options, argument: str
) -> None:
    schema = pa.schema([(name, pa.int64() if name == "at" else pa.string()) for name in table.column_names])
    with pytest.raises(InvalidArgument) as caught:
        write_batch(options(home, **more), table.cast(schema))
    assert caught.value.argument == argument
    assert list(store.segments()) == []


def test_a_job_that_is_run_again_writes_nothing(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    chosen = options(home, segments="s", txnAppId="nightly", txnVersion="3")
    table = rows(value=["once"])
    write_batch(chosen, table)
    before = len([path for path in (home / "root").rglob("*") if path.is_file()])
    for version in ("3", "2"):
        write_batch({**chosen, "txnVersion": version}, table)
    assert len([path for path in (home / "root").rglob("*") if path.is_file()]) == before
    with pytest.raises(Conflict, match="another txnAppId"):
        write_batch(chosen, rows(value=["other"]))
    write_batch({**chosen, "txnVersion": "4"}, table)
    assert text(store) == b"onceonce"
    assert store.sessions() == []


@pytest.mark.parametrize("kind", ["column", "option", "ledgers"])
def test_rows_are_the_same_in_any_order_and_any_tasks_and_nowhere_else(
    store: chunkstore.ChunkedSegmentStorage, home: Path, kind: str
) -> None:
    chosen = options(home, txnAppId="a", **({"segments": "s"} if kind == "option" else {}))
    values, names = ["x", "", "yy", "x"], ["a", "b", "a", "b"]
    made = {
        "column": rows(segment=names, value=values),
        "option": rows(value=values),
        "ledgers": rows(topic=["t"] * 4, ledger=[1, 1, 2, 2], entry=[0, 1, 0, 1], payload=values),
    }[kind]
    write_micro_batch(chosen, 0, made)
    before = [(info.name, info.length) for info in store.segments()]
    at = [2, 3, 0, 1] if kind == "ledgers" else [3, 1, 2, 0]
    write_micro_batch(chosen, 0, made.take(at).slice(0, 2), made.take(at).slice(2))
    for other in (made.slice(1) if kind != "ledgers" else made.slice(0, 3), made.slice(0, 0)):
        with pytest.raises(Conflict, match="other rows of micro-batch 0"):
            write_micro_batch(chosen, 0, other)
    moved: dict[str, tuple[str, Sequence[object]]] = {
        "column": ("segment", ["a", "b", "a", "a"]),
        "option": ("value", values),
        "ledgers": ("ledger", [1, 1, 3, 3]),
    }
    name, items = moved[kind]
    elsewhere = made.set_column(made.column_names.index(name), name, pa.array(items))
    with pytest.raises(Conflict, match="other rows of micro-batch 0"):
        write_micro_batch({**chosen, **({"segments": "t"} if kind == "option" else {})}, 0, elsewhere)
    assert [(info.name, info.length) for info in store.segments()] == before


def test_a_job_that_fails_ends_its_session(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    store.create("s")
    store.seal("s")
    with pytest.raises(SegmentSealed):
        write_batch(options(home, segments="s"), rows(value=["x"]))
    assert store.sessions() == []
    writer = BatchWriter(options(home, segments="t"), _schema([rows(value=["x"])]), overwrite=False)
    messages = told(writer, [rows(value=["x"])], {})
    writer.abort([messages[0], None])
    with pytest.raises(Conflict, match="ended"):
        writer.commit(messages)
    assert not store.exists("t")


def test_micro_batches_are_committed_once(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    chosen = options(home, segments="s", checkpointlocation="/c")
    tables = [rows(value=[f"{number}"]) for number in range(4)]
    write_micro_batch(chosen, 0, tables[0])
    write_micro_batch(chosen, 1, tables[1].slice(0, 0))
    assert store.sessions() == []
    write_micro_batch(chosen, 2, tables[2], commits=False)
    write_micro_batch(chosen, 2, tables[2], run="r2")
    write_micro_batch(chosen, 2, tables[2], run="r3")
    assert store.sessions() == [], "what was left and what was written again is nobody's"
    write_micro_batch(chosen, 3, tables[3], run="r3")
    assert text(store) == b"023"
    for number, query in ((2, "q"), (5, "q"), (0, "other")):
        same = {**chosen, "txnAppId": "mine"} if query == "other" else chosen
        if query == "other":
            write_micro_batch({**chosen, "sinkId": "mine"}, 0, tables[0].slice(0, 0))  # the same sink
        with pytest.raises(Conflict, match="checkpoint"):
            write_micro_batch(same, number, tables[0], query=query)
    assert text(store) == b"023"
    assert store.epoch == 1


def test_where_no_owner_runs_a_batch_write_claims_for_its_commit(home: Path) -> None:
    chosen = options(home, segments="s")
    with chunkstore.open(chosen["path"]):
        pass
    for number in (1, 1, 2):
        job = {"txnAppId": "nightly", "txnVersion": str(number)}
        write_batch({**chosen, **job}, rows(value=[f"{number};"]))
    with chunkstore.open_replica(chosen["path"]) as replica:
        assert replica.read("s", 0, 100) == b"1;2;"
        assert replica.sessions() == []
    owner = describe_owner(chosen["path"])
    assert isinstance(owner["lease"], dict) and owner["lease"]["released"], "nobody is left that owns it"


def test_where_no_owner_runs_a_stream_says_what_to_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chunkstore.spark.owners._RESTART_S", 0.1)
    chosen = options(home, segments="s", checkpointlocation="/c")
    with chunkstore.open(chosen["path"]) as store:
        write_micro_batch(chosen, 0, rows(value=["one"]))
        epoch = store.epoch
    with pytest.raises(StorageUnavailable, match=r"run 'chunkstore serve file://.*foreach_batch\(store") as caught:
        write_micro_batch(chosen, 1, rows(value=["two"]))
    assert "\n" not in caught.value.message
    assert describe_owner(chosen["path"])["claimed_epoch"] == epoch, "a stream claims nothing"
    with chunkstore.open(chosen["path"]) as store:
        write_micro_batch(chosen, 1, rows(value=["two"]))
        assert text(store) == b"onetwo"


def test_an_owner_that_was_killed_answers_no_stream(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chunkstore.spark.sink.START_S", 0.5)
    chosen = options(home, segments="s", checkpointlocation="/c")
    with deaf(home, chosen["path"]), pytest.raises(StorageUnavailable, match="foreach_batch"):
        write_micro_batch(chosen, 0, rows(value=["x"]))


DEAF = """
import sys, time, chunkstore
store = chunkstore.open(sys.argv[1], settings=chunkstore.Settings(cache_dir=sys.argv[2], tuning=chunkstore.config.Tuning(ask_s=0)))
print("open", flush=True)
time.sleep(600)
"""


@contextmanager
def deaf(home: Path, root: str) -> Iterator[int]:
    """An owner that lives, and answers nobody: its process."""
    command = [sys.executable, "-c", DEAF, root, str(home / "deaf")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"open\n"
        yield owner.pid
        owner.kill()


def test_take_over_deposes_an_owner_that_does_not_answer_and_says_so(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = options(home, segments="s", takeOver="true")
    with deaf(home, chosen["path"]) as pid:
        write_batch(chosen, rows(value=["x"]))
        assert f"pid {pid}" in caplog.text
        assert int(str(describe_owner(chosen["path"])["opened_epoch"])) > 1
