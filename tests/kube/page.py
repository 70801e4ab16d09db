"""The table of docs/quality/kube.md, and in it the newest run of every step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from kube.cluster_access import SOURCE
from kube.steps import Outcome, Step

PAGE: Final = SOURCE / "docs" / "quality" / "kube.md"
_BEGIN: Final = "<!-- written by make kube-test -->"
_END: Final = "<!-- end -->"


def table(steps: Sequence[Step], outcomes: Sequence[Outcome], known: str = "") -> str:
    """Return the table; rows of `known` whose steps have not run stay as they are."""
    rows = {match[1]: line for line in known.splitlines() if (match := re.match(r"\| `([a-z-]+)` \|", line))}
    today = datetime.now(UTC).date().isoformat()
    for each in outcomes:
        seen = f"**fault**: {each.fault}" if each.fault else each.seen
        cells = (f"`{each.step.name}`", each.step.title, f"{each.seconds:.0f}", seen.replace("|", "/"), today)
        rows[each.step.name] = f"| {' | '.join(cells)} |"
    head = ("| `ONLY=` | step | s | seen | run on |", "| --- | --- | ---: | --- | --- |")
    return "\n".join([*head, *(rows[step.name] for step in steps if step.name in rows)])


def write_page(steps: Sequence[Step], outcomes: Sequence[Outcome]) -> None:
    """Put the rows into the page."""
    before, _, rest = PAGE.read_text("utf-8").partition(_BEGIN)
    known, _, after = rest.partition(_END)
    PAGE.write_text(f"{before}{_BEGIN}\n{table(steps, outcomes, known)}\n{_END}{after}", "utf-8")
