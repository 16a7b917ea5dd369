"""``offload``, ``ledger ls``, ``ledger read``, ``ledger rm``, ``pulsar decode``.

``offload`` acknowledges block by block, continues where a killed one ended, and refuses wrong input at its first wrong byte. Memory: one
block, one entry."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal
from urllib.parse import unquote

from chunkstore.cli import access, options
from chunkstore.cli.options import argument, flag, option, size_option
from chunkstore.cli.output import Meter, human_bytes, meter, print_facts, print_json, print_table
from chunkstore.cli.streams import opened_input, write_all
from chunkstore.codec.pulsar.block_index import INDEX_BYTES_MAX
from chunkstore.codec.pulsar.frames import ENTRY_BYTES_MAX, LEDGER_UNKNOWN, PIP17, DataSource, Entry
from chunkstore.codec.pulsar.windows import BlockReader
from chunkstore.config import MIB
from chunkstore.errors import Conflict, InvalidArgument, Unsupported
from chunkstore.records.framing import Framing, RecordSplitter
from chunkstore.records.framing import framed as framed_strictly

__all__ = ["decode", "entry_row", "framed", "ls", "need_offload", "offload", "read", "rm"]

Topic = Annotated[str, option("T", "Name of the topic.", "--topic")]
Ledger = Annotated[int, option("L", "Id of the ledger.", "--ledger")]
_PIECE_BYTES = 1 * MIB
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_WITHOUT_SOURCE: Final = (None, None, "v2", False, False, 0)
_DECODED = ("ledger", "entry", "length", "sha256")


def need_offload() -> None:
    """Raise ``Unsupported`` where the packages that ledgers need are missing."""
    with access.needs("offload", "ledgers"):
        import_module("chunkstore.pulsar")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offloading(access.Owning):
    """The options of ``offload``."""

    topic: Topic
    ledger: Annotated[int | None, option("L", "Id of the ledger of FILE.")] = None
    source: Annotated[
        str | None, option("DIR", "Instead of FILE: whole ledgers, DIR/LEDGER.entries, length-prefixed.")
    ] = None
    to: Annotated[str | None, option("LEDGER:ENTRY", "Only ledgers of DIR below this one.")] = None
    format: Annotated[Literal["v1", "v2"], flag("v1: objects in --bucket that a Pulsar broker serves.")] = "v2"
    bucket: Annotated[str | None, option("URL", "Bucket of --format v1; default: ROOT.")] = None
    streaming: Annotated[bool, flag("Write DIR's ledgers as one stream of offload segments.")] = False
    close: Annotated[bool, flag("Complete the last segment of the stream, too.")] = False
    permits: Annotated[int, size_option("Bytes of DIR read in a second; 0: no limit.")] = 0
    entries: Annotated[Framing, flag("A line each, or 4 bytes of length (big-endian) before each.")] = "lines"
    append: Annotated[bool, flag("Append the file's entries to the ledger's entries, which must exist.")] = False
    resume: Annotated[bool, flag("The ledger holds the beginning of the file: skip it and continue.")] = False
    block_size: Annotated[int, size_option("Entries are acknowledged in blocks of this size.")] = 1 * MIB
    segment_size: Annotated[int, size_option("An offload segment is completed at this size.")] = 64 * MIB


def offload(
    root: options.Root,
    file: Annotated[str | None, argument("[FILE]", "File with the entries; - is standard input.")] = None,
    *,
    here: Offloading,
) -> None:
    """Write a file's entries to a ledger of a topic, as PIP-76 offload segments; or offload whole ledgers of a directory.

    Entries of FILE get the ids after the ledger's last one, from 0 on. A ledger that has entries is refused without --append or --resume.
    Container and ledger are created if they do not exist, but not with --append.
    """
    need_offload()
    if here.append and here.resume:
        raise InvalidArgument("--append or --resume, not both", argument="--append")
    if here.source is not None:
        if (file, here.ledger, here.resume, here.append) != (None, None, False, False) or here.close > here.streaming:
            text = "--source takes none of FILE, --ledger, --append, --resume; and --close only with --streaming"
            raise InvalidArgument(text, argument="--source")
        _offload_ledgers(root, here.source, here)
        return
    given = (here.to, here.bucket, here.format, here.streaming, here.close, here.permits)
    if file is None or here.ledger is None or given != _WITHOUT_SOURCE:
        text = "give FILE with --ledger, or --source with --to, --format, --bucket, --permits, --streaming and --close"
        raise InvalidArgument(text, argument="FILE")
    _offload_file(root, file, here.ledger, here)


def _offload_file(root: str, name: str, ledger: int, here: Offloading) -> None:
    from chunkstore.pulsar import OffloadWriter

    topic, segment_bytes, block_bytes = here.topic, here.segment_size, here.block_size
    with opened_input(name) as opened:
        size = os.fstat(opened.fileno()).st_size if name != "-" else None
        with (
            here.owner(root, create=not here.append) as store,
            meter(f"offload {topic}", size, as_json=here.as_json) as progress,
            OffloadWriter(store, topic, segment_bytes_max=segment_bytes, block_bytes=block_bytes) as writer,
        ):
            if not here.resume:
                _check_last(writer.last_entry(ledger), f"ledger {ledger} of topic {topic!r}", append=here.append)
            payloads = _split(opened, name, here.entries, progress)
            result = {**_copy(writer, ledger, payloads, name, resume=here.resume), "epoch": store.epoch}
    here.show(result, result)


def _check_last(last: int, ledger: str, *, append: bool) -> None:
    """Raise ``Conflict`` where there are entries and none may be appended, or none to append to."""
    if append and last < 0:
        raise Conflict(ledger, expected="entries", found="none", remedy="leave out --append to begin it")
    if not append and last >= 0:
        remedy = "--append adds entries after them, --resume continues a file whose beginning is stored"
        raise Conflict(ledger, expected="no entries", found=f"entries up to {last}", remedy=remedy)


def _position(text: str | None) -> tuple[int, int]:
    """Ledger and entry of the first position that stays."""
    if text is None:
        return (1 << 63) - 1, 0
    ledger, _, entry = text.partition(":")
    if not all(number.isascii() and number.isdecimal() for number in (ledger, entry)):
        raise InvalidArgument(f"a position is LEDGER:ENTRY, not {text!r}", argument="--to")
    return int(ledger), int(entry)


def _offload_ledgers(root: str, source: str, here: Offloading) -> None:
    from chunkstore import pulsar
    from chunkstore.pulsar.permits import BROKER_PERMITS

    end = pulsar.Position(*_position(here.to))
    if here.format == "v1" and here.streaming:
        raise Unsupported("--streaming needs --format v2: a v1 object holds one ledger", feature="streaming")
    BROKER_PERMITS.permits_bytes_per_s = here.permits
    objects = pulsar.PulsarObjects(here.bucket or root) if here.format == "v1" else None
    ledgers = pulsar.DirectorySource(source)
    found: dict[str, object] = {"topic": here.topic}
    with here.owner(root, create=True) as store:
        if here.streaming:
            results = pulsar.stream_directory(store, here.topic, ledgers, close=here.close, end=end)
            found["segments"] = len(results)
            found["last"] = f"{results[-1].end_ledger_id}:{results[-1].end_entry_id}" if results else None
        else:
            config = pulsar.ManagedLedgerConfig(offloader=objects or pulsar.ContainerOffloader(store, here.topic))
            first = pulsar.ManagedLedger(store, here.topic, ledgers, config).offload_prefix(end).result()
            found["first_left"] = f"{first.ledger}:{first.entry}"
    here.show(found, found)


def _copy(writer: Any, ledger: int, payloads: Iterator[bytes], name: str, *, resume: bool) -> dict[str, object]:
    """Append what ``writer`` (an ``OffloadWriter``) does not have yet. What this run did: ``entries`` entries, from ``first_entry`` on
    (None: none), were acknowledged by it."""
    stored, completed = writer.last_entry(ledger) + 1, writer.segments_completed
    entry = 0 if resume else stored
    count = size = 0
    for payload in payloads:
        if entry >= stored:
            writer.append(ledger, entry, payload)
            count += 1
            size += len(payload)
        entry += 1
    if entry < stored:
        text = f"ledger {ledger} holds {stored} entries, {name} only {entry}: it is not the file's beginning"
        raise InvalidArgument(text, argument="FILE")
    writer.complete()
    return {
        "topic": writer.topic,
        "ledger": ledger,
        "first_entry": stored if count else None,
        "last_entry": entry - 1 if count else None,
        "entries": count,
        "bytes": size,
        "segments": writer.segments_completed - completed,
    }


def _split(source: BinaryIO, name: str, framing: Framing, progress: Meter) -> Iterator[bytes]:
    """The entries in the file. Raises ``Damaged`` where one is longer than an entry may be, or cut off."""
    splitter = RecordSplitter(name, framing, 0, ENTRY_BYTES_MAX)
    while piece := source.read(_PIECE_BYTES):
        progress(len(piece))
        yield from splitter.feed(piece).values
    yield from splitter.end().values


def ls(
    root: options.Root,
    *,
    topic: Annotated[str | None, option("T", "Only this topic.")] = None,
    here: access.Reading,
) -> None:
    """List ledgers, by topic."""
    need_offload()
    from chunkstore.pulsar import LedgerReader

    with here.replica(root) as store:
        reader = LedgerReader(store)
        found = (item for name in (reader.topics() if topic is None else [topic]) for item in reader.ledgers(name))
        columns = ("topic", "ledger", "first", "last", "segments", "bytes", "state")
        here.show_each(
            found,
            columns,
            lambda item: (*item[:5], human_bytes(item.size_bytes), "complete" if item.complete else "growing"),
            right=columns[1:-1],
            none="no ledgers in this container",
        )


def read(
    root: options.Root,
    *,
    topic: Topic,
    ledger: Ledger,
    first: Annotated[int, option("N", "First entry.")] = 0,
    last: Annotated[int | None, option("N", "Last entry; default: all.")] = None,
    entries: Annotated[Framing, flag("How entries are written: see offload. Not with --json.")] = "lines",
    here: access.Reading,
) -> None:
    """Write a ledger's entries to standard output."""
    need_offload()
    from chunkstore.pulsar import LedgerReader

    out = sys.stdout.buffer
    with here.replica(root) as store:
        for entry in LedgerReader(store).read(topic, ledger, first, last):
            if here.as_json:
                print_json(entry_row(entry))
            else:
                write_all(out, framed(entry.payload, entries))
    out.flush()


def entry_row(entry: Entry) -> dict[str, object]:
    """An entry as JSON shows it."""
    payload = b64encode(entry.payload).decode()
    return {"ledger": entry.ledger, "entry": entry.entry, "length": len(entry.payload), "payload_b64": payload}


def framed(payload: bytes, framing: Framing) -> bytes:
    """An entry as ``offload`` reads it; an entry that holds newlines is several lines to it."""
    return payload + b"\n" if framing == "lines" else framed_strictly(payload, framing)


def rm(
    root: options.Root, *, topic: Topic, ledger: Ledger, dry_run: options.DryRun = False, here: access.Owning
) -> None:
    """Delete a ledger. An offload segment goes with the last of its ledgers, objects in a bucket with the topic's next trim."""
    need_offload()
    from chunkstore.pulsar import remove_ledger

    with here.replica(root) if dry_run else here.owner(root) as store:
        found = remove_ledger(store, topic, ledger, dry_run=dry_run)
    size_bytes = sum(size for _, size in found)
    if dry_run:
        actions = [{"action": "delete", "segment": name, "bytes": size} for name, size in found]
        here.show(
            {"actions": actions, "bytes": size_bytes, "requests": 0}, {"would delete": len(found), "bytes": size_bytes}
        )
        return
    done = {"topic": topic, "ledger": ledger, "deleted": True, "segments": len(found), "bytes": size_bytes}
    here.show(done, done)


def decode(
    data: Annotated[str, argument("DATA", "The data object: a file, or a URL (s3, hdfs, file).")],
    index: Annotated[str, argument("INDEX", "Its index.")],
    *,
    as_json: options.AsJson = False,
) -> None:
    """List the entries of a PIP-17 or PIP-76 pair: ledger, entry, length and sha256 of each.

    A PIP-17 pair does not contain its ledger's id; its topic is shown if the index has one.
    """
    need_offload()
    with _opened(data) as source:
        topic, entries = _indexed(source, index)
        if as_json:
            for entry in entries:
                print_json(dict(zip(_DECODED, _row(entry), strict=True)))
            return
        if topic is not None:
            print_facts({"topic": topic})
        print_table(_DECODED, map(_row, entries), right=("ledger", "entry", "length"))


def _row(entry: Entry) -> tuple[int | None, int, int, str]:
    ledger = None if entry.ledger == LEDGER_UNKNOWN else entry.ledger
    return ledger, entry.entry, len(entry.payload), hashlib.sha256(entry.payload).hexdigest()


@contextmanager
def _opened(name: str) -> Iterator[DataSource]:
    """The object that a path or a URL names; it is read in ranges. A URL's folder is a bucket, with the URL's options."""
    from chunkstore.buckets import open_bucket

    is_url = _URL.match(name) is not None
    path, question, query = (name if is_url else Path(os.path.realpath(name)).as_uri()).partition("?")
    folder, _, last = path.rpartition("/")
    if not last or folder.endswith("/"):
        raise InvalidArgument("the URL of an object ends with its name: s3://bucket/folder/name", argument="URL")
    key = unquote(last)
    with open_bucket(folder + question + query) as bucket:
        shown = f"{bucket.url.partition('?')[0]}/{key}" if is_url else name
        yield DataSource(shown, bucket.head(key).length, partial(bucket.read, key))


def _indexed(source: DataSource, index_name: str) -> tuple[str | None, Iterator[Entry]]:
    """The topic, if the index names it, and the entries. The index may come from standard input."""
    from chunkstore.codec.pulsar.pip17 import LedgerObjectReader, read_ledger_index
    from chunkstore.codec.pulsar.pip76 import SegmentReader, read_index
    from chunkstore.codec.pulsar.windows import iter_entries

    name, topic = index_name, None
    if name == "-":
        with opened_input(name) as file:
            raw = file.read(INDEX_BYTES_MAX + 1)
    else:
        with _opened(name) as stored:
            name, raw = stored.name, bytes(stored.read(0, min(stored.length, INDEX_BYTES_MAX + 1)))
    reader: BlockReader
    if raw[:4] == PIP17.index_magic.to_bytes(4, "big"):
        found = read_ledger_index(raw, object=name)
        reader, topic = LedgerObjectReader(source, found), found.metadata.topic
    else:
        reader = SegmentReader(source, read_index(raw, object=name))
    return topic, (entry for ledger in reader.ledgers for entry in iter_entries(reader, ledger))
