"""Backups: exports of metadata, backups of bytes, containers made of others' states, header files of PDP-34's old layout.

Everything here but imports works at an owner or at a replica, and never changes what a container holds, but for pins. Bytes of the
files: FORMAT.md beside this file; of header files: ``chunkstore/codec/ROLLING_HEADER.md``.
"""

from chunkstore.backup.exporting import (
    ExportReport,
    ExportVerification,
    Pins,
    check_path,
    export,
    read_export,
    read_segments,
    verify,
)
from chunkstore.backup.header_import import HeaderImport, import_headers
from chunkstore.backup.headers import HeadersReport, export_headers
from chunkstore.backup.importing import MissingChunk
from chunkstore.backup.keeping import Audit, Removed, audit, check_keep, remove
from chunkstore.backup.restore import RestoreReport, restore
from chunkstore.backup.rounds import BackupPlan, BackupReport, backup, backup_figures, check_roots, list_backups
from chunkstore.backup.runs import BackupInfo

__all__ = [
    "Audit",
    "BackupInfo",
    "BackupPlan",
    "BackupReport",
    "ExportReport",
    "ExportVerification",
    "HeaderImport",
    "HeadersReport",
    "MissingChunk",
    "Pins",
    "Removed",
    "RestoreReport",
    "audit",
    "backup",
    "backup_figures",
    "check_keep",
    "check_path",
    "check_roots",
    "export",
    "export_headers",
    "import_headers",
    "list_backups",
    "read_export",
    "read_segments",
    "remove",
    "restore",
    "verify",
]
