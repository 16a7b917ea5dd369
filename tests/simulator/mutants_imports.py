"""Planted bugs in imports into a container that works, and in what it adopts from another one.

Promises: as ``mutants_engine``. Runs with a neighbour look for what is wrong with adopting. Leaves out: planting (``mutants``).
"""

from __future__ import annotations

from typing import Final

from tests.simulator.mutant import EVERYWHERE, Mutant, Patch

__all__ = ["IMPORT_MUTANTS"]

_TAKE_IN: Final = "chunkstore.operations.take_in"
_ADOPT: Final = "chunkstore.operations.adopt"


def _mutant(name: str, what: str, *patches: Patch, adopts: bool = False, tests: tuple[str, ...] = ()) -> Mutant:
    needs = ("keepers", "neighbour") if adopts else ("keepers",)
    return Mutant(name, what, EVERYWHERE, patches, needs=needs, tests=tests)


IMPORT_MUTANTS: Final = (
    _mutant(
        "merge-known-id",
        "a segment that comes gets an id that was given before",
        Patch(f"{_TAKE_IN}:take_in", "begun.get(name) or owned.new_id()", "begun.get(name) or owned.new_id() - 1"),
    ),
    _mutant(
        "merge-shows-half",
        "only the first segment of an import gets its name at its end",
        Patch(f"{_TAKE_IN}:_plan", "for old, new in batch.names:", "for old, new in batch.names[:1]:"),
    ),
    _mutant(
        "merge-shows-early",
        "what is being taken in bears a name that everybody sees",
        Patch("chunkstore.metadata.importing:hidden_prefix", 'f"{_HIDDEN}{identity.hex()}/"', 'f"s-{identity.hex()}/"'),
    ),
    _mutant(
        "merge-no-events",
        "a merge leaves out the last events of writers",
        Patch(
            f"{_TAKE_IN}:_plan_part",
            "for writer, value in part.writers:",
            "for writer, value in () if part.segment.name[:1] == chr(0) else part.writers:",
        ),
    ),
    _mutant(
        "merge-untruncated",
        "a segment that comes begins where its first chunk does",
        Patch(
            f"{_TAKE_IN}:_begun",
            "flags=0,",
            "flags=0, start_offset=there.start_offset - there.first_chunk_skip, first_chunk_skip=0,",
        ),
    ),
    _mutant(
        "merge-unsealed",
        "a segment that comes is open, whatever it was",
        Patch(f"{_TAKE_IN}:_plan_part", "flags=whole.flags", "flags=0"),
    ),
    _mutant(
        "merge-no-rows",
        "the rows of tables do not come along with the last names",
        Patch(
            f"{_TAKE_IN}:_plan",
            "for namespace, key, value in batch.rows:",
            "for namespace, key, value in batch.rows[1:]:",
        ),
    ),
    _mutant(
        "adopt-pin-ends",
        "the pin of what is adopted has an end",
        Patch(
            "chunkstore.backup.adopting:_pin",
            "there = pins.pin(name, note)",
            "there = pins.pin(name, note, expires_s=0.001)",
        ),
        adopts=True,
    ),
    _mutant(
        "adopt-released-early",
        "a root is given up, and its pin, while chunks lie in it",
        Patch(f"{_ADOPT}:end_roots", "if not root.references]", "]"),
        Patch(
            f"{_ADOPT}:_plan_end",
            "root is None or root.references or root.state != state",
            "root is None or root.state != state",
        ),
        adopts=True,
    ),
    _mutant(
        "adopt-counts-one-less",
        "what is adopted is counted short by one",
        Patch(
            f"{_ADOPT}:make_foreign",
            "_count(changes, number, root, len(new),",
            "_count(changes, number, root, len(new) - 1,",
        ),
        adopts=True,
    ),
    _mutant(
        "adopt-never-counted-off",
        "chunks that go are not counted off their root",
        Patch(f"{_ADOPT}:forget_references", "for number, lengths in gone.items():", "for number, lengths in ():"),
        adopts=True,
    ),
    _mutant(
        "adopt-collected",
        "the source collects what only the pin of an adopter keeps",
        Patch(
            "chunkstore.metadata.pins:pinned_lsn",
            "if isinstance(record, PinRecord) else 0 for _, record in scan_pins(view))",
            "if isinstance(record, PinRecord) else 0 for _, record in scan_pins(view) if not record.note.startswith('adopted'))",
        ),
        adopts=True,
    ),
    _mutant(
        "adopt-other-bytes",
        "of two chunks that are adopted together each leads to the other's object",
        Patch(
            f"{_ADOPT}:make_foreign",
            "for chunk, item in zip(new, items, strict=True):",
            "for chunk, item in zip(new, items[::-1], strict=True):",
        ),
        adopts=True,
    ),
    _mutant(
        "adopt-dying-pin",
        "a root is added under a pin that is being given up",
        Patch(f"{_ADOPT}:_plan_root", "if root.pin and root[:5] == wanted[:5]:", "if False:"),
        adopts=True,
        tests=("tests/simulation/test_kept.py",),
    ),
    _mutant(
        "adopt-seen-pin",
        "a pin that was there before its row counts as there",
        Patch("chunkstore.backup.adopting:_pin", "source.refresh()\n        there = next", "there = next"),
        adopts=True,
        tests=("tests/simulation/test_kept.py",),
    ),
)
