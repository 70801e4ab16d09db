"""Plant each mistake in a copy of the code and let the judges look: `make planted`.

Judges, in this order: who caught it the last time, by `docs/quality/planted.md` (one history, or the tests of one
file); the simulation (SEEDS histories); the unit tests. A mistake is caught by the first that objects.
Exit code 0: all were caught. 1: a judge objects to the code as it is. 3: at least one mistake was not caught.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from planted.catalogue import MISTAKES
from planted.mistakes import Mistake

ROOT = Path(__file__).parents[2]
#: What is made here. All else is copied, the history of the code, too: some unit test may read it.
_LEFT = (".venv", ".*_cache", ".hypothesis", ".sandbox", "build", "dist", "__pycache__", "*.egg-info")
_LIMIT_S = 1200
_ROW = re.compile(
    r"^\| (?P<name>.+?) \| (?:simulation \| seed (?P<seed>\d+)|unit tests \| `(?P<file>test_\w+\.py)`, .+) \|$",
    re.MULTILINE,
)


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="planted", description=__doc__)
    parser.add_argument("--only", default="", help="mistakes whose name has a match of this expression")
    parser.add_argument("--seeds", type=int, default=150, help="how many histories the simulation plays at most")
    parser.add_argument("--jobs", default="2", help="processes")
    parser.add_argument("--named", action="store_true", help="only the judges that docs/quality/planted.md names")
    arguments = parser.parse_args()
    try:
        wanted = [mistake for mistake in MISTAKES if re.search(arguments.only, mistake.name)]
    except re.error as error:
        parser.error(f"--only {arguments.only!r} is no regular expression: {error}")
    if not wanted:
        parser.error(f"--only {arguments.only!r} matches no mistake")
    last = last_judges()
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        sound = Path(folder) / "sound"
        plant(None, sound)
        if arguments.named:
            objection = first_objection(sound, {last.get(mistake.name) for mistake in wanted})
        else:
            objection = caught_by(sound, seeds=20, jobs=arguments.jobs)
        if objection is not None:
            sys.stderr.write(f"a judge objects to the code without any mistake: {objection}\n")
            return 1
        for mistake in wanted:
            began = time.perf_counter()
            copy = Path(folder) / "copy"
            plant(mistake, copy)
            named = last.get(mistake.name, "")
            judge = still_caught_by(copy, named or None)
            if judge is None and not arguments.named:
                judge = caught_by(copy, seeds=arguments.seeds, jobs=arguments.jobs)
            elif judge is None and named.isdigit():  # the judge is the simulation: a seed has another history by now
                judge = by_histories(copy, "1", arguments.seeds, arguments.jobs)
            shutil.rmtree(copy)
            missed += judge is None
            sys.stdout.write(f"{mistake.name:70} {judge or 'NOT CAUGHT'} ({time.perf_counter() - began:.0f} s)\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(wanted) - missed} of {len(wanted)} planted mistakes were caught\n")
    return 3 if missed else 0


def last_judges() -> dict[str, str]:
    """Return who caught each mistake the last time, by its name: a seed of the simulation, or a file of unit tests."""
    page = (ROOT / "docs" / "quality" / "planted.md").read_text(encoding="utf-8")
    return {row["name"]: row["seed"] or row["file"] for row in _ROW.finditer(page)}


def file_of_tests(root: Path, name: str) -> Path | None:
    """Return the file of unit tests of this name, in whichever folder it lies; None if there is none."""
    return next((root / "tests" / "unit").rglob(name), None)


def plant(mistake: Mistake | None, copy: Path) -> None:
    """Copy the code to `copy` with one mistake (None: as it is). ValueError if its place is not there exactly once."""
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*_LEFT))
    if mistake is None:
        return
    path = copy / mistake.file
    path.write_text(planted(mistake, path.read_text(encoding="utf-8")), encoding="utf-8")


def planted(mistake: Mistake, text: str) -> str:
    """Return `text` with the mistake in it. ValueError if its place is not there exactly once."""
    if text.count(mistake.old) != 1:
        raise ValueError(f"{mistake.name}: its place stands {text.count(mistake.old)} times in {mistake.file}")
    return text.replace(mistake.old, mistake.new)


def still_caught_by(copy: Path, last: str | None) -> str | None:
    """Ask who caught it the last time, as `last_judges` has it."""
    if last is None:
        return None
    return by_histories(copy, last, 1, "1") if last.isdigit() else by_tests(copy, last, "0")


def first_objection(copy: Path, judges: set[str | None]) -> str | None:
    """Ask each of `judges`, as `last_judges` has them, once; return the first objection, None if nobody objects."""
    return next((found for judge in sorted(filter(None, judges)) if (found := still_caught_by(copy, judge))), None)


def caught_by(copy: Path, *, seeds: int, jobs: str) -> str | None:
    """Return who objects and how, None if nobody does."""
    return by_histories(copy, "1", seeds, jobs) or by_tests(copy, "", jobs)


def by_histories(copy: Path, first: str, seeds: int, jobs: str) -> str | None:
    """Return what breaks the promise first in `seeds` histories from seed `first` on, None if nothing does."""
    options = ("--first", first, "--seeds", str(seeds), "--jobs", jobs, "--stop-after", "1")
    found = _run(copy, "simulation", *options)
    if found.returncode == 3:
        return f"simulation: {found.stdout.splitlines()[0][:110]}"
    if found.returncode:
        raise RuntimeError(f"the simulation did not run: {found.stderr[-2000:]}")
    return None


def by_tests(copy: Path, name: str, jobs: str) -> str | None:
    """Return the unit test that fails first and what it saw, None if none does; `name` is one file's, or empty."""
    # That a mistake has its place says nothing about the code: with the mistake planted, it never has.
    not_a_judge = "--deselect=tests/unit/judges/test_planted.py::test_a_mistake_has_its_place"
    tests = "tests/unit"
    if name:
        place = file_of_tests(copy, name)
        if place is None:
            return None  # it has another name since
        tests = str(place.relative_to(copy))
    found = _run(copy, "pytest", "-q", "-x", "-n", jobs, "-p", "no:cacheprovider", not_a_judge, tests)
    first = re.search(r"^FAILED \S*?(test_\w+\.py\S*)(.*)", found.stdout, re.MULTILINE)
    if first is not None:
        return f"unit tests: {first[1]}{first[2][:160]}"
    if found.returncode:
        return f"unit tests: {found.stdout.strip().splitlines()[-1][:110]}"
    return None


def _run(copy: Path, *command: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(str(copy / name) for name in ("", "avro", "sink", "spark_jobs", "controller", "tests"))
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "COLUMNS": "300"},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
