"""The long run: ``python -m tests.fuzz [--inputs N] [--seed S] [--processes N] [--target NAME ...] [--block B]``.

Every decoder gets ``--inputs`` inputs (10^6 unless said otherwise), each target in a process of its own. The run fails where a
rule is broken, where a decoder brings its process down, and where fewer than 5% of a target's inputs come past its first check.
``--block`` repeats one block of a target.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from tests.fuzz.runner import BLOCK, PAST_SHARE_MIN, Finding
from tests.fuzz.targets import TARGETS, run_target


def main() -> int:
    """See the module."""
    names = [target.name for target in TARGETS]
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="inputs for each decoder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--target", action="append", choices=names, help="only these decoders")
    parser.add_argument("--block", type=int, help="only this block of 1000 inputs")
    options = parser.parse_args()
    blocks = -(-options.inputs // BLOCK)
    wanted = range(blocks) if options.block is None else range(options.block, options.block + 1)
    bad = 0
    with ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(run_target, name, options.seed, wanted): name for name in options.target or names}
        for future in as_completed(running):
            try:
                share = future.result()
                print(f"{running[future]:<24}{share:>7.1%} past the first check", flush=True)
                bad += share < PAST_SHARE_MIN
            except (Finding, BrokenProcessPool) as found:
                print(f"FOUND by {running[future]}: {found}", flush=True)
                bad += 1
    print(f"{len(running)} decoders, seed {options.seed}; failures: {bad}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
