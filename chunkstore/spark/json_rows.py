"""From batches of raw rows to batches of typed ones: each record is one JSON object, parsed in the task that has read it.

Promises: a row stays with its offset or entry. A parser of blocks (``json_flat``, or ``pyarrow.json``, which knows more types) takes many
records at a time, and its answer is taken only if every record of the block is an object by itself: each begins with ``{`` and ends with
``}``, only newlines lie between them (in JSON an object never follows another but behind a comma, and no string holds a newline, so no
value spans two records), and there are as many rows as records. Else the block is halved, down to a few records that ``json_lines``
reads one by one; so a bad record costs little and takes no neighbour along. What becomes of a record depends on its bytes alone.
Leaves out: which rows (``batches``), Spark's types (``json_schema``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from chunkstore.checksum import BytesLike
from chunkstore.errors import InvalidArgument
from chunkstore.spark.batches import BATCH_BYTES, Lines, segment_column
from chunkstore.spark.errors import annotated
from chunkstore.spark.framing import Rows
from chunkstore.spark.json_flat import parse_flat
from chunkstore.spark.json_lines import BLANK, parse_record
from chunkstore.spark.line_ends import NEWLINE

__all__ = ["CORRUPT", "JsonColumn", "JsonRows"]

CORRUPT: Final = "_corrupt_record"
"""Spark's name for the column with the text of a record that does not fit."""
_ONE_BY_ONE: Final = 16
"""So many records are not halved again: a call of the block parser costs as much as these."""
_BATCHES_MAX: Final = 16
"""A few columns of a MiB are little: what so many have made goes on together."""
_SPACE: Final = " \t\r\n"
RawColumn: TypeAlias = Callable[[str], pa.Array]
"""Gives a column of the raw rows."""


class JsonColumn(NamedTuple):
    """A column that is wanted: of this type from the records (``CORRUPT``, too), or, with ``is_native``, one of the raw rows."""

    field: pa.Field
    is_native: bool = False


class JsonRows:
    """Parses one read's records; plain data, so that it travels with the reader.

    ``value``: the column that has the bytes. ``place``: those that tell where a row is from. ``fail_fast``: a record that does not
    fit is an error. A record of white space alone is none if it is a line of a segment; an entry is a row whatever it holds.
    """

    def __init__(self, columns: Sequence[JsonColumn], *, value: str, place: Sequence[str], fail_fast: bool) -> None:
        self._columns = tuple(columns)
        self._value = value
        self._place = tuple(place)
        self._fail_fast = fail_fast
        self._of_lines = "segment" in place
        wanted = [column.field for column in columns if not column.is_native and column.field.name != CORRUPT]
        self._kind = pa.struct(wanted)
        self._options = pj.ParseOptions(explicit_schema=pa.schema(wanted), unexpected_field_behavior="ignore")
        self._schema = pa.schema([column.field for column in columns])

    @property
    def needed(self) -> list[tuple[str, bool]]:
        """The raw columns that ``batches`` wants, and whether each may be null."""
        own = {column.field.name: column.field.nullable for column in self._columns if column.is_native}
        return list({**dict.fromkeys((*self._place, self._value), True), **own}.items())

    def of_lines(self, lines: Lines) -> pa.RecordBatch:
        """The typed rows of some lines of a segment. Raises as ``batches``."""
        with annotated():
            parsed = self._lines(lines.data)
            if parsed is not None:
                return self._typed(parsed, {}, partial(_column, lines))
            return self._looked_at(pa.array(lines.data.split(NEWLINE), pa.binary()), partial(_column, lines), True)

    def batches(self, found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The typed rows of entries, each a record; those ``of_lines`` go through.

        Raises ``InvalidArgument`` that names the record, where one does not fit and this is not allowed."""
        held: list[pa.RecordBatch] = []
        with annotated():
            for batch in found:
                rows = batch if self._of_lines else self._looked_at(batch.column(self._value), batch.column, False)
                if rows.num_rows:
                    held.append(rows)
                if sum(part.nbytes for part in held) >= BATCH_BYTES or len(held) == _BATCHES_MAX:
                    yield pa.concat_batches(held)
                    held.clear()
        if held:
            yield pa.concat_batches(held)

    def _looked_at(self, values: pa.Array, raw: RawColumn, skips_blank: bool) -> pa.RecordBatch:
        """The rows of these records, of which some may not fit."""
        parts: list[pa.StructArray] = []
        bad: dict[int, str] = {}
        self._parse(values, 0, len(values), parts, bad)
        blank = {row for row, why in bad.items() if why == BLANK} if skips_blank else set()
        for row in blank:
            del bad[row]
        rows = self._typed(pa.concat_arrays(parts), bad, raw)
        if not blank:
            return rows
        return rows.take(pa.array([row for row in range(len(values)) if row not in blank], pa.int64()))

    def _typed(self, parsed: pa.StructArray, bad: dict[int, str], raw: RawColumn) -> pa.RecordBatch:
        if bad and self._fail_fast:
            self._refuse(bad, raw)
        columns: list[pa.Array] = []
        for field, is_native in self._columns:
            if is_native:
                columns.append(raw(field.name))
            elif field.name == CORRUPT and bad:
                texts: list[str | None] = [None] * len(parsed)
                values = raw(self._value)
                for row in bad:
                    texts[row] = values[row].as_py().decode(errors="replace")
                columns.append(pa.array(texts, field.type))
            else:
                columns.append(pa.nulls(len(parsed), field.type) if field.name == CORRUPT else parsed.field(field.name))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _parse(self, values: pa.Array, low: int, high: int, parts: list[pa.StructArray], bad: dict[int, str]) -> None:
        """Add the fields of the records ``[low, high)``, and what is wrong with which of them."""
        found = self._block(values.slice(low, high - low))
        if found is not None:
            parts.append(found)
        elif high - low > _ONE_BY_ONE:
            middle = (low + high) // 2
            self._parse(values, low, middle, parts, bad)
            self._parse(values, middle, high, parts, bad)
        else:
            records: list[dict[str, Any]] = []
            for row in range(low, high):
                record, wrong = parse_record(values[row].as_py(), self._kind)
                records.append(record)
                if wrong:
                    bad[row] = wrong
            parts.append(pa.array(records, self._kind))

    def _block(self, values: pa.Array) -> pa.StructArray | None:
        """The fields of all these records; None where one of them is to be looked at by itself."""
        try:
            texts = values.cast(pa.string())  # refuses what is no UTF-8
        except pa.ArrowInvalid:
            return None
        data = _joined(texts)
        if data is None:
            data = _joined(pc.replace_substring(pc.ascii_trim(texts, _SPACE), "\n", "\t"))
        return None if data is None else self._objects(data, len(values))

    def _lines(self, data: bytes) -> pa.StructArray | None:
        """As ``_block``, of lines as they lie in the segment."""
        count = data.count(NEWLINE)
        if not data.startswith(b"{") or not data.endswith(b"}") or data.count(b"}\n{") != count:
            return None
        try:
            data.isascii() or data.decode()
        except UnicodeDecodeError:
            return None
        return self._objects(pa.py_buffer(data), count + 1)

    def _objects(self, data: pa.Buffer, count: int) -> pa.StructArray | None:
        """The fields of so many objects; None where they do not all fit."""
        flat = parse_flat(data, count, self._kind)
        if flat is not None:
            return flat
        try:
            reading = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
            table = pj.read_json(pa.BufferReader(data), reading, self._options)
        except pa.ArrowInvalid:
            return None
        if table.num_rows != count:
            return None
        return pa.StructArray.from_arrays(
            [column.combine_chunks().cast(field.type) for column, field in zip(table.columns, self._kind, strict=True)],
            fields=list(self._kind),
        )

    def _refuse(self, bad: dict[int, str], raw: RawColumn) -> NoReturn:
        row, why = next(iter(bad.items()))
        where = ", ".join(f"{name} {raw(name)[row].as_py()!r}" for name in self._place)
        text = (
            f"the record of {where} does not fit the schema: {why}. With mode=PERMISSIVE what does not fit is null, "
            f"and a column {CORRUPT} STRING has the record's text"
        )
        raise InvalidArgument(text, argument="mode")


def _column(lines: Lines, name: str) -> pa.Array:
    values: list[BytesLike] = list(lines.data.split(NEWLINE))
    starts = list(accumulate((len(value) + 1 for value in values[:-1]), initial=lines.offset))
    return segment_column(name, lines.segment, Rows(starts, values), lines.times)


def _joined(texts: pa.Array) -> pa.Buffer | None:
    """The records with newlines between them; None unless each looks like one object (see the module)."""
    if not pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))).as_py():
        return None
    ends = pa.array([0, len(texts)], pa.int32())
    data = pc.binary_join(pa.ListArray.from_arrays(ends, texts), "\n")[0].as_buffer()
    return data if data.to_pybytes().count(b"\n") == len(texts) - 1 else None
