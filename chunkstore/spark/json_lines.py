"""One JSON object to the values of a schema, exactly: what ``json_rows`` does with records that the block parser refuses.

Promises: as Spark's PERMISSIVE mode has it, a field that does not fit is null and the others stay; a list with such an element is null as a
whole, a structure keeps its other fields; what is no object, or no JSON at all, is null in all fields. The last of several fields of one
name counts. Only fields of the schema are built, whatever else the record holds, to any depth. Whatever ``pyarrow.json`` accepts of one
line comes out here the same. Leaves out: which records these are (``json_rows``).
"""

from __future__ import annotations

import re
from functools import cache
from json.decoder import scanstring  # type: ignore[attr-defined]  # typeshed leaves it out
from typing import Any, Final

import pyarrow as pa

__all__ = ["BLANK", "parse_record"]

BLANK: Final = "blank"
"""The reason that a record of nothing but white space has."""
_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(
    r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|-?NaN|[-+]?Infinity|-?Inf|[-+]INF", re.ASCII
)
_WHOLE = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None}
_FLOATS: Final = frozenset(("NaN", "Infinity", "+Infinity", "-Infinity", "+INF", "-INF"))
"""Texts that a field of floats takes, as Spark does."""
_UNFIT: Final = object()
"""In the place of a value that does not fit."""


class _NoJson(ValueError):
    """The record is no JSON object."""


def parse_record(data: bytes, schema: pa.StructType) -> tuple[dict[str, Any], str]:
    """The fields of ``schema`` that a record has, and what is wrong with it; empty if nothing is. Raises nothing."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return {}, f"byte {error.start} is no UTF-8"
    record = _Record(text)
    try:
        at = record.behind_space(0)
        if at == len(text):
            return {}, BLANK
        if text[at] != "{":
            return {}, "it is no JSON object"
        found, at = record.structure(at, schema)
        at = record.behind_space(at)
        if at < len(text):
            return {}, f"something follows the object at character {at}"
    except ValueError as error:  # scanstring's, too
        return {}, str(error)
    return found, record.wrong


@cache
def _fields(kind: pa.StructType) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in kind}


class _Record:
    """A text and what was wrong in it first. Positions are those behind white space."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.wrong = ""

    def behind_space(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        assert found is not None
        return found.end()

    def structure(self, at: int, kind: pa.StructType) -> tuple[dict[str, Any], int]:
        """The fields of an object that are wanted, and where it ends."""
        found: dict[str, Any] = {}
        wanted = _fields(kind)
        at = self.behind_space(at + 1)
        if self._text.startswith("}", at):
            return found, at + 1
        while True:
            name, at = self._name(at)
            if name in wanted:
                value, at = self._value(at, wanted[name], name)
                if value is not _UNFIT:
                    found[name] = value
            else:
                at = self._skip(at)
            at, is_last = self._behind_item(at, "}")
            if is_last:
                return found, at

    def _value(self, at: int, kind: pa.DataType, name: str) -> tuple[Any, int]:
        """A value as a field of this type has it, or ``_UNFIT``; and where it ends."""
        char = self._text[at : at + 1]
        if char == "{" and pa.types.is_struct(kind):
            return self.structure(at, kind)
        if char == "[" and pa.types.is_list(kind):
            return self._items(at, kind.value_type, name)
        if char == '"':
            text, end = scanstring(self._text, at + 1)
            value = _of_string(text, kind)
        else:
            end = self._skip(at)
            value = _of_other(self._text[at:end], kind)
        if value is _UNFIT and not self.wrong:
            self.wrong = f"field {name!r} is no {kind}: {self._text[at:end]:.100}"
        return value, end

    def _items(self, at: int, kind: pa.DataType, name: str) -> tuple[Any, int]:
        items: list[Any] = []
        at = self.behind_space(at + 1)
        if self._text.startswith("]", at):
            return items, at + 1
        while True:
            value, at = self._value(at, kind, name)
            items.append(value)
            at, is_last = self._behind_item(at, "]")
            if is_last:
                return (_UNFIT if any(item is _UNFIT for item in items) else items), at

    def _name(self, at: int) -> tuple[str, int]:
        if not self._text.startswith('"', at):
            raise _NoJson(f"a name is expected at character {at}")
        name, at = scanstring(self._text, at + 1)
        at = self.behind_space(at)
        if not self._text.startswith(":", at):
            raise _NoJson(f"a colon is expected at character {at}")
        return name, self.behind_space(at + 1)

    def _behind_item(self, at: int, closer: str) -> tuple[int, bool]:
        """Where the next item begins, or behind the last one; and whether that is so."""
        at = self.behind_space(at)
        if self._text.startswith(",", at):
            return self.behind_space(at + 1), False
        if self._text.startswith(closer, at):
            return at + 1, True
        raise _NoJson(f"a comma or {closer!r} is expected at character {at}")

    def _skip(self, at: int) -> int:
        """Behind the value that begins here, whatever it is; depth is no matter."""
        closers: list[str] = []
        while True:
            char = self._text[at : at + 1]
            if char in ("{", "["):
                closer = "}" if char == "{" else "]"
                at = self.behind_space(at + 1)
                if not self._text.startswith(closer, at):
                    closers.append(closer)
                    at = self._name(at)[1] if char == "{" else at
                    continue
                at += 1
            else:
                at = self._scalar(at)
            is_last = True
            while closers and is_last:
                at, is_last = self._behind_item(at, closers[-1])
                if is_last:
                    closers.pop()
            if is_last:
                return at
            if closers[-1] == "}":
                at = self._name(at)[1]

    def _scalar(self, at: int) -> int:
        if self._text.startswith('"', at):
            return int(scanstring(self._text, at + 1)[1])
        for word in _WORDS:
            if self._text.startswith(word, at):
                return at + len(word)
        found = _NUMBER.match(self._text, at)
        if found is None:
            raise _NoJson(f"a value is expected at character {at}")
        return found.end()


def _of_string(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            return _UNFIT
        return text
    return _float(text, kind) if pa.types.is_floating(kind) and text in _FLOATS else _UNFIT


def _of_other(text: str, kind: pa.DataType) -> Any:
    """Of what is no string: its text for a field of text, as it stands there."""
    if text == "null":
        return None
    if pa.types.is_string(kind):
        return _of_string(text, kind)
    if pa.types.is_boolean(kind):
        return _WORDS.get(text, _UNFIT)
    if pa.types.is_floating(kind):
        return _float(text, kind) if _NUMBER.fullmatch(text) else _UNFIT
    if pa.types.is_integer(kind) and _WHOLE.fullmatch(text):
        number, most = int(text), 1 << kind.bit_width - 1
        return number if -most <= number < most else _UNFIT
    return _UNFIT


def _float(text: str, kind: pa.DataType) -> float:
    value = float(text)
    if kind == pa.float32() and value - value == 0:  # finite: by way of a double it could be rounded twice
        return float(pa.scalar(text).cast(kind).as_py())
    return value
