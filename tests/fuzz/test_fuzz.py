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
from tests.fuzz.runner import PAST_SHARE_MIN, Finding, run_blocks
from tests.fuzz.target import Gate, Target
from tests.fuzz.targets import TARGETS, run_target

FRESH_SEED = secrets.randbits(32)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_decoder_keeps_the_rules(target: Target) -> None:
    assert run_target(target.name, 1, range(1)) >= PAST_SHARE_MIN, f"too few come past {target.first_check}"
    run_target(target.name, FRESH_SEED, range(1))


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
