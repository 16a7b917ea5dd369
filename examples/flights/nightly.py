"""What a cron does each night, beside the application: it stays the owner, and is asked where something changes.

``python -m examples.flights.nightly --root file:///srv/flights --backups s3://backups/flights`` runs

    chunkstore check ROOT --deep                      read everything, and compare its checksums
    chunkstore backup ROOT BACKUPS --ask --keep 7     copy what is new; then give up what is older than the last seven
    chunkstore gc ROOT --ask                          delete what was removed, once its grace and the horizon are over
    chunkstore sessions ls ROOT --older-than 86400    jobs that were killed, and will not come back?

Retention and merging need no command: the application does both by itself (``Application.__init__``).
"""

from __future__ import annotations

import sys

from chunkstore import cli
from examples.flights.pipeline import CONTAINER, command


def commands(root: str, backups: str) -> list[list[str]]:
    return [
        ["check", root, "--deep"],
        ["backup", root, backups, "--ask", "--keep", "7"],
        ["gc", root, "--ask"],
        ["sessions", "ls", root, "--older-than", "86400"],
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = command(__doc__)
    parser.add_argument("--backups", required=True, help="a root for backups, on another storage")
    given = parser.parse_args(arguments)
    failed = []
    for words in commands(given.root, given.backups):
        print("chunkstore", *words, flush=True)
        if cli.main([*words, "--container", CONTAINER]):
            failed.append(words[0])
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
