"""Backups: exports of metadata, backups of bytes, containers made of others' states, header files.

Everything here but imports of headers works at an owner or at a replica, and changes nothing that a container holds but pins. Bytes of the
files: FORMAT.md next to this file; of header files: ``chunkstore/codec/ROLLING_HEADER.md``.
"""

from chunkstore.backup.exporting import (
    ExportReport,
    ExportVerification,
    Pins,
    ReadOptions,
    check_path,
    export,
    read_export,
    read_segments,
    verify,
)
from chunkstore.backup.removing import Removed, Verified, remove, verify_copies
from chunkstore.backup.restore import RestoreOptions, RestoreReport, import_, restore
from chunkstore.backup.rounds import BackupPlan, BackupReport, backup, backup_figures, check_roots, list_backups
from chunkstore.backup.runs import BackupInfo
from chunkstore.backup.salvage import LostRange, SalvageReport
from chunkstore.backup.survey import MissingChunk
from chunkstore.headers.exporting import HeadersReport, export_headers
from chunkstore.headers.importing import HeaderImport, import_headers, survey_headers

__all__ = [
    "BackupInfo",
    "BackupPlan",
    "BackupReport",
    "ExportReport",
    "ExportVerification",
    "HeaderImport",
    "HeadersReport",
    "LostRange",
    "MissingChunk",
    "Pins",
    "ReadOptions",
    "Removed",
    "RestoreOptions",
    "RestoreReport",
    "SalvageReport",
    "Verified",
    "backup",
    "backup_figures",
    "check_path",
    "check_roots",
    "export",
    "export_headers",
    "import_",
    "import_headers",
    "list_backups",
    "read_export",
    "read_segments",
    "remove",
    "restore",
    "survey_headers",
    "verify",
    "verify_copies",
]
