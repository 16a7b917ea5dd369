"""``chunkstore kafka serve`` as a process, brokers with the plug-in, and what their clients write and read."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from logging import CRITICAL, getLogger
from pathlib import Path
from random import Random
from signal import SIGCONT, SIGSTOP
from threading import Event, Thread
from typing import Any, NamedTuple, Self

from tests.support.paths import SOURCES
from tests.support.servers.base import ServerMissing, ServerProcess, missing, wait_until
from tests.support.servers.kafka import DEADLINE_S, NEW, KafkaBroker, plugin

__all__ = [
    "BYTES", "Load", "Rig", "Row", "Serving", "consumed", "is_tiered", "partition_of", "produce", "rig", "run", "until",
]  # fmt: skip

_VERB = (sys.executable, "-m", "chunkstore")
BYTES = 1 << 16
"""Of a segment."""


class Row(NamedTuple):
    """A record, as a producer or a consumer knows it."""

    offset: int
    key: bytes | None
    value: bytes | None


def until(check: Callable[[], bool], what: str) -> None:
    """Wait for it, as long as for a broker."""
    wait_until(check, deadline_s=DEADLINE_S, what=what)


def run(*arguments: str) -> str:
    """What a verb of chunkstore prints; it succeeds."""
    done = subprocess.run(
        [*_VERB, *arguments],
        env=os.environ | {"PYTHONPATH": SOURCES}, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


class Serving:
    """A serving process of ``root`` at a Unix socket."""

    def __init__(self, root: str, socket: Path) -> None:
        self.root, self.socket = root, socket
        self._log = socket.with_suffix(".log")
        self._process: ServerProcess | None = None

    def start(self) -> None:
        """Start it, or start it again, and wait until it serves. It takes the container from its owner."""
        before = self._starts()
        verb = [*_VERB, "kafka", "serve", self.root, "--socket", str(self.socket), "--take-over", "--create"]
        self._process = ServerProcess(verb, log=self._log, env={"PYTHONPATH": SOURCES})
        self._process.wait_ready(lambda: self._starts() > before, deadline_s=DEADLINE_S, what="chunkstore kafka serve")

    def _starts(self) -> int:
        return self._log.read_text().count("brokers connect") if self._log.exists() else 0

    def _running(self) -> ServerProcess:
        assert self._process is not None
        return self._process

    def kill(self) -> None:
        """kill -9, and wait for it."""
        self._running().kill()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It does nothing inside of the block."""
        self._running().signal(SIGSTOP)
        yield
        self._running().signal(SIGCONT)

    def exit_code(self) -> int | None:
        """How it ended; None: it runs."""
        return self._running().process.poll()

    def stop(self) -> None:
        """Ask it to end. Safe to repeat."""
        if self._process is not None:
            self._process.signal(SIGCONT)
            self._process.stop(60)


class Rig:
    """A serving process, and brokers that tier into it."""

    def __init__(self, folder: Path, root: str, version: str, stack: ExitStack) -> None:
        self.folder, self.root, self.version, self._stack = folder, root, version, stack
        # Brokers connect to a link, so that a successor may have another socket.
        self.serving, self.link = Serving(root, folder / "s.sock"), folder / "link"
        self.link.symlink_to(self.serving.socket)
        self.jar = plugin(folder)
        self.brokers: list[KafkaBroker] = []
        stack.callback(self.serving.stop)
        self.serving.start()
        self.add_broker()

    def add_broker(self) -> None:
        """Another broker, started; the first one has the controller."""
        options: dict[str, object] = {
            "remote_log_storage_system_enable": "true",
            "remote_log_manager_task_interval_ms": 500,
            "log_initial_task_delay_ms": 100,
            "broker_session_timeout_ms": 4000,  # a killed one may come back after that
            "broker_heartbeat_interval_ms": 500,
        }
        for short, manager, kind in (
            ("rsm", "remote_log_storage_manager", "RemoteStorageManager"),
            ("rlmm", "remote_log_metadata_manager", "RemoteLogMetadataManager"),
        ):
            options[f"{manager}_class_name"] = f"io.chunkstore.kafka.Chunkstore{kind}"
            options[f"{manager}_class_path"] = self.jar
            options[f"{short}_config_address"] = f"unix:{self.link}"
        first = next(iter(self.brokers), None)
        broker = KafkaBroker(self.folder / f"broker{len(self.brokers)}", self.version, joined=first, **options)
        self._stack.callback(broker.stop)
        self.brokers.append(broker)
        broker.start()

    @cached_property
    def admin(self) -> Any:
        """An administrator of the cluster."""
        from kafka.admin import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=self.addresses)
        self._stack.callback(admin.close)
        return admin

    @property
    def addresses(self) -> list[str]:
        """Of the brokers."""
        return [each.address for each in self.brokers]

    def add_topic(
        self, name: str, *, replicas: tuple[int, ...] = (1,), segment_bytes: int = BYTES, retention_bytes: int = -1
    ) -> None:
        """A topic of one partition, of whose segments only the active one stays at the broker."""
        small = {"internal.segment.bytes" if self.version == NEW else "segment.bytes": segment_bytes}
        kept = {"local.retention.bytes": 1, "retention.ms": -1, "retention.bytes": retention_bytes}
        configs = {key: str(value) for key, value in (small | kept | {"remote.storage.enable": "true"}).items()}
        self.admin.create_topics({name: {"assignments": {0: replicas}, "configs": configs}})

    def check_container(self) -> None:
        """End the serving process; nothing is wrong with what is stored."""
        self.serving.stop()
        run("kafka", "verify", self.root)
        run("check", self.root, "--deep")


@contextmanager
def rig(folder: Path, root: str, version: str) -> Iterator[Rig]:
    """A rig, ended at the end; or the end of the test."""
    # What is logged keeps errors, which keep sockets that kafka-python has lost.
    logger = getLogger("kafka")
    with ExitStack() as stack:
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(CRITICAL + 1)
        try:
            made = Rig(folder, root, version, stack)
        except ServerMissing as error:
            missing("kafka", error)
        yield made


def partition_of(topic: str) -> Any:
    """Its only partition."""
    from kafka import TopicPartition

    return TopicPartition(topic, 0)


def is_tiered(broker: KafkaBroker, topic: str) -> bool:
    """Whether the active segment alone is at the broker."""
    names = [path.name for path in (broker.data / f"{topic}-0").glob("*.log")]
    return len(names) == 1 and int(names[0][:20]) > 0


def produce(rig: Rig, topic: str, count: int, *, first: int = 0, **options: Any) -> list[Row]:
    """Write records of 1 KB, half noise, numbered from ``first``, and wait until all are acknowledged."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=rig.addresses, acks="all", batch_size=8192, **options)
    try:
        sent = [
            (number, producer.send(topic, value_of(number), b"%d" % number)) for number in range(first, first + count)
        ]
        producer.flush(DEADLINE_S)
        return [Row(future.get(DEADLINE_S).offset, b"%d" % number, value_of(number)) for number, future in sent]
    finally:
        producer.close()


def value_of(number: int) -> bytes:
    """A value that says which one it is."""
    return b"%020d" % number + Random(number).randbytes(500) + bytes(500)


def consumed(rig: Rig, topic: str, **options: Any) -> list[Row]:
    """All records, from the first one that is there."""
    from kafka import KafkaConsumer

    place = partition_of(topic)
    consumer = KafkaConsumer(bootstrap_servers=rig.addresses, enable_auto_commit=False, **options)
    try:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets([place])[place]
        found: list[Row] = []

        def at_end() -> bool:
            for several in consumer.poll(timeout_ms=500).values():
                found.extend(Row(each.offset, each.key, each.value) for each in several)
            return bool(consumer.position(place) >= end)

        until(at_end, f"the end of {topic}, {end}")
        return found
    finally:
        consumer.close()


class Load:
    """A thread that writes numbered records all the time, in a ``with`` block. ``acknowledged``: offsets, by number."""

    def __init__(self, rig: Rig, topic: str) -> None:
        self.acknowledged: dict[int, int] = {}
        self._rig, self._topic, self._ended = rig, topic, Event()
        self._thread = Thread(target=self._write, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        gc.collect()  # what kafka-python did not close is warned of within the test

    def _write(self) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=self._rig.addresses, acks="all", batch_size=8192,
            delivery_timeout_ms=int(DEADLINE_S * 1000), max_block_ms=int(DEADLINE_S * 1000),
        )  # fmt: skip
        number = 0
        while not self._ended.wait(0.01):
            future = producer.send(self._topic, value_of(number), b"%d" % number)
            future.add_callback(lambda done, number=number: self.acknowledged.setdefault(number, done.offset))
            number += 1
        producer.flush(DEADLINE_S)
        producer.close()

    def wait_for(self, more: int) -> None:
        """Wait until so many more are acknowledged."""
        wanted = len(self.acknowledged) + more
        until(lambda: len(self.acknowledged) >= wanted, f"{more} more records acknowledged")

    def check(self, rows: list[Row]) -> None:
        """All that is acknowledged is there, where the producer was answered; nothing is there twice."""
        offsets = {int(row.key or b"-1"): row.offset for row in rows}
        assert len(offsets) == len(rows)
        assert {number: offsets.get(number) for number in self.acknowledged} == self.acknowledged
        assert all(row.value == value_of(int(row.key or b"-1")) for row in rows)
