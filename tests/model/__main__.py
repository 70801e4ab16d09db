"""`python -m tests.model`: exhaust the models, then take each guard away. Exit 3 if a promise is broken, or none is.

`--only WORD` runs what has the word in its name, `--quick` the small bounds of `make test`, `--histories` shows the
counterexample for each guard that was taken away.
"""

from __future__ import annotations

import argparse
import resource
import sys

from .catalogue import CASES, REMOVALS, break_, check
from .search import Outcome

_BROKEN = 3


def main() -> int:
    """Run what was asked for and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--histories", action="store_true")
    options = parser.parse_args()
    wrong = 0
    _say("Models, every guard in place: each is exhausted, no promise is broken")
    for case in (case for case in CASES if options.only in case.name):
        outcome = check(case, quick=options.quick)
        bad = not outcome.finished or outcome.violation is not None
        wrong += bad
        _say(f"{'FAILED ' if bad else 'ok     '}{case.name:<38}{_figures(outcome)}")
        if bad:
            _tell(outcome)
    _say("Guards taken away, one at a time: each gives a counterexample")
    for removal in (removal for removal in REMOVALS if options.only in removal.name):
        outcome = break_(removal)
        wrong += outcome.violation is None
        verdict = "found  " if outcome.violation is not None else "NOTHING"
        _say(f"{verdict}{removal.name:<38}{_figures(outcome)}  {outcome.violation or ''}")
        if options.histories:
            _tell(outcome)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    _say(f"{'all as it should be' if not wrong else f'{wrong} wrong'}; peak memory {peak} MiB")
    return _BROKEN if wrong else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _figures(outcome: Outcome) -> str:
    return (
        f"{outcome.states:>11,} states {outcome.transitions:>12,} steps, depth {outcome.depth:>3}, "
        f"{outcome.spent:>9,} at the bounds, {outcome.seconds:>6.1f} s of one core"
    )


def _tell(outcome: Outcome) -> None:
    _say(f"  {outcome.violation or 'the search did not end'}")
    for line in outcome.history:
        _say(f"  {line}")


if __name__ == "__main__":
    sys.exit(main())
