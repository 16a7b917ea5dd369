"""Metrics of upkeep and log lines: each one that is documented is there and moves, and no line tells a secret."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

import chunkstore
import chunkstore_bindings
from chunkstore.errors import Damaged, StorageFull, StorageUnavailable
from chunkstore.journal import JournalBroken
from chunkstore.metrics import UPKEEP_COUNTERS, UPKEEP_GAUGES, UPKEEP_PARTS
from chunkstore.observer import LoggingObserver
from chunkstore.records.logs import FIELDS, without_credentials
from chunkstore_bindings.filesystem import mounts
from chunkstore_bindings.memory import forget_memory
from tests.support.clock import jumping_clock
from tests.support.hooked import replace_steps
from tests.support.settings import tuned

ROOT = "memory://metrics-and-logs"
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide-operate.md"
PREFIX = "chunkstore_upkeep_"


def settings(**given: Any) -> chunkstore.Settings:
    rolling = chunkstore.RollingPolicy(chunk_size_bytes_max=10)
    return tuned(**{"gc_grace_s": 0, "lease_s": 0, "default_rolling": rolling, **given})


def test_the_guide_lists_every_metric_and_every_logger() -> None:
    text = GUIDE.read_text().partition("## Metrics and logs")[2].partition("\n## ")[0]
    listed = re.findall(rf"^\| `{PREFIX}(\w+)` \|", text, re.MULTILINE)
    counters = [name.removesuffix("_total") for name in listed if name.endswith("_total")]
    assert counters == list(UPKEEP_COUNTERS)
    assert [name for name in listed if not name.endswith("_total")] == list(UPKEEP_GAUGES)
    assert all(f"`{part}`" in text for part in UPKEEP_PARTS)
    roots = (Path(module.__file__ or "").parent for module in (chunkstore, chunkstore_bindings))
    code = "".join(path.read_text() for root in roots for path in root.rglob("*.py"))
    used = set(re.findall(r'(?:_log\(|log_event\(|getLogger\("chunkstore\.)\s*"?(\w+)"', code))
    assert set(re.findall(r"`chunkstore\.(\w+)`", text.partition("**Logs**")[2])) == used
    assert all(f"`{field}`" in text for field in FIELDS)


def test_every_metric_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [1 << 30]
    monkeypatch.setattr(mounts, "free_bytes", lambda _path: free[0])
    chosen = settings(quota_bytes=1000, free_bytes_min=1000, spill_s=3600.0, cache_dir=str(tmp_path / "cache"))
    with jumping_clock() as clock, chunkstore.open((tmp_path / "root").as_uri(), settings=chosen) as store:
        seen = [store.optimiser.figures()]
        store.create("c")
        store.append("c", bytes(5))
        store.read("c", 0, 5)
        store._container.tail.clear()
        store.read("c", 0, 5)
        store.create("a")
        store.append("a", bytes(95))
        store.truncate("a", 13)
        store.create("b", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=1000))
        for number in range(8):
            store.create("part")
            store.append("part", bytes(5))
            store.seal("part")
            store.concat("b", 5 * number, "part")
        store.defrag("b")
        store.pin("kept")
        clock.jump(5)
        free[0] = 999
        seen.append(store.optimiser.figures())
        assert seen[-1]["oldest_garbage_seconds"][""] >= 5
        store.unpin("kept")
        store.set_retention("a", chunkstore.RetentionPolicy(size_bytes_max=50))
        store.apply_retention()
        store.collect(dry_run=True)
        store.collect()
        damaged = next(path for path in sorted((tmp_path / "root/default/d").rglob("*-*")) if path.stat().st_size == 10)
        damaged.write_bytes(b"not so now")
        assert not store.scrub().ok
        store.sweep(delete=True, age_s_min=0)
        monkeypatch.setattr("chunkstore.upkeep.sweep.sweep", raising(Damaged("planted", object="x")))
        with pytest.raises(Damaged):
            store.sweep()
        seen.append(store.optimiser.figures())
    last = seen[-1]
    assert set(last) == {*UPKEEP_COUNTERS, *UPKEEP_GAUGES}
    none = dict.fromkeys(UPKEEP_PARTS, 0)
    assert last["runs"] == none | {"collect": 1, "retention": 1, "sweep": 2, "defrag": 1, "scrub": 1, "spill": 8}
    assert last["errors"] == none | {"sweep": 1}
    assert last["chunks"] == none | {"collect": 12, "retention": 3, "defrag": 8, "scrub": 7, "spill": 8}
    assert last["moved_bytes"]["defrag"] == last["moved_bytes"]["spill"] == 40
    assert (last["tail_hits"], last["tail_misses"]) == ({"": 9}, {"": 1})
    assert last["findings"]["scrub"] == 1
    assert last["reclaimed_bytes"]["collect"] >= 40
    assert last["quota_bytes"] == {"": 1000}
    still = {name for name in last if all(figures[name] == last[name] for figures in seen)}
    assert still == {"quota_bytes"}


def raising(error: Exception) -> Any:
    def call(*_args: object, **_named: object) -> Any:
        raise error

    return call


def test_lines_of_an_owners_life(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="chunkstore")
    observer = LoggingObserver("s3://user:secret@host/bucket?token=secret", "orders")
    with chunkstore.open(ROOT, container="orders", settings=settings(quota_bytes=100), observer=observer) as store:
        store.create("a")
        store.append("a", bytes(99))
        with pytest.raises(StorageFull):
            store.append("a", bytes(2))
        store.truncate("a", 50)
        store.collect()
        store.append("a", b"x")
        store.snapshot()
        lsn, epoch = store._container.current.queue.head.lsn, store.epoch

        def fail(*_batch: object) -> Any:
            raise JournalBroken(StorageUnavailable("planted", object="orders/j/log.a"), happened=None)

        replace_steps(store, append_lines=fail)
        with pytest.raises(StorageUnavailable):
            store.append("a", b"fails")
    forget_memory(ROOT)
    by_part: dict[str, list[logging.LogRecord]] = {}
    for record in caplog.records:
        by_part.setdefault(record.name, []).append(record)
        assert "secret" not in record.getMessage()
        assert all(hasattr(record, field) for field in FIELDS)
        assert (record.root, record.container) == ("s3://host/bucket", "orders")  # type: ignore[attr-defined]
    assert {name.removeprefix("chunkstore.") for name in by_part} == {"engine", "journal", "upkeep"}
    engine = by_part["chunkstore.engine"]
    [fault] = [record for record in engine if record.levelname == "ERROR"]
    # Told when it is mended, in the next epoch, which has a record of its own.
    assert (fault.epoch, fault.lsn, fault.chunk) == (epoch + 1, lsn + 1, "orders/j/log.a")  # type: ignore[attr-defined]
    assert "failed" in fault.getMessage() and "chunk=orders/j/log.a error=StorageUnavailable" in fault.getMessage()
    events = [record.getMessage().partition(" root=")[0] for record in engine]
    assert events == ["opened", "safe mode began", "safe mode ended", "epoch begun", "failed", "closed"]
    [upkeep] = by_part["chunkstore.upkeep"]
    assert "collect done root=s3://host/bucket container=orders epoch=1" in upkeep.getMessage()
    assert " chunks=5 " in upkeep.getMessage()
    assert [record.epoch for record in engine if "begun" in record.getMessage()] == [2]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://key:secret@host:9000/bucket/prefix?region=x#y", "s3://host:9000/bucket/prefix"),
        ("file:///data/events", "file:///data/events"),
        ("memory://a", "memory://a"),
        ("s3://key:sec/ret@host/bucket", "s3://host/bucket"),
        ("s3://host:9000/bucket/a@b", "s3://host:9000/bucket/a@b"),
        ("s3://[::1]:9000/bucket/a@b", "s3://[::1]:9000/bucket/a@b"),
        ("hdfs://[bad/path", "hdfs://[bad/path"),
        ("", ""),
    ],
)
def test_a_root_without_credentials(url: str, shown: str) -> None:
    assert without_credentials(url) == shown
