"""What a benchmark found: rows of runs, targets with what was measured, and the file that keeps both."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.measured import Run

_RESULTS: Final = Path(__file__).with_name("results")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of the table: the middle one of its runs."""

    case: str
    what: str
    runs: tuple[Run, ...]

    @property
    def middle(self) -> Run:
        """The run of the median time."""
        return sorted(self.runs, key=lambda run: run.seconds)[len(self.runs) // 2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A target and what was measured."""

    name: str
    figure: str
    target: str
    met: bool


def at_least(name: str, figure: float, target: float) -> Verdict:
    """Return whether a figure is high enough."""
    return Verdict(name=name, figure=f"{figure:.2f}", target=f">= {target:.2f}", met=figure >= target)


def at_most(name: str, figure: float, target: float) -> Verdict:
    """Return whether a figure is low enough."""
    return Verdict(name=name, figure=f"{figure:.2f}", target=f"<= {target:.2f}", met=figure <= target)


def rows_of(document: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a file that `keep` has written."""
    return [
        Row(case=row["case"], what=row["what"], runs=tuple(Run(**run) for run in row["runs"]))
        for row in document["rows"]
    ]


def keep(rows: Iterable[Row], verdicts: Sequence[Verdict], *, command: str, suffix: str = "") -> Path:
    """Write all of it to a file of today below `results/`, and return its path."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    today = dt.datetime.now(dt.UTC).date().isoformat()
    document = {
        "date": today,
        "command": command,
        "commit": commit.strip(),
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.machine()},
        "rows": [{"case": row.case, "what": row.what, "runs": [asdict(run) for run in row.runs]} for row in rows],
        "targets": [asdict(verdict) for verdict in verdicts],
    }
    path = _RESULTS / f"{today}{suffix}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path
