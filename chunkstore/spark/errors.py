"""Errors that cross the JVM: Spark keeps an exception's text and drops its type and fields, so these travel in the text."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from chunkstore import errors
from chunkstore.errors import ChunkstoreError, ContainerNotFound, Unsupported

__all__ = ["annotated", "original_error"]

_MARK = "chunkstore error: "
_REMEDY = "option 'container' chooses one; the first 'chunkstore put' creates it"
# What comes before any of our code runs. In order: another Python fails first, then a missing package.
_PYTHON = re.compile(r"Python in worker has different version: '?([0-9.]+)'? than that in driver: '?([0-9.]+)'?")
_PACKAGE = re.compile(
    r"No module named '(cryptography|zstandard|pyarrow|pandas|numpy|lmdb|msgpack|google_crc32c|"
    r"(?:pyspark_)?chunkstore(?:_bindings|_journal)?)[.']"
    r"|(PyArrow|Pandas|NumPy) >= \S+ must be installed"
)
_FORMAT = re.compile(r"Failed to find (?:the )?data source: '?`?chunkstore\b")
_INSTALL = (
    "install chunkstore-engine[spark] on the driver and on every worker, in the Python that PYSPARK_PYTHON names there"
)


@contextmanager
def annotated(**where: str | int) -> Iterator[None]:
    """Add a note (one line of JSON: type, message, fields, and ``where``) to a ``ChunkstoreError`` that passes through, and have Spark show
    it without the traceback of its worker."""
    try:
        yield
    except ChunkstoreError as error:
        if isinstance(error, ContainerNotFound):
            there = ContainerNotFound(error.container, root=error.root, containers=error.containers, remedy=_REMEDY)
            error.args = there.args
        if str(getattr(sys.modules["__main__"].__spec__, "name", "")).startswith("pyspark."):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # of this worker, which ends with the error
        if not any(note.startswith(_MARK) for note in getattr(error, "__notes__", ())):
            document = {
                "type": type(error).__name__,
                "message": error.message,
                "fields": error.to_fields(),
                "where": where,
            }
            error.add_note(_MARK + json.dumps(document, default=repr))
        raise


def original_error(caught: BaseException) -> ChunkstoreError | None:
    """The chunkstore error after what Spark raised in the driver, or None if there is none.

    It has the type, the message and the fields of the original; fields that JSON cannot say are their ``repr``. Where the Python
    of a worker is another one than the driver's (``feature`` "python") or lacks a package (its name), it is ``Unsupported``.
    """
    following: BaseException | None = caught
    while following is not None:  # what was raised in this very process is there as it was
        if isinstance(following, ChunkstoreError):
            return following
        following = following.__cause__ or following.__context__
    text = str(caught)
    return _told(text) or _of_python(text)


def _of_python(text: str) -> Unsupported | None:
    """Where no code of ours could run."""
    if found := _PYTHON.search(text):
        return Unsupported(
            f"a worker has Python {found[1]}, the driver {found[2]}: they must agree; set PYSPARK_PYTHON to the same version everywhere",
            feature="python",
        )
    if found := _PACKAGE.search(text):
        package = found[1] or found[2].lower()
        remedy = _INSTALL.replace("[", "[kafka," if package in ("cryptography", "zstandard") else "[")
        return Unsupported(f"the Python of a worker has no package {package}; {remedy}", feature=package)
    if _FORMAT.search(text):
        return Unsupported(f"Spark's driver does not find the format; {_INSTALL}", feature="chunkstore")
    return None


def _told(text: str) -> ChunkstoreError | None:
    for line in text.splitlines():
        _, mark, reported = line.partition(_MARK)
        if not mark:
            continue
        try:
            document, _ = json.JSONDecoder().raw_decode(reported)
            kind = getattr(errors, document["type"])
            fields = dict(document["fields"])
            message = str(document["message"])
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        if isinstance(kind, type) and issubclass(kind, ChunkstoreError):
            error = kind.__new__(kind, message)
            Exception.__init__(error, message)
            for name in kind.fields:
                setattr(error, name, fields.get(name))
            return error
    return None
