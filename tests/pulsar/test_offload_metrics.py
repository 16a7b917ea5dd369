"""Metrics of offloading: the page that Prometheus gets, byte for byte."""

from __future__ import annotations

import pytest

from chunkstore.errors import InvalidArgument
from chunkstore.metrics import exposition
from chunkstore.pulsar.offload_metrics import METRICS, OffloadMetrics
from tests.pulsar.support_streaming import TOPIC
from tests.support.clock import stopped_clock

PAGE = """\
# HELP brk_ledgeroffloader_offload_error Offloads that failed
# TYPE brk_ledgeroffloader_offload_error counter
brk_ledgeroffloader_offload_error{namespace="public/default",topic="persistent://public/default/orders"} 1.0
# HELP brk_ledgeroffloader_offload_rate Bytes offloaded in a second
# TYPE brk_ledgeroffloader_offload_rate gauge
brk_ledgeroffloader_offload_rate{namespace="public/default",topic="persistent://public/default/orders"} 20.0
# HELP brk_ledgeroffloader_read_offload_error Reads of offloaded ledgers that failed
# TYPE brk_ledgeroffloader_read_offload_error counter
# HELP brk_ledgeroffloader_read_offload_rate Bytes of offloaded ledgers read in a second
# TYPE brk_ledgeroffloader_read_offload_rate gauge
# HELP brk_ledgeroffloader_read_bytes Bytes of offloaded ledgers read
# TYPE brk_ledgeroffloader_read_bytes counter
brk_ledgeroffloader_read_bytes{namespace="",topic="a \\"b\\""} 7.5
# HELP brk_ledgeroffloader_write_storage_error Writes to the tiered storage that failed
# TYPE brk_ledgeroffloader_write_storage_error counter
# HELP brk_ledgeroffloader_delete_offload_ops Deletions of offloaded ledgers, by status
# TYPE brk_ledgeroffloader_delete_offload_ops counter
brk_ledgeroffloader_delete_offload_ops{namespace="public/default",status="failed",topic="persistent://public/default/orders"} 1.0
brk_ledgeroffloader_delete_offload_ops{namespace="public/default",status="succeed",topic="persistent://public/default/orders"} 2.0
# HELP brk_ledgeroffloader_read_offload_index_latency Time to read an index, in microseconds
# TYPE brk_ledgeroffloader_read_offload_index_latency summary
# HELP brk_ledgeroffloader_read_offload_data_latency Time to read data, in microseconds
# TYPE brk_ledgeroffloader_read_offload_data_latency summary
brk_ledgeroffloader_read_offload_data_latency{namespace="public/default",quantile="0.5",topic="persistent://public/default/orders"} 100.0
brk_ledgeroffloader_read_offload_data_latency{namespace="public/default",quantile="0.95",topic="persistent://public/default/orders"} 190.0
brk_ledgeroffloader_read_offload_data_latency{namespace="public/default",quantile="0.99",topic="persistent://public/default/orders"} 198.0
brk_ledgeroffloader_read_offload_data_latency{namespace="public/default",quantile="1.0",topic="persistent://public/default/orders"} 200.0
brk_ledgeroffloader_read_offload_data_latency_count{namespace="public/default",topic="persistent://public/default/orders"} 200.0
brk_ledgeroffloader_read_offload_data_latency_sum{namespace="public/default",topic="persistent://public/default/orders"} 20100.0
# HELP brk_ledgeroffloader_read_ledger_latency Time to read a ledger that is being offloaded, in microseconds
# TYPE brk_ledgeroffloader_read_ledger_latency summary
# HELP brk_ledgeroffloader_ledger_offload_limited Reads that waited for flow permits
# TYPE brk_ledgeroffloader_ledger_offload_limited counter
# HELP brk_ledgeroffloader_ledger_offload_time Time of reads within flow permits, waiting included, in microseconds
# TYPE brk_ledgeroffloader_ledger_offload_time counter
# HELP brk_ledgeroffloader_ledger_reading_max_bytes Bytes of the largest read within flow permits
# TYPE brk_ledgeroffloader_ledger_reading_max_bytes gauge
brk_ledgeroffloader_ledger_reading_max_bytes{namespace="public/default",topic="persistent://public/default/orders"} 9.0
"""


def test_the_page_is_what_a_broker_shows() -> None:
    with stopped_clock() as clock:
        metrics = OffloadMetrics()
        metrics.record("offload_error", TOPIC)
        metrics.record("offload_rate", TOPIC, 2000)
        metrics.record("read_bytes", 'a "b"', 7.5)
        for status in ("succeed", "failed", "succeed"):
            metrics.record("delete_offload_ops", TOPIC, status=status)
        for value in range(200, 0, -1):
            metrics.record("read_offload_data_latency", TOPIC, value)
        for size in (3, 9, 6):
            metrics.record("ledger_reading_max_bytes", TOPIC, size)
        clock.now_s += 100
        collector = metrics.collector()
        assert exposition([collector]).decode() == PAGE
        # Within an interval the rate is that of the last one.
        metrics.record("offload_rate", TOPIC, 6000)
        clock.now_s += 59
        assert exposition([collector]).decode() == PAGE
        clock.now_s += 1
        assert exposition([collector]).decode() == PAGE.replace('orders"} 20.0\n', 'orders"} 100.0\n')


def test_prometheus_reads_the_page_and_no_other_names_are_taken() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    with pytest.raises(InvalidArgument, match="no metric"):
        OffloadMetrics().record("offload_errors", TOPIC)
    families = {family.name: family.type for family in text_string_to_metric_families(PAGE)}
    assert families == {f"brk_ledgeroffloader_{name}": kind for name, (kind, _) in METRICS.items()}
