"""`python -m kube`: a Kubernetes of two nodes, the steps of a user upon it, and their rows in docs/quality/kube.md.

Exit code 2: this machine cannot run it. 3: a step has seen what should not be; logs and cluster are kept with --keep.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time

from support.lines import say

from kube.cluster_access import SCRIPTS, Cluster
from kube.instance_steps import STEPS as INSTANCES
from kube.job_steps import JOBS
from kube.page import table, write_page
from kube.release_steps import ENDS, UPGRADES
from kube.steps import Outcome, Stage, Step

STEPS = (*INSTANCES, *UPGRADES, *JOBS, *ENDS)
#: Without these, no other step has anything to work upon.
FIRST = ("install", "ready")
REFUSED, WRONG = 2, 3
_INSIDE = "TANDEM_KUBE_INSIDE"


def run(chosen: list[Step], *, page: bool) -> int:
    """Take the steps in order; those after a failed first one are left out."""
    stage = Stage(Cluster())
    outcomes = []
    for step in chosen:
        began = time.monotonic()
        seen = fault = ""
        try:
            seen = step.act(stage)
        except (AssertionError, KeyError, TypeError, subprocess.TimeoutExpired) as error:
            kind = "" if isinstance(error, AssertionError) else type(error).__name__
            fault = " ".join(f"{kind} {error}".split())[:400]
        outcomes.append(Outcome(step, time.monotonic() - began, seen, fault))
        told = f"FAULT: {fault}" if fault else seen
        say(f"{time.strftime('%H:%M:%S')}  {step.name:15} {outcomes[-1].seconds:5.0f} s  {told}")
        if page:
            write_page(STEPS, outcomes)
        if fault and step.name in FIRST:
            break
    say(table(STEPS, outcomes))
    return WRONG if any(each.fault for each in outcomes) else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="kube", description="Try chart, image and docs on a real Kubernetes.")
    parser.add_argument(
        "--only", default="", help="steps in whose name this regular expression is found, after the first two"
    )
    parser.add_argument("--page", action="store_true", help="write the rows to docs/quality/kube.md")
    parser.add_argument("--keep", action="store_true", help="leave the cluster as it is at the end")
    parser.add_argument("--running", action="store_true", help="use the cluster and the release that --keep left")
    words = parser.parse_args()
    only = re.compile(words.only)
    chosen = [step for step in STEPS if (step.name in FIRST and not words.running) or only.search(step.name)]
    if _INSIDE in os.environ:
        return run(chosen, page=words.page)
    if subprocess.run([SCRIPTS / "requirements.sh"], check=False).returncode != 0:
        return REFUSED
    try:
        if subprocess.run([SCRIPTS / "up.sh"], check=False).returncode != 0:
            return REFUSED
        inside = ["nsenter", "--net=/run/netns/tandem-cp", sys.executable, "-m", "kube", *sys.argv[1:]]
        return subprocess.run(inside, check=False, env={**os.environ, _INSIDE: "1"}).returncode
    finally:
        if not words.keep:
            subprocess.run([SCRIPTS / "down.sh"], check=False)


if __name__ == "__main__":
    sys.exit(main())
