"""Damage a real backup in every way and see who notices: `make damage INPUTS=10000`.

Each input is one damage at a random place of a backup of three generations in a folder: bits flipped, bytes changed,
cut, inserted or swapped, objects, chain entries and claims swapped, replaced or deleted. `tandem verify` must find it;
a restore must refuse, or warn, or not need it, and what it hands to Kafka until then must be what was stored. Of the
small documents beside the chains nothing changes a restore; who goes by them must not take one for another. Exit code
0: so it was. 3: the seeds are printed for which it was not.

With `--forgeries`, each input is one forgery by somebody who can write to the bucket and has no signing key, see
`forgeries`; signatures are required, and heads of the chains are known.
"""

from __future__ import annotations

import argparse
import collections
import logging
import multiprocessing
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import structlog
from support.lines import say

from damage.forgeries import build_stage, forge
from damage.judge import Fate, Outcome, judge, judge_forged_document, judge_forgery
from damage.scene import build
from damage.ways import damage, kinds

_SHARE = 100

Ending: TypeAlias = Outcome | Fate


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="damage", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--only", default="", help="kinds of damage with a match of this expression, such as 'bits'")
    parser.add_argument("--forgeries", type=int, default=0, help="so many forgeries instead")
    parser.add_argument("--first", type=int, default=1, help="the first seed; each stands for a hundred inputs")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    try:
        named = [kind for kind in kinds() if re.search(arguments.only, kind)]
    except re.error as error:
        parser.error(f"--only {arguments.only!r} is no regular expression: {error}")
    if not named:
        parser.error(f"--only {arguments.only!r} matches none of: {', '.join(kinds())}")
    if arguments.only and arguments.forgeries:
        parser.error("--only is about damages; forgeries have none")
    # Each reader tells of what it refuses, thousands of times.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    began = time.perf_counter()
    totals: collections.Counter[tuple[str, Ending]] = collections.Counter()
    inputs, endings = (arguments.forgeries, Fate) if arguments.forgeries else (arguments.inputs, Outcome)
    seeds = range(arguments.first, arguments.first + max(1, inputs // _SHARE))
    work = partial(_play, play_forgeries if arguments.forgeries else partial(play, only=arguments.only))
    bad = 0
    with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
        for seed, counts, troubles in pool.imap_unordered(work, [(s, min(_SHARE, inputs)) for s in seeds]):
            totals.update(counts)
            for trouble in troubles:
                bad += 1
                say(f"seed {seed}: {trouble}")
    _table(totals, endings)
    what = "forgeries" if arguments.forgeries else "damages"
    say(f"{totals.total()} {what} in {time.perf_counter() - began:.0f} s: {bad} not detected")
    return 3 if bad else 0


def _play(
    campaign: Callable[[int, int], tuple[Any, list[str]]], share: tuple[int, int]
) -> tuple[int, collections.Counter[tuple[str, Ending]], list[str]]:
    seed, count = share
    counts, troubles = campaign(seed, count)
    return seed, counts, troubles


def play(seed: int, count: int, only: str = "") -> tuple[collections.Counter[tuple[str, Outcome]], list[str]]:
    """Do `count` damages to the backup of a seed, one after the other; return what became of them, and what was bad."""
    rng = random.Random(seed)
    counts: collections.Counter[tuple[str, Outcome]] = collections.Counter()
    troubles = []
    with tempfile.TemporaryDirectory(prefix="damage-") as name:
        scene = build(Path(name), seed)
        for number in range(count):
            done = damage(rng, scene, only)
            outcome, said = judge(scene, done)
            counts[done.kind, outcome] += 1
            if outcome is Outcome.BAD:
                paths = [str(path.relative_to(scene.folder)) for path in done.before]
                troubles.append(f"input {number}: {done.kind}, {paths}: {said}")
            done.undo()
    return counts, troubles


def play_forgeries(seed: int, count: int) -> tuple[collections.Counter[tuple[str, Fate]], list[str]]:
    """Forge the backup of a seed `count` times, one after the other; return what became of it, and what was bad."""
    rng = random.Random(seed)
    counts: collections.Counter[tuple[str, Fate]] = collections.Counter()
    troubles = []
    with tempfile.TemporaryDirectory(prefix="forgeries-") as name:
        stage = build_stage(Path(name), seed)
        fate, said = judge_forgery(stage.scene, stage.heads, by_head=True)
        if fate is not Fate.BAD or "verify finds nothing; a restore says nothing" not in said:
            troubles.append(f"the sound backup: {fate}, {said}")
        for number in range(count):
            done = forge(rng, stage)
            if done.document:
                fate, said = judge_forged_document(stage.scene, stage.heads)
            else:
                fate, said = judge_forgery(stage.scene, stage.heads, by_head=done.by_head)
            counts[done.kind, fate] += 1
            if fate is Fate.BAD:
                troubles.append(f"input {number}: {done.kind}, {done.what}: {said}")
            done.undo()
    return counts, troubles


def _table(totals: collections.Counter[tuple[str, Ending]], endings: type[Outcome | Fate]) -> None:
    heads = [one.name.lower() for one in endings]
    say(f"{'':40}" + "".join(f"{head:>9}" for head in heads))
    for kind in sorted({kind for kind, _ in totals}):
        say(f"{kind:40}" + "".join(f"{totals[kind, outcome]:9}" for outcome in endings))
    sums = {outcome: sum(count for (_, one), count in totals.items() if one is outcome) for outcome in endings}
    say(f"{'all':40}" + "".join(f"{sums[outcome]:9}" for outcome in endings))
    for head, outcome in zip(heads, endings, strict=True):
        say(f"{head}: {outcome.value}")


if __name__ == "__main__":
    sys.exit(main())
