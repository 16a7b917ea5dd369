"""A bucket that Pulsar's offloaders wrote, without a broker: ``pulsar ls``, ``read``, ``verify``, ``orphans`` and ``rm``.

Only ``rm`` changes anything; what was left out is said on stderr."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from chunkstore.cli import options
from chunkstore.cli.ledgers import decode, entry_row, framed, need_offload
from chunkstore.cli.options import age_option, argument, flag, option
from chunkstore.cli.output import human_bytes, print_each, print_findings, print_json, print_note, shown
from chunkstore.cli.streams import opened_input, write_all
from chunkstore.records.framing import Framing

__all__ = ["decode", "ls", "orphans", "read", "rm", "verify"]

Url = Annotated[str, argument("BUCKET", "s3://BUCKET/PREFIX, a path, file:///PATH or hdfs://HOST:HTTPPORT/PATH.")]
Topic = Annotated[str | None, option("T", "Only this topic: persistent://public/ns/T or public/ns/persistent/T.")]
Ledger = Annotated[int | None, option("L", "Only this ledger.")]
_LIVE = "Output of info-internal and stats-internal of a topic: FILE or TOPIC=FILE; repeatable."
Live = Annotated[list[str] | None, option("FILE", _LIVE, "--live")]
NeededLive = Annotated[list[str], option("FILE", _LIVE, "--live")]
MoreLive = Annotated[list[str] | None, argument("[FILE]...", "More files for --live.")]
Cluster = Annotated[str | None, option("C", "The cluster of the --live files, if they name no complete offload.")]
_ORPHAN = ("kind", "object", "ledger", "uuid", "bytes", "age_s")
_NOTHING = "no ledger is in this bucket"
_FINDING = ("kind", "object", "ledger", "entry", "position", "message")


@contextmanager
def _bucket(url: str, live: Iterable[str] | None = None) -> Iterator[tuple[Any, Any]]:
    """The bucket, and what the live files say; its notes go to stderr at the end."""
    need_offload()
    from chunkstore.pulsar.bucket import PulsarBucket
    from chunkstore.pulsar.live import read_live

    files = read_live(list(live or ()))
    with PulsarBucket(url, live=files) as bucket:
        yield bucket, files
        _tell(bucket.notes)


def _tell(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stderr.write(f"chunkstore: {shown(line)}\n")


def ls(
    url: Url,
    *,
    topic: Topic = None,
    details: Annotated[bool, flag("Read each index: topics and entries.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """List the ledgers in a bucket."""
    with _bucket(url) as (bucket, _):
        print_each(
            bucket.ledgers(details, topic),
            ("topic", "ledger", "uuid", "format", "entries", "bytes"),
            lambda row: (*row[:5], human_bytes(row.bytes)),
            as_json=as_json,
            right=("ledger", "entries", "bytes"),
            none=_NOTHING,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The options of ``read``."""

    topic: Topic = None
    ledger: Ledger = None
    uuid: Annotated[str | None, option("UUID", "With --ledger: from this attempt only.")] = None
    first: Annotated[int, option("N", "With --ledger: first entry.")] = 0
    last: Annotated[int | None, option("N", "With --ledger: last entry; default: all.")] = None
    messages: Annotated[bool, flag("Write the messages inside, as a consumer gets them.")] = False
    transactions: Annotated[
        Literal["committed", "all"], flag("With --messages: all shows aborted and open ones, too.")
    ] = "committed"
    lenient: Annotated[bool, flag("With --messages: write entries that are not messages unchanged.")] = False
    live: Live = None
    entries: Annotated[Framing, flag("How they are written: see offload. Not with --json.")] = "lines"
    as_json: options.AsJson = False


def read(url: Url, *, here: Reading) -> None:
    """Write the entries of a ledger or topic, or the messages inside, to standard output."""
    out = sys.stdout.buffer
    with _bucket(url, here.live) as (bucket, _):
        which = {name: getattr(here, name) for name in ("topic", "ledger", "uuid", "first", "last")}
        if here.messages:
            mode = "lenient" if here.lenient else "strict"
            found = bucket.iter_messages(transactions=here.transactions, messages=mode, **which)
        else:
            found = bucket.iter_entries(**which)
        for item in found:
            if not here.as_json:
                write_all(out, framed(item.payload or b"", here.entries))
            elif here.messages:
                print_json(_row(found.topic, item, here.transactions))
            else:
                print_json(entry_row(item))
        if here.messages:
            _tell(_left_out(found.summary))
    out.flush()


def _row(topic: str | None, message: Any, transactions: str) -> dict[str, object]:
    row = {"topic": topic, **message._asdict()}
    payload, _, state = row.pop("payload"), row.pop("raw"), row.pop("txn_state")
    flags = {name: row.pop(name) for name in ("encrypted", "damaged")}
    row |= {"payload_b64": None if payload is None else b64encode(payload).decode(), **flags}
    return row if transactions == "committed" else {**row, "txn_state": state}


def _left_out(summary: Any) -> Iterator[str]:
    for count, text in (
        (summary.messages_aborted, "messages of aborted transactions are left out"),
        (summary.messages_open, "messages are left out: of transactions whose end is not in the bucket"),
        (summary.unfinished_count, "chunked messages are left out: not all of their chunks are in the bucket"),
        (summary.damaged, "entries are damaged"),
    ):
        if count:
            yield f"{count} {text}"


def verify(
    url: Url, *, topic: Topic = None, ledger: Ledger = None, live: Live = None, as_json: options.AsJson = False
) -> None:
    """Check every object, block, frame and checksum. Exit code 0: sound; 1: something is damaged."""
    with _bucket(url, live) as (bucket, _):
        ok = print_findings(bucket.verify(topic, ledger), _FINDING, ("ledger", "entry", "position"), as_json=as_json)
        if ok and not as_json and next(iter(bucket.ledgers()), None) is None:
            print_note(f"{_NOTHING}: nothing was verified")
    if not ok:
        raise typer.Exit(1)


def orphans(
    url: Url,
    more: MoreLive = None,
    *,
    live: NeededLive,
    older_than: Annotated[
        float, age_option("Only objects of at least this age; the files must not be older.")
    ] = 86_400.0,
    cluster: Cluster = None,
    as_json: options.AsJson = False,
) -> None:
    """List the objects that no broker refers to."""
    with _bucket(url, [*live, *(more or ())]) as (bucket, files):
        from chunkstore.pulsar.orphans import find_orphans

        found = find_orphans(bucket, files, older_than_s=older_than, cluster=cluster)
        print_each(
            found,
            (*_ORPHAN, "topic"),
            lambda orphan: orphan[:7],
            as_json=as_json,
            right=("ledger", "bytes", "age_s"),
            document=_orphan_row,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Removing:
    """The options of ``rm``."""

    rows: Annotated[str, option("FILE", "Output of 'pulsar orphans --json'.", "--from")]
    live: NeededLive
    gone_topic: Annotated[list[str] | None, option("T", "A topic that no longer exists; repeatable.")] = None
    cluster: Cluster = None
    dry_run: Annotated[bool, flag("Show what would be deleted; delete nothing.")] = False
    as_json: options.AsJson = False


def rm(url: Url, more: MoreLive = None, *, here: Removing) -> None:
    """Delete orphans that still are orphans, and print each."""
    with _bucket(url, [*here.live, *(more or ())]) as (bucket, files), opened_input(here.rows) as source:
        from chunkstore.pulsar.orphans import read_rows, remove_orphans

        for orphan in remove_orphans(
            bucket,
            files,
            read_rows(source),
            gone_topics=here.gone_topic or (),
            dry_run=here.dry_run,
            cluster=here.cluster,
        ):
            if here.as_json:
                print_json(_orphan_row(orphan))
            else:
                sys.stdout.write("\t".join(map(shown, orphan[:7])) + "\n")


def _orphan_row(orphan: Any) -> dict[str, object]:
    row = dict(zip(_ORPHAN, orphan, strict=False))
    return {**row, "topic": orphan.topic} if orphan.kind == "unlisted-ledger" else row
