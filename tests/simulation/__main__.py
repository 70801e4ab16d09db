"""Run many seeds, or one with its history: `make simulate SEEDS=1000`, `make simulate SEED=42`.

Exit code 0: every history kept the promise. 3: at least one did not; its seed and its end are printed.
"""

from __future__ import annotations

import argparse
import collections
import gc
import hashlib
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from support.lines import say

from simulation import patching
from simulation.comparing import ViolationError
from simulation.directed import HISTORIES
from simulation.world import World, wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one seed. `digest` is of the history's lines."""

    seed: int
    failure: str | None
    lines: list[str]
    virtual_s: float
    checks: int
    records: int
    generations: int
    counts: dict[str, int]


def play(seed: int, *, verbose: bool = False, accidents: bool = False, erasures: bool = False) -> Outcome:
    lines: list[str] = []
    world = World(seed, tell=lines.append if verbose else None, always=accidents, erasing=erasures)
    if verbose:
        patching.speak(world.say)
    failure = None
    gc.disable()
    try:
        world.run()
    except ViolationError as error:
        failure = str(error)
    except Exception as error:  # noqa: BLE001 (a bug of the code, or of the simulation: the seed shows it)
        failure = "".join(traceback.format_exception(error)) if verbose else f"{type(error).__name__}: {error}"
    began = 1000.0
    outcome = Outcome(
        seed=seed,
        failure=failure,
        lines=lines,
        virtual_s=world.runtime.now - began,
        checks=world.judge.checks,
        records=world.judge.restored_records,
        generations=len(world.judge.completes),
        counts=world.counts | world.judge.counts() | world.office.counts(),
    )
    world.end()
    # Nothing of it may outlive the first collection: what that keeps would be looked at again and again.
    patching.forget()
    gc.enable()
    return outcome


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=1, help="the first one")
    parser.add_argument("--seed", type=int, help="run this one and print its history")
    parser.add_argument("--directed", action="store_true", help="run the histories that were thought out")
    parser.add_argument("--accidents", action="store_true", help="logs lose keys by accident in each history")
    parser.add_argument("--erasures", action="store_true", help="keys are erased from the backup in each history")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--stop-after", type=int, default=10, help="stop after so many failures")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a history
        os.execve(
            sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"}
        )
    wire()
    gc.collect()
    gc.freeze()  # the modules stay
    if arguments.seed is not None:
        outcome = play(arguments.seed, verbose=True, accidents=arguments.accidents, erasures=arguments.erasures)
        say("\n".join(outcome.lines))
        digest = hashlib.sha256("\n".join(outcome.lines).encode()).hexdigest()[:16]
        say(f"seed {outcome.seed}: {outcome.failure or 'the promise held'} (history {digest})")
        return 3 if outcome.failure else 0
    if arguments.directed:
        return directed(arguments.first, arguments.seeds)
    return many(
        partial(play, accidents=arguments.accidents, erasures=arguments.erasures),
        range(arguments.first, arguments.first + arguments.seeds),
        jobs=arguments.jobs,
        stop_after=arguments.stop_after,
    )


def directed(first: int, count: int) -> int:
    """Run each of the directed histories with `count` seeds."""
    failed = 0
    for name, history in HISTORIES.items():
        for seed in range(first, first + count):
            try:
                history(seed).end()
            except ViolationError as error:
                failed += 1
                say(f"{name}, seed {seed}: {error}")
    say(f"{len(HISTORIES) * count - failed} passed, {failed} failed")
    return 3 if failed else 0


def many(play_one: Callable[[int], Outcome], seeds: range, *, jobs: int, stop_after: int) -> int:
    """Run the seeds and print figures and failures."""
    began = time.perf_counter()
    totals: collections.Counter[str] = collections.Counter()
    failed = done = 0
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=500) as pool:
        for outcome in pool.imap_unordered(play_one, seeds, chunksize=4):
            done += 1
            totals.update(outcome.counts)
            totals.update(
                checks=outcome.checks,
                records=outcome.records,
                complete=outcome.generations,
                virtual_s=round(outcome.virtual_s),
            )
            if outcome.failure is not None:
                failed += 1
                say(f"seed {outcome.seed} at {outcome.virtual_s:.1f} s: {outcome.failure}")
                if failed >= stop_after:
                    pool.terminate()
                    break
            if done % 1000 == 0 and done < len(seeds):
                sys.stderr.write(f"{done} of {len(seeds)}, {time.perf_counter() - began:.0f} s, {failed} failed\n")
    took = time.perf_counter() - began
    say(
        f"simulated {done} histories of two instances ({totals['virtual_s'] / 3600:.1f} h of virtual time) in"
        f" {took:.0f} s: {totals['complete']} generations became COMPLETE, {totals['checks']} restores from the store"
        f" alone were judged, {totals['records']} records compared; {totals['crash']} kills, {totals['pause']}"
        f" suspensions, {totals['zombie']} stale twins, {totals['twins at the end']} to the"
        f" end, {totals['away']} long absences, {totals['blind']} spells without a right on the"
        f" store and {totals['undescribed']} without one on a topic,"
        f" {totals['promise']} changes of delete.retention.ms, {totals['cut']} truncations,"
        f" {totals['set back']} volumes set back to a snapshot,"
        f" {totals['accident']} accidents in which keys vanished ({totals['vanished key']} that a copy had,"
        f" {totals['kept key']} of them kept, {totals['released key']} released, {totals['written again']} written"
        f" again, {totals['expired key']} expired, {totals['unprovable key']} not provable),"
        f" {totals['leaderless']} partitions"
        f" without a leader, {totals['damage']} records that can't be decoded, {totals['denied']} topics that may"
        f" not be read, {totals['recreate']} recreated topics, {totals['checkpoint']}"
        f" checkpoints ({totals['completed checkpoint']} completed,"
        f" {totals['failed checkpoint']} failed, {totals['deleted checkpoint']} deleted), {totals['read restore']}"
        f" restores that took their time, {totals['moment']} restores of a moment ({totals['united moment']} of several"
        f" generations), {totals['release']} releases, {totals['maintenance']} pauses begun or ended,"
        f" {totals['retention step']} steps of retention, {totals['sweep']} sweeps,"
        f" {totals['swept partition']} partitions swept of {totals['swept record']} records,"
        f" {totals['read range']} ranges read by catch-up"
        f" jobs and {totals['worker range']} by workers, of which {totals['worker lost']} were killed"
    )
    say(f"{done - failed} passed, {failed} failed")
    return 3 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
