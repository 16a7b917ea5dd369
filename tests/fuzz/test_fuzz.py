"""A share of the fuzzing in every test run: fixed inputs and fresh ones, and proof that broken decoders are found.

The long run is ``make fuzz``.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chunkstore.errors import Damaged
from chunkstore.layout import ReadSlice
from chunkstore.metadata.codec import decode_chunk
from chunkstore.names import Address
from chunkstore.operations import read
from tests.fuzz import row_targets, runner
from tests.fuzz.chance import Chance
from tests.fuzz.runner import BLOCK, Finding, Result, replay, run_blocks
from tests.fuzz.target import Gate, Spy, Target
from tests.fuzz.targets import TARGETS, target_named

FRESH_SEED = secrets.randbits(32)
BLOCKS = 1
FOUND = Path(__file__).parent / "found"


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


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.bin")), ids=lambda path: path.stem)
def test_what_was_found_once(path: Path) -> None:
    """Inputs that broke a rule in the past: ``<target>@<what it was>.bin``."""
    replay(target_named(path.stem.partition("@")[0]), path.read_bytes())


def test_inputs_follow_from_the_seed_alone() -> None:
    for target in TARGETS:
        first, second, other = (Chance(f"{seed}/{target.name}/0") for seed in (1, 1, 2))
        made = [target.make(first) for _ in range(50)]
        assert made == [target.make(second) for _ in range(50)], target.name
        assert made != [target.make(other) for _ in range(50)], target.name


# --- decoders with a bug in them ------------------------------------------------------------------------------------


def _make(chance: Chance) -> bytes:
    return chance.randbytes(chance.below(12))


def _sound(data: bytes, gate: Gate) -> None:
    if len(data) < 6:
        raise Damaged("too short", object="data")
    gate.past()


def _crashes(data: bytes, gate: Gate) -> None:
    struct.unpack(">QH", data)


def _hangs(data: bytes, gate: Gate) -> None:
    while data[:1] == b"\x07":
        pass


def _hoards(data: bytes, gate: Gate) -> None:
    bytearray(1 << 20)


def _believes(data: bytes, gate: Gate) -> None:
    bytearray(int.from_bytes(data[:4], "big") * 16)


def _disagrees(data: bytes, gate: Gate) -> Callable[[], None]:
    def again() -> None:
        assert data[:1] != b"\x09"

    return again


def _planted(decode: Callable[[bytes, Gate], Callable[[], None] | None], *spies: Spy) -> Target:
    return Target("planted", "six bytes", _make, decode, (Damaged,), spies)


def test_a_sound_decoder_passes_and_is_counted() -> None:
    result = run_blocks(_planted(_sound), 1, range(3))
    assert result.inputs == 3 * BLOCK
    assert 0.4 < result.past_share < 0.6
    assert result.memory_bytes_max > 0
    assert result.traced == 60


@pytest.mark.parametrize(
    ("decode", "rule"),
    [
        (_crashes, "error: unpack requires"),
        (_hoards, "bytes of memory for"),
        (_believes, "MemoryError|bytes of memory for"),
        (_disagrees, "AssertionError"),
    ],
)
def test_a_broken_decoder_is_found(decode: Callable[[bytes, Gate], Callable[[], None] | None], rule: str) -> None:
    with pytest.raises(Finding, match=rule):
        run_blocks(_planted(decode), 1, range(3))


def test_a_decoder_that_hangs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SECONDS_PER_INPUT", 0.1)
    with pytest.raises(Finding, match="no end"):
        run_blocks(_planted(_hangs), 1, range(3))


def test_a_call_that_leaves_the_chunks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(_: Address, *rest: Any) -> ReadSlice:
        return ReadSlice(Address(row_targets.NAMES.format, 0), *rest)

    monkeypatch.setattr(read, "ReadSlice", elsewhere)
    with pytest.raises(Finding, match="read 'default/FORMAT'"):
        run_blocks(target_named("stored-rows"), 1, range(1))


def test_a_row_that_is_believed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_targets, "decode_found_chunk", lambda names, identity, raw: decode_chunk(identity, raw))
    with pytest.raises(Finding, match="AssertionError"):
        run_blocks(target_named("stored-name"), 1, range(1))


def test_spies_see_the_step_behind_the_first_check() -> None:
    class Steps:
        def second(self, data: bytes) -> int:
            return len(data)

    steps = Steps()

    def decode(data: bytes, gate: Gate) -> None:
        if len(data) >= 6:
            steps.second(data)
            steps.second(data)

    taken = run_blocks(_planted(decode, Spy(steps, "second")), 1, range(2)).past_share
    even = run_blocks(_planted(decode, Spy(steps, "second", lambda length: length % 2 == 0)), 1, range(2)).past_share
    assert 0.4 < taken < 0.6
    assert 0.2 < even < 0.3
