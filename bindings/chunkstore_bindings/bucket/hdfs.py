"""A bucket that is a folder of HDFS, through WebHDFS: a key is a path below it, without the escapes of chunks' names.

Promises: an object is written to a temporary, a part per request; its length is checked, and it is renamed over what is there in one
step. Temporaries are in a hidden folder of the root, and are removed after an error. A listing holds the sorted names of one folder
per level. Each request has a deadline of its own.
Leaves out: user metadata; keys with ``:``, which HDFS takes in no path; temporaries of processes that were killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NoReturn

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.deadline import Deadline, left_s
from chunkstore.errors import AccessDenied, InvalidArgument, RootUnavailable, StorageUnavailable, Unsupported
from chunkstore.records.chunks import joined
from chunkstore.records.names import utf8_bytes
from chunkstore_bindings.bucket.port import Bucket, ObjectHead, ObjectInfo, check_key, check_range
from chunkstore_bindings.filesystem.tree import walk_names
from chunkstore_bindings.hdfs.atomic import AtomicCreates, Temporary
from chunkstore_bindings.hdfs.errors import DENIED, is_absent, translate
from chunkstore_bindings.hdfs.files import Files
from chunkstore_bindings.hdfs.names import TEMPORARY_FOLDER
from chunkstore_bindings.hdfs.rest import Lost, Refused, WebHdfs
from chunkstore_bindings.hdfs.root import TokenFile, parse_root

__all__ = ["HdfsBucket"]

_DEADLINE_S: Final = 60.0
_Names = list[str]


class _Files(Files):
    """Keys are paths as they are."""

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def fail(self, error: Refused | Lost, name: str, doing: str) -> NoReturn:
        found = translate(error, name, doing)
        if isinstance(error, Refused) and error.kind in DENIED and isinstance(found, StorageUnavailable):
            found = AccessDenied(found.message, object=name)
        raise found from error


class HdfsBucket(Bucket):
    """See ``Bucket``. ``url``: ``hdfs://HOST:HTTPPORT/PATH?...``. Raises ``InvalidArgument``, ``StorageUnavailable`` (a token's file)."""

    keeps_metadata = False

    def __init__(self, url: str) -> None:
        root = parse_root(url)
        self.url = root.url
        token = TokenFile(root.token_file) if root.token_file is not None else None
        self._rest = WebHdfs(root.base_url, user=root.user, token=token, answer_s=_DEADLINE_S / 3)
        self._files = _Files(self._rest, root.path)
        self._parameters = root.file_parameters
        self._atomic = AtomicCreates(self._rest, self._files, {})

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        if utf8_bytes(prefix) < 0 or "\0" in prefix:
            return  # what no key begins with
        with self._translated(prefix, "listing"):
            self._rest.question("GET", self._files.root or "/", "GETFILESTATUS", _deadline())
            infos: dict[str, ObjectInfo] = {}
            for key in walk_names(partial(self._names_in, infos), prefix=prefix, after=after):
                yield infos.pop(key)

    def _names_in(self, infos: dict[str, ObjectInfo], folder: str) -> _Names:
        """As ``tree.names_in``; what is known of the files goes into ``infos``."""
        names, last, more = [], "", True
        while more:
            page = self._files.page(_deadline(), folder, last)
            more = page.more and bool(page.statuses)
            for status in page.statuses:
                last = str(status.get("pathSuffix", ""))
                if utf8_bytes(last) > 0 and status.get("type") == "DIRECTORY":
                    names.append(last + "/")
                elif utf8_bytes(last) > 0 and status.get("type") == "FILE":
                    names.append(last)
                    key = folder + last
                    infos[key] = ObjectInfo(key, _number(status, "length"), _number(status, "modificationTime"))
        return sorted(names)

    def head(self, key: str) -> ObjectHead:
        _check(key)
        status = self._files.must_have(key, _deadline())
        return ObjectHead(_number(status, "length"), _number(status, "modificationTime"), {})

    def read(self, key: str, offset: int, length: int) -> bytes:
        _check(key)
        check_range(offset, length)
        span: dict[str, Any] = {"offset": offset, "length": length, "size_max": length}
        data = b""
        if length and offset + length < 1 << 63:
            with self._translated(key, "reading"):
                try:
                    with self._rest.open(self._files.path(key), _deadline(), **span) as stream:
                        data = joined(stream.pieces())
                except Refused as refused:
                    if is_absent(refused) or offset < self.head(key).length:
                        raise
        if (len(data) < length or not length) and offset + len(data) < min(self.head(key).length, offset + length):
            raise StorageUnavailable(
                f"{key!r}: only {len(data)} bytes came from offset {offset}; read again", object=key
            )
        return data

    def put_parts(self, key: str, parts: Iterable[BytesLike], metadata: Mapping[str, str] | None = None) -> int:
        if metadata:
            raise Unsupported("files of HDFS have no user metadata; write to an s3:// bucket", feature="metadata")
        _check(key)
        path = f"{self._files.path(TEMPORARY_FOLDER)}/{runtime.token(12).hex()}"
        translated = partial(self._translated, key, "writing")
        length = 0
        try:
            with translated():
                self._rest.send("PUT", path, "CREATE", b"", _deadline(), overwrite="false", **self._parameters)
            for part in parts:  # an error of theirs is not translated
                with translated():
                    # Nothing reads a temporary, so opening it again harms no replica.
                    self._rest.send("POST", path, "APPEND", part, _deadline())
                length += memoryview(part).nbytes
            status = self._files.must_have(key, _deadline(), path)
            if status["length"] != length:
                text = f"writing {key!r}: {status['length']} bytes arrived instead of {length}; retry"
                raise StorageUnavailable(text, object=key)
            with translated():
                self._atomic.place(
                    key, Temporary(path, status["fileId"]), self._files.path(key), _deadline(), replace=True
                )
        except BaseException:
            self._atomic.discard(path)
            raise
        return length

    def delete(self, key: str) -> bool:
        _check(key)
        if self._files.status(key, _deadline()) is None:
            return False
        with self._translated(key, "deleting"):
            answer = self._rest.command("DELETE", self._files.path(key), "DELETE", _deadline(), recursive="false")
        return bool(answer.get("boolean"))

    def close(self) -> None:
        self._rest.close()

    @contextmanager
    def _translated(self, key: str, doing: str) -> Iterator[None]:
        try:
            yield
        except (Refused, Lost) as error:
            if doing == "listing" and is_absent(error):
                remedy = "correct the URL, or make the folder"
                raise RootUnavailable(self.url, "the folder does not exist", remedy=remedy) from error
            self._files.fail(error, key, doing)


def _check(key: str) -> None:
    check_key(key, is_path=True)
    if ":" in key or key.partition("/")[0] == TEMPORARY_FOLDER:
        raise InvalidArgument(f"{key!r} cannot be a key in HDFS: no ':', and not in {TEMPORARY_FOLDER}", argument="key")


def _number(status: dict[str, Any], name: str) -> int:
    """0 where the server tells none."""
    found = status.get(name)
    return found if isinstance(found, int) else 0


def _deadline() -> Deadline:
    return Deadline(left_s(_DEADLINE_S))
