"""``check``, ``scrub``, ``journal``, ``snapshot``. ``check`` exits 1 also when the container cannot be followed at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from chunkstore import assembly
from chunkstore.cli import access, options
from chunkstore.cli.options import flag, option, size_option
from chunkstore.cli.output import human_bytes, human_time, meter, print_json, print_table, shown
from chunkstore.cli.streams import VerbFailed
from chunkstore.engine import parts
from chunkstore.engine.parts import open_copy
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.records.invariants import ORPHANED, CheckLevel, Finding
from chunkstore.records.names import check_segment_name
from chunkstore.upkeep.scrub import check_limits

__all__ = ["check", "journal", "scrub", "snapshot"]

_SEVERITIES = {"damage": 0, "warning": 1, "leak": 2, "info": 3}
_RECORD_COLUMNS = ("lsn", "epoch", "index", "kind", "time", "ops", "rows", "size", "inline", "object", "position")
_REPLACE = "chunkstore: 'chunkstore scrub ROOT --repair-from BACKUPROOT' replaces damaged chunks by a backup's copies"


class NoSuchEpoch(VerbFailed):
    """``journal --epoch``: history has no stream of this epoch. No misuse: a container is found or not found, too."""

    fields = ("epoch",)


def check(
    root: options.Root,
    *,
    quick: Annotated[bool, flag("Metadata only (the default).")] = False,
    exists: Annotated[bool, flag("Also check that every chunk exists and is long enough.")] = False,
    deep: Annotated[bool, flag("Also read every chunk and compare checksums.")] = False,
    here: access.Reading,
) -> None:
    """Check the container's invariants. Exit code 0: sound; 1: something is damaged."""
    if quick + exists + deep > 1:
        raise InvalidArgument("--quick, --exists and --deep exclude each other", argument="--deep")
    level: CheckLevel = "deep" if deep else "exists" if exists else "quick"
    try:
        with here.replica(root) as store:
            read_bytes = store.usage().live_bytes if deep else None
            with meter(f"checking {here.container}", read_bytes, as_json=here.as_json or not deep) as bar:
                findings = store.check(level, progress=bar)
    except Damaged as error:
        findings = [_unreadable(error)]
    findings.sort(key=lambda finding: _SEVERITIES.get(finding.severity, 0))
    ok = not any(finding.severity == "damage" for finding in findings)
    if here.as_json:
        print_json({"ok": ok, "level": level, "findings": findings})
    else:
        orphans = [item for item in findings if (item.invariant, item.severity) == (ORPHANED, "info")]
        if len(orphans) < len(findings):
            others = (item for item in findings if (item.invariant, item.severity) != (ORPHANED, "info"))
            print_table(Finding._fields, others)
        if orphans:
            names = orphans[0].object if len(orphans) == 1 else f"{orphans[0].object} to {orphans[-1].object}"
            text = f"orphans: {len(orphans)} findings, {names}; 'gc --orphans' counts them, 'check --json' lists them"
            typer.echo(shown(text))
        count = f"{len(findings)} finding{'' if len(findings) == 1 else 's'}"
        unread = ", chunks were not looked at: --exists and --deep do" if level == "quick" else ""
        typer.echo(f"{here.container}: {'sound' if ok else 'DAMAGED'} ({level}, {count}{unread})")
        if level != "quick" and any(finding.severity == "damage" and finding.chunk for finding in findings):
            typer.echo(_REPLACE, err=True)
    if not ok:
        raise typer.Exit(1)


def _unreadable(error: Damaged) -> Finding:
    """The container cannot even be followed: that is a finding, too (invariant 0: no rule could be looked at)."""
    return Finding(0, "damage", "", "", error.object, error.position, error.message)


def scrub(
    root: options.Root,
    *,
    repair_from: Annotated[
        str | None,
        option(
            "ROOT2", "A copy of the root: damaged chunks are replaced by its sound ones. Starts at the first chunk."
        ),
    ] = None,
    rate: Annotated[float | None, size_option("Read at most this many bytes a second.")] = None,
    bytes_max: Annotated[int | None, size_option("Stop after this many bytes; the next scrub continues there.")] = None,
    here: access.Owning,
) -> None:
    """Read every chunk and compare its checksums, from the position of the last scrub. Exit code 1: damage remains."""
    # Before anybody is fenced for it.
    check_limits(rate, bytes_max, "--rate", "--bytes-max")
    if repair_from is not None:
        settings = here.settings
        with parts.storage_of(root, settings) as storage:
            open_copy(repair_from, of=storage, container=here.container, settings=settings).close()
    with here.owner(root) as store:
        live_bytes = store.usage().live_bytes
        most = live_bytes if bytes_max is None else min(live_bytes, bytes_max)
        with meter(f"scrubbing {here.container}", most, as_json=here.as_json) as bar:
            report = store.scrub(rate_bytes_s=rate, repair_from=repair_from, bytes_max=bytes_max, progress=bar)
    if here.as_json:
        print_json({"ok": report.ok, **report._asdict()})
    else:
        if report.findings:
            columns = ("segment", "start", "stop", "repaired", "chunk", "message")
            rows = (
                (found.segment, found.start, found.stop, "yes" if found.repaired else "no", found.chunk, found.message)
                for found in report.findings
            )
            print_table(columns, rows, right=("start", "stop"))
        read = f"{report.chunks} chunks, {human_bytes(report.size_bytes)}"
        where = "" if report.position is None else f", up to byte {report.position.offset} of {report.position.segment}"
        verdict = "sound" if report.ok else "DAMAGED"
        typer.echo(shown(f"{here.container}: {verdict} ({read}, {report.repaired} repaired{where})"))
        if not report.ok and repair_from is None:
            typer.echo(_REPLACE, err=True)
    if not report.ok:
        raise typer.Exit(1)


def journal(
    root: options.Root,
    *,
    epoch: Annotated[int | None, option("E", "Only this epoch's stream.")] = None,
    container: options.Container = "default",
    as_json: options.AsJson = False,
) -> None:
    """Show the journal's records, oldest first."""
    records = map(_plain, _records(root, container, epoch))
    here = access.Reading(as_json=as_json)
    here.show_each(
        records, _RECORD_COLUMNS, _record_row, right=("lsn", "epoch", "index", "ops", "rows", "size", "inline")
    )


def _records(root: str, container: str, epoch: int | None) -> Iterator[Mapping[str, object]]:
    try:
        yield from assembly.journal_records(root, container, epoch)
    except InvalidArgument as error:
        if epoch is None or error.argument != "epoch":
            raise
        raise NoSuchEpoch(epoch, error.message) from error


def _plain(record: Mapping[str, object]) -> dict[str, object]:
    """The record with its hash and digest in hex: 256 bits are no number for most readers of JSON."""
    plain = dict(record)
    for key, value in record.items():
        if isinstance(value, bytes):
            plain[key] = value.hex()
        elif key == "digest" and isinstance(value, int):
            plain[key] = f"{value:064x}"
    return plain


def _record_row(record: Mapping[str, object]) -> list[object]:
    cells = {**record, "time": human_time(time_ms) if isinstance(time_ms := record.get("time_ms"), int) else ""}
    cells["inline"] = (
        f"{record.get('inline_bytes')}{' for ever' if record.get('embedded') and record.get('inline_bytes') else ''}"
    )
    return [cells.get(column) for column in _RECORD_COLUMNS]


def snapshot(
    root: options.Root,
    *,
    name: Annotated[str | None, option("NAME", "Pin this state; pins rm removes the pin.")] = None,
    here: access.Asking,
) -> None:
    """Write a snapshot of the metadata now, read it back, and note it in the journal."""
    if name is not None:
        check_segment_name(name, "name")
    with here.owner_or_asker(root) as store:
        report = store.snapshot()
        # After it: the nearest snapshot that is not after the pin is this one.
        pinned = {} if name is None else {"pin": name, "pin_lsn": store.pin(name).lsn}
    facts = {
        **pinned,
        "name": report.name,
        "lsn": report.lsn,
        "hash": report.position.hash.hex(),
        "digest": f"{report.digest:064x}",
        "rows": report.rows,
        "size_bytes": report.size_bytes,
    }
    here.show(facts, {**facts, "size_bytes": human_bytes(report.size_bytes)})
