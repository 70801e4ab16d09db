"""`python -m kills --kills 30`: a restore on a real broker in each mode of offsets, and a third of the kills in each.

Exit code 3: the target is not the same. 4: void, the broker has lost the end of a transaction.
"""

from __future__ import annotations

import argparse
import random
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from support.lines import say

from kills.campaign import Campaign, Victim, VoidError, WrongError
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.spark_jobs.restore.plan.offset_mode import OffsetMode

WRONG, VOID = 3, 4


def main() -> int:
    parser = argparse.ArgumentParser(prog="kills", description="Kill a restore again and again, and compare.")
    parser.add_argument("--kills", type=int, default=30, help="how many in all (default 30)")
    parser.add_argument("--offsets", default=None, choices=list(OffsetMode), help="one mode alone")
    parser.add_argument("--victim", default=None, choices=list(Victim), help="what is killed; default: all kinds")
    parser.add_argument("--records", type=int, default=7_000, help="of each topic, for each kill (default 7000)")
    parser.add_argument("--seed", type=int, default=None, help="of what is killed when; default: a new one")
    words = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if words.seed is None else words.seed
    folder = Path(tempfile.mkdtemp(prefix="tandem-kills-"))
    say(f"seed {seed}, in {folder}")
    dice = random.Random(seed)
    kafka = KafkaServer(folder / "kafka")
    kafka.start()
    try:
        modes = [OffsetMode(words.offsets)] if words.offsets else list(OffsetMode)
        for number, mode in enumerate(modes):
            kills = (words.kills + number) // len(modes)
            campaign = Campaign(kafka, folder, mode, kills, kills * words.records, dice, say)
            if words.victim:
                campaign.victims = [Victim(words.victim)]
            say(campaign.run())
    except WrongError as error:
        say(f"wrong: {error}\nkept: {folder}")
        return WRONG
    except VoidError as error:
        say(f"void, run it again: {error}\nkept: {folder}")
        return VOID
    finally:
        kafka.stop()
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
