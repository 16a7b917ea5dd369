"""A share of the fuzzing in every test run: fixed inputs and fresh ones, and proof that broken decoders are found.

The long run is ``make fuzz``.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable

import pytest

from chunkstore.errors import Damaged
from tests.fuzz import runner
from tests.fuzz.chance import Chance
from tests.fuzz.runner import BLOCK, Finding, Result, run_blocks
from tests.fuzz.target import Gate, Target
from tests.fuzz.targets import TARGETS

FRESH_SEED = secrets.randbits(32)
BLOCKS = 1


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_decoder_keeps_the_rules(target: Target, record_property: Callable[[str, object], None]) -> None:
    result = Result(target.name)
    for seed in (1, FRESH_SEED):
        try:
            result.add(run_blocks(target, seed, range(BLOCKS)))
        except Finding as finding:
            what = f"--target {target.name} --seed {seed} --inputs {BLOCKS * BLOCK}"
            finding.add_note(f"replay: python -m tests.fuzz {what}")
            raise
    record_property("inputs", result.inputs)
    print(
        f"{target.name}: {result.inputs} inputs, {result.past_share:.0%} past: {target.first_check} (seed {FRESH_SEED})"
    )
    assert result.past_share >= 0.05, "the inputs are too poor"


# --- decoders with a bug in them ------------------------------------------------------------------------------------


def _make(chance: Chance) -> bytes:
    return chance.randbytes(chance.below(12))


def _crashes(data: bytes, gate: Gate) -> None:
    struct.unpack(">QH", data)


def _hangs(data: bytes, gate: Gate) -> None:
    while data[:1] == b"\x07":
        pass


def _believes(data: bytes, gate: Gate) -> None:
    bytearray(int.from_bytes(data[:4], "big") * 16)


def _planted(decode: Callable[[bytes, Gate], None]) -> Target:
    return Target("planted", "six bytes", _make, decode, (Damaged,))


@pytest.mark.parametrize(
    ("decode", "rule"),
    [
        (_crashes, "error: unpack requires"),
        (_believes, "MemoryError|bytes of memory for"),
    ],
)
def test_a_broken_decoder_is_found(decode: Callable[[bytes, Gate], None], rule: str) -> None:
    with pytest.raises(Finding, match=rule):
        run_blocks(_planted(decode), 1, range(3))


def test_a_decoder_that_hangs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SECONDS_PER_INPUT", 0.1)
    with pytest.raises(Finding, match="no end"):
        run_blocks(_planted(_hangs), 1, range(3))
