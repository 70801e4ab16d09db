"""Damage a real backup in every way and see who notices: `make damage INPUTS=10000`.

Each input is one damage at a random place of a backup of three generations in a folder: bits flipped, bytes changed,
cut, inserted or swapped, objects, chain entries and claims swapped, replaced or deleted. `tandem verify` must find it;
a restore must refuse, or warn, or not need it, and what it hands to Kafka until then must be what was stored. Exit
code 0: so it was. 3: the seeds are printed for which it was not.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import random
import sys
import tempfile
import time
from pathlib import Path

from damage.judge import Outcome, judge
from damage.scene import build
from damage.ways import damage

_SHARE = 100


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="damage", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=1, help="the first seed; each stands for a hundred inputs")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    began = time.perf_counter()
    totals: collections.Counter[tuple[str, Outcome]] = collections.Counter()
    seeds = range(arguments.first, arguments.first + max(1, arguments.inputs // _SHARE))
    bad = 0
    with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
        for seed, counts, troubles in pool.imap_unordered(_play, [(s, min(_SHARE, arguments.inputs)) for s in seeds]):
            totals.update(counts)
            for trouble in troubles:
                bad += 1
                _say(f"seed {seed}: {trouble}")
    _table(totals)
    _say(f"{totals.total()} damages in {time.perf_counter() - began:.0f} s: {bad} not detected")
    return 3 if bad else 0


def _play(share: tuple[int, int]) -> tuple[int, collections.Counter[tuple[str, Outcome]], list[str]]:
    seed, count = share
    counts, troubles = play(seed, count)
    return seed, counts, troubles


def play(seed: int, count: int) -> tuple[collections.Counter[tuple[str, Outcome]], list[str]]:
    """Do `count` damages to the backup of a seed, one after the other; return what became of them, and what was bad."""
    rng = random.Random(seed)
    counts: collections.Counter[tuple[str, Outcome]] = collections.Counter()
    troubles = []
    with tempfile.TemporaryDirectory(prefix="damage-") as name:
        scene = build(Path(name), seed)
        for number in range(count):
            done = damage(rng, scene)
            outcome, said = judge(scene, done)
            counts[done.kind, outcome] += 1
            if outcome is Outcome.BAD:
                paths = [str(path.relative_to(scene.folder)) for path in done.before]
                troubles.append(f"input {number}: {done.kind}, {paths}: {said}")
            done.undo()
    return counts, troubles


def _table(totals: collections.Counter[tuple[str, Outcome]]) -> None:
    heads = ["both", "verify", "older", "same", "bad"]
    _say(f"{'':40}" + "".join(f"{head:>9}" for head in heads))
    for kind in sorted({kind for kind, _ in totals}):
        _say(f"{kind:40}" + "".join(f"{totals[kind, outcome]:9}" for outcome in Outcome))
    sums = {outcome: sum(count for (_, one), count in totals.items() if one is outcome) for outcome in Outcome}
    _say(f"{'all':40}" + "".join(f"{sums[outcome]:9}" for outcome in Outcome))
    for head, outcome in zip(heads, Outcome, strict=True):
        _say(f"{head}: {outcome.value}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
