"""The long run: ``python -m tests.fuzz [--inputs N] [--seed S] [--processes N] [--target NAME ...] [--save]``.

Every decoder gets ``--inputs`` inputs (10^6 unless said otherwise), each target in a process of its own, two at a time:
where a decoder brings its process down, the block of inputs is named. ``--save`` replaces the saved figures of the decoders
that ran, and keeps those of the others. ``--replay FILE --target NAME`` repeats one stored
input. The run fails where a rule is broken, and where fewer than 5% of a target's inputs come past its first check.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import deque
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from tests.fuzz.runner import BLOCK, Finding, Result, memory_bound_bytes, replay, run_blocks, save
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS, target_named
from tests.support.report import RESULTS, Figure, Report

PAST_SHARE_MIN = 0.05
PROGRESS_S = 10.0
SLICE = 20
"""Blocks between two results: how often progress is known."""


class _Worker(NamedTuple):
    target: Target
    process: BaseProcess
    block: Any
    total: Result
    began: float


def _work(target: Target, seed: int, blocks: int, block: Any, pipe: Connection) -> None:
    """In a process of its own: results by the slice, at the end None or what was found."""

    def note(number: int) -> None:
        block.value = number

    try:
        for first in range(0, blocks, SLICE):
            pipe.send(run_blocks(target, seed, range(first, min(first + SLICE, blocks)), note=note))
        pipe.send(None)
    except Finding as finding:
        pipe.send(finding)


def _line(result: Result, seconds: float) -> str:
    return (
        f"{result.target:<24}{result.inputs:>12,} inputs {result.past_share:>7.1%} past the first check "
        f"{result.inputs / max(seconds, 1e-9):>9,.0f}/s  slowest {result.seconds_max * 1000:>7.1f} ms  "
        f"most memory {result.memory_bytes_max:>9,} for {result.memory_input_bytes:,} bytes"
    )


def run(targets: list[Target], inputs: int, seed: int, processes: int) -> tuple[list[Result], list[str]]:
    """Run them all; the results, and what was found in words."""
    context = multiprocessing.get_context("fork")
    blocks = -(-inputs // BLOCK)
    waiting = deque(targets)
    running: dict[Connection, _Worker] = {}
    done: list[Result] = []
    found: list[str] = []
    spoken = time.monotonic()
    while waiting or running:
        while waiting and len(running) < processes:
            target = waiting.popleft()
            ours, theirs = context.Pipe(duplex=False)
            block = context.Value("q", -1, lock=False)
            process = context.Process(target=_work, args=(target, seed, blocks, block, theirs))
            process.start()
            theirs.close()
            running[ours] = _Worker(target, process, block, Result(target.name), time.monotonic())
        for pipe in wait(list(running), timeout=1.0):
            assert isinstance(pipe, Connection)
            worker = running[pipe]
            try:
                message = pipe.recv()
            except EOFError:
                worker.process.join()
                message = (
                    f"{worker.target.name}: the process died ({worker.process.exitcode}) in block {worker.block.value}; "
                    f"replay: python -m tests.fuzz --target {worker.target.name} --seed {seed} --block {worker.block.value}"
                )
            if isinstance(message, Result):
                worker.total.add(message)
                continue
            if message is None:
                done.append(worker.total)
                print(_line(worker.total, time.monotonic() - worker.began), flush=True)
            else:
                found.append(_found(message))
                print(f"FOUND {found[-1]}", flush=True)
            worker.process.join()
            pipe.close()
            del running[pipe]
        if time.monotonic() - spoken > PROGRESS_S:
            spoken = time.monotonic()
            now = ", ".join(f"{worker.target.name} {worker.total.inputs:,}" for worker in running.values())
            print(f"  ... {len(done)} of {len(targets)} done; now {now}", flush=True)
    return done, found


def _found(message: object) -> str:
    if not isinstance(message, Finding):
        return str(message)
    path = save(message, Path("fuzz-found"))
    return f"{message}\n      kept; replay: python -m tests.fuzz --target {message.target} --replay {path}"


def _report(results: list[Result], inputs: int, seed: int) -> Report:
    report = Report("fuzz")
    for result in results:
        report.add(
            f"{result.target}: inputs",
            result.inputs,
            "inputs",
            at_least=inputs,
            detail=f"seed {seed}, {result.seconds:,.0f} s, {time.strftime('%Y-%m-%d', time.gmtime())}",
        )
        report.add(f"{result.target}: past the first check", result.past_share, "share", at_least=PAST_SHARE_MIN)
        report.add(f"{result.target}: speed", result.inputs / result.seconds, "inputs/s")
        report.add(
            f"{result.target}: most memory for one input",
            result.memory_bytes_max,
            "bytes",
            detail=f"for an input of {result.memory_input_bytes} bytes; {result.traced} inputs traced; the bound there is "
            f"{memory_bound_bytes(result.memory_input_bytes)}",
        )
        report.add(f"{result.target}: slowest input", result.seconds_max * 1000, "ms")
    ran = {result.target for result in results}
    report.figures += [figure for figure in _saved_before() if _target_of(figure) not in ran]
    report.figures.sort(key=_target_of)
    return report


def _target_of(figure: Figure) -> str:
    return figure.name.partition(":")[0]


def _saved_before() -> list[Figure]:
    path = RESULTS / "fuzz.json"
    if not path.exists():
        return []
    return [Figure(**figure) for figure in json.loads(path.read_text(encoding="utf-8"))["figures"]]


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="inputs for each decoder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--target", action="append", default=[], help="only these decoders")
    parser.add_argument("--block", type=int, help="only this block of a target")
    parser.add_argument("--replay", type=Path, help="one stored input")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/fuzz.json")
    options = parser.parse_args()
    targets = [target_named(name) for name in options.target] or list(TARGETS)
    if options.replay is not None:
        past = replay(targets[0], options.replay.read_bytes())
        print(f"{targets[0].name}: no rule is broken; {'past' if past else 'refused by'} the first check")
        return 0
    if options.block is not None:
        print(_line(run_blocks(targets[0], options.seed, range(options.block, options.block + 1)), 1.0))
        return 0
    began = time.monotonic()
    print(f"{len(targets)} decoders, {options.inputs:,} inputs each, seed {options.seed}", flush=True)
    results, found = run(targets, options.inputs, options.seed, options.processes)
    shallow = [result.target for result in results if result.past_share < PAST_SHARE_MIN]
    total = sum(result.inputs for result in results)
    print(f"{total:,} inputs in {time.monotonic() - began:,.0f} s; found: {len(found)}")
    for name in shallow:
        print(f"{name}: fewer than {PAST_SHARE_MIN:.0%} came past the first check; the inputs are too poor")
    if options.save and not found:
        _report(results, options.inputs, options.seed).save()
    return 1 if found or shallow else 0


if __name__ == "__main__":
    sys.exit(main())
