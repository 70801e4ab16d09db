"""Everything that reads what others wrote, on hostile input: `python -m fuzz.parsers`, a part of `make fuzz`.

Objects of the bucket (files, chain entries, claims, checkpoints, pins, records of restores), records of Kafka, the
configuration, command lines, requests over HTTP. Sound ones of each kind are twisted by a seed. Each must be read or be
refused with an error of ours, which has a documented exit code; nothing else may come out, nothing may take long, and
the process stays within its memory. Exit code 0: so it was. 3: the seeds and inputs are printed of what was not.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import logging
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog
from support.lines import say

from fuzz import corpus, surfaces
from tandem.backup_avro.errors import ExitCode, TandemError

#: Longest that one input may take, in seconds of processor time. A machine that does something else must not count.
SLOW_S = 5.0
#: Seconds after which a process that is stuck says where, and dies.
_STUCK_S = 120
_MEMORY_MB = 512
_SHARE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What must not be."""

    surface: str
    seed: int
    number: int
    what: str


def play(surface: surfaces.Surface, seed: int, count: int) -> tuple[collections.Counter[str], list[Trouble]]:
    """Give `count` inputs of a seed to a surface; return how each ended, and what was wrong."""
    rng = random.Random(f"{surface.name} {seed}")
    counts: collections.Counter[str] = collections.Counter()
    troubles: list[Trouble] = []
    for number in range(count):
        job = surface.twist(rng)
        began = time.process_time()
        try:
            surface.read(job)
            how = "read"
        except TandemError as error:
            how = f"refused, exit code {int(error.exit_code)}"
            if error.exit_code not in set(ExitCode) or not str(error):
                troubles.append(_trouble(surface, seed, number, f"{error!r}: says nothing"))
        except surface.refusals as error:
            how = f"refused as {type(error).__name__}"
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            how = "crashed"
            troubles.append(_trouble(surface, seed, number, f"{type(error).__name__}: {error}, of {job!r:.300}"))
        spent = time.process_time() - began
        if spent > SLOW_S:
            troubles.append(_trouble(surface, seed, number, f"took {spent:.1f} s, {job!r:.300}"))
        counts[how] += 1
    return counts, troubles


def _trouble(surface: surfaces.Surface, seed: int, number: int, what: str) -> Trouble:
    return Trouble(surface=surface.name, seed=seed, number=number, what=what)


def _quiet() -> None:
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _peak_mb() -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


_Share = tuple[str, int, int, float]
_Done = tuple[str, collections.Counter[str], list[Trouble], float]


def _run(share: _Share) -> _Done:
    name, seed, count, until = share
    counts: collections.Counter[str] = collections.Counter()
    troubles: list[Trouble] = []
    if time.time() < until:
        faulthandler.dump_traceback_later(_STUCK_S, exit=True)
        with surfaces.opened(name) as surface:
            counts, troubles = play(surface, seed, count)
        faulthandler.cancel_dump_traceback_later()
    return name, counts, troubles, _peak_mb()


def _shares(names: list[str], each: int, first: int, seconds: float | None) -> Iterator[_Share]:
    for name in names:
        until = float("inf") if seconds is None else time.time() + seconds
        left, seed = each, first
        while left > 0 and time.time() < until:
            yield name, seed, min(left, _SHARE), until
            left -= _SHARE
            seed += 1


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="fuzz.parsers", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="of all surfaces together")
    parser.add_argument("--seconds-each", type=float, help="give each surface so many seconds instead")
    parser.add_argument("--first", type=int, default=1, help="the first seed; each stands for five hundred inputs")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", default="", help="surfaces with this in their name")
    arguments = parser.parse_args()
    names = [name for name in surfaces.NAMES if arguments.only in name]
    each = -(-arguments.inputs // len(names)) if arguments.seconds_each is None else sys.maxsize
    began = time.perf_counter()
    totals: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in names}
    bad = 0
    peak = 0.0
    corpus.load()
    shares = _shares(names, each, arguments.first, arguments.seconds_each)
    with multiprocessing.get_context("fork").Pool(arguments.jobs, initializer=_quiet) as pool:
        for name, counts, troubles, memory in _in_turn(pool, shares, arguments.jobs):
            totals[name].update(counts)
            peak = max(peak, memory)
            for trouble in troubles:
                bad += 1
                say(f"{trouble.surface}, seed {trouble.seed}, input {trouble.number}: {trouble.what}")
    for name, counts in totals.items():
        say(f"{name:34}" + ", ".join(f"{count:,} {how}" for how, count in sorted(counts.items())))
    done = sum(counts.total() for counts in totals.values())
    say(
        f"{done:,} inputs for {len(names)} readers in {time.perf_counter() - began:.0f} s: {bad} that must not be; "
        f"at most {peak:.0f} MB, {_MEMORY_MB} are allowed"
    )
    return 3 if bad or peak > _MEMORY_MB else 0


def _in_turn(pool: multiprocessing.pool.Pool, shares: Iterator[_Share], jobs: int) -> Iterator[_Done]:
    """Keep the processes busy, but draw shares only when they are due: their time runs."""
    waiting: collections.deque[multiprocessing.pool.AsyncResult[_Done]] = collections.deque()
    for share in shares:
        waiting.append(pool.apply_async(_run, (share,)))
        while len(waiting) > 2 * jobs:
            yield waiting.popleft().get(timeout=2 * _STUCK_S)
    while waiting:
        yield waiting.popleft().get(timeout=2 * _STUCK_S)


if __name__ == "__main__":
    sys.exit(main())
