"""Foreign chunks at the owner: their roots, adopting them behind a segment, and giving roots up (protocol 3.14.8, decision 0021).

Promises
* A root's row is there before anything refers to it, and counts the chunk rows that do: adopting and forgetting change both in one
  record. A number is never used twice, so a chunk's row can never lead into another root.
* A root that nothing refers to is given up in two records: behind the first nobody adopts from it any more, in between its pin is given
  up there, the second drops the row. So a chunk's row never outlives the pin that keeps its object.

Leaves out: making pins elsewhere (``chunkstore.backup.adopting``), reading (``chunkstore_bindings.wrappers.routed``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from chunkstore import runtime
from chunkstore.blocks import Borders
from chunkstore.changes import Adopt, AdoptedChunk, NewChunk
from chunkstore.errors import Conflict, Damaged, InvalidArgument
from chunkstore.journal import OpCode
from chunkstore.metadata.codec import decode_table
from chunkstore.metadata.keys import ROOTS_NAMESPACE, chunk_key, root_key, roots_range
from chunkstore.metadata.port import MetadataView
from chunkstore.metadata.roots import OWN_ROOT, decode_root, decode_value, encode_root, known_roots
from chunkstore.names import foreign_object, foreign_root
from chunkstore.operations.change_set import ChangeSet
from chunkstore.operations.commit_changes import commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.garbage_range import is_older
from chunkstore.operations.written_chunks import hang_chunks
from chunkstore.records import ACTIVE, CLOSED, KIND_FOREIGN, ChunkRecord, RootRecord, TableRecord

__all__ = ["add_root", "borders_of", "end_roots", "forget_references", "make_foreign", "plan_adopt"]

_ASK_AGAIN_S: Final = 600.0


def add_root(container: OwnedContainer, wanted: RootRecord) -> int:
    """Commit the row of a root that nothing refers to yet, or find it; its number.

    Of ``wanted`` counts, state and label are not looked at. Raises ``InvalidArgument`` (it cannot be one), ``Conflict`` (our own root, with
    another prefix or while it is given up; a pin that is just being given up), and the errors of commits. Retry: safe.
    """
    record = wanted._replace(references=0, size_bytes=0, state=ACTIVE, changed_ms=0)
    encode_root(record)
    return commit_changes(container, (), partial(_plan_root, wanted=record), tables=True, adds=0)


def _plan_root(changes: ChangeSet, wanted: RootRecord) -> int:
    changes.owned.tables.check(roots_range()[0])
    with changes.owned.store.view() as view:
        known = known_roots(view)
    for number, root in known.items():
        if root.state == ACTIVE and root[:5] == wanted[:5]:
            return number
        if root.pin and root[:5] == wanted[:5]:
            raise Conflict(
                "a root to adopt from", expected="a pin of its own", found="one that is being given up: try again"
            )
    number = changes.owned.new_id() if wanted.url else OWN_ROOT
    if number in known:
        found = f"prefix {known[number].prefix!r}" if known[number].state == ACTIVE else "it is being given up"
        raise Conflict("our own root as one to adopt from", expected=f"prefix {wanted.prefix!r}", found=found)
    _put(changes, number, wanted)
    # A record without operations is none; this one says what it is about.
    changes.headers.append((int(OpCode.TABLE_PUT), ROOTS_NAMESPACE, root_key(number)[-8:]))
    return number


def _put(changes: ChangeSet, number: int, root: RootRecord | None) -> None:
    key = root_key(number)
    value = None if root is None else TableRecord(0, encode_root(root._replace(changed_ms=changes.now_ms)))
    changes.rows[key] = value
    changes.table_keys += [key, roots_range()[0]]


def _settled(changes: ChangeSet, number: int) -> RootRecord | None:
    """The root as it would be. Raises ``Undecided``, ``Damaged``."""
    key = root_key(number)
    raw = changes.settled(key)
    if key in changes.rows:
        planned = changes.rows[key]
        return decode_value(planned.value, number) if isinstance(planned, TableRecord) else None
    return None if raw is None else decode_root(raw, number)


# ---- chunks


def plan_adopt(container: OwnedContainer, changes: ChangeSet, change: Adopt) -> int:
    """Plan adopting chunks behind a segment; returns their offset in it. Nothing is read: they are believed to be there.

    Raises ``SegmentSealed``, ``BadOffset``, ``Conflict`` (no such root, or it is being given up), ``InvalidArgument`` (too many; an
    object of this very container), ``Undecided``, ``Damaged``.
    """
    segment = changes.open_segment(change.name, change.expected_offset)
    root = _open_root(changes, change.root)
    if change.root == OWN_ROOT:
        own = f"{container.names.container}/"
        if any((root.prefix + item.object).startswith(own) for item in change.chunks):
            raise InvalidArgument("a container does not adopt what is its own", argument="chunks")
    if change.chunks:
        new = [NewChunk(changes.owned.new_chunk(segment.id), borders_of(item)) for item in change.chunks]
        hang_chunks(changes, segment, new, OpCode.ATTACH)
        make_foreign(changes, change.root, new, change.chunks)
    return segment.length


def borders_of(item: AdoptedChunk) -> Borders:
    """For ``link_chunks``; where none are known ``make_foreign`` says so."""
    return Borders((0, item.length), (0, 0)) if item.borders is None else item.borders


def make_foreign(changes: ChangeSet, number: int, new: Sequence[NewChunk], items: Sequence[AdoptedChunk]) -> None:
    """Let planned rows lead into an open root instead of to objects of ours, and count them. Raises ``Conflict`` (the root), ``Undecided``,
    ``Damaged``, ``InvalidArgument`` (a name; no CRC)."""
    root = _open_root(changes, number)
    if number != OWN_ROOT and any(item.borders is None for item in items):
        raise InvalidArgument("bytes in another root are adopted only with their CRC32C: copy them", argument="chunks")
    for chunk, item in zip(new, items, strict=True):
        record = changes.rows[chunk_key(chunk.id)]
        assert isinstance(record, ChunkRecord)
        changes.rows[chunk_key(chunk.id)] = record._replace(
            object=foreign_object(number, item.object),
            object_offset=item.offset,
            crc32c=None if item.borders is None else record.crc32c,
            kind=KIND_FOREIGN,
            created_ms=record.created_ms if item.created_ms is None else item.created_ms,
        )
    _count(changes, number, root, len(new), sum(item.length for item in items))


def _open_root(changes: ChangeSet, number: int) -> RootRecord:
    root = _settled(changes, number)
    if root is None or root.state != ACTIVE:
        found = "it is not there" if root is None else "it is being given up"
        raise Conflict(f"root {number:x} to adopt from", expected="as it was added", found=found)
    return root


def _count(changes: ChangeSet, number: int, root: RootRecord, chunks: int, size_bytes: int) -> None:
    references, total = root.references + chunks, root.size_bytes + size_bytes
    _put(changes, number, root._replace(references=max(0, references), size_bytes=max(0, total)))


def forget_references(changes: ChangeSet, records: Iterable[ChunkRecord]) -> None:
    """Count foreign chunks off whose rows go in this record. A root's row that is missing or cannot be read stays as it is: a check names
    it. Raises ``Undecided``."""
    gone: dict[int, list[int]] = {}
    for record in records:
        found = foreign_root(record)
        if found is not None:
            gone.setdefault(found, []).append(record.length)
    for number, lengths in gone.items():
        with suppress(Damaged):
            root = _settled(changes, number)
            if root is not None:
                _count(changes, number, root, -len(lengths), -sum(lengths))


# ---- giving roots up


def end_roots(container: OwnedContainer) -> int:
    """Give up each root that nothing has referred to for the grace of garbage, and its pin there; how many have to wait, because the pin
    could not be given up now. ``container.collecting`` is held. Raises the errors of commits."""

    def unused(view: MetadataView) -> list[tuple[int, RootRecord, int]]:
        idle = [(number, root) for number, root in known_roots(view).items() if not root.references]
        return [
            (number, root, decode_table("root", view.get(root_key(number)) or b"").version) for number, root in idle
        ]

    waiting = 0
    for number, root, lsn in container.look(unused):
        if root.state == ACTIVE:
            key = b"%b\0%d" % (root_key(number), lsn)
            kept_s = max(container.settings.gc_grace_s, container.settings.pitr_horizon_s)
            if kept_s and not is_older(container, key, lsn, root.changed_ms, kept_s):
                continue
            if not commit_changes(container, (), partial(_plan_end, number=number, state=ACTIVE), tables=True):
                continue
        if root.pin and not _release(container, number, root):
            waiting += 1
            continue
        commit_changes(container, (), partial(_plan_end, number=number, state=CLOSED), tables=True)
    return waiting


def _release(container: OwnedContainer, number: int, root: RootRecord) -> bool:
    """Give up the root's pin; whether it is. Whoever does not answer holds collections up once in a while only."""
    asked_s, now_s = container.roots_asked_s.get(number), runtime.monotonic_s()
    if asked_s is not None and now_s - asked_s < _ASK_AGAIN_S:
        return False
    if container.release_root(root):
        return True
    container.roots_asked_s[number] = now_s
    return False


def _plan_end(changes: ChangeSet, number: int, state: int) -> bool:
    """The next step of a root's end, if nothing refers to it; whether that is so."""
    root = _settled(changes, number)
    if root is None or root.references or root.state != state:
        return False
    ends = state == CLOSED
    _put(changes, number, None if ends else root._replace(state=CLOSED))
    code = OpCode.TABLE_DELETE if ends else OpCode.TABLE_PUT
    changes.headers.append((int(code), ROOTS_NAMESPACE, root_key(number)[-8:]))
    return True
