"""Objects in a bucket that no broker refers to, and their removal.

Promises: nothing under a uuid that a live file names is an orphan, nor what could be of an attempt that it does not say ended, nor another
cluster's; every deletion was planned from the bucket as it is now, index before data; a topic that no file lists loses no data unless it is
named. Leaves out: taking the files, which must not be older than ``older_than_s``: what was offloaded since looks like an orphan.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, get_args

from chunkstore import runtime
from chunkstore.errors import Conflict, InvalidArgument
from chunkstore.pulsar.bucket_objects import Attempt, BucketObjects, Facts, attempt_at, topic_name
from chunkstore.pulsar.live import LiveFiles
from chunkstore_bindings.bucket.port import UnfinishedUpload

__all__ = ["Orphan", "find_orphans", "read_rows", "remove_orphans"]

Kind = Literal["data-without-index", "index-without-data", "second-attempt", "unlisted-ledger", "unfinished-upload"]
_OF_PAIRS: Final = ("second-attempt", "unlisted-ledger")
_ROW_BYTES_MAX: Final = 64 * 1024
_ROW_TYPES: Final = ((str,), (str,), (int, type(None)), (str,), (int, type(None)), (int,), (str, type(None)))


class Orphan(NamedTuple):
    """An object that can go. ``bytes``: None for an unfinished upload, whose length no listing has; ``topic``: None where nothing tells."""

    kind: Kind
    object: str
    ledger: int | None
    uuid: str
    bytes: int | None
    age_s: int
    topic: str | None = None
    upload_id: str = ""


@dataclass(slots=True)
class _Survey:
    """The bucket as it is now. ``facts``: by key, of what may be an orphan, and of what it is compared with: the attempts that live files
    name, ``current`` (by ledger). ``listed``: topic -> its ledgers by live files; ``unnamed``: ledgers of files whose topic is not known.
    """

    live: LiveFiles
    now_ms: int
    attempts: list[Attempt] = field(default_factory=list)
    uploads: list[UnfinishedUpload] = field(default_factory=list)
    facts: dict[str, Facts] = field(default_factory=dict)
    current: dict[int, Attempt] = field(default_factory=dict)
    listed: dict[str, frozenset[int]] = field(default_factory=dict)
    unnamed: set[int] = field(default_factory=set)
    clusters: set[str] = field(default_factory=set)
    """Those that the files are of, as far as it is known."""

    def age_s(self, at_ms: int) -> int:
        return (self.now_ms - at_ms) // 1000


def _survey(objects: BucketObjects, live: LiveFiles, cluster: str | None) -> _Survey:
    """A listing, the uploads, and the indexes (and user metadata) of possible orphans."""
    found = _Survey(live, runtime.now_ms(), uploads=list(objects.bucket.uploads()))
    found.attempts = [attempt for attempt in objects.attempts() if attempt.format != "mapfile"]
    for attempt in found.attempts:
        if attempt.is_complete and attempt.ledger is not None and live.uuids.get(attempt.ledger) == attempt.uuid:
            found.current[attempt.ledger] = attempt

    def learn(attempt: Attempt) -> Facts:
        if attempt.key not in found.facts:
            found.facts[attempt.key] = objects.facts(attempt, cluster=True)
        return found.facts[attempt.key]

    named = frozenset(live.uuids.values())
    for attempt in found.attempts:
        if attempt.uuid not in named:
            learn(attempt)
            if attempt.ledger in found.current:
                learn(found.current[attempt.ledger])
    for document in live.documents:
        topic = document.topic
        for ledger in document.ledgers:
            if ledger in found.current:
                topic = topic or learn(found.current[ledger]).topic
                found.clusters |= {learn(found.current[ledger]).cluster or ""} - {""}
            if topic is not None and found.clusters:
                break
        if topic is None:
            found.unnamed |= document.ledgers.keys()
        else:
            found.listed[topic] = found.listed.get(topic, frozenset()) | document.ledgers.keys()
    if cluster is not None and found.clusters - {cluster}:
        raise InvalidArgument(f"the --live files are of cluster {min(found.clusters)!r}", argument="--cluster")
    found.clusters |= set() if cluster is None else {cluster}
    return found


def _planned(found: _Survey, older_than_s: float) -> list[Orphan]:
    """What can go, by key; of a pair both objects. Pure."""
    named = frozenset(found.live.uuids.values())
    orphans: list[Orphan] = []
    for attempt in found.attempts:
        objects = [item for item in (attempt.index, attempt.data) if item is not None]
        ages_s = [found.age_s(item.modified_ms) for item in objects]
        if attempt.uuid in named or min(ages_s) < older_than_s:
            continue
        facts = found.facts[attempt.key]
        kind = _kind(attempt, facts, found)
        if kind is not None and (not found.clusters or facts.cluster in (None, *found.clusters)):
            orphans += [
                Orphan(kind, item.key, attempt.ledger, attempt.uuid, item.length, age_s, facts.topic)
                for item, age_s in zip(objects, ages_s, strict=True)
            ]
    for upload in found.uploads:
        at, age_s = attempt_at(upload.key), found.age_s(upload.started_ms)
        if at is not None and at[0].format != "mapfile" and at[0].uuid not in named and age_s >= older_than_s:
            which = upload.key, at[0].ledger, at[0].uuid
            orphans.append(Orphan("unfinished-upload", *which, None, age_s, upload_id=upload.upload_id))
    return orphans


def _kind(attempt: Attempt, facts: Facts, found: _Survey) -> Kind | None:
    """What an attempt is that no live file names; None where it may be in use."""
    if attempt.format == "v2" and facts.error is not None:
        return None  # any program may call its objects so
    if not attempt.is_complete:
        return "index-without-data" if attempt.data is None else "data-without-index"
    ledgers, live = facts.ledgers(attempt), found.live
    listed = found.listed.get(facts.topic or "")
    if not found.unnamed.isdisjoint(ledgers) or (facts.topic is None and not live.ledgers.isdisjoint(ledgers)):
        return None
    if listed is None or listed.isdisjoint(ledgers):
        return "unlisted-ledger"
    current = found.current.get(-1 if attempt.ledger is None else attempt.ledger)
    if current is None or current.data is None or not live.complete.get(current.ledger or 0, True):
        return None  # it may be the only copy
    known = found.facts[current.key]
    sound = known.index is not None and known.index.data_length == current.data.length
    return "second-attempt" if sound and known.topic == facts.topic else None


def find_orphans(
    objects: BucketObjects, live: LiveFiles, *, older_than_s: float = 86_400, cluster: str | None = None
) -> list[Orphan]:
    """What can go, but for what is younger than ``older_than_s`` seconds, and what is of another cluster than the files (``cluster``; None:
    that of the offloads which they name). Raises ``InvalidArgument``, and what the bucket raises."""
    if not older_than_s >= 0:
        raise InvalidArgument(f"{older_than_s} seconds", argument="--older-than")
    return _planned(_survey(objects, live, cluster), older_than_s)


def read_rows(lines: Iterable[bytes]) -> list[Orphan]:
    """The rows that ``pulsar orphans --json`` printed. Raises ``InvalidArgument`` with the line that is none."""
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line if len(line) <= _ROW_BYTES_MAX else b"")
            orphan = Orphan._make([*(row[column] for column in Orphan._fields[:6]), row.get("topic"), ""])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            orphan = None
        if orphan is None or orphan.kind not in get_args(Kind) or not all(map(_is_of, orphan, _ROW_TYPES)):
            raise InvalidArgument(f"line {number} is not a row of 'pulsar orphans --json'", argument="--from")
        rows.append(orphan)
    return rows


def _is_of(value: object, types: tuple[type, ...]) -> bool:
    return type(value) in types


def remove_orphans(
    objects: BucketObjects,
    live: LiveFiles,
    rows: Iterable[Orphan],
    *,
    gone_topics: Collection[str] = (),
    dry_run: bool = False,
    cluster: str | None = None,
) -> Iterator[Orphan]:
    """Delete what the rows name, indexes first; each is given out once it is deleted. ``dry_run``: the same, and nothing is deleted.

    The bucket is surveyed again, and all rows are checked before the first deletion; rows whose object is gone are passed over, so a retry
    is safe. Data of a topic that no live file lists needs ``gone_topics``. What no topic is known of stays, but for v1 unfinished uploads,
    which never held a ledger, and for data without index whose ledger a live file has under another uuid. A pair whose metadata names a
    cluster stays as long as that of the files is not known: see ``find_orphans``.

    Raises ``Conflict`` (a row is no orphan any more, or was changed), ``InvalidArgument`` (a topic that may be live; an index that the rows
    leave out), and what the bucket raises, when some may be deleted.
    """
    found = _survey(objects, live, cluster)
    gone = {topic_name(topic) for topic in gone_topics}
    if still := sorted(gone & found.listed.keys()):
        raise InvalidArgument(f"a --live file lists topic {still[0]!r}: it is not gone", argument="--gone-topic")
    chosen = _checked(found, list(dict.fromkeys(rows)))
    for orphan in chosen:
        _require_dead(orphan, found, gone)
    chosen.sort(key=lambda item: (item.kind == "unfinished-upload", not item.object.endswith("-index")))
    for orphan in chosen:
        if not dry_run and orphan.kind == "unfinished-upload":
            objects.bucket.abort_upload(orphan.object, orphan.upload_id)
        elif not dry_run and not objects.bucket.delete(orphan.object):
            continue
        yield orphan


def _checked(found: _Survey, rows: list[Orphan]) -> list[Orphan]:
    """The planned orphans that the rows are about."""
    here = {item.key for attempt in found.attempts for item in (attempt.data, attempt.index) if item is not None}
    here |= {upload.key for upload in found.uploads}
    named = {each.object for each in rows}
    plan: dict[tuple[str, str], list[Orphan]] = {}
    for orphan in sorted(_planned(found, 0), key=lambda item: item.age_s):
        plan.setdefault((orphan.kind, orphan.object), []).append(orphan)
    chosen: dict[tuple[str, str], Orphan] = {}
    for wanted in sorted(rows, key=lambda item: -item.age_s):
        index = f"{wanted.object}-index"
        if wanted.object not in here:
            continue
        same = plan.get((wanted.kind, wanted.object))
        if not same and wanted.kind in _OF_PAIRS and index in named and index not in here:
            same = plan.get(("data-without-index", wanted.object))  # an earlier run ended between the two
        if not same or same[-1][2:5] != wanted[2:5] or same[-1].age_s < wanted.age_s:
            expected, remedy = f"{wanted.kind}, {wanted.bytes} bytes", "list the orphans again"
            raise Conflict(wanted.object, expected=expected, found="something else", remedy=remedy)
        if wanted.kind in _OF_PAIRS and index in here and index not in named:
            raise InvalidArgument(f"the rows name {wanted.object} and leave out its index", argument="--from")
        orphan = same.pop()
        chosen[orphan.object, orphan.upload_id] = orphan._replace(kind=wanted.kind, topic=orphan.topic or wanted.topic)
    return list(chosen.values())


def _require_dead(orphan: Orphan, found: _Survey, gone: set[str]) -> None:
    facts = found.facts.get(orphan.object.removesuffix("-index"))
    if orphan.kind in _OF_PAIRS and facts is not None and facts.cluster is not None and not found.clusters:
        text = f"{orphan.object} is of cluster {facts.cluster!r}, but no complete offload names that of the files; name it (--cluster)"
        raise InvalidArgument(text, argument="--cluster")
    if orphan.topic in found.listed:
        # Ids ascend, so a ledger that was made after the file has one above all that are listed.
        newer = orphan.ledger is None or orphan.ledger > max(found.listed[orphan.topic])
        if orphan.kind == "unlisted-ledger" and newer and found.now_ms - 1000 * orphan.age_s > found.live.taken_ms:
            text = f"{orphan.object} is newer than the --live files; create them again"
            raise InvalidArgument(text, argument="--live")
    if orphan.topic in found.listed or orphan.topic in gone:
        return
    if orphan.topic is not None:
        text = f"no --live file lists a ledger of topic {orphan.topic!r}: give them (as TOPIC=FILE), or --gone-topic"
        raise InvalidArgument(text, argument="--live")
    dead = orphan.kind in ("data-without-index", "second-attempt") and orphan.ledger in found.live.ledgers
    if not (dead or (orphan.kind == "unfinished-upload" and orphan.ledger is not None)):
        text = f"{orphan.object}: its topic is not known, so it may be live; it stays: leave its row out, or delete it by other means"
        raise InvalidArgument(text, argument="--from")
