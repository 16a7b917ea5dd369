"""Which file system a path lies on: sample mountinfo texts, and this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.errors import InvalidArgument, StorageUnavailable
from chunkstore_bindings.filesystem import FilesystemChunkStorage, mounts
from chunkstore_bindings.filesystem.mounts import find_mount, is_local, parse_mountinfo

SAMPLE = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
28 27 0:44 / /mnt/nas rw,relatime shared:7 master:2 - nfs4 nas:/export rw,vers=4.2,lookupcache=all
29 27 0:45 / /mnt/my\040disk\134x rw - xfs /dev/sdb1 rw
30 27 0:46 / /home/u/remote rw,nosuid - fuse.sshfs u@h:/ rw,user_id=0
31 27 0:47 / /merged rw - overlay overlay rw,lowerdir=/l,upperdir=/var/upper,workdir=/w
32 27 0:48 / /mnt/nas/inner rw - tmpfs tmpfs rw
33 27 0:49 / /share rw - cifs //srv/share rw
34 27 0:50 / /win rw - 9p C: rw
this line is no mount
35 27
36 27 0:51 / /usb rw - fuseblk /dev/sdc1 rw
37 27 0:52 /@home /home/u/pool rw - btrfs /dev/sdd rw
"""


@pytest.mark.parametrize(
    ("path", "device", "kind", "local"),
    [
        ("/", "254:0", "ext4", True),
        ("/srv/log", "254:0", "ext4", True),
        ("/mnt/nas", "0:44", "nfs4", False),
        ("/mnt/nas/a/b", "0:44", "nfs4", False),
        ("/mnt/nasty", "254:0", "ext4", True),
        ("/mnt/nas/inner/x", "0:48", "tmpfs", True),
        ("/mnt/my disk\\x/log", "0:45", "xfs", True),
        ("/home/u/remote/log", "0:46", "fuse.sshfs", False),
        ("/merged/log", "0:47", "overlay", True),
        ("/share/log", "0:49", "cifs", False),
        ("/win/log", "0:50", "9p", False),
        ("/usb/log", "0:51", "fuseblk", False),
        ("/home/u/pool/log", "0:99", "btrfs", True),
        ("/mnt/nas/inner/x", "0:44", "nfs4", False),
    ],
)
def test_types(path: str, device: str, kind: str, local: bool) -> None:
    found = parse_mountinfo(SAMPLE)
    mount = find_mount(found, path, device)
    assert mount is not None
    assert mount.kind == kind
    assert is_local(found, mount) is local


def test_an_overlay_is_what_its_upper_directory_is(tmp_path: Path) -> None:
    upper = tmp_path / "up per"
    upper.mkdir()
    quoted = str(upper).replace(" ", r"\040")
    for kind, local in [("ext4", True), ("nfs4", False), ("fuse.sshfs", False)]:
        text = (
            f"1 0 9:8 / / rw - ext4 x rw\n2 0 9:9 / {tmp_path} rw - {kind} y rw\n"
            f"3 0 0:9 / /merged rw - overlay overlay rw,upperdir={quoted},workdir=/w\n"
        )
        found = parse_mountinfo(text)
        assert is_local(found, find_mount(found, "/merged/x", "0:9")) is local


def test_roots_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidArgument, match="not a directory"):
        FilesystemChunkStorage(tmp_path / "file")
    with pytest.raises((InvalidArgument, StorageUnavailable)):
        FilesystemChunkStorage(tmp_path / "file" / "below")
    with pytest.raises(StorageUnavailable, match="mount or create it"):
        FilesystemChunkStorage(tmp_path / "missing", create_root=False)
    for bad in ("", "a\0b", 7, b"bytes"):
        with pytest.raises((InvalidArgument, TypeError)):
            FilesystemChunkStorage(bad)  # type: ignore[arg-type]
    for files in (7, 0, -1, 8.5, True):
        with pytest.raises(InvalidArgument):
            FilesystemChunkStorage(tmp_path, open_files_max=files)  # type: ignore[arg-type]
    storage = FilesystemChunkStorage(tmp_path / "kept", create_root=True)
    storage.close()


def test_free_bytes(tmp_path: Path) -> None:
    free = mounts.free_bytes(str(tmp_path))
    assert free is not None and free > 0
    assert mounts.free_bytes(str(tmp_path / "missing")) is None
    assert mounts.free_bytes("/proc") is None, "it has no blocks"
    storage = FilesystemChunkStorage(tmp_path, medium="nfs4")
    assert storage.free_bytes() is None, "it would be a request"
    storage.close()
