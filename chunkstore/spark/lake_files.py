"""The files of a lake: which of them count, and up to where they reach (FORMAT.md beside this; decision 0029).

Promises: objects are written once, under names that nobody else takes, and are durable before they are named; what is read is what the
row's digest names, or a typed error. A listing decides nothing but which leftovers go, and whether files that are named are there. Leaves
out: the row (``lake_runs``), parquet (``lake_tasks``), Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from chunkstore import runtime
from chunkstore.config import MIB
from chunkstore.errors import ChunkNotFound, Conflict, Damaged, InvalidArgument, Unsupported
from chunkstore.metadata.sinks import LAKE, LakeRow, sink_key
from chunkstore.names import check_container_name
from chunkstore.spark.positions import StreamOffset
from chunkstore.storage import ChunkStorage, iter_listing

__all__ = [
    "Commit",
    "FileTask",
    "LakeFile",
    "LakeFolder",
    "Manifest",
    "Pointer",
    "check_container",
    "check_lake_name",
    "digest_of",
    "file_name",
    "lake_key",
    "pointer_of",
]

_VERSION: Final = 1
_BYTES_MAX: Final = 256 * MIB
_MOST: Final = (1 << 63) - 1
_TOKEN_BYTES: Final = 8
_RANDOM_BYTES: Final = 4
_OBJECT: Final = re.compile(
    r"(?:f([0-9]{10,19})-([0-9a-f]{16})-[0-9a-f]{8}\.parquet|m([0-9]{10,19})-([0-9a-f]{16})\.json)"
)
_HEX16: Final = re.compile(r"[0-9a-f]{16}")
_HEX32: Final = re.compile(r"[0-9a-f]{32}")


class LakeFile(NamedTuple):
    """A parquet file of a commit."""

    name: str
    size_bytes: int
    rows: int


class Commit(NamedTuple):
    """What one commit added."""

    number: int
    token: str
    files: tuple[LakeFile, ...] = ()


class Pointer(NamedTuple):
    """Where a manifest lies, and what it must be."""

    number: int
    token: str
    digest: str
    size_bytes: int


class Manifest(NamedTuple):
    """See FORMAT.md."""

    lake: str
    number: int
    source: Mapping[str, str]
    schema: str
    offsets: StreamOffset
    commits: tuple[Commit, ...]
    before: Pointer | None


class FileTask(NamedTuple):
    """What a task needs: plain data. ``container``: uuid in hex; ``url``: where the lake lies."""

    url: str
    lake: str
    container: str
    number: int
    token: str
    file_bytes: int


def check_lake_name(name: str) -> None:
    """Raise ``InvalidArgument`` unless a lake, whose folder it names, can be called so."""
    try:
        check_container_name(name)
    except InvalidArgument as error:
        raise InvalidArgument(error.message.replace("container", "lake", 1), argument="name") from None


def lake_key(name: str) -> bytes:
    """The key of a lake's row. Raises ``InvalidArgument``."""
    check_lake_name(name)
    return sink_key(LAKE, name.encode())


def check_container(name: str, row: LakeRow, uuid: bytes) -> None:
    """Raise ``Conflict`` where the row came along with a copy: a copy's segments have other ids, so positions say nothing of them."""
    if row.container != uuid:
        what = f"lake {name!r} was written from another container, of which this one is a copy; container"
        remedy = "begin a lake of another name here"
        raise Conflict(what, expected=row.container.hex(), found=uuid.hex(), remedy=remedy)


def digest_of(data: bytes) -> bytes:
    """By which a manifest is known again."""
    return blake2b(data, digest_size=16).digest()


def pointer_of(row: LakeRow) -> Pointer:
    """Where a row leads."""
    return Pointer(row.number, row.token.hex(), row.digest.hex(), row.size_bytes)


def file_name(number: int, token: str) -> str:
    """A name for a file of a commit, which no other attempt takes."""
    return f"f{number:010}-{token}-{runtime.token(_RANDOM_BYTES).hex()}.parquet"


class LakeFolder:
    """The folder of one lake in ``storage``, which is the caller's. ``container``: uuid, in hex, of the container whose lake it is."""

    def __init__(self, storage: ChunkStorage, lake: str, container: str) -> None:
        self._storage = storage
        self._lake = lake
        self._container = container

    def path(self, name: str) -> str:
        """Of an object, below the storage's root."""
        return f"{self._lake}/{self._container}/{name}"

    def manifest(self, at: Pointer) -> Manifest:
        """Raises ``Damaged`` (gone, or not the one that is meant), ``Unsupported`` (of a newer version), and what reading raises."""
        name = self.path(_manifest_name(at.number, at.token))
        if at.size_bytes > _BYTES_MAX:
            raise Damaged(f"a manifest of {at.size_bytes} bytes is none", object=name)
        try:
            data = self._storage.read(self._storage.open_read(name), 0, at.size_bytes + 1)
        except ChunkNotFound as error:
            text = f"the manifest of lake {self._lake!r} is gone from {self._storage.url}; bring it back, or begin a lake of another name"
            raise Damaged(text, object=name) from error
        if len(data) != at.size_bytes or digest_of(data).hex() != at.digest:
            raise Damaged(f"the manifest of lake {self._lake!r} is not the one that was committed", object=name)
        found = _decoded(data, name)
        if (found.lake, found.number) != (self._lake, at.number):
            raise Damaged(f"this is the manifest of commit {found.number} of lake {found.lake!r}", object=name)
        return found

    def commits(self, newest: Manifest, above: int = 0) -> list[Commit]:
        """All commits with a higher number, ascending. Raises as ``manifest``."""
        found, at = list(newest.commits), newest.before
        while at is not None and at.number > above:
            manifest = self.manifest(at)
            found[:0], at = manifest.commits, manifest.before
        return [commit for commit in found if commit.number > above]

    def manifest_behind(
        self, newest: tuple[Manifest, Pointer] | None, commit: Commit, offsets: StreamOffset
    ) -> Manifest:
        """The next one, with ``source`` and ``schema`` of the last. Raises as ``manifest``."""
        if newest is None:
            return Manifest(self._lake, commit.number, {}, "", offsets, (commit,), None)
        manifest, at = newest
        held, before = list(manifest.commits), manifest.before
        if commit.number % 2:  # it holds one commit alone
            held, before = [], at
        while before is not None and before.number > commit.number - (commit.number & -commit.number):
            behind = self.manifest(before)
            held[:0], before = behind.commits, behind.before
        return manifest._replace(number=commit.number, offsets=offsets, commits=(*held, commit), before=before)

    def put(self, token: str, manifest: Manifest) -> Pointer:
        """Store a manifest, durably. Raises ``InvalidArgument`` (it is too long) and what writing raises."""
        data = _encoded(manifest)
        if len(data) > _BYTES_MAX:
            text = f"the manifest of lake {self._lake!r} would have {len(data)} bytes: write longer files, or begin another lake"
            raise InvalidArgument(text, argument="fileBytes")
        name = self.path(_manifest_name(manifest.number, token))
        self._storage.create(name, data)
        self._storage.sync([name])
        return Pointer(manifest.number, token, digest_of(data).hex(), len(data))

    def require(self, commits: Sequence[Commit]) -> None:
        """Raise ``Damaged`` unless all files of these commits are there, with their lengths."""
        begin = "f" if len(commits) != 1 else f"f{commits[0].number:010}-{commits[0].token}"
        there = dict(self._listed(begin))
        for file in (file for commit in commits for file in commit.files):
            found = there.get(file.name)
            if found != file.size_bytes:
                what = "is gone" if found is None else f"has {found} bytes, not {file.size_bytes}"
                text = (
                    f"a file of lake {self._lake!r} {what} in {self._storage.url} (as this machine sees it): bring it back; where the "
                    "container has its rows yet, begin a lake of another name"
                )
                raise Damaged(text, object=self.path(file.name))

    def clean(self, commits: Sequence[Commit]) -> int:
        """Delete what commits below the last of these ``commits`` (all, ascending) left and no manifest names; returns how many objects.

        What has the last one's number stays, and what has a higher one: another run may be about to commit it."""
        tokens = {commit.number: commit.token for commit in commits}
        named = {file.name for commit in commits for file in commit.files}
        count = 0
        for name, _ in list(self._listed()):
            number, token = _parsed(name)
            is_ours = tokens.get(number) == token
            if 0 < number < commits[-1].number and not (is_ours and (name.startswith("m") or name in named)):
                self._storage.delete(self.path(name))
                count += 1
        return count

    def drop(self, number: int, token: str) -> None:
        """Delete what a run wrote that will never be committed. Raises what listing and deleting raise."""
        for kind in "fm":
            prefix = self.path(f"{kind}{number:010}-{token}")
            for item in list(iter_listing(self._storage, prefix)):
                self._storage.delete(item.name)

    def _listed(self, begin: str = "") -> Iterator[tuple[str, int]]:
        for item in iter_listing(self._storage, self.path(begin)):
            yield item.name.rpartition("/")[2], item.length


def _manifest_name(number: int, token: str) -> str:
    return f"m{number:010}-{token}.json"


def _parsed(name: str) -> tuple[int, str]:
    """Number and token of an object; 0 of a stranger."""
    found = _OBJECT.fullmatch(name)
    return (0, "") if found is None else (int(found[1] or found[3]), found[2] or found[4])


def _encoded(manifest: Manifest) -> bytes:
    before = manifest.before
    document = {
        "version": _VERSION,
        "lake": manifest.lake,
        "number": manifest.number,
        "source": dict(sorted(manifest.source.items())),
        "schema": manifest.schema,
        "offsets": manifest.offsets.to_json(),
        "commits": [
            {
                "number": commit.number,
                "token": commit.token,
                "files": [list(file) for file in commit.files],
            }
            for commit in manifest.commits
        ],
        "before": None
        if before is None
        else {
            "number": before.number,
            "token": before.token,
            "digest": before.digest,
            "bytes": before.size_bytes,
        },
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _decoded(data: bytes, name: str) -> Manifest:
    """Raises ``Damaged``, ``Unsupported``."""
    try:
        document = json.loads(data)
        if document["version"] != _VERSION:
            text = f"manifest {name} is of version {document['version']!r:.40}, this program's of {_VERSION}"
            raise Unsupported(text, feature="version of a lake")
        found = Manifest(
            str(document["lake"]),
            _number(document["number"]),
            {str(key): str(value) for key, value in document["source"].items()},
            str(document["schema"]),
            StreamOffset.from_json(document["offsets"]),
            tuple(_commit(item) for item in document["commits"]),
            None if document["before"] is None else _pointer(document["before"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"not a manifest of a lake: {error!r:.200}", object=name) from error
    numbers = [0 if found.before is None else found.before.number, *(commit.number for commit in found.commits)]
    if numbers != list(range(found.number - len(found.commits), found.number + 1)) or not found.commits:
        raise Damaged("not a manifest of a lake: its commits leave a hole", object=name)
    return found


def _commit(item: Any) -> Commit:
    files = tuple(LakeFile(name, _number(size), _number(rows)) for name, size, rows in item["files"])
    commit = Commit(_number(item["number"]), _matching(item["token"], _HEX16), files)
    for file in files:
        if _parsed(file.name) != (commit.number, commit.token) or not file.name.startswith("f"):
            raise ValueError(f"{file.name!r:.100} is no file of commit {commit.number}")
    return commit


def _pointer(item: Any) -> Pointer:
    return Pointer(
        _number(item["number"]),
        _matching(item["token"], _HEX16),
        _matching(item["digest"], _HEX32),
        _number(item["bytes"]),
    )


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError(f"{value!r:.100} is no number")
    return value


def _matching(value: object, form: re.Pattern[str]) -> str:
    if not isinstance(value, str) or form.fullmatch(value) is None:
        raise ValueError(f"{value!r:.100} is not of the form {form.pattern}")
    return value
