"""Backups: exports of metadata, backups of bytes, containers made of others' states, header files.

Everything here but imports works at an owner or at a replica, and never changes what a container holds, but for pins. Bytes of the
files: FORMAT.md beside this file; of header files: ``chunkstore/codec/ROLLING_HEADER.md``.
"""

from chunkstore.backup.adopting import Adoption, adopt
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
from chunkstore.backup.imports import drop_import, import_, import_file, merge_file
from chunkstore.backup.merging import PendingImport, pending_imports
from chunkstore.backup.removing import Removed, Verified, remove, verify_copies
from chunkstore.backup.restore import RestoreReport, restore
from chunkstore.backup.rounds import BackupPlan, BackupReport, backup, backup_figures, check_roots, list_backups
from chunkstore.backup.runs import BackupInfo
from chunkstore.backup.survey import MissingChunk
from chunkstore.headers.exporting import HeadersReport, export_headers
from chunkstore.headers.importing import HeaderImport, import_headers, survey_headers

__all__ = [
    "Adoption",
    "BackupInfo",
    "BackupPlan",
    "BackupReport",
    "ExportReport",
    "ExportVerification",
    "HeaderImport",
    "HeadersReport",
    "MissingChunk",
    "PendingImport",
    "Pins",
    "Removed",
    "RestoreReport",
    "Verified",
    "adopt",
    "backup",
    "backup_figures",
    "check_path",
    "check_roots",
    "drop_import",
    "export",
    "export_headers",
    "import_",
    "import_file",
    "import_headers",
    "list_backups",
    "merge_file",
    "pending_imports",
    "read_export",
    "read_segments",
    "remove",
    "restore",
    "survey_headers",
    "verify",
    "verify_copies",
]
