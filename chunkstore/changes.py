"""Changes for ``store.commit``: several of them become one record, all or nothing.

Promises: plain frozen data; order matters (later changes see earlier ones); every change checks what its single verb checks.
Leaves out: ``put`` to a table with an expected version *and* a second change of the same key in one commit (refused).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from chunkstore.checksum import BytesLike
from chunkstore.config import RollingPolicy
from chunkstore.operations.session import SessionChunk
from chunkstore.records import AttributeValue

__all__ = [
    "Append",
    "Attach",
    "Change",
    "Concat",
    "Create",
    "Delete",
    "EndSession",
    "Seal",
    "TableDelete",
    "TablePut",
    "Truncate",
    "Unseal",
    "UpdateAttributes",
]


@dataclass(frozen=True, slots=True)
class Create:
    """Create a segment. ``rolling`` None takes the store's default."""

    name: str
    rolling: RollingPolicy | None = None
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Append:
    """Append bytes; with ``expected_offset`` only at that length."""

    name: str
    data: BytesLike
    expected_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Attach:
    """Append chunks that an open session has written."""

    name: str
    session_id: int
    chunks: tuple[SessionChunk, ...]
    expected_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Seal:
    """Seal a segment (no change if it is sealed)."""

    name: str


@dataclass(frozen=True, slots=True)
class Unseal:
    """Unseal a sealed segment."""

    name: str


@dataclass(frozen=True, slots=True)
class Truncate:
    """Move the start offset up to ``offset``."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class Concat:
    """Splice a sealed segment behind another; it ceases to exist. ``offset`` None takes the target's length."""

    target: str
    source: str
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a segment."""

    name: str


@dataclass(frozen=True, slots=True)
class UpdateAttributes:
    """Set attributes (None removes one) if every expected one matches (None: absent)."""

    name: str
    changes: Mapping[str, AttributeValue | None]
    expected: Mapping[str, AttributeValue | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TablePut:
    """Put a table row; ``expected_version`` 0 means "must be absent"."""

    namespace: str
    key: bytes
    value: bytes
    expected_version: int | None = None


@dataclass(frozen=True, slots=True)
class TableDelete:
    """Delete a table row."""

    namespace: str
    key: bytes
    expected_version: int | None = None


@dataclass(frozen=True, slots=True)
class EndSession:
    """End a session; its unattached chunks become orphans."""

    session_id: int


Change: TypeAlias = (
    Create
    | Append
    | Attach
    | Seal
    | Unseal
    | Truncate
    | Concat
    | Delete
    | UpdateAttributes
    | TablePut
    | TableDelete
    | EndSession
)
