"""The table of docs/quality/readers.md."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from readers.judge import Row

PAGE: Final = Path(__file__).parents[2] / "docs" / "quality" / "readers.md"
_BEGIN, _END = "<!-- written by make readers -->", "<!-- end -->"
_HEAD: Final = ("application", "case", "ready", "s, source", "s, restore", "state right", "goes on right")


def table(rows: Sequence[Row]) -> str:
    """Return the table and its notes as Markdown."""
    lines = [_line(_HEAD), _line(["---", "---", "---", "---:", "---:", "---", "---"])]
    notes: dict[str, int] = {}
    for row in rows:
        right = [_yes(row.ready), _yes(row.state_right), _yes(row.goes_on_right)]
        if row.faults:
            number = notes.setdefault(row.excepted or "; ".join(row.faults), len(notes) + 1)
            right = [f"{word} [{number}]" if word == "no" else word for word in right]
        ready, state, goes_on = right
        seconds = (_seconds(row.source_s), _seconds(row.restore_s))
        lines.append(_line([f"{row.title} {row.version}", row.case, ready, *seconds, state, goes_on]))
    return "\n".join([*lines, *(f"\n[{number}]: {why}" for why, number in notes.items())])


def write_page(rows: Sequence[Row], seconds: float) -> None:
    """Put date, command and table into the page."""
    before, _, rest = PAGE.read_text("utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    minutes, rest = divmod(round(seconds), 60)
    when = f"{datetime.now(UTC).date().isoformat()}, `make readers`, {minutes} min {rest} s:"
    PAGE.write_text(f"{before}{_BEGIN}\n{when}\n\n{table(rows)}\n{_END}{after}", "utf-8")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _yes(right: bool) -> str:
    return "yes" if right else "no"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
