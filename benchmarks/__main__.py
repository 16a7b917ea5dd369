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

if __name__ == "__main__":
    bench_append.main()
    bench_ask.main()
    bench_backup.main()
    bench_codec.main()
    bench_compose.main()
    bench_cost.main()
    bench_defrag.main()
    bench_hdfs.main()
    bench_read.main()
    bench_recovery.main()
    bench_s3.main()
    bench_spark.main()
    bench_spark_jobs.main()
    bench_spark_write.main()
    bench_spark_lake.main()
    bench_upkeep.main()
