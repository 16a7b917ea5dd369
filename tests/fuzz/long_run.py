"""One decoder's share of the long run, in a process of its own."""

from __future__ import annotations

from tests.fuzz.runner import Finding, Result, run_blocks
from tests.fuzz.targets import TARGETS

PAST_SHARE_MIN = 0.05


def run_target(name: str, seed: int, blocks: range) -> Result:
    """Run the blocks of a target. Raises ``Finding``, which says how to repeat it."""
    (target,) = (target for target in TARGETS if target.name == name)
    total = Result(name)
    for block in blocks:
        try:
            total.add(run_blocks(target, seed, range(block, block + 1)))
        except Finding as found:
            again = f"replay: python -m tests.fuzz --target {name} --seed {seed} --block {block}"
            raise Finding(name, f"{found.rule} ({again})", found.data) from found
    return total


def line(result: Result) -> str:
    """For people."""
    return (
        f"{result.target:<24}{result.inputs:>12,} inputs {result.past_share:>7.1%} past the first check "
        f"{result.inputs / max(result.seconds, 1e-9):>9,.0f}/s  slowest {result.seconds_max * 1000:>7.1f} ms  "
        f"most memory {result.memory_bytes_max:>9,} for {result.memory_input_bytes:,} bytes"
    )
