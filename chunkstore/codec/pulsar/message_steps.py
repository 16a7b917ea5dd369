"""Many batches of messages taken apart in step: message after message of all of them at once, field after field, with numpy.

Promises: what it does not mark as odd has exactly the fields that a parser of protobuf finds; no place leads out of its batch. Leaves out:
whatever is rare (unknown fields, numbers of more than 49 bits, damage): such a batch is marked, and read message by message elsewhere.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["PAD_BYTES", "Field", "Pairs", "Stepped", "pairs_of", "step"]

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

PAD_BYTES: Final = 32
"""Zero bytes after the last batch: words of 8 bytes are read wherever a field may be."""


class Field:
    """Rows of ``Stepped.table``: 0 is where the payload begins, the others have the numbers of ``SingleMessageMetadata``."""

    PAYLOAD: Final = 0
    PROPERTIES: Final = 1
    PARTITION_KEY: Final = 2
    PAYLOAD_SIZE: Final = 3
    COMPACTED_OUT: Final = 4
    EVENT_TIME: Final = 5
    KEY_B64: Final = 6
    ORDERING_KEY: Final = 7
    SEQUENCE_ID: Final = 8
    NULL_VALUE: Final = 9
    NULL_KEY: Final = 10
    COUNT: Final = 11


_BYTES_FIELDS: Final = (Field.PROPERTIES, Field.PARTITION_KEY, Field.ORDERING_KEY)
_FIELD_OF_TAG: Final = np.zeros(256, np.int64)
for _number in range(1, Field.COUNT):
    _FIELD_OF_TAG[_number << 3 | (2 if _number in _BYTES_FIELDS else 0)] = _number
_IS_BYTES: Final = np.zeros(Field.COUNT, np.bool_)
_IS_BYTES[list(_BYTES_FIELDS)] = True


def _u64(value: int) -> np.uint64:
    return np.uint64(value)


_ONE, _TAG, _SHORT_MASK, _LONG_BIT, _BYTE = _u64(1), _u64(0xFF), _u64(0x7F), _u64(0x8000), _u64(8)
_STOPS, _SEVENS = _u64(0x8080808080808080), _u64(0x7F7F7F7F7F7F7F7F)
_FOLDS: Final = tuple(
    (_u64(low), _u64(high), _u64(shift))
    for low, high, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
_WIDTH_MAX: Final = 7


class Stepped(NamedTuple):
    """What was found. ``table``: a row for each of ``Field``, a column for each message; -1: absent. Bytes are position * 2**32 + length.

    ``odd``: batches that must be read otherwise; the table has nothing of worth for them. ``pairs``: properties (column, position, length).
    """

    table: Ints
    odd: Flags
    pairs: tuple[Ints, Ints, Ints]


class Pairs(NamedTuple):
    """Properties, in the order of their bytes: the message's column, and places (position, length) of name and value."""

    column: Ints
    key_at: Ints
    key_size: Ints
    value_at: Ints
    value_size: Ints


def step(data: bytes, begins: Ints, ends: Ints, counts: Ints, wanted: frozenset[int]) -> Stepped:
    """Takes apart the batches that are at ``begins`` to ``ends`` in ``data``, which ends with ``PAD_BYTES`` zeros.

    ``counts``: messages in each, at least 1; ``wanted``: fields whose values are looked at later.
    """
    return _Stepper(data, int(counts.sum()), wanted).run(begins, ends, counts)


class _Stepper:
    def __init__(self, data: bytes, messages: int, wanted: frozenset[int]) -> None:
        self._words: Words = np.ndarray((len(data) - 7,), np.dtype("<u8"), data, 0, (1,))
        self._lengths: npt.NDArray[Any] = np.ndarray((len(data) - 3,), np.dtype(">u4"), data, 0, (1,))
        self._nowhere = len(data) - PAD_BYTES
        """A message without a payload size, beyond every batch: where batches wait that turned out to be odd."""
        self._wanted = wanted | {Field.PAYLOAD_SIZE, Field.COMPACTED_OUT, Field.NULL_VALUE}
        self._table: Ints = np.full((Field.COUNT, messages), -1, np.int64)
        self._pairs: list[tuple[Ints, Ints, Ints]] = []

    def run(self, begins: Ints, ends: Ints, counts: Ints) -> Stepped:
        # The longest batches first: those that still have a message are always the first ones.
        order = np.argsort(-counts, kind="stable")
        at, stop, size = begins[order], ends[order], counts[order]
        first = (np.cumsum(counts) - counts)[order]
        odd = np.zeros(len(counts), np.bool_)
        active = np.searchsorted(-size, -np.arange(int(size[0])), side="left").tolist()
        sizes, payloads = self._table[Field.PAYLOAD_SIZE], self._table[Field.PAYLOAD]
        for number, several in enumerate(active):
            columns = first[:several] + number
            begin = at[:several] + 4
            end = begin + self._lengths[at[:several]].astype(np.int64)
            beyond = end > stop[:several]
            if beyond.any():
                odd[:several] |= beyond
                begin[beyond] = end[beyond] = self._nowhere
            self._fields(begin, end, columns, odd)
            payloads[columns] = end
            length = sizes[columns]
            following = end + length
            wrong = (length < 0) | (following > stop[:several])
            if wrong.any():
                odd[:several] |= wrong
                following[wrong] = self._nowhere
            at[:several] = following
        odd |= at != stop
        found = np.empty_like(odd)
        found[order] = odd
        return Stepped(self._table, found, self._all_pairs())

    def _fields(self, at: Ints, end: Ints, columns: Ints, odd: Flags) -> None:
        """The fields from ``at`` to ``end``: the first one of every message, then the second one, and so on."""
        batches = np.arange(len(at))
        while True:
            going = at < end
            count = np.count_nonzero(going)
            if not count:
                return
            if count < len(at):
                at, end, columns, batches = at[going], end[going], columns[going], batches[going]
            word = self._words[at]
            value, width = _varint(word)
            tag = word & _TAG
            content = at + width + 1
            first = int(tag[0])
            if (tag == tag[0]).all():
                field = int(_FIELD_OF_TAG[first])
                at = content + value if _IS_BYTES[field] else content
                wrong = (at > end) | (width > _WIDTH_MAX)
                if not field:
                    wrong[:] = True
                self._keep(field, columns, content, value)
            else:
                fields = _FIELD_OF_TAG[tag.astype(np.int64)]
                of_bytes = _IS_BYTES[fields]
                at = np.where(of_bytes, content + value, content)
                wrong = (at > end) | (width > _WIDTH_MAX) | (fields == 0)
                for field in np.unique(fields).tolist():
                    those = fields == field
                    self._keep(field, columns[those], content[those], value[those])
            if wrong.any():
                odd[batches[wrong]] = True
                right = ~wrong
                at, end, columns, batches = at[right], end[right], columns[right], batches[right]

    def _keep(self, field: int, columns: Ints, content: Ints, value: Ints) -> None:
        if field not in self._wanted:
            return
        if field == Field.PROPERTIES:
            self._pairs.append((columns, content, value))
        else:
            self._table[field, columns] = (content << 32) + value if _IS_BYTES[field] else value

    def _all_pairs(self) -> tuple[Ints, Ints, Ints]:
        if not self._pairs:
            none = np.zeros(0, np.int64)
            return none, none, none
        columns, at, size = (np.concatenate(part) for part in zip(*self._pairs, strict=True))
        order = np.argsort(at, kind="stable")
        return columns[order], at[order], size[order]


def _varint(word: Words) -> tuple[Ints, Any]:
    """The varints in bytes 1 to 7 of these words, and their widths in bytes; a width of 8: longer than that."""
    if not (word & _LONG_BIT).any():
        return (word >> _BYTE & _SHORT_MASK).astype(np.int64), np.int64(1)
    value = word >> _BYTE
    stops = ~value & _STOPS
    last = stops & (~stops + _ONE)  # the lowest bit: that of the last byte
    value = value & (last - _ONE) & _SEVENS
    for low, high, shift in _FOLDS:
        value = (value & low) | ((value & high) >> shift)
    exponent = np.frexp(last.astype(np.float64))[1]
    return value.astype(np.int64), (exponent.astype(np.int64) + 7) >> 3


def pairs_of(data: bytes, found: tuple[Ints, Ints, Ints]) -> tuple[Pairs, Ints]:
    """The names and values of properties, and the columns of messages that have one which is not a name and then a value."""
    column, at, size = found
    words: Words = np.ndarray((len(data) - 7,), np.dtype("<u8"), data, 0, (1,))
    most = len(data) - PAD_BYTES
    end = at + size
    word = words[np.minimum(at, most)]
    key_size, width = _varint(word)
    key_at = at + width + 1
    value_tag_at = key_at + key_size
    following = words[np.minimum(value_tag_at, most)]
    value_size, value_width = _varint(following)
    value_at = value_tag_at + value_width + 1
    right = (word & _TAG == _u64(0x0A)) & (following & _TAG == _u64(0x12)) & (value_at + value_size == end)
    right &= (width <= _WIDTH_MAX) & (value_width <= _WIDTH_MAX)
    return Pairs(column, key_at, key_size, value_at, value_size), column[~right]
