"""The tables of docs/quality/readers.md: one for each way of restoring, and in each the newest run of every row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from readers.applications import APPLICATIONS
from readers.judge import Row

PAGE: Final = Path(__file__).parents[2] / "docs" / "quality" / "readers.md"
_END: Final = "<!-- end -->"
_HEAD: Final = ("application", "case", "ready", "s, source", "s, restore", "state right", "goes on right", "run on")
_NOTE: Final = re.compile(r"^\[(\d+)\]: (.+)$", re.MULTILINE)
#: All cells of a row but the case; a note stands in brackets where the table has its number.
_Cells = tuple[str, ...]


def table(rows: Sequence[Row], known: str = "") -> str:
    """Return the table and its notes as Markdown; rows of the table `known` that are not in `rows` stay as they are."""
    merged = {**_read(known), **{(row.title, row.case): _cells(row) for row in rows}}
    titles = list(dict.fromkeys(item.title for item in APPLICATIONS))
    notes: dict[str, int] = {}
    lines = [_line(_HEAD), _line(["---", "---", "---", "---:", "---:", "---", "---", "---"])]
    for (_, case), (name, *cells) in sorted(merged.items(), key=lambda item: titles.index(item[0][0])):
        lines.append(_line([name, case, *(_numbered(cell, notes) for cell in cells)]))
    return "\n".join([*lines, *(f"\n[{number}]: {why}" for why, number in notes.items())])


def write_page(rows: Sequence[Row], options: str, *, whole: bool) -> bool:
    """Put the rows into the table of restores with `options`; return False if the page has none.

    `whole`: all applications have run, so rows that are no longer there go.
    """
    command = f"make readers RESTORE='{options}'" if options else "make readers"
    begin = f"<!-- written by {command} -->"
    before, found, rest = PAGE.read_text("utf-8").partition(begin)
    if not found:
        return False
    known, _, after = rest.partition(_END)
    PAGE.write_text(f"{before}{begin}\n{table(rows, '' if whole else known)}\n{_END}{after}", "utf-8")
    return True


def _cells(row: Row) -> _Cells:
    """Return the cells of a row, in which its note is written out."""
    note = f" [{row.excepted or '; '.join(row.faults)}]" if row.faults else ""
    ready, state, goes_on = ("yes" if good else f"no{note}" for good in (row.ready, row.state_right, row.goes_on_right))
    today = datetime.now(UTC).date().isoformat()
    name = f"{row.title} {row.version}"
    return name, ready, _seconds(row.source_s), _seconds(row.restore_s), state, goes_on, today


def _read(known: str) -> dict[tuple[str, str], _Cells]:
    """Return the rows of a table that was written, by title and case."""
    notes = dict(_NOTE.findall(known))
    found: dict[tuple[str, str], _Cells] = {}
    for line in known.splitlines():
        if not line.startswith("| ") or line.startswith(("| ---", f"| {_HEAD[0]} |")):
            continue
        name, case, *cells = line.strip("| ").split(" | ")
        full = (re.sub(r"\[(\d+)\]", lambda match: f"[{notes[match[1]]}]", cell) for cell in cells)
        found[name.rpartition(" ")[0], case] = (name, *full)
    return found


def _numbered(cell: str, notes: dict[str, int]) -> str:
    """Return the cell with the number of its note instead of the text."""
    return re.sub(r"\[(.+)\]", lambda match: f"[{notes.setdefault(match[1], len(notes) + 1)}]", cell)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
