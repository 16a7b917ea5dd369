"""Run every benchmark: ``python -m benchmarks [--dir DIR] [--quick]``."""

from __future__ import annotations

from benchmarks import (
    bench_append,
    bench_ask,
    bench_backup,
    bench_codec,
    bench_compose,
    bench_cost,
    bench_defrag,
    bench_hdfs,
    bench_inline,
    bench_past,
    bench_peers,
    bench_read,
    bench_recovery,
    bench_s3,
    bench_spark,
    bench_spark_jobs,
    bench_spark_lake,
    bench_spark_write,
    bench_upkeep,
)

__all__: list[str] = []

_ALL = (
    bench_append,
    bench_ask,
    bench_backup,
    bench_codec,
    bench_compose,
    bench_cost,
    bench_defrag,
    bench_hdfs,
    bench_inline,
    bench_past,
    bench_peers,
    bench_read,
    bench_recovery,
    bench_s3,
    bench_spark,
    bench_spark_jobs,
    bench_spark_write,
    bench_spark_lake,
    bench_upkeep,
)

if __name__ == "__main__":
    for bench in _ALL:
        bench.main()
