"""Chunks as files in HDFS, through WebHDFS: one HTTP address of a name node, and the data nodes it names.

Promises
* Everything appears whole: a chunk, a journal slot or a hint is written to a temporary, its length is checked, then it is
  renamed. Lost replies are resolved by the file's number (``atomic``). Content is where HDFS counts it as stored: on
  the data nodes of the pipeline, closed.
* Nothing opens a file again that was closed: chunks do not grow, and an append makes a chunk of its own. Hadoop up to 3.3.6
  deletes replicas that are read in the moment when a data node re-opens or closes them (docs/guide-storages.md).
* A read that comes back short is the end only if the file's length agrees; otherwise it is read again until the deadline.
* Every operation ends within ``deadline_s``; each request within its share of it.
* ``identity`` tells a file from a copy in its place; a folder that was removed under its owner is not made anew (``atomic``).

Layout: chunk ``a/b/c`` is the file ``<root>/a/b/c``; temporaries are in ``<root>/.chunkstore-tmp`` and are never listed.
A name cannot be a chunk and a folder at once. Empty folders stay.

Leaves out: high availability (a root names one name node), Kerberos, HttpFS and other gateways: they may work and are not
tested. ``compose`` and ``concat`` copy and leave their sources alone, because they may be referred to (HDFS's own CONCAT takes them
away).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.config import Settings
from chunkstore.deadline import Deadline, left_s, until
from chunkstore.errors import ChunkExists, ChunkNotFound, InvalidArgument, StorageUnavailable, Unsupported
from chunkstore.records.chunks import joined
from chunkstore.storage import (
    Capabilities,
    ChunkInfo,
    ChunkRange,
    Composed,
    ConcatArgument,
    ListPage,
)
from chunkstore_bindings.filesystem.tree import TreeStorage
from chunkstore_bindings.hdfs.atomic import AtomicCreates, backoff_until
from chunkstore_bindings.hdfs.errors import is_absent, is_unfinished
from chunkstore_bindings.hdfs.files import WRITABLE, Files, is_writable
from chunkstore_bindings.hdfs.rest import Lost, Pieces, Refused, Stream, WebHdfs
from chunkstore_bindings.hdfs.root import HdfsRoot, TokenFile, parse_root

__all__ = ["HdfsChunkStorage", "open_hdfs"]

_OFFSET_MAX: Final = (1 << 63) - 1
_READ_ATTEMPTS: Final = 3
_RANGE_WORKERS: Final = 8
_CONNECTIONS_SPARE: Final = 32
"""Kept for each server next to the engine's own workers: callers' threads, and the probe's."""
_COPY_BYTES: Final = 8 << 20
_READ_ONLY: Final = "444"


def open_hdfs(root_url: str, settings: Settings) -> HdfsChunkStorage:
    """The storage of ``hdfs://HOST:HTTPPORT/PATH[?user=NAME...]``; see ``root`` for the options.

    Raises ``InvalidArgument`` (the URL), ``StorageUnavailable`` (a token's file). Makes no request.
    """
    root = parse_root(root_url)
    return HdfsChunkStorage(
        root, deadline_s=settings.op_deadline_s, connections=settings.tuning.io_workers + _CONNECTIONS_SPARE
    )


class HdfsChunkStorage(TreeStorage):
    """A chunk storage in one folder of HDFS.

    Arguments: ``root``: a URL, or one taken apart; ``deadline_s``: every operation ends by then; ``connections``: kept for
    each server. Raises ``InvalidArgument``, ``StorageUnavailable`` (a token's file that cannot be read).
    """

    def __init__(self, root: HdfsRoot | str, *, deadline_s: float = 60.0, connections: int = 36) -> None:
        self._root = parse_root(root) if isinstance(root, str) else root
        if not isinstance(deadline_s, (int, float)) or not 0 < deadline_s <= 86_400:
            raise InvalidArgument(f"deadline_s must be up to 86400 seconds, not {deadline_s!r}", argument="deadline_s")
        self._deadline_s = float(deadline_s)
        self._rest = WebHdfs(
            self._root.base_url,
            user=self._root.user,
            token=TokenFile(self._root.token_file) if self._root.token_file is not None else None,
            connections=connections,
            # A third, so that a server that went silent leaves time to ask what became of the request.
            answer_s=min(20.0, self._deadline_s / 3),
        )
        self._files = Files(self._rest, self._root.path)
        self._atomic = AtomicCreates(self._rest, self._files, self._root.file_parameters)
        self._capabilities = Capabilities(
            append=False,
            append_journal=False,
            create_if_absent=True,
            concat=True,
            set_read_only=True,
            sync_repeatable=True,
            remote=True,
            medium="hdfs",
        )
        self._pool = runtime.pool("chunkstore-hdfs", _RANGE_WORKERS)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def url(self) -> str:
        return self._root.url

    # For the probe (chunkstore_bindings.wrappers.probe) ------------------------------------------------------------------------

    def server_identity(self) -> dict[str, str]:
        """The address that is asked: a gateway, or another cluster, has another one. Nothing in it changes at a restart."""
        return {"endpoint": self._root.base_url}

    def check_root(self) -> str:
        """HDFS has no rules by which files expire."""
        return "none"

    # Looking ---------------------------------------------------------------------------------------------------------

    def _deadline(self) -> Deadline:
        return Deadline(left_s(self._deadline_s))

    def do_exists(self, name: str) -> bool:
        return self._files.status(name, self._deadline()) is not None

    def do_stat(self, name: str) -> ChunkInfo:
        return _info(name, self._files.must_have(name, self._deadline()))

    def do_identity(self, name: str) -> bytes:
        return b"%d" % self._files.must_have(name, self._deadline())["fileId"]

    def do_open(self, name: str) -> bool:
        return is_writable(self._files.must_have(name, self._deadline()))

    def do_list(self, prefix: str, after: str | None, limit: int) -> ListPage:
        with until(runtime.monotonic_s() + self._deadline_s):
            return super().do_list(prefix, after, limit)

    def walk(self, prefix: str, after: str | None) -> Iterator[ChunkInfo]:
        try:
            for item in self._files.walk(prefix, after):
                yield _info(*item)
        except (Refused, Lost) as error:
            self._files.fail(error, prefix, "listing")

    def has_root(self) -> bool:
        try:
            return self._files.has_root(self._deadline())
        except (Refused, Lost) as error:
            self._files.fail(error, "", "looking for the root of")

    # Creating --------------------------------------------------------------------------------------------------------

    def do_create_if_absent(self, name: str, data: BytesLike) -> bool:
        return self._atomic.create(name, data, self._deadline())

    def do_create(self, name: str, data: BytesLike | None) -> None:
        if not self._atomic.create(name, data if data is not None else b"", self._deadline()):
            raise ChunkExists(name)

    def do_put(self, name: str, data: BytesLike) -> None:
        self._atomic.put(name, [data], self._deadline())

    def _put_parts(self, name: str, parts: Iterable[BytesLike]) -> int:
        return self._atomic.put(name, parts, None)

    # Reading ---------------------------------------------------------------------------------------------------------

    def do_read(self, name: str, offset: int, length: int) -> bytes:
        data = b""

        def take(stream: Stream) -> int:
            nonlocal data
            data = b""  # what an earlier attempt took is let go first
            data = joined(stream.pieces())
            return stream.taken

        return data if self._read(name, offset, length, take) else b""

    def do_read_into(self, name: str, offset: int, buffer: bytearray | memoryview) -> int:
        with memoryview(buffer) as whole, whole.cast("B") as flat:

            def take(stream: Stream) -> int:
                done = 0
                for piece in stream.pieces():
                    flat[done : done + len(piece)] = piece
                    done += len(piece)
                return done

            return self._read(name, offset, len(flat), take)

    def _read(self, name: str, offset: int, length: int, take: Callable[[Stream], int]) -> int:
        """Pass the bytes to ``take``, anew for each attempt; not at all where there are none. It returns their number, and so
        does this: 0 also where what an earlier attempt has taken is there no longer."""
        deadline = self._deadline()
        path = self._files.path(name)
        length = min(length, _OFFSET_MAX - offset)
        if length <= 0:
            self._files.must_have(name, deadline)
            return 0
        with self._files.waiting(name, "reading", deadline) as met:
            return self._read_until(name, path, offset, length, take, deadline, met)

    def _read_until(
        self,
        name: str,
        path: str,
        offset: int,
        length: int,
        take: Callable[[Stream], int],
        deadline: Deadline,
        met: list[Refused | Lost],
    ) -> int:
        backoff = backoff_until(deadline)
        failures = 0
        needed: int | None = None
        while True:
            error: Refused | Lost
            try:
                with self._rest.open(path, deadline, size_max=length, offset=offset, length=length) as stream:
                    taken = take(stream)
                if taken == length or (needed is not None and offset + taken >= needed):
                    return taken
                # What is added after the first look need not be read: otherwise a busy writer could keep us here.
                found = int(self._files.must_have(name, deadline)["length"])
                needed = found if needed is None else min(needed, found)
                if offset + taken >= needed:
                    return taken
                # No data node that is up knows yet what was added last; its report is late, or its lease has to end.
                error = Lost(f"{taken} bytes arrived from offset {offset}, but the file is longer", sent=True)
                waits = True
            except Refused as refused:
                error = refused
                if is_absent(refused):
                    raise ChunkNotFound(name) from refused
                # At or beyond the end is an error here; and so is a block whose length is not known yet, because the data
                # node that added to it has died: its lease has to end first.
                closed_length = self._files.closed_length(name, deadline)
                if closed_length is not None and offset >= closed_length:
                    return 0
                # The writer may have ended since and begun again: its traces are waited for, however often they are met.
                waits = closed_length is None or is_unfinished(refused)
            except Lost as lost:
                error = lost
                waits = False
            if waits:
                met.append(error)
            else:
                # Counted apart: a lease that was waited for may end between a refusal and the look after it.
                failures += 1
            # A hint may be replaced, and a data node may stop, while it is read: then the whole read is done again.
            if failures >= _READ_ATTEMPTS or not backoff.pause():
                self._files.fail(error, name, "reading")

    # Durable -----------------------------------------------------------------------------------------------------------

    def do_write(self, name: str, offset: int, data: BytesLike) -> int:
        raise Unsupported(f"{self.url} cannot append to {name!r}", feature="append")

    def do_sync(self, names: Sequence[str]) -> None:
        """Nothing to do: ``write`` and ``create`` return when the file is closed."""

    def do_harden(self, name: str) -> None:
        """Wait until the file has no writer: what is visible then stays (the length of an open one is not yet agreed on)."""
        deadline = self._deadline()
        backoff = backoff_until(deadline)
        while self._files.closed_length(name, deadline) is None:
            if not backoff.pause():
                raise StorageUnavailable(
                    f"hardening {name!r}: its last writer died and the name node has not closed the file yet "
                    "(dfs.namenode.lease-hard-limit-sec); retry later",
                    object=name,
                )

    # Removing, joining, cutting --------------------------------------------------------------------------------------

    def do_delete(self, name: str) -> None:
        deadline = self._deadline()
        # Asked first, because the name node would delete an empty folder, too.
        self._files.must_have(name, deadline)
        if not self._change(name, "DELETE", "DELETE", deadline, "deleting", recursive="false").get("boolean"):
            raise ChunkNotFound(name)

    def _change(
        self, name: str, method: str, op: str, deadline: Deadline, doing: str, **params: object
    ) -> dict[str, Any]:
        try:
            return self._rest.command(method, self._files.path(name), op, deadline, **params)
        except (Refused, Lost) as error:
            self._files.fail(error, name, doing)

    def do_set_read_only(self, name: str, read_only: bool) -> None:
        deadline = self._deadline()
        self._files.must_have(name, deadline)
        permission = _READ_ONLY if read_only else WRITABLE
        self._change(name, "PUT", "SETPERMISSION", deadline, "marking", permission=permission)

    def do_compose(self, name: str, ranges: Sequence[ChunkRange]) -> Composed:
        # One end for all of it: the reads, too, which come from within the request that writes.
        with until(runtime.monotonic_s() + self._deadline_s):
            deadline = self._deadline()
            if self._files.status(name, deadline) is not None:
                raise ChunkExists(name)
            # Before a byte is moved: the request says how many there will be.
            names = list(dict.fromkeys(item.name for item in ranges))
            statuses = self._pool.run_all([partial(self._files.must_have, source, deadline) for source in names])
            lengths = {source: int(status["length"]) for source, status in zip(names, statuses, strict=True)}
            for item in ranges:
                self.check_covered(item, lengths[item.name])
            pieces = self._pieces(ranges)
            if not self._atomic.create(name, pieces, deadline):
                raise ChunkExists(name)
        return Composed(pieces.size, pieces.size)

    def _pieces(self, ranges: Sequence[ChunkRange]) -> Pieces:
        """Their bytes, read when they are asked for."""
        return Pieces(sum(item.length for item in ranges), lambda: self._copied(ranges))

    def _copied(self, ranges: Sequence[ChunkRange]) -> Iterator[bytes]:
        """At most 8 MiB are in memory; small ranges are read several at once."""
        calls: list[Callable[[], bytes]] = []
        size = 0
        for item in ranges:
            end = item.offset + item.length
            for start in range(item.offset, end, _COPY_BYTES):
                length = min(_COPY_BYTES, end - start)
                if size + length > _COPY_BYTES:
                    yield from self._pool.run_all(calls)
                    calls, size = [], 0
                calls.append(partial(self._read_all, item, start, length))
                size += length
        if calls:
            yield from self._pool.run_all(calls)

    def _read_all(self, item: ChunkRange, start: int, length: int) -> bytes:
        data = self.do_read(item.name, start, length)
        if len(data) < length:
            self.check_covered(item, start + len(data))
        return data

    def do_concat(self, arguments: Sequence[ConcatArgument]) -> int:
        deadline = self._deadline()
        ranges = [ChunkRange(item.name, 0, item.length) for item in arguments]
        statuses = [self._files.must_have(item.name, deadline) for item in arguments]
        for item, status in zip(ranges, statuses, strict=True):
            self.check_covered(item, status["length"])
        target = arguments[0].name
        if not is_writable(statuses[0]):
            raise InvalidArgument(f"chunk {target!r} is read-only; nothing can be joined to it", argument="arguments")
        return self._atomic.put(target, [self._pieces(ranges)], deadline)

    def do_close(self) -> None:
        self._pool.close()
        self._rest.close()


def _info(name: str, status: dict[str, Any]) -> ChunkInfo:
    length, modified_ms = status.get("length"), status.get("modificationTime")
    return ChunkInfo(
        name, length if isinstance(length, int) else 0, modified_ms if isinstance(modified_ms, int) else None
    )
