"""Golden stores are kept as archives."""

from __future__ import annotations

import tarfile
from pathlib import Path

__all__ = ["unpack"]


def unpack(archive: Path, folder: Path) -> None:
    """The folders and files of an archive of ours, below ``folder``."""
    # Not by extractall: it wants an argument that Python 3.11.0 to 3.11.3 refuse.
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as packed:
        for member in packed:
            target = folder / member.name
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
            elif (file := packed.extractfile(member)) is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read())
