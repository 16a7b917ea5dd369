"""Errors that cross the JVM: Spark keeps an exception's text and drops its type and fields, so they travel in the text.

Promises: an error that was raised while planning or in a task can be had back, with type and fields, from what the driver
catches (``original_error``). Leaves out: foreign exceptions; they do not leave chunkstore.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from chunkstore import errors
from chunkstore.errors import ChunkstoreError

__all__ = ["annotated", "original_error"]

_MARK = "chunkstore error: "


@contextmanager
def annotated(**where: str | int) -> Iterator[None]:
    """Add a note (one line of JSON: type, message, fields, and ``where``) to a ``ChunkstoreError`` that passes through."""
    try:
        yield
    except ChunkstoreError as error:
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
    """The chunkstore error behind what Spark raised in the driver, or None if there is none.

    It has the type, the message and the fields of the original; fields that JSON cannot say are their ``repr``.
    """
    for line in str(caught).splitlines():
        _, mark, text = line.partition(_MARK)
        if not mark:
            continue
        try:
            document, _ = json.JSONDecoder().raw_decode(text)
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
