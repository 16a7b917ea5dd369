"""Folders of a simulated root that are renamed or copied under everybody's feet, as an administrator may do.

Whoever holds a folder open goes on in it, as the file system binding does; others find what has the name by then.
"""

from __future__ import annotations

from tests.simulator.posix import PosixBackend


def rename_folder(backend: PosixBackend, folder: str, to: str) -> None:
    """Rename a folder of the root."""
    entries, dirty = backend.entries, backend._dirty
    for name in [name for name in entries if name.startswith(f"{folder}/")]:
        entries[to + name.removeprefix(folder)] = entries.pop(name)
    for known in [known for known in dirty if f"{known}/".startswith(f"{folder}/")]:
        names = dirty.pop(known)
        dirty[to + known.removeprefix(folder)] = {to + name.removeprefix(folder): names[name] for name in names}
    for held in backend.held:
        for first, place in held.items():
            held[first] = to if place == folder else place
    backend._names = None


def copy_folder(backend: PosixBackend, folder: str, to: str) -> None:
    """Copy a folder of the root, durably: the same names and bytes, in other files."""
    for name in [name for name in backend.entries if name.startswith(f"{folder}/")]:
        backend.overwrite(to + name.removeprefix(folder), bytes(backend.entries[name].data))
