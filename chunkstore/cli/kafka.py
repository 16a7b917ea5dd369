"""The verbs of ``kafka`` but for ``serve``. Only ``tier`` and ``attach`` change a container.

Only ``restore`` and ``attach`` change a log directory. Rows are printed as they are found; what was passed over, and what says which
segments count, is on stderr."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Annotated, Any, Literal

import typer

import chunkstore
from chunkstore import runtime
from chunkstore.cli import access, options
from chunkstore.cli.kafka_serve import serve
from chunkstore.cli.options import age_option, argument, flag, option
from chunkstore.cli.output import human_bytes, print_each, print_findings, print_json, shown
from chunkstore.cli.streams import opened_input, write_all
from chunkstore.errors import InvalidArgument

__all__ = ["attach", "ls", "orphans", "read", "restore", "serve", "tier", "verify", "why"]

_SOURCE = "A tier, or the ROOT of a container: s3://BUCKET/PREFIX, a path, file:///PATH or hdfs://HOST:HTTPPORT/PATH; or a log directory."
Source = Annotated[str, argument("SOURCE", _SOURCE)]
Topic = Annotated[str | None, option("T", "Only this topic.")]
Partition = Annotated[int | None, option("N", "Only this partition.")]
_LOG = "Log directory (or a copy) with __remote_log_metadata-N folders; it decides which segments are finished."
_KEY = "RSA private key of an encrypted tier; repeatable, each is tried."
_PATTERN = "Pattern of names: orders, 'web*'. Internal topics (__*) only if the pattern begins with __."
Topics = Annotated[str | None, option("PATTERN", _PATTERN, "--topics")]
_WATCH_S = 10.0
_needed = partial(access.needs, "kafka", "Kafka's tiers")
_FINDING = ("kind", "object", "topic", "partition", "offset", "position", "message")


@dataclass(frozen=True, kw_only=True)
class Sourced:
    """Options of a verb that reads a SOURCE, as ``access.Reading`` has those of a container."""

    metadata_log: Annotated[str | None, option("DIR", _LOG, "--metadata-log")] = None
    prefix: Annotated[str, option("P", "Prefix of the keys below the URL, if it has no slash.", "--prefix")] = ""
    as_json: options.AsJson = False

    @contextmanager
    def tier(self, source: str, keys: list[str] | None = None) -> Iterator[Any]:
        """The tier or log directory; its notes go to stderr at the end, also of a failure."""
        with _needed():
            kind = import_module("chunkstore.kafka.bucket").KafkaBucket
        pems = []
        for name in keys or ():
            with opened_input(name) as file:
                pems.append(file.read(1 << 20))
        with kind(source, metadata_log=self.metadata_log, keys=pems, prefix=self.prefix) as tier:
            try:
                yield tier
            finally:
                for line in (f"lineage from {tier.source.lineage}", *tier.notes):
                    sys.stderr.write(f"chunkstore: {shown(line)}\n")


@dataclass(frozen=True, kw_only=True)
class Keyed(Sourced):
    """Of a verb that reads what a SOURCE has stored."""

    key: Annotated[list[str] | None, option("FILE.pem", _KEY, "--key")] = None


@dataclass(frozen=True, kw_only=True)
class Attaching(Keyed, access.Owning):
    """Of a verb that copies a SOURCE into a container."""


def ls(
    source: Source,
    *,
    topic: Topic = None,
    partition: Partition = None,
    here: Sourced,
) -> None:
    """List the segments, also those that are not read."""
    columns = ("topic", "topic_id", "partition", "start_offset", "end_offset", "uuid", "state", "bytes")
    with here.tier(source) as tier:
        print_each(
            tier.segments(topic, partition),
            columns,
            lambda each: (*each[:7], human_bytes(each.bytes)),
            as_json=here.as_json,
            right=("partition", "start_offset", "end_offset", "bytes"),
            document=lambda each: dict(zip(columns, [None if cell == "" else cell for cell in each[:8]], strict=True)),
        )


def read(
    source: Source,
    *,
    topic: Topic = None,
    partition: Partition = None,
    offset: Annotated[int, option("N", "First offset of each partition.")] = 0,
    until: Annotated[int | None, option("N", "Offset to end before; default: all.")] = None,
    isolation: Annotated[
        Literal["read_uncommitted", "read_committed"],
        flag("read_committed: without aborted and undecided transactions."),
    ] = "read_uncommitted",
    here: Keyed,
) -> None:
    """Write the records' values to standard output, a line each; with --json whole records."""
    if offset < 0 or (until is not None and until < offset):
        raise InvalidArgument(f"--offset {offset}, --until {until}", argument="--offset")
    out = sys.stdout.buffer
    bounds: dict[str, int] = {"start_offset": offset} | ({} if until is None else {"end_offset": until})
    with here.tier(source, here.key) as tier:
        for record in tier.read(topic, partition, isolation=isolation, **bounds):
            if here.as_json:
                print_json(_row(record))
            else:
                write_all(out, (record.value or b"") + b"\n")
    out.flush()


def _row(record: Any) -> dict[str, object]:
    def b64(data: bytes | None) -> str | None:
        return None if data is None else b64encode(data).decode()

    row = dict(zip(("topic", "partition", "offset", "timestamp", "timestamp_type"), record, strict=False))
    row |= {"key_b64": b64(record.key), "value_b64": b64(record.value)}
    row["headers"] = [[name, b64(value)] for name, value in record.headers]
    return row | {"leader_epoch": record.leader_epoch, "transactional": record.transactional}


def verify(
    source: Source,
    *,
    topic: Topic = None,
    partition: Partition = None,
    here: Keyed,
) -> None:
    """Check manifests, chunks, batches, offsets, epochs and indexes. Exit code 0: sound; 1: something is damaged."""
    with here.tier(source, here.key) as tier:
        found = tier.verify(topic, partition)
        ok = print_findings(found, _FINDING, ("partition", "offset", "position"), as_json=here.as_json)
    if not ok:
        raise typer.Exit(1)


def orphans(
    source: Source,
    *,
    older_than: Annotated[
        float, age_option("Only objects of at least this age; the log must not be older.")
    ] = 86_400.0,
    here: Sourced,
) -> None:
    """List the objects that no broker uses or deletes, and those that are missing."""
    columns = ("kind", "object", "topic", "partition", "bytes", "age_s")
    with here.tier(source) as tier:
        found = tier.orphans(older_than_s=older_than)
        print_each(found, columns, as_json=here.as_json, right=("partition", "bytes", "age_s"))


def tier(
    log_dir: Annotated[str, argument("LOG_DIR", "A broker's log directory; the broker may run.")],
    root: options.Root,
    *,
    topics: Topics = None,
    watch: Annotated[bool, flag("Repeat every 10 s until interrupted.")] = False,
    whole: Annotated[
        bool, flag("Of a stopped broker: everything it needs to start from a restored directory.", "--all")
    ] = False,
    here: access.Owning,
) -> None:
    """Copy a broker's rolled segments into a container, which is created if it does not exist."""
    with _needed():
        from chunkstore.kafka.tier import Tiered, tier

    def show(done: Tiered) -> None:
        here.show(done._asdict(), dict(done._asdict(), notes="; ".join(map(shown, done.notes)) or None))

    def watched(done: Tiered) -> bool:
        show(done)
        runtime.sleep_s(_WATCH_S)
        return True

    with here.owner(root, create=True) as store:
        done = tier(log_dir, store, topics, watch=watched if watch else None, whole=whole)
    show(done)


def restore(
    root: options.Root,
    log_dir: Annotated[str, argument("LOG_DIR", "Log directory of a stopped broker, or a new one.")],
    *,
    topics: Topics = None,
    keep_partition_metadata: Annotated[
        bool, flag("Replace the empty topics of a fresh cluster, but not their ids.")
    ] = False,
    here: access.Reading,
) -> None:
    """Restore partitions as folders of a log directory; list what else a broker needs."""
    with _needed():
        from chunkstore.kafka.tier import restore

    with here.replica(root) as replica:
        done = restore(replica, log_dir, topics, keep_partition_metadata=keep_partition_metadata)
    here.show(done._asdict(), dict(done._asdict(), missing="; ".join(map(shown, done.missing))))


def why(
    source: Annotated[str, argument("SOURCE", "A broker's log directory, or the ROOT of a container.")],
    partition: Annotated[str, argument("TOPIC-PARTITION", "orders-3")],
    *,
    root: Annotated[str | None, option("ROOT", "Container that the log directory is copied into.")] = None,
    here: access.Reading,
) -> None:
    """Show for each segment why it is not copied, may not be deleted, or is kept. Changes nothing."""
    with _needed():
        from chunkstore.kafka.sources import LogDirectory
        from chunkstore.kafka.tasks import why
    log_dir, tier = (source, root) if LogDirectory.is_at(source) else (None, source)
    with ExitStack() as stack:
        if tier is None:
            reasons = why(stack.enter_context(chunkstore.open("memory://no-tier")), partition, log_dir)
        else:
            reasons = why(stack.enter_context(here.replica(tier)), partition, log_dir)
    here.show_each(reasons, ("segment", "state", "reason"), tuple)


def attach(
    source: Source,
    root: options.Root,
    *,
    topics: Topics = None,
    topic_id: Annotated[
        list[str] | None, option("OLD=NEW", "A topic's id in the tier, and in the fresh cluster; repeatable.")
    ] = None,
    log_dir: Annotated[
        str | None,
        option("DIR", "Instead: log directory of a stopped broker of the fresh cluster, with its empty topics."),
    ] = None,
    here: Attaching,
) -> None:
    """Copy a tier that lost its cluster into a container, from which the brokers of a fresh cluster serve it."""
    with _needed():
        from chunkstore.kafka.attach import attach

    pairs = [each.partition("=") for each in topic_id or ()]
    if not all(len(old) == len(new) == 22 for old, _, new in pairs):
        raise InvalidArgument(f"--topic-id {topic_id}: OLD=NEW, ids as Kafka writes them", argument="--topic-id")
    ids = {old: new for old, _, new in pairs} or None
    with here.tier(source, here.key) as tier, here.owner(root, create=True) as store:
        done = attach(tier, store, topics, topic_ids=ids, log_dir=log_dir)
    here.show(done._asdict(), dict(done._asdict(), notes="; ".join(map(shown, done.notes)) or None))
