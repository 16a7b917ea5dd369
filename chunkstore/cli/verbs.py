"""The table of the verbs: their order in ``--help``, the module of each, and its examples. An overview loads no verb's module."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["ALIASES", "EXAMPLES", "FORMER", "VERBS", "Verb"]


class Verb(NamedTuple):
    """A verb, or with ``group`` a group of verbs, of ``chunkstore.cli.MODULE``; ``help`` begins its ``--help``."""

    panel: str
    module: str
    help: str
    group: tuple[str, ...] = ()


_PULSAR_VERBS: Final = ("ls", "read", "verify", "orphans", "rm", "decode")
_KAFKA_VERBS: Final = ("ls", "read", "verify", "orphans", "why", "tier", "restore", "attach", "serve")
_RETENTION: Final = ("ls", "set_", "rm", "apply")
_HEALTH: Final = "Health and history"

VERBS: Final[dict[str, Verb]] = {
    "put": Verb("Bytes", "transfer", "Store a file as a segment, durably."),
    "cat": Verb("Bytes", "transfer", "Write a segment's bytes to standard output"),
    "tail": Verb("Bytes", "transfer", "Write the end of a segment to standard output: its last lines, or bytes."),
    "get": Verb("Bytes", "transfer", "Download a segment into a new file, all of it or nothing."),
    "ls": Verb("Look", "look", "List segments, in name order."),
    "stat": Verb("Look", "look", "Show one segment."),
    "layout": Verb("Look", "look", "Show the chunks a segment is stitched together from, in order."),
    "containers": Verb("Look", "look", "List the containers under a root"),
    "owner": Verb("Look", "look", "Show who claimed the container last"),
    "truncate": Verb("Change", "change", "Truncate a segment's head"),
    "seal": Verb("Change", "change", "Seal a segment: it takes no more bytes."),
    "unseal": Verb("Change", "change", "Let a sealed segment take bytes again."),
    "rm": Verb("Change", "change", "Delete a segment."),
    "concat": Verb("Change", "change", "Move SOURCE's bytes to the end of TARGET"),
    "offload": Verb("Ledgers", "ledgers", "Write a file's entries to a ledger of a topic, as PIP-76 offload segments"),
    "ledger": Verb("Ledgers", "ledgers", "The ledgers of topics: ls, read, rm.", ("ls", "read", "rm")),
    "pulsar": Verb("Ledgers", "pulsar", "Objects of Pulsar's offloaders.", _PULSAR_VERBS),
    "kafka": Verb("Ledgers", "kafka", "Kafka's tiers and log directories; and for its brokers: serve.", _KAFKA_VERBS),
    "check": Verb(_HEALTH, "upkeep", "Check the container's invariants."),
    "scrub": Verb(_HEALTH, "upkeep", "Read every chunk and compare its checksums"),
    "journal": Verb(_HEALTH, "upkeep", "Show the journal's records, oldest first."),
    "snapshot": Verb(_HEALTH, "upkeep", "Write a snapshot of the metadata now"),
    "pins": Verb(_HEALTH, "pins", "States that stay restorable: ls, add, rm.", ("ls", "add", "rm")),
    "retention": Verb(_HEALTH, "retention", "Retention policies: ls, set, rm, apply.", _RETENTION),
    "backup": Verb("Backup", "backups", "Copy a container's new chunks into a backup root."),
    "export": Verb("Backup", "backups", "Write the metadata of all or some segments into a file"),
    "import": Verb("Backup", "restore", "Make a new container of an export, a backup or a container"),
    "restore": Verb("Backup", "restore", "Copy a past or present state, or some segments of it, into a new container"),
    "usage": Verb("Space", "space", "Show how much space is taken up, and by what."),
    "gc": Verb("Space", "space", "Delete removed chunks after their grace"),
    "defrag": Verb("Space", "space", "Merge small neighbouring chunks into large ones."),
    "serve": Verb("Space", "serve", "Own a container and run its upkeep"),
    "quota": Verb("Space", "space", "The quota of a container: set, rm; usage shows it.", ("set_", "rm")),
    "sessions": Verb("Space", "sessions", "Writers outside the owner: ls, end.", ("ls", "end")),
    "spark": Verb("Spark", "jobs", "Jobs on Spark's executors: offload.", ("offload",)),
    "demo": Verb("Try it", "jobs", "Offload a year of real flights, kill the writer with SIGKILL"),
}
ALIASES: Final = {"collect": "gc", "delete": "rm", "info": "stat", "segments": "ls"}  # hidden: the words of Python
FORMER: Final = ("audit", "expire", "verify", "decode")  # no verbs of their own, but easily taken for such

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "put": ("put ROOT logs app.log --seal", "put ROOT logs app.log --resume", "put ROOT logs - --append --ask"),
    "cat": ("cat ROOT logs --offset 1MiB --length 64KiB", "cat ROOT logs --follow"),
    "tail": ("tail ROOT logs -n 100", "tail ROOT logs --bytes 64KiB --follow"),
    "get": ("get ROOT logs app.log", "get ROOT logs app.log --force"),
    "ls": ("ls ROOT", "ls ROOT logs- --at-time 2026-11-28T10:00:00Z"),
    "stat": ("stat ROOT logs --json",),
    "layout": ("layout ROOT logs", "layout ROOT logs --svg logs.svg"),
    "containers": ("containers ROOT",),
    "owner": ("owner ROOT --container logs",),
    "truncate": ("truncate ROOT logs 64MiB --dry-run",),
    "seal": ("seal ROOT logs",),
    "unseal": ("unseal ROOT logs",),
    "rm": ("rm ROOT logs --dry-run",),
    "concat": ("concat ROOT all logs",),
    "offload": ("offload ROOT lines.txt --topic T --ledger 7 --entries lines", "offload ROOT --topic T --source DIR"),
    "ledger ls": ("ledger ls ROOT --topic T",),
    "ledger read": ("ledger read ROOT --topic T --ledger 7 --first 100",),
    "ledger rm": ("ledger rm ROOT --topic T --ledger 7 --dry-run",),
    "pulsar ls": ("pulsar ls s3://bucket --details",),
    "pulsar read": ("pulsar read s3://bucket --topic public/ns/persistent/T --messages",),
    "pulsar verify": ("pulsar verify s3://bucket",),
    "pulsar orphans": ("pulsar orphans s3://bucket --live live.json --older-than 7d",),
    "pulsar rm": ("pulsar rm s3://bucket --from orphans.json --live live.json --dry-run",),
    "pulsar decode": ("pulsar decode s3://bucket/data s3://bucket/data-index",),
    "kafka ls": ("kafka ls s3://bucket --topic orders",),
    "kafka read": ("kafka read s3://bucket --topic orders --partition 0 --offset 100",),
    "kafka verify": ("kafka verify s3://bucket",),
    "kafka orphans": ("kafka orphans s3://bucket --older-than 7d",),
    "kafka why": ("kafka why /var/kafka orders-0",),
    "kafka tier": ("kafka tier /var/kafka ROOT --topics orders",),
    "kafka restore": ("kafka restore ROOT /var/kafka --topics orders",),
    "kafka attach": ("kafka attach s3://bucket ROOT --log-dir /var/kafka",),
    "kafka serve": ("kafka serve ROOT --socket /run/chunkstore.sock --create",),
    "check": ("check ROOT", "check ROOT --deep"),
    "scrub": ("scrub ROOT --rate 50MiB", "scrub ROOT --repair-from BACKUPROOT"),
    "journal": ("journal ROOT --epoch 3",),
    "snapshot": ("snapshot ROOT --name before-upgrade --ask",),
    "pins ls": ("pins ls ROOT",),
    "pins add": ("pins add ROOT before-upgrade --expires-s 90d",),
    "pins rm": ("pins rm ROOT before-upgrade",),
    "retention ls": ("retention ls ROOT",),
    "retention set": ("retention set ROOT 'logs-*' --age-s-max 90d --size-bytes-max 10GiB",),
    "retention rm": ("retention rm ROOT 'logs-*'",),
    "retention apply": ("retention apply ROOT --dry-run",),
    "backup": ("backup ROOT BACKUPROOT", "backup ls BACKUPROOT", "backup verify BACKUPROOT"),
    "export": ("export ROOT logs.cks 'logs-*' --expires 90d", "export --verify logs.cks --deep"),
    "import": ("import NEWROOT logs.cks", "import NEWROOT BACKUPROOT 'logs-*' --time 2026-11-28"),
    "restore": (
        "restore BACKUPROOT NEWROOT",
        "restore ROOT NEWROOT --segments 'logs-*' --time 2026-11-28",
        "restore ROOT NEWROOT --salvage --from BACKUPROOT",
    ),
    "usage": ("usage ROOT logs",),
    "quota set": ("quota set ROOT 500GiB",),
    "quota rm": ("quota rm ROOT",),
    "gc": ("gc ROOT --ask", "gc ROOT --orphans --age-s 7d --dry-run"),
    "defrag": ("defrag ROOT logs --dry-run",),
    "serve": ("serve ROOT --stand-by --defrag --scrub 10MiB",),
    "sessions ls": ("sessions ls ROOT --older-than 12h",),
    "sessions end": ("sessions end ROOT --older-than 12h --dry-run",),
    "spark offload": ("spark offload ROOT lines.txt --topic T --dry-run",),
    "demo": ("demo --no-spark",),
}
"""By the verb's full name; ``--help`` ends with them. Capital words mean roots."""
