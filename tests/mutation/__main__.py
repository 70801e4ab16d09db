"""Mutation testing of the pure core: `make mutation`.

mutmut changes one expression at a time, and the unit tests judge it. What they let pass is judged by 50 simulated
histories. All happens in build/mutation, and goes on there where it was stopped; `--fresh` begins anew.
Exit code 0: at least 90 % were killed. 1: the tests don't pass without a mutant. 3: fewer were killed.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
STAGE = ROOT / "build" / "mutation"
MUTMUT = Path(sys.executable).with_name("mutmut")
_ROOTS = ("avro", "controller", "sink", "spark_jobs")
_SEEDS = 50
_ENOUGH = 0.9
# The histories take 5 s on two cores; with a mutant that makes the code wait for ever they never end.
_LIMIT_S = 300
# mutmut sends a signal to the process id of a mutant when its time is over, also if that ended long before: where ids
# are used again after 32,768 processes, it hits somebody else's.
_PID_MAX = Path("/proc/sys/kernel/pid_max")
_ENOUGH_PIDS = 1 << 22


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__)
    parser.add_argument("--only", default="*", help="mutants whose name matches this pattern")
    parser.add_argument("--jobs", default="2", help="processes")
    parser.add_argument("--fresh", action="store_true", help="forget what was found before")
    arguments = parser.parse_args()
    if arguments.fresh:
        shutil.rmtree(STAGE, ignore_errors=True)
    if _PID_MAX.exists() and int(_PID_MAX.read_text()) < _ENOUGH_PIDS:
        sys.stderr.write(
            f"warning: process ids are used again soon ({_PID_MAX}): mutmut may end processes of others\n"
            f"what to do: sysctl kernel.pid_max={_ENOUGH_PIDS}, or run nothing else beside it\n"
        )
    stage()
    began = time.perf_counter()
    ended = subprocess.run(
        [MUTMUT, "run", "--max-children", arguments.jobs, arguments.only], cwd=STAGE, check=False, stdout=sys.stderr
    )
    if ended.returncode:
        return 1
    verdicts = judged()
    if simulated("", arguments.jobs) != "survived":
        sys.stderr.write("the simulation objects to the code without a mutant\n")
        return 1
    played = replay(verdicts, arguments.jobs)
    return report(verdicts | played, time.perf_counter() - began)


def stage() -> None:
    """Copy code and tests to where mutmut works; it notices by itself what changed."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in _ROOTS:
        shutil.copytree(ROOT / name, STAGE / "src", ignore=ignore, dirs_exist_ok=True)
    shutil.copytree(ROOT / "tests", STAGE / "tests", ignore=ignore, dirs_exist_ok=True)
    shutil.copy(ROOT / "tests" / "mutation" / "staged.toml", STAGE / "pyproject.toml")


def judged() -> dict[str, str]:
    """Return what the unit tests said of every mutant that they have judged."""
    said = subprocess.run(
        [MUTMUT, "results", "--all", "true"], cwd=STAGE, check=True, capture_output=True, text=True
    ).stdout
    pairs = (line.strip().rsplit(": ", 1) for line in said.splitlines() if ": " in line)
    return {name: verdict for name, verdict in pairs if verdict != "not checked"}


def replay(verdicts: dict[str, str], jobs: str) -> dict[str, str]:
    """Return what the simulation says of those that the unit tests let pass. What it once said of this code is kept."""
    kept = STAGE / f"simulated-{played_on()}.json"
    known: dict[str, str] = json.loads(kept.read_text()) if kept.exists() else {}
    passed = [name for name, verdict in verdicts.items() if verdict in {"survived", "no tests"}]
    for number, name in enumerate(passed, 1):
        if name not in known:
            known[name] = simulated(name, jobs)
            kept.write_text(json.dumps(known, indent=1, sort_keys=True))
        sys.stderr.write(f"{number} of {len(passed)}: {name} {known[name]}\n")
    return {name: known[name] for name in passed}


def played_on() -> str:
    """Return a digest of the code: in another one the same name may be of another mutant."""
    files = sorted([*(STAGE / "src").rglob("*.py"), *(STAGE / "tests" / "simulation").rglob("*.py")])
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def simulated(name: str, jobs: str) -> str:
    """Play the histories with one mutant; with none if `name` is empty."""
    mutants = STAGE / "mutants"
    paths = os.pathsep.join(str(mutants / part) for part in ("src", "tests"))
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "simulation", "--seeds", str(_SEEDS), "--jobs", jobs, "--stop-after", "1"],
            cwd=mutants,
            env=os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": "0", "MUTANT_UNDER_TEST": name},
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "killed by the simulation (it never ended)"
    return "killed by the simulation" if ended.returncode else "survived"


def report(verdicts: dict[str, str], took_s: float) -> int:
    """Print the figures by module, and what survived."""
    tally: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name, verdict in verdicts.items():
        tally[name.partition(".x")[0]][verdict] += 1
    for module, counts in sorted(tally.items()):
        words = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        sys.stdout.write(f"{module:28} {counts.total():5} mutants, {_killed(counts):6.1%} killed: {words}\n")
    survivors = sorted(name for name, verdict in verdicts.items() if verdict == "survived")
    for name in survivors:
        shown = subprocess.run([MUTMUT, "show", name], cwd=STAGE, check=True, capture_output=True, text=True).stdout
        changed = [line for line in shown.splitlines()[4:] if line.startswith(("-", "+"))]
        sys.stdout.write("\n".join([name, *changed, ""]))
    whole = collections.Counter(verdicts.values())
    sys.stdout.write(
        f"{whole.total()} mutants, {len(survivors)} survived, {_killed(whole):.1%} were killed, in {took_s:.0f} s\n"
    )
    return 0 if _killed(whole) >= _ENOUGH else 3


def _killed(counts: collections.Counter[str]) -> float:
    return 1 - counts["survived"] / max(1, counts.total())


if __name__ == "__main__":
    sys.exit(main())
