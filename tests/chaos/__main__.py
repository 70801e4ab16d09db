"""`python -m chaos --rounds 200`: run a campaign, print a line per round, end with 3 if anything came back wrong."""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from support.lines import say

from chaos.campaign import Campaign, Plan

OK, TROUBLE, WRONG = 0, 1, 3


def main() -> int:
    """Run it. Exit codes: 0 all was right, 1 the campaign could not go on, 3 anything was wrong."""
    parser = argparse.ArgumentParser(prog="chaos", description="Hurt a pair on real servers and judge its restores.")
    parser.add_argument("--rounds", type=int, default=10, help="how many (default 10)")
    parser.add_argument("--seed", type=int, default=None, help="of the faults; default: a new one, which is printed")
    parser.add_argument("--first", type=int, default=1, help="number of the first round, to begin in mid-schedule")
    parser.add_argument("--spark-every", type=int, default=10, help="rounds between two restores by Spark; 0: none")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds in which the pair must get well")
    parser.add_argument("--folder", type=Path, default=None, help="for logs and data; kept. Default: a temporary one")
    words = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if words.seed is None else words.seed
    folder = words.folder or Path(tempfile.mkdtemp(prefix="tandem-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    # A SIGTERM unwinds like Ctrl-C, so that no process stays behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TROUBLE))
    plan = Plan(rounds=words.rounds, seed=seed, first=words.first, spark_every=words.spark_every, limit_s=words.limit)
    campaign = Campaign(plan, folder.resolve(), say=say)
    try:
        tally = campaign.run()
    except (KeyboardInterrupt, SystemExit):
        say(f"interrupted after {campaign.tally}\nkept: {folder}")
        return TROUBLE
    say(str(tally))
    if tally.clean:
        if words.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
        return OK
    last = words.first + tally.rounds - (tally.trouble is None)
    say(f"kept: {folder}")
    say(f"again: make chaos ROUNDS={tally.rounds + (tally.trouble is not None)} SEED={seed}")
    say(f"the last round alone: make chaos ROUNDS=1 FIRST={max(last, 1)} SEED={seed}")
    return WRONG if tally.findings else TROUBLE


if __name__ == "__main__":
    sys.exit(main())
