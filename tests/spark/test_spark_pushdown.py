"""Filters through a real Spark session: what it pushes down, what it does itself, and what it says where it may not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.config import KIB
from chunkstore.errors import Unsupported
from chunkstore.pulsar import OffloadWriter
from chunkstore.spark.errors import original_error
from tests.support.spark import missing

pytestmark = pytest.mark.proof

if missing():
    pytest.skip(missing(), allow_module_level=True)

TOPIC = "public/default/persistent/orders"
CONF = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def frame(spark: Any, tmp_path: Path) -> Iterator[Any]:
    url = f"file://{tmp_path}/root"
    settings = chunkstore.Settings(cache_dir=str(tmp_path / "cache"), lease_s=0, lmdb_map_bytes=1 << 28)
    with chunkstore.open(url, settings=settings) as store, OffloadWriter(store, TOPIC, block_bytes=4 * KIB) as writer:
        for ledger in (7, 8):
            for entry in range(100):
                writer.append(ledger, entry, b"%d-%d" % (ledger, entry) * 50)
    yield spark.read.format("chunkstore").options(topic=TOPIC, pushdown="true").load(url)
    spark.conf.unset(CONF)


def test_filters_prune_the_plan_and_holes_are_left_to_spark(spark: Any, frame: Any) -> None:
    spark.conf.set(CONF, "true")
    found = frame.where("ledger = 8 and entry >= 10 and entry in (10, 50, 99) and topic like 'public%'")
    assert sorted((row.ledger, row.entry, bytes(row.payload)) for row in found.collect()) == [
        (8, entry, b"8-%d" % entry * 50) for entry in (10, 50, 99)
    ]
    plan = found._jdf.queryExecution().executedPlan().toString()
    above = plan.split("BatchScan")[0]
    assert "entry" in above.split("Filter", 1)[1], "a set with holes is for Spark"
    assert "ledger" not in above.split("Filter", 1)[1], "what is applied exactly is not"
    assert found.count() == 3


def test_a_session_that_pushes_nothing_down_says_what_to_set(spark: Any, frame: Any) -> None:
    spark.conf.set(CONF, "false")
    with pytest.raises(Exception, match="DATA_SOURCE_PUSHDOWN_DISABLED") as caught:
        frame.where("ledger = 8").count()
    error = original_error(caught.value)
    assert isinstance(error, Unsupported)
    assert CONF in error.message
    assert error.to_fields() == {"feature": "pushdown"}
