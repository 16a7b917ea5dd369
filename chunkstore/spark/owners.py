"""The owner that a sink asks: whoever it is; where nobody answers, ``chunkstore serve``, started on this machine.

Promises: nothing is claimed here. What is started is a process of its own session that outlives this one, claims politely (of two that
start at one time, one serves and the other ends), and ends by itself. With ``takeOver`` it deposes whoever else owns the container, and
that is said. Leaves out: what is asked (``committing``).
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Self, TypeVar

from chunkstore import runtime
from chunkstore.asks import AskedChange
from chunkstore.assembly import describe_owner, open_asker
from chunkstore.attaching import AskedDoor, Written, attach_written, find_session
from chunkstore.changes import TablePut
from chunkstore.config import default_cache_dir
from chunkstore.errors import ChunkstoreError, OutcomeUnknown, StorageUnavailable
from chunkstore.logs import without_credentials
from chunkstore.operations.attach import find_session as shown_session
from chunkstore.operations.tables import TableEntry
from chunkstore.processes import began, is_alive
from chunkstore.pulsar.contexts import Context, iter_contexts
from chunkstore.records import Pin
from chunkstore.replica import Replica
from chunkstore.spark.write_options import WriteOptions

__all__ = ["AskerDoor", "driver_pid"]

T = TypeVar("T")

_LOG: Final = logging.getLogger("chunkstore.spark")
_SOON_LOCAL_S: Final = 1.0
_SOON_REMOTE_S: Final = 4.0
"""An owner that is at work has answered by then; else it is looked whether there is one at all."""
_LOCAL_S: Final = 3.0
_REMOTE_S: Final = 25.0
"""How long an owner may take that lives: an idle one looks each twenty seconds."""
_PATIENCE_S_MAX: Final = 60.0
_IN_ALL_S: Final = 300.0
_POLL_S: Final = 0.1
_LOG_BYTES_MAX: Final = 1 << 20
_DETACHED: Final = '"$@" >>"$0" 2>&1 & echo $!'
"""The shell ends at once, so that what it started is nobody's child: no one else would ask how it ended."""


class AskerDoor(AskedDoor):
    """A ``committing.Door``. A context manager that closes. ``stream``: what is started serves as long as the driver lives. ``wait_s``: in
    all, for each call."""

    def __init__(self, options: WriteOptions, *, stream: bool, wait_s: float = _IN_ALL_S) -> None:
        super().__init__(open_asker(options.path, container=options.container), wait_s)
        self._options = options
        self._stream = stream
        self._started: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release everything; what was started stays. Raises nothing."""
        self._asker.close()

    def is_certain(self, entry: TableEntry) -> bool:
        able = self._asker.replica.storage.capabilities
        return able.sync_repeatable or not able.append or entry.version < self._asker.replica.lsn

    @property
    def replica(self) -> Replica:
        """Where the container is followed, up to the last ``row``."""
        return self._asker.replica

    def exists(self, segment: str) -> bool:
        return self._asker.replica.exists(segment)

    def find_session(self, holder: str, ttl_s: float) -> int:
        """One that is shown needs no asking: should its record not be durable, the commit is refused, as of any that has ended."""
        self._asker.replica.refresh()
        shown = shown_session(self._asker.replica.sessions(), holder)
        if shown is not None:
            return shown
        return self._asked(lambda wait_s: find_session(self._asker, holder, ttl_s=ttl_s, wait_s=wait_s).session_id)

    def contexts(self, topic: str) -> list[Context]:
        return iter_contexts(self._asker.replica, topic)

    def attach(
        self,
        session_id: int,
        written: Sequence[Written],
        once: TablePut,
        *,
        also: Sequence[AskedChange] = (),
        end_session: bool,
    ) -> None:
        def call(wait_s: float) -> int:
            return attach_written(
                self._asker, session_id, written, once, also=also, end_session=end_session, wait_s=wait_s
            )

        self._asked(call)

    def pin(self, name: str, note: str, expires_s: float) -> Pin:
        """Keep the present state restorable. Raises as ``Asker.pin``. Retry: safe."""
        return self._asked(lambda wait_s: self._asker.pin(name, note, expires_s, wait_s=wait_s))

    def unpin(self, name: str) -> bool:
        """Give it up. Raises as ``Asker.unpin``. Retry: safe."""
        return self._asked(lambda wait_s: self._asker.unpin(name, wait_s=wait_s))

    def depose(self) -> None:
        """Have a server of ours own the container, unless one does. Once for each driver of a stream: of two that both take over each would
        else depose the other's server with every micro-batch. Raises ``StorageUnavailable`` where it does not come to serve."""
        driver = driver_pid()
        done = self._file(f"took-{driver}-{began(driver)}")
        if self._is_ours() or self._is_released() or (self._stream and os.path.exists(done)):
            return
        owner = describe_owner(self._options.path, self._options.container)
        text = "option takeOver: deposing the owner of container %r, pid %s on %s"
        _LOG.warning(text, self._options.container, owner["pid"], owner["host"])
        server = self._start("--take-over")
        end_s = runtime.monotonic_s() + self._wait_s
        while not self._is_ours():
            if not is_alive(server) or runtime.monotonic_s() >= end_s:
                raise StorageUnavailable(f"took over nothing: {self._last_words()}", object=self._options.container)
            runtime.sleep_s(_POLL_S)
        with open(done, "wb"):
            pass

    def _asked(self, call: Callable[[float], T]) -> T:
        """Ask again and again, the same, which is exactly once; where nobody answers, start somebody who does."""
        local = self._asker.replica.storage.capabilities.append
        patience_s = _LOCAL_S if local else _REMOTE_S
        wait_s = _SOON_LOCAL_S if local else _SOON_REMOTE_S
        began_s = runtime.monotonic_s()
        while True:
            left_s = began_s + self._wait_s - runtime.monotonic_s()
            try:
                return call(max(0.1, min(wait_s, left_s)))
            except OutcomeUnknown as error:
                now_s = runtime.monotonic_s()
                if now_s >= began_s + self._wait_s:
                    text = f"A server that was to own it says: {self._last_words()}. takeOver=true deposes an owner that does not answer."
                    error.add_note(text)
                    raise
                gone = self._started is None or not is_alive(self._started)
                if gone and (now_s >= began_s + patience_s or self._is_released()):
                    self._start()
            wait_s = max(patience_s, min(_PATIENCE_S_MAX, wait_s * 2))  # it may be at work on many chunks

    def _is_released(self) -> bool:
        """Whether the last owner has said that it ends. If not, asking tells."""
        with suppress(ChunkstoreError):
            lease = describe_owner(self._options.path, self._options.container)["lease"]
            return isinstance(lease, dict) and bool(lease["released"])
        return False

    def _is_ours(self) -> bool:
        """Whether a server that was started on this machine for a sink owns the container."""
        with suppress(ChunkstoreError, OSError):
            owner = describe_owner(self._options.path, self._options.container)
            if owner["host"] == runtime.identity().host and os.path.exists(self._file(f"pid-{owner['pid']}")):
                return is_alive(int(str(owner["pid"])))
        return False

    def _start(self, *more: str) -> int:
        """Start a server: of a session of its own, nobody's child, with no pipe or file of ours but its log. Returns its pid."""
        options = self._options
        command = [sys.executable, "-m", "chunkstore", "serve", options.path, "--container", options.container]
        command += ["--idle-s", f"{options.owner_idle_s:g}", *more]
        if self._stream:
            command += ["--while-pid", str(driver_pid())]
        log = self._file("log")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path)}
        try:
            os.makedirs(os.path.dirname(log), mode=0o700, exist_ok=True)
            if os.path.exists(log) and os.path.getsize(log) > _LOG_BYTES_MAX:
                os.unlink(log)
            shell = ["/bin/sh", "-c", _DETACHED, log, *command]
            started = subprocess.run(  # noqa: S603  (this very interpreter)
                shell,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                start_new_session=True,
                cwd="/",
                env=environment,
                check=True,
            )
            pid = int(started.stdout)
            for name in os.listdir(os.path.dirname(log)):
                if name.startswith(("pid-", "took-")) and not is_alive(int(name.split("-")[1])):
                    os.unlink(self._file(name))
            with open(self._file(f"pid-{pid}"), "wb"):
                pass
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            raise StorageUnavailable(f"cannot start chunkstore serve: {error}", object=log) from error
        text = "nobody answers for container %r of %s: started chunkstore serve, pid %d"
        _LOG.info(text, options.container, without_credentials(options.path), pid)
        self._started = pid
        return pid

    def _file(self, name: str) -> str:
        return os.path.join(default_cache_dir(), self.uuid.hex(), "serve", name)

    def _last_words(self) -> str:
        try:
            with open(self._file("log"), "rb") as file:
                lines = file.read()[-4096:].decode("utf-8", "replace").splitlines()
        except OSError as error:
            return f"nothing ({error})"
        return f"{lines[-1] if lines else 'nothing'} (all of it: {self._file('log')})"


def driver_pid() -> int:
    """The JVM that this process works for: the nearest ancestor that is a Java; else our parent."""
    pid = os.getpid()
    while pid > 1:
        parent, name = _parent(pid)
        if "java" in name:
            return pid
        pid = parent
    return os.getppid()


def _parent(pid: int) -> tuple[int, str]:
    """A process's parent (0: not known) and its own name."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
        return int(text.rpartition(")")[2].split()[1]), text[text.index("(") + 1 : text.rindex(")")]
    except (OSError, ValueError, IndexError):
        pass
    command = ["ps", "-o", "ppid=,comm=", "-p", str(pid)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split(None, 1)  # noqa: S603
    return (int(said[0]), said[1]) if len(said) == 2 and said[0].isdigit() else (0, "")
