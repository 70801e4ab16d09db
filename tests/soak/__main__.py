"""`python -m soak --minutes 120`: a pair for hours, figures per instance, and whether it is flat."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from chaos.crew import UnhealthyError
from chaos.restoring import RestoreFailedError, TaintedError
from support.lines import say

from soak.campaign import Plan, Soak
from soak.samples import FEWEST_WINDOWS, FIGURES, Judgement
from tandem.backup_avro.errors import TandemError

OK, TROUBLE, GROWS = 0, 1, 3
_UNITS = {"allocated": 1e6, "blocks": 1e3, "rss": 1e6}
_HEADS = {"allocated": "allocated MB", "blocks": "blocks 1000", "rss": "resident MB"}


def main() -> int:
    """Run it. Exit codes: 0 flat and right, 1 could not go on or too short to judge, 3 grows or is wrong."""
    parser = argparse.ArgumentParser(prog="soak", description="Run a pair for long and see whether it stays as it is.")
    parser.add_argument("--minutes", type=float, default=120.0, help="how long (default 120)")
    parser.add_argument("--turn", type=float, default=180.0, help="seconds between two handovers (default 180)")
    parser.add_argument(
        "--folder", type=Path, default=None, help="for logs, data, samples.csv; kept. Default: temporary"
    )
    words = parser.parse_args()
    folder = words.folder or Path(tempfile.mkdtemp(prefix="tandem-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    # A SIGTERM unwinds like Ctrl-C, so that no process stays behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TROUBLE))
    soak = Soak(Plan(seconds=words.minutes * 60, turn_s=words.turn), folder.resolve(), say=say)
    try:
        tally = soak.run()
    except (UnhealthyError, RestoreFailedError, TaintedError, TandemError, TimeoutError) as error:
        say(f"{type(error).__name__}: {error}\n{soak.tally}\nkept: {folder}")
        return GROWS if soak.tally.findings else TROUBLE
    say(str(tally))
    for name, judgement in tally.judgements.items():
        _tell(name, judgement)
    judgements = tally.judgements.values()
    if all(judgement.flat for judgement in judgements):
        say("flat")
        if words.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
        return OK
    say(f"kept: {folder}")
    if any(judgement.reasons for judgement in judgements if judgement.enough):
        say("not flat")
        return GROWS
    say(f"too short to judge: fewer than {FEWEST_WINDOWS} windows of two turns after the warm-up")
    return TROUBLE


def _tell(name: str, judgement: Judgement) -> None:
    slopes = ", ".join(f"{_HEADS[of]} {slope / _UNITS[of]:+.2f}/h" for of, slope in judgement.slopes.items())
    say(f"{name}  {judgement.windows} windows, {slopes}, CPU {judgement.cpu_share:.1%} of a core")
    for figure in FIGURES:
        first, last = judgement.first[figure], judgement.last[figure]
        unit, head = _UNITS.get(figure, 1.0), _HEADS.get(figure, figure)
        say(
            f"   {head:<12} first third: median {first.median / unit:.1f}, highest {first.highest / unit:.1f}; "
            f"last third: median {last.median / unit:.1f}, highest {last.highest / unit:.1f}"
        )
    for reason in judgement.reasons:
        say(f"   {reason}")


if __name__ == "__main__":
    sys.exit(main())
