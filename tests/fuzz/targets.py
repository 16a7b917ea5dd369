"""All decoders that are fuzzed, and one's share of the long run, in a process of its own."""

from __future__ import annotations

from tests.fuzz.journal_targets import JOURNAL_TARGETS
from tests.fuzz.kafka_record_targets import KAFKA_RECORD_TARGETS
from tests.fuzz.kafka_targets import KAFKA_TARGETS
from tests.fuzz.message_targets import MESSAGE_TARGETS
from tests.fuzz.offload_targets import OFFLOAD_TARGETS
from tests.fuzz.pip17_targets import PIP17_TARGETS
from tests.fuzz.runner import Finding, run_blocks
from tests.fuzz.target import Target

TARGETS: tuple[Target, ...] = (
    JOURNAL_TARGETS + KAFKA_RECORD_TARGETS + KAFKA_TARGETS + MESSAGE_TARGETS + OFFLOAD_TARGETS + PIP17_TARGETS
)


def run_target(name: str, seed: int, blocks: range) -> float:
    """Run the blocks of a target. Raises ``Finding``, which says how to repeat it."""
    (target,) = (target for target in TARGETS if target.name == name)
    shares = []
    for block in blocks:
        try:
            shares.append(run_blocks(target, seed, range(block, block + 1)))
        except Finding as found:
            again = f"replay: python -m tests.fuzz --target {name} --seed {seed} --block {block}"
            raise Finding(name, f"{found.rule} ({again})", found.data) from found
    return sum(shares) / len(shares)
