"""``serve``: an owner without an application, for cron and containers.

It never makes a container, and ends with a clean close: on SIGTERM, SIGHUP or Ctrl-C, when upkeep has found nothing to do for ``--idle-s``,
or when another owner has taken over, for which it looks every second on local storage and 40 times an hour elsewhere. An absent storage
ends it only before it has opened the container, and without ``--stand-by``. Metrics are shown on 127.0.0.1 only."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from types import FrameType
from typing import Annotated, Final

import typer

import chunkstore
from chunkstore import assembly, runtime
from chunkstore.cli import access, options
from chunkstore.cli.options import age_option, flag, option, size_option
from chunkstore.cli.output import human_bytes, print_json
from chunkstore.config import DefragPolicy, OptimiserPolicy, Settings
from chunkstore.engine.reading import context_of
from chunkstore.errors import (
    ChunkstoreError,
    ContainerBusy,
    ContainerNotFound,
    DeadlineExceeded,
    InvalidArgument,
    NotOwner,
    OutcomeUnknown,
    StorageFull,
    StorageUnavailable,
)
from chunkstore.metrics import CallCounts, exposition, storage_collector, upkeep_collector
from chunkstore.upkeep.optimiser import JobStatus

__all__ = ["serve"]

_POLL_S: Final = 0.2
_LOOK_LOCAL_S: Final = 1.0
_LOOK_REMOTE_S: Final = 90.0
_ANSWER_S: Final = 5.0
_PAUSE_S_MAX: Final = 60.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_AWAY: Final = (StorageUnavailable, StorageFull, DeadlineExceeded, OutcomeUnknown)
"""The storage may be back for the next try."""


def serve(
    root: options.Root,
    *,
    idle_s: Annotated[float | None, age_option("End after so long without work.")] = None,
    stand_by: Annotated[bool, flag("Wait while another owner is alive; claim when its lease stops.")] = False,
    metrics_port: Annotated[int | None, option("P", "Show Prometheus metrics at 127.0.0.1:P; 0: any port.")] = None,
    defrag: Annotated[bool, flag("Also merge small chunks.")] = False,
    scrub_bytes_s: Annotated[
        int | None,
        size_option("Also read all chunks once a day, at this many bytes a second, and report damage.", "--scrub"),
    ] = None,
    here: access.Owning,
) -> None:
    """Own a container and run its upkeep: collection, retention, and optional jobs, until stopped."""
    settings = here.settings
    if scrub_bytes_s is not None and scrub_bytes_s < 1:
        raise InvalidArgument(f"--scrub must be bytes a second above 0, not {scrub_bytes_s}", argument="--scrub")
    merging = DefragPolicy() if defrag else None
    policy = OptimiserPolicy(retention=True, defrag=merging, scrub_bytes_s=scrub_bytes_s or 0)
    if idle_s is not None:
        if not 0.1 <= idle_s <= 1e8:
            raise InvalidArgument(f"--idle-s must be from 0.1 to 1e8 seconds, not {idle_s!r}", argument="--idle-s")
        # A caller that waits for nothing to do has looked at least once.
        tuning = replace(settings.tuning, collect_s=min(settings.tuning.collect_s, idle_s / 2))
        settings = replace(settings, tuning=tuning)
        policy = replace(policy, interval_s=min(policy.interval_s, idle_s / 2))
    server = _Serving(
        root, here.container, settings, policy, idle_s, accept_rollback=here.accept_rollback, quiet=here.as_json
    )
    with _told_to_end(server), _metrics(metrics_port, server) as server.port:
        reason = server.claim_and_serve(stand_by=stand_by, take_over=here.take_over)
    server.say("ended", f"ended: {reason}", reason=reason)


@dataclass
class _Serving:
    """One run of the verb."""

    root: str
    container: str
    settings: Settings
    policy: OptimiserPolicy
    idle_s: float | None
    _: KW_ONLY
    accept_rollback: bool
    quiet: bool
    port: int | None = None
    stop_requested: bool = False
    """To end."""
    counted: Callable[[], Mapping[str, CallCounts]] = dict
    store: chunkstore.ChunkedSegmentStorage | None = None
    opening: bool = False
    troubles: dict[str, type[ChunkstoreError]] = field(default_factory=dict)
    progress: dict[str, int] = field(default_factory=dict)
    """Bytes of each job that were told."""

    def __post_init__(self) -> None:
        access.require_lasting(self.root)

    def calls(self) -> Mapping[str, CallCounts]:
        """Of the storage, since the last claim."""
        return self.counted()

    def figures(self) -> Mapping[str, Mapping[str, float]]:
        """Of upkeep, since the last claim; none while nothing is owned."""
        try:
            return {} if self.store is None else self.store.optimiser.figures()
        except ChunkstoreError:
            return {}

    def say(self, event: str, text: str, **facts: object) -> None:
        """A document on stdout, or a line on stderr."""
        if self.quiet:
            print_json({"event": event, "container": self.container, **facts})
            sys.stdout.flush()
        else:
            typer.echo(f"chunkstore: {self.container}: {text}", err=True)

    def _note(self, job: str | None, error: ChunkstoreError | None) -> None:
        """Say an error of a job, or of the storage, when it begins, and when it is over."""
        name = job or "storage"
        before, now = self.troubles.pop(name, None), None if error is None else type(error)
        if now is not None:
            self.troubles[name] = now
        facts = {} if job is None else {"job": job}
        if error is not None and now is not before:
            self.say("error", f"{name}: {error}", **facts, message=str(error))
        elif error is None and before is not None:
            self.say("recovered", f"{name}: the error is over", **facts)

    def tell(self, _number: int, _frame: FrameType | None) -> None:
        """The signal handler. No lock is taken: the interrupted thread may hold it."""
        self.stop_requested = True
        if self.opening:
            raise KeyboardInterrupt

    def claim_and_serve(self, *, stand_by: bool, take_over: bool) -> str:
        """Serve until there is a reason to end, and return it. Raises ``ContainerBusy`` and ``NotOwner``, but not to ``stand_by``."""
        waiting = False
        pause_s = self.settings.lease_s
        while not self.stop_requested:
            try:
                store = self._open(take_over=take_over)
            except KeyboardInterrupt:
                break
            except (ContainerBusy, NotOwner) as error:
                if not stand_by:
                    raise
                self._note(None, None)
                if not waiting:
                    self.say("standing by", f"standing by: {error}")
                waiting, take_over, pause_s = True, False, self.settings.lease_s
                self._sleep(pause_s)
                continue
            except (*_AWAY, ContainerNotFound) as error:
                # A container that is not there was there when we waited for it: what holds it is away.
                if not stand_by or (isinstance(error, ContainerNotFound) and not waiting):
                    raise
                self._note(None, error)
                self._sleep(pause_s)
                pause_s = min(_PAUSE_S_MAX, pause_s * 2)
                continue
            self._note(None, None)
            pause_s = self.settings.lease_s
            try:
                with store:
                    return self._serve(store)
            except NotOwner as error:
                self.say("taken over", f"another owner has taken over: {error}", epoch=error.epoch, owner=error.owner)
                if not stand_by:
                    raise
                waiting, take_over = True, False
        return "signal"

    def _open(self, *, take_over: bool) -> chunkstore.ChunkedSegmentStorage:
        self.opening = True
        try:
            self.store, self.counted = assembly.open_metered_store(
                self.root,
                container=self.container,
                settings=self.settings,
                take_over=take_over,
                accept_rollback=self.accept_rollback,
                optimiser=self.policy,
            )
        finally:
            self.opening = False
        self.progress.clear()
        return self.store

    def _serve(self, store: chunkstore.ChunkedSegmentStorage) -> str:
        where = "" if self.port is None else f", metrics at http://127.0.0.1:{self.port}/metrics"
        self.say("serving", f"serving as epoch {store.epoch}{where}", epoch=store.epoch, metrics_port=self.port)
        look_s = _LOOK_LOCAL_S if store.report.journal_mode == "append" else _LOOK_REMOTE_S
        looked_s = active_s = runtime.monotonic_s()
        findings: dict[str, tuple[str, ...]] = {}
        asked = 0.0
        while not self.stop_requested:
            self._pause()
            now_s = runtime.monotonic_s()
            for job in store.optimiser.status().jobs:
                if isinstance(job.error, NotOwner):
                    raise job.error.copy()
                self._note(job.name, job.error)
                if self._tell_progress(job):
                    active_s = now_s
                for text in job.findings:
                    if text not in findings.get(job.name, ()):
                        self.say("finding", f"{job.name}: {text}", job=job.name, message=text)
                findings[job.name] = job.findings
            if self.idle_s is not None:
                asked_before, asked = asked, store.optimiser.figures()["runs"]["ask"]
                active_s = now_s if asked != asked_before else active_s
                if now_s - active_s >= self.idle_s:
                    return "idle"
            if now_s - looked_s >= look_s:
                looked_s = now_s
                self._look(store)
        return "signal"

    def _tell_progress(self, job: JobStatus) -> bool:
        """Say what a job has done since the last time; whether it has done anything."""
        event = {"defrag": "merged", "retention": "truncated"}.get(job.name, "freed")
        done_bytes = job.moved_bytes if event == "merged" else job.freed_bytes
        size_bytes = done_bytes - self.progress.get(job.name, 0)
        if size_bytes > 0:
            self.progress[job.name] = done_bytes
            self.say(event, f"{job.name}: {human_bytes(size_bytes)} {event}", job=job.name, bytes=size_bytes)
        return size_bytes > 0

    def _pause(self) -> None:
        runtime.sleep_s(_POLL_S)

    def _look(self, store: chunkstore.ChunkedSegmentStorage) -> None:
        try:
            context_of(store).check()  # an owner that has nothing else to do learns of a newer one by this only
        except NotOwner:
            raise
        except ChunkstoreError as error:
            self._note(None, error)  # the storage may be back for the next look
        else:
            self._note(None, None)

    def _sleep(self, seconds: float) -> None:
        end_s = runtime.monotonic_s() + seconds
        while not self.stop_requested and runtime.monotonic_s() < end_s:
            runtime.sleep_s(_POLL_S)


@contextmanager
def _told_to_end(server: _Serving) -> Iterator[None]:
    # Under nohup a hangup ends nothing.
    heard = [number for number in _SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    before = [(number, signal.signal(number, server.tell)) for number in heard]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def _metrics(port: int | None, server: _Serving) -> Iterator[int | None]:
    """Answer at 127.0.0.1 meanwhile; the port."""
    if port is None:
        yield None
        return

    from http.server import BaseHTTPRequestHandler
    from socketserver import TCPServer

    collectors = [
        storage_collector(server.container, server.calls),
        upkeep_collector(server.container, server.figures),
    ]

    class Answer(BaseHTTPRequestHandler):
        timeout = _ANSWER_S

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            text = exposition(collectors)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(TCPServer):
        allow_reuse_address = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # who asked is gone, or talks nonsense

    try:
        listener = Server(("127.0.0.1", port), Answer)
    except (OSError, OverflowError) as error:
        raise InvalidArgument(f"cannot listen at 127.0.0.1:{port}: {error}", argument="--metrics-port") from error
    with listener:
        task = runtime.spawn(lambda: listener.serve_forever(poll_interval=_POLL_S), "chunkstore-metrics")
        try:
            yield int(listener.server_address[1])
        finally:
            listener.shutdown()
            task.join(_ANSWER_S)
