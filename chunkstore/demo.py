"""The demonstration: a writer is killed in the middle, its cache is thrown away, and not one acknowledged byte is lost.

Promises: everything shown has just happened, with a real file, a real SIGKILL of a real process and a real recovery;
every step checks what it claims and the demonstration fails aloud otherwise. The kill's moment follows from a seed.
Leaves out: the verbs themselves, which are run as a user would run them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import IO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import chunkstore
from chunkstore import runtime
from chunkstore.config import KIB, MIB, RollingPolicy, Settings
from chunkstore.errors import ChunkstoreError, InvalidArgument
from chunkstore.records import LayoutChunk

__all__ = ["DemoFailed", "DemoReport", "run", "write_and_tell"]

CONTAINER = "demo"
FILE_BYTES = 48 * MIB
PIECE_BYTES = 256 * KIB
CHUNK_BYTES = 6 * MIB
_COLOURS = ("blue", "green", "magenta", "cyan", "yellow")


class DemoFailed(ChunkstoreError):
    """Something the demonstration claims did not hold. ``step`` names it."""

    fields = ("step",)

    def __init__(self, step: str, message: str) -> None:
        super().__init__(f"{step}: {message}")
        self.step = step


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """What happened: sizes in bytes, times in seconds."""

    root: str
    container: str
    segment: str
    file: str
    seed: int
    file_bytes: int
    acknowledged_bytes: int
    recovered_bytes: int
    recovery_s: float
    recovery_source: str
    replayed_records: int
    replayed_bytes: int
    tail_cut_bytes: int
    epoch_killed: int
    epoch_recovered: int
    sha256: str


def run(root: str | None, *, seed: int | None, as_json: bool) -> None:
    """Run the demonstration under ``root`` (default: a new temporary directory, which stays for further play).

    Raises ``DemoFailed`` if a promise does not hold, ``InvalidArgument`` for a root in memory, and what the store raises.
    """
    if root is not None and root.startswith("memory:"):
        raise InvalidArgument("a writer in another process cannot share memory://; use a file:// root", argument="ROOT")
    console = Console(quiet=as_json, highlight=False)
    folder = tempfile.mkdtemp(prefix="chunkstore-demo-")
    root = root if root is not None else f"file://{folder}/store"
    seed = seed if seed is not None else int.from_bytes(runtime.token(4), "big")
    stage = _Stage(root, folder, seed, console)
    report, chunks = stage.play()
    if as_json:
        sys.stdout.write(json.dumps(asdict(report)) + "\n")
        return
    _print_report(console, report, chunks)
    _print_next(console, report, stage.cache, folder)


class _Stage:
    """The steps of one run, in order."""

    def __init__(self, root: str, folder: str, seed: int, console: Console) -> None:
        self.root = root
        self.seed = seed
        self.cache = os.path.join(folder, "cache")
        self._file = os.path.join(folder, "python-sources.txt")
        self._console = console
        self._chance = hashlib.blake2b(str(seed).encode(), digest_size=16).digest()

    def play(self) -> tuple[DemoReport, list[LayoutChunk]]:
        sha256 = _generate(self._file, FILE_BYTES)
        self._say(f"a file of {FILE_BYTES // MIB} MiB of Python's own sources: {self._file}")
        with chunkstore.open(self.root, container=CONTAINER, settings=self._settings()) as store:
            segment = _free_name(store, f"sources-{self.seed}")
            store.create(segment, rolling=RollingPolicy(chunk_size_bytes_max=CHUNK_BYTES))
        kill_at, delay_s = self._moment()
        acknowledged, epoch_killed = self._write_and_kill(segment, kill_at, delay_s)
        self._say(
            f"a writer appended it in pieces of {PIECE_BYTES // KIB} KiB; kill -9 after {acknowledged:,} acknowledged bytes"
        )
        shutil.rmtree(self.cache)
        self._say("its metadata cache was deleted: what is left is the storage, as another machine would find it")
        began_s = runtime.monotonic_s()
        with chunkstore.open(self.root, container=CONTAINER, settings=self._settings()) as store:
            recovery_s = runtime.monotonic_s() - began_s
            taken = store.report
            recovered = store.info(segment).length
            self._compare(store, segment, acknowledged, recovered)
        self._say(f"recovered in {recovery_s * 1000:.0f} ms; every acknowledged byte is there and equals the file's")
        self._command("put", self.root, segment, self._file, "--resume", "--seal")
        self._say("chunkstore put --resume went on behind the recovered bytes and sealed the segment")
        self._check_cat(segment, sha256)
        self._say("chunkstore cat gave the whole file back: the sha256 is the same")
        with chunkstore.open_replica(self.root, container=CONTAINER, settings=self._settings()) as replica:
            chunks = list(replica.layout(segment))
        report = DemoReport(
            root=self.root,
            container=CONTAINER,
            segment=segment,
            file=self._file,
            seed=self.seed,
            file_bytes=FILE_BYTES,
            acknowledged_bytes=acknowledged,
            recovered_bytes=recovered,
            recovery_s=round(recovery_s, 4),
            recovery_source=taken.source,
            replayed_records=taken.replayed_records,
            replayed_bytes=taken.replayed_bytes,
            tail_cut_bytes=taken.tail_cut.bytes if taken.tail_cut else 0,
            epoch_killed=epoch_killed,
            epoch_recovered=taken.epoch,
            sha256=sha256,
        )
        return report, chunks

    def _settings(self) -> Settings:
        return Settings(cache_dir=self.cache)

    def _say(self, text: str) -> None:
        self._console.print(Text.assemble(("* ", "bold green"), text), soft_wrap=True)

    def _moment(self) -> tuple[int, float]:
        """When to kill, from the seed: after how many acknowledged bytes, and how long after that."""
        share = int.from_bytes(self._chance[:4], "big") / 2**32
        delay = int.from_bytes(self._chance[4:8], "big") / 2**32
        return int(FILE_BYTES * (0.25 + share / 2)), delay * 0.01

    def _write_and_kill(self, segment: str, kill_at: int, delay_s: float) -> tuple[int, int]:
        """Start a writer, kill it; (bytes it saw acknowledged, its epoch)."""
        arguments = [self.root, CONTAINER, segment, self._file, self.cache]
        code = "import sys; from chunkstore.demo import write_and_tell; write_and_tell(*sys.argv[1:])"
        writer = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE)  # noqa: S603
        assert writer.stdout is not None
        with writer.stdout as told:
            first = told.readline()
            if not first:
                raise DemoFailed("write", f"the writer ended before it began (exit code {writer.wait()})")
            epoch = int(first)
            acknowledged = 0
            while acknowledged < kill_at and (line := told.readline()):
                acknowledged = int(line)
            runtime.sleep_s(delay_s)
            writer.send_signal(signal.SIGKILL)
            if writer.wait() != -signal.SIGKILL:
                raise DemoFailed("kill", f"the writer ended by itself (exit code {writer.returncode})")
            return _last_whole_line(told, acknowledged), epoch

    def _compare(
        self, store: chunkstore.ChunkedSegmentStorage, segment: str, acknowledged: int, recovered: int
    ) -> None:
        if recovered < acknowledged:
            raise DemoFailed("recover", f"{acknowledged} bytes were acknowledged, {recovered} are there")
        with open(self._file, "rb") as file:
            for offset in range(0, recovered, MIB):
                piece = file.read(min(MIB, recovered - offset))
                if store.read(segment, offset, len(piece)) != piece:
                    raise DemoFailed("recover", f"the bytes from offset {offset} on differ from the file")

    def _command(self, *arguments: str) -> None:
        whole = [sys.executable, "-m", "chunkstore", *arguments, "--container", CONTAINER, "--cache-dir", self.cache]
        done = subprocess.run(whole, stdout=subprocess.DEVNULL, check=False)  # noqa: S603
        if done.returncode != 0:
            raise DemoFailed(arguments[0], f"exit code {done.returncode}")

    def _check_cat(self, segment: str, sha256: str) -> None:
        options = ["--container", CONTAINER, "--cache-dir", self.cache]
        whole = [sys.executable, "-m", "chunkstore", "cat", self.root, segment, *options]
        with subprocess.Popen(whole, stdout=subprocess.PIPE) as reader:  # noqa: S603
            assert reader.stdout is not None
            if hashlib.file_digest(reader.stdout, "sha256").hexdigest() != sha256:  # type: ignore[arg-type]
                raise DemoFailed("cat", "the sha256 differs")
        if reader.returncode != 0:
            raise DemoFailed("cat", f"exit code {reader.returncode}")


def write_and_tell(root: str, container: str, segment: str, file: str, cache: str) -> None:
    """The writer that gets killed: prints its epoch, then after each acknowledged append how many bytes are stored."""
    with (
        chunkstore.open(root, container=container, settings=Settings(cache_dir=cache)) as store,
        open(file, "rb") as source,
    ):
        sys.stdout.write(f"{store.epoch}\n")
        sys.stdout.flush()
        offset = 0
        while piece := source.read(PIECE_BYTES):
            store.append(segment, piece, expected_offset=offset)
            offset += len(piece)
            sys.stdout.write(f"{offset}\n")
            sys.stdout.flush()


def _last_whole_line(told: IO[bytes], before: int) -> int:
    """What the writer had told before it died but nobody had read yet; a line that was cut short does not count."""
    lines = told.read().split(b"\n")[:-1]
    return int(lines[-1]) if lines else before


def _free_name(store: chunkstore.ChunkedSegmentStorage, wanted: str) -> str:
    name, number = wanted, 1
    while store.exists(name):
        number += 1
        name = f"{wanted}-{number}"
    return name


def _generate(path: str, size_bytes: int) -> str:
    """Fill ``path`` with the standard library's sources, again and again until it is long enough; its sha256."""
    digest = hashlib.sha256()
    left = size_bytes
    sources = _python_sources(sysconfig.get_paths()["stdlib"])
    with open(path, "wb") as out:
        while left > 0:
            before = left
            for source in sources:
                with open(source, "rb") as file:
                    text = file.read(left)
                out.write(text)
                digest.update(text)
                left -= len(text)
            if left == before:
                raise DemoFailed("file", "this Python comes without sources of its standard library")
    return digest.hexdigest()


def _python_sources(folder: str) -> Sequence[str]:
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in ("site-packages", "dist-packages", "__pycache__"))
        found += [os.path.join(place, name) for name in sorted(files) if name.endswith(".py")]
    return found


def _print_report(console: Console, report: DemoReport, chunks: Sequence[LayoutChunk]) -> None:
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    source = "the journal alone" if report.recovery_source in ("journal", "genesis") else f"a {report.recovery_source}"
    rows = (
        ("acknowledged when the writer was killed", f"{report.acknowledged_bytes:,} bytes"),
        ("there after recovery", f"{report.recovered_bytes:,} bytes"),
        ("acknowledged and lost", f"{max(0, report.acknowledged_bytes - report.recovered_bytes):,} bytes"),
        ("recovery started from", source),
        ("journal records replayed", f"{report.replayed_records:,} ({report.replayed_bytes:,} bytes)"),
        ("incomplete last record cut off", f"{report.tail_cut_bytes:,} bytes"),
        ("time to recover", f"{report.recovery_s * 1000:.0f} ms"),
        ("epoch killed, epoch that recovered", f"{report.epoch_killed}, {report.epoch_recovered}"),
        ("seed of the kill's moment", str(report.seed)),
        ("sha256 of file and segment", report.sha256[:16] + "..."),
    )
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(_picture(chunks, report, min(console.width, 100) - 2))


def _picture(chunks: Sequence[LayoutChunk], report: DemoReport, width: int) -> Text:
    """The segment as one line, each chunk to scale, coloured by epoch, with a mark where recovery ended."""
    epochs = sorted({chunk.epoch for chunk in chunks})
    picture = Text(f"the segment's {len(chunks)} chunks\n")
    for number, chunk in enumerate(chunks):
        start = round(chunk.offset * width / report.file_bytes)
        stop = max(start + 1, round((chunk.offset + chunk.length) * width / report.file_bytes))
        colour = _COLOURS[epochs.index(chunk.epoch) % len(_COLOURS)]
        picture.append(("\u2588", "\u2593")[number % 2] * (stop - start), style=colour)
    killed = min(width - 1, round(report.recovered_bytes * width / report.file_bytes))
    label = "the writer was killed here"
    mark = f"{label} ^" if killed > width // 2 else f"^ {label}"
    picture.append("\n" + " " * (killed - mark.index("^")) + mark + "\n")
    for epoch in epochs:
        picture.append("\u2588 ", style=_COLOURS[epochs.index(epoch) % len(_COLOURS)])
        count = sum(chunk.epoch == epoch for chunk in chunks)
        picture.append(f"written by epoch {epoch}: {count} chunks   ")
    return picture


def _print_next(console: Console, report: DemoReport, cache: str, folder: str) -> None:
    common = f"--container {report.container} --cache-dir {cache}"
    beside = os.path.join(os.path.dirname(sys.executable), "chunkstore")
    command = os.path.relpath(beside) if os.path.exists(beside) else f"{sys.executable} -m chunkstore"
    lines = (
        f"{command} layout {report.root} {report.segment} {common}",
        f"{command} journal {report.root} --container {report.container}",
        f"{command} owner {report.root} --container {report.container}",
        f"{command} check {report.root} {common}",
        f"{command} cat {report.root} {report.segment} --length 300 {common}",
        f"{command} demo --seed {report.seed}",
        f"rm -r {folder}",
    )
    console.print("\nwhat to try next, ending with the broom:")
    for line in lines:
        console.print(Text("  " + line), soft_wrap=True)
