"""From Arrow record batches to parquet files of a lake, in the task that reads them: no byte of them crosses to the JVM.

Promises: files of about ``file_bytes``, durable on return, readable by anybody's parquet: snappy, pages with CRCs, statistics of all
columns but the binary ones. Held are a file and a row group. Leaves out: which files count (``lake_files``), Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from chunkstore.config import MIB, Settings
from chunkstore.registry import open_storage
from chunkstore.spark.errors import annotated
from chunkstore.spark.lake_files import FileTask, LakeFile, LakeFolder, file_name

__all__ = ["FILES", "tell_files", "write_files"]

FILES: Final = "file STRING, bytes LONG, rows LONG"
"""What a task tells: a row for each file, as Spark writes a schema."""
_GROUP_BYTES: Final = 32 * MIB


def tell_files(task: FileTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As ``map_batches`` takes a function. Raises as ``write_files``."""
    columns = zip(*write_files(task, batches), strict=True)
    kinds = pa.schema([("file", pa.string()), ("bytes", pa.int64()), ("rows", pa.int64())])
    yield pa.record_batch([pa.array(column) for column in columns] or [[], [], []], schema=kinds)


def write_files(task: FileTask, batches: Iterable[pa.RecordBatch]) -> list[LakeFile]:
    """Write all rows. Raises what opening the lake's storage and writing there raise. Nothing counts yet. Retry: safe, it writes others."""
    with annotated(lake=task.lake):
        storage = open_storage(task.url, Settings())
        try:
            folder = LakeFolder(storage, task.lake, task.container)
            files: list[LakeFile] = []
            for data, rows in _parquet(batches, task.file_bytes):
                file = LakeFile(file_name(task.number, task.token), len(data), rows)
                name = folder.path(file.name)
                storage.create(name, data)
                storage.sync([name])
                files.append(file)
            return files
        finally:
            storage.close()


def _parquet(batches: Iterable[pa.RecordBatch], file_bytes: int) -> Iterator[tuple[memoryview, int]]:
    """The bytes of each file, and how many rows it has."""
    group_bytes = min(_GROUP_BYTES, file_bytes)
    pending: list[pa.RecordBatch] = []
    size_bytes, rows = 0, 0
    sink: pa.BufferOutputStream | None = None
    writer: pq.ParquetWriter | None = None
    for batch in batches:
        if writer is None or sink is None:
            sink = pa.BufferOutputStream()
            writer, rows = _writer(sink, batch.schema), 0
        pending.append(batch)
        size_bytes += batch.nbytes
        rows += batch.num_rows
        if size_bytes >= group_bytes:
            writer.write_table(pa.Table.from_batches(pending))
            pending, size_bytes = [], 0
            if sink.tell() >= file_bytes:
                writer.close()
                yield _bytes_of(sink), rows
                sink = writer = None
    if writer is not None and sink is not None:
        if pending:
            writer.write_table(pa.Table.from_batches(pending))
        writer.close()
        if rows:
            yield _bytes_of(sink), rows


def _writer(sink: pa.BufferOutputStream, schema: pa.Schema) -> pq.ParquetWriter:
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    return pq.ParquetWriter(
        sink,
        schema,
        compression="snappy",
        use_dictionary=texts or False,
        write_statistics=[field.name for field in schema if not pa.types.is_binary(field.type)] or False,
        write_page_checksum=True,
        store_schema=False,
    )


def _bytes_of(sink: pa.BufferOutputStream) -> memoryview:
    return memoryview(sink.getvalue()).cast("B")
