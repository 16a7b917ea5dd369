"""What an administrator does to the folders of a cluster, or of the model of one, under whoever works in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.support.fake_webhdfs import FakeWebHdfs
from tests.support.servers.hdfs import HdfsCluster

__all__ = ["WAYS", "Tree", "replaced_by_a_copy", "served_from_a_copy"]


class Tree:
    """What an administrator does to the folders of a cluster."""

    def __init__(self, server: HdfsCluster | FakeWebHdfs) -> None:
        self._server = server

    def root(self, path: str) -> str:
        return f"hdfs://127.0.0.1:{self._server.port}{path}"

    def move(self, source: str, target: str) -> None:
        if isinstance(self._server, FakeWebHdfs):
            self._server.move(source, target)
            return
        self._ask("PUT", target.rpartition("/")[0] or "/", "MKDIRS")
        self._ask("PUT", source, "RENAME", destination=target, renameoptions="NONE")

    def copy(self, source: str, target: str) -> None:
        if isinstance(self._server, FakeWebHdfs):
            self._server.copy(source, target)
            return
        self._ask("PUT", target, "MKDIRS")
        for name, kind in self._children(source):
            if kind == "DIRECTORY":
                self.copy(f"{source}/{name}", f"{target}/{name}")
            else:
                self._server.create(f"{target}/{name}", self._server.read(f"{source}/{name}"))

    def remove(self, path: str) -> None:
        if isinstance(self._server, FakeWebHdfs):
            self._server.remove(path)
        else:
            self._ask("DELETE", path, "DELETE", recursive="true")

    def is_there(self, path: str) -> bool:
        if isinstance(self._server, FakeWebHdfs):
            with self._server.lock:
                return path in self._server.folders
        return self._server.ask("GET", path, "GETFILESTATUS").status_code == 200

    def files(self, path: str) -> list[str]:
        """Below a folder, temporaries left out."""
        if isinstance(self._server, FakeWebHdfs):
            with self._server.lock:
                return sorted(name for name in self._server.files if name.startswith(path + "/") and "/." not in name)
        found: list[str] = []
        for name, kind in self._children(path):
            if not name.startswith("."):
                found += self.files(f"{path}/{name}") if kind == "DIRECTORY" else [f"{path}/{name}"]
        return sorted(found)

    def _children(self, path: str) -> list[tuple[str, str]]:
        statuses = self._ask("GET", path, "LISTSTATUS")["FileStatuses"]["FileStatus"]
        return [(status["pathSuffix"], status["type"]) for status in statuses]

    def _ask(self, method: str, path: str, op: str, **params: Any) -> dict[str, Any]:
        assert isinstance(self._server, HdfsCluster)
        answer = self._server.ask(method, path, op, **params)
        assert answer.status_code == 200, answer.text
        return dict(answer.json()) if answer.content else {}


def renamed_root(tree: Tree, home: str) -> str:
    tree.move(f"{home}/old", f"{home}/new")
    return f"{home}/new"


def renamed_container(tree: Tree, home: str) -> str:
    tree.move(f"{home}/old/default", f"{home}/new/default")
    return f"{home}/new"


def removed(tree: Tree, home: str) -> str:
    tree.copy(f"{home}/old", f"{home}/new")
    tree.remove(f"{home}/old")
    return f"{home}/new"


def removed_to_the_trash(tree: Tree, home: str) -> str:
    """What `hdfs dfs -rm -r` does where there is a trash: the folder lives on elsewhere, with the number that it had."""
    tree.copy(f"{home}/old", f"{home}/new")
    tree.move(f"{home}/old", f"{home}/trash/old")
    return f"{home}/new"


def replaced_by_a_copy(tree: Tree, home: str) -> str:
    """The successor has what was renamed; the zombie's names lead into a copy, where no claim of the successor is."""
    tree.move(f"{home}/old", f"{home}/new")
    tree.copy(f"{home}/new", f"{home}/old")
    return f"{home}/new"


def served_from_a_copy(tree: Tree, home: str) -> str:
    """The successor has the copy, in the old place; what the zombie opened lies elsewhere, with no claim of the successor."""
    tree.move(f"{home}/old", f"{home}/aside")
    tree.copy(f"{home}/aside", f"{home}/old")
    return f"{home}/old"


def restored_from_a_copy(tree: Tree, home: str) -> str:
    tree.copy(f"{home}/old", f"{home}/aside")
    tree.remove(f"{home}/old")
    tree.move(f"{home}/aside", f"{home}/old")
    return f"{home}/old"


_ALL = (
    renamed_root,
    renamed_container,
    removed,
    removed_to_the_trash,
    replaced_by_a_copy,
    served_from_a_copy,
    restored_from_a_copy,
)
WAYS: Final[dict[str, Callable[[Tree, str], str]]] = {way.__name__: way for way in _ALL}
"""Each moves ``<home>/old``, and gives the root to open from then on."""
