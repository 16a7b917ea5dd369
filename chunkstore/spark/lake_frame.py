"""``lake(spark, name, ...)``: one frame over a lake's files and the container behind them (docs/guide-spark.md, decision 0029).

Promises: where the files end the container begins, by the one row that says both, so that no row comes twice or is missing, whatever runs
meanwhile; files are those that the row names, all of them there when the frame is made. What cannot be one is an error, not another answer.
Leaves out: writing files (``jobs.parquet``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from chunkstore.assembly import open_replica
from chunkstore.config import Settings
from chunkstore.errors import InvalidArgument, RolledBack
from chunkstore.metadata.keys import SINKS_NAMESPACE
from chunkstore.metadata.sinks import decode_lake
from chunkstore.registry import open_storage, require_named
from chunkstore.spark.errors import annotated
from chunkstore.spark.lake_files import LakeFolder, Manifest, check_container, lake_key, pointer_of
from chunkstore.spark.options import STREAM_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Halves", "lake", "plan_lake", "spark_url"]

_SCHEMES = {"s3": "s3a", "hdfs": "webhdfs"}
_PATTERNS = re.compile(r"[*?\[\]{}\\]")


class Halves(NamedTuple):
    """What a frame is put together from: the URLs of files, the columns of both, the options of the reader behind the files."""

    files: list[str]
    schema: str
    options: dict[str, str]


def lake(
    spark: SparkSession,
    name: str,
    path: str,
    container: str = "default",
    *,
    files: str | None = None,
    foreign_roots: Sequence[str] = (),
) -> DataFrame:
    """All rows of the lake ``name`` of this container: parquet as far as ``to_parquet`` has come, the container behind that.

    ``path``: the container's root. ``files``: where the lake's files lie; else the URL that ``to_parquet`` was given, without credentials,
    as the container says it: below ``path``, or below one of ``foreign_roots``, else ``RootRefused``. Executors read them by Spark's own
    reader, which verifies the pages' CRCs: ``s3://`` as ``s3a://``, ``hdfs://`` as ``webhdfs://``; other schemes as they are.

    The frame's files are those of now. What is behind them is planned when the frame is used first, and kept, as of any read; by then the
    container must still have it (``SegmentTruncated``: make the frame anew). Rows and columns are those that ``to_parquet`` was told.
    This process needs access to ``path`` and to the files, also through Spark Connect.

    Raises ``InvalidArgument`` (no lake of this name; a URL that Spark would take for a pattern), ``RolledBack`` (the lake has rows of a
    history that the container has left), ``Damaged`` (the row, the manifest, or a file that is gone or has another length),
    ``ContainerNotFound``, and what opening both raises. Used, the frame raises what readers do, and Spark's own error for a file that is
    not as it was written.
    """
    from pyspark.sql.types import StructType

    with annotated(container=container, lake=name):
        halves = plan_lake(name, path, container, files, tuple(foreign_roots))
    schema = StructType.fromJson(json.loads(halves.schema))
    behind = spark.read.format("chunkstore").schema(schema).options(**halves.options).load()
    if not halves.files:
        return behind
    # A file that is gone or rotten is an error, whatever the session says; and no folder's name becomes a column.
    strictly = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false", "recursiveFileLookup": "true"}
    reader = spark.read.schema(schema).options(**strictly).option("parquet.page.verify-checksum.enabled", "true")
    columns = ["`{}`".format(name.replace("`", "``")) for name in schema.names]
    return reader.parquet(*halves.files).select(*columns).unionAll(behind)


def plan_lake(
    name: str, path: str, container: str, files: str | None = None, foreign_roots: tuple[str, ...] = ()
) -> Halves:
    """Without Spark. Raises as ``lake``."""
    key = lake_key(name)
    with open_replica(path, container=container) as replica:
        entry = replica.table(SINKS_NAMESPACE).get(key)
        if entry is None:
            text = f"container {container!r} has no lake {name!r}: jobs.to_parquet(spark, ROOT, name={name!r}, ...) begins one"
            raise InvalidArgument(text, argument="name")
        row = decode_lake(key, entry.value)
        check_container(name, row, replica.uuid)
        if not files:
            remedy = "if you trust it, name it there (foreign_roots), or say where its files are (files)"
            require_named(row.url, Settings(foreign_roots=(path, *foreign_roots)), remedy=remedy)
        with closing(open_storage(files or row.url, Settings())) as storage:
            folder = LakeFolder(storage, name, replica.uuid.hex())
            manifest = folder.manifest(pointer_of(row))
            commits = folder.commits(manifest)
            folder.require(commits)
            base = spark_url(storage.url)
        begin = manifest.offsets
        if not replica.passes(begin.epoch, begin.lsn):
            raise _left(name, manifest, replica.lsn)
    urls = [f"{base}/{folder.path(file.name)}" for commit in commits for file in commit.files]
    options = {
        # Of what is stored only what a stream may be told: no place, and no function.
        **{key: value for key, value in manifest.source.items() if key in STREAM_OPTIONS},
        "path": path,
        "container": container,
        "foreignRoots": " ".join(foreign_roots),
        "lakeOffsets": json.dumps([begin.to_json(), None]),
    }
    return Halves(urls, manifest.schema, options)


def spark_url(url: str) -> str:
    """A storage's URL as Spark wants it. Raises ``InvalidArgument`` for one that it would take for a pattern."""
    scheme, _, rest = url.partition("://")
    path = unquote(rest.partition("?")[0], errors="surrogateescape")
    if _PATTERNS.search(path):
        raise InvalidArgument(
            f"Spark takes {path!r} for a pattern: lakes need a path without * ? [ ] {{ }} \\", argument="path"
        )
    return f"{_SCHEMES.get(scheme, scheme)}://{path}"


def _left(name: str, manifest: Manifest, lsn: int) -> RolledBack:
    text = (
        f"lake {name!r} has rows up to record {manifest.offsets.lsn} of epoch {manifest.offsets.epoch}, which is not in the history of its "
        "container: it was restored to before that while they were written. Begin a lake of another name"
    )
    return RolledBack(text, object=f"lake {name}", lsn_seen=manifest.offsets.lsn, lsn_now=lsn)
