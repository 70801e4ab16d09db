"""The output of commands: documents and tables on stdout, all other text for people on stderr.

JSON and YAML documents carry `schemaVersion` and `kind`, so that scripts can rely on them; they are ASCII. Field names
are in camelCase with full units (`ageSeconds`); keys that are data, such as topics, are not changed. On a terminal rich
draws tables; one that is too narrow gets fewer columns, then folded texts, and in the end a block for each row.
Elsewhere tables are plain aligned columns that are never truncated. NO_COLOR is honoured. In a process whose log is
JSON (`tandem run` without a terminal), notes, warnings and errors are log lines.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, IntEnum, StrEnum
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TextIO
from uuid import UUID

import typer

from tandem.backup_avro.chain.integers import utc_time
from tandem.backup_avro.json_fields import json_fields
from tandem.sink.process import stderr_lines
from tandem.sink.process.safe_text import printable, redact

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SCHEMA_VERSION: Final = 1
_UNITS: Final = {"s": "Seconds", "ms": "Milliseconds"}
_FOLDED: Final = 24
"""Smallest width, in characters, to which a column of text is folded; in need one with shorter words is narrower."""
_PLACES: Final = frozenset({"generation", "entry", "partition", "epoch", "log start", "base end"})
_SPAN_UNITS: Final = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


class OutputFormat(StrEnum):
    """Formats of a command's result."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


OutputOption = Annotated[OutputFormat, typer.Option("-o", "--output", help="Form of the result on stdout.")]
WideOption = Annotated[
    bool, typer.Option("--wide", help="Show each partition, and all columns on a narrow terminal too.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells under `columns`; cells are converted by `str`, None is `-`. `right` names right-aligned columns.

    Integers in right-aligned columns are counts, and get separators of thousands, but for those that name a place
    (`_PLACES`, and offsets): people copy them into commands.

    `extra` names columns that a terminal leaves out, from the first of them on, until the table fits. ValueError if it
    names one that is not there: a wide terminal would not show the mistake.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str | None = None
    right: frozenset[str] = frozenset()
    extra: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Look at the names of extra columns."""
        if absent := set(self.extra) - set(self.columns):
            raise ValueError(f"extra columns that the table lacks: {sorted(absent)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictLines:
    """Lines of text; line number `line`, from 0, is the verdict and is green (`good`) or red on a terminal."""

    text: str
    line: int
    good: bool


def show(
    *,
    kind: str,
    body: DataclassInstance | Mapping[str, object],
    output: OutputFormat,
    tables: Iterable[Table | VerdictLines | str],
    stream: bool = False,
    wide: bool = False,
) -> None:
    """Print a command's result: `body`, a dataclass, as a document of `kind`, or `tables` and lines for people.

    With `stream` each call prints one document of many: one JSON document per line, YAML documents separated by `---`.
    With `wide` tables keep all their columns, however narrow the terminal is.
    """
    match output:
        case OutputFormat.JSON:
            _print(json.dumps(document(kind, body), indent=None if stream else 2, allow_nan=False), sys.stdout)
        case OutputFormat.YAML:
            import yaml  # noqa: PLC0415 - not needed for most commands

            text = yaml.safe_dump(document(kind, body), sort_keys=False, default_flow_style=False, width=120)
            _print(("---\n" if stream else "") + text.rstrip("\n"), sys.stdout)
        case OutputFormat.TABLE:
            for number, table in enumerate(tables):
                if number and not stream:
                    _print("", sys.stdout)
                match table:
                    case str():
                        _print(printable(table, lines=True), sys.stdout)
                    case VerdictLines():
                        _verdict(table)
                    case _:
                        _table(table, wide=wide)


def document(kind: str, body: DataclassInstance | Mapping[str, object]) -> dict[str, Any]:
    """Return `body` as a document of `kind`, ready for JSON and YAML."""
    found = {camel(key): plain(value) for key, value in body.items()} if isinstance(body, Mapping) else plain(body)
    return {"schemaVersion": SCHEMA_VERSION, "kind": kind, **found}


def clear() -> None:
    """Clear the terminal before output is drawn anew; elsewhere print a blank line as a separator."""
    _print("\x1b[H\x1b[2J\x1b[3J" if is_fancy(sys.stdout) else "", sys.stdout)


def status_line(text: str) -> None:
    """Print `text` as exactly one line on stdout, for monitoring: `OK - all is well|lag=0`."""
    _print(printable(redact(" ".join(text.split()))), sys.stdout)


def _log() -> Any:  # noqa: ANN401 - a lazy logger has no type
    import structlog  # noqa: PLC0415 - takes a third of the time of --help

    return structlog.get_logger("tandem.controller")


def note(text: str) -> None:
    """Print a note for people on stderr."""
    if stderr_lines.only_json():
        _log().info(text)
        return
    _print(printable(redact(text), lines=True), sys.stderr)


def progress(text: str) -> None:
    """Show how far a command is, on stderr: in place on a terminal, else a line unless the last line says the same.

    Whatever is printed next takes the line's place.
    """
    shown = printable(redact(" ".join(text.split())))
    with _PROGRESS.lock:
        if is_fancy(sys.stderr):
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{shown if len(shown) <= width else shown[: width - 1] + '…'}")
            sys.stderr.flush()
            _PROGRESS.open = True
        elif shown != _PROGRESS.last:
            sys.stderr.write(shown + "\n")
        _PROGRESS.last = shown


class _Progress:
    """The line of progress that stands on the terminal, if `open`, and the text of the last one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open = False
        self.last = ""


_PROGRESS: Final = _Progress()


def warn(text: str) -> None:
    """Print a warning on stderr."""
    if stderr_lines.only_json():
        _log().warning(text)
        return
    _print(_painted("warning:", "33", sys.stderr) + " " + printable(redact(text), lines=True), sys.stderr)


def fail(message: str, *, code: str, remedy: str | None = None) -> None:
    """Print an error and its remedy on stderr; the first line ends with the code in brackets, for scripts.

    As a log line it is critical, because it ends the process: `log.level` never leaves it out.
    """
    if stderr_lines.only_json():
        _log().critical("ended with an error", error=message, code=code, remedy=remedy)
        return
    first, *others = printable(redact(message), lines=True).split("\n")
    text = "\n".join([f"{first} [{code}]", *others])
    _print(_painted("error:", "31;1", sys.stderr) + " " + text, sys.stderr)
    if remedy:
        _print(_painted("what to do:", "1", sys.stderr) + " " + printable(redact(remedy), lines=True), sys.stderr)


def trace() -> None:
    """Print the traceback of the exception that is being handled on stderr, without secrets."""
    if stderr_lines.only_json():
        _log().critical("traceback", exc_info=True)
        return
    sys.stderr.write(printable(redact(traceback.format_exc()), lines=True))


def camel(name: str) -> str:
    """Return the name of a field in documents: `topic_id` is `topicId`, `age_s` is `ageSeconds`."""
    first, *others = name.split("_")
    return first + "".join(_UNITS.get(word, word.capitalize()) for word in others)


def plain(value: object) -> Any:  # noqa: ANN401 - JSON
    """Return `value` in JSON types: times in UTC with Z, durations in seconds, enums by value, tuples as lists.

    An IntEnum becomes its name. A dataclass has the fields of `json_fields`, with names in camelCase; keys of mappings
    are data and are not changed.

    Raises TypeError for types without a JSON form, such as bytes.
    """
    match value:
        case IntEnum():
            return value.name
        case Enum():
            return plain(value.value)
        case None | bool() | int() | float() | str():
            return value
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case timedelta():
            return value.total_seconds()
        case PurePath() | UUID():
            return str(value)
        case Mapping():
            return {str(plain(key)): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case set() | frozenset():
            return sorted(str(plain(item)) for item in value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            members = [(field, getattr(value, field.name)) for field in json_fields(type(value))]
            return {
                camel(field.name): plain(utc_time(inner) if field.time_ms and inner is not None else inner)
                for field, inner in members
                if not (field.optional and inner is None)
            }
        case _:
            raise TypeError(f"no form in JSON for {type(value).__name__}")


def duration(span: timedelta | float) -> str:
    """Return a duration for people, its two largest units: `350ms`, `1m 5s`, `3d 4h`."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else float(span)
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    if seconds < 0.9995:
        return f"{sign}{max(1, round(seconds * 1000))}ms" if seconds else "0s"
    if seconds < 10:
        return f"{sign}{seconds:.1f}".removesuffix(".0") + "s"
    rest = round(seconds)
    parts: list[str] = []
    for unit, size in _SPAN_UNITS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return sign + " ".join(part for part in parts if part)


def at(moment: datetime | None) -> str | None:
    """Return a time for people, to the second: `2026-05-04 10:00:00Z`; None stays None."""
    return None if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def size(count: int) -> str:
    """Return a number of bytes for people: `512 B`, `1.5 KiB`, `64.0 MiB`."""
    if abs(count) < 1024:
        return f"{count} B"
    amount = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        amount /= 1024
        if abs(amount) < 1023.95 or unit == "PiB":
            return f"{amount:.1f} {unit}"
    raise AssertionError("unreachable")


def age(moment: datetime | None, *, now: datetime) -> str:
    """Return how long ago `moment` was: `5m 10s ago`, `in 3s`, `now`; `never` for None."""
    if moment is None:
        return "never"
    span = now - moment
    if abs(span) < timedelta(seconds=1):
        return "now"
    return f"{duration(span)} ago" if span > timedelta(0) else f"in {duration(-span)}"


def is_fancy(stream: TextIO) -> bool:
    """Return whether `stream` is a terminal that supports drawing."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _painted(text: str, code: str, stream: TextIO) -> str:
    fancy = is_fancy(stream) and not os.environ.get("NO_COLOR")
    return f"\x1b[{code}m{text}\x1b[0m" if fancy else text


def _verdict(verdict: VerdictLines) -> None:
    for number, line in enumerate(printable(verdict.text, lines=True).split("\n")):
        is_it = number == verdict.line
        _print(_painted(line, "32;1" if verdict.good else "31;1", sys.stdout) if is_it else line, sys.stdout)


def _print(text: str, stream: TextIO) -> None:
    with _PROGRESS.lock:
        if _PROGRESS.open:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            _PROGRESS.open = False
        _PROGRESS.last = ""
        stream.write(text + "\n")


def _table(table: Table, *, wide: bool) -> None:
    counts = [name in table.right - _PLACES and "offset" not in name for name in table.columns]
    rows = [list(map(_cell, row, counts)) for row in table.rows]
    if is_fancy(sys.stdout):
        _draw(table, rows, wide=wide)
        return
    if table.title:
        _print(printable(table.title), sys.stdout)
    lines = [[column.upper() for column in table.columns], *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(table.columns))]
    for line in lines:
        cells = [
            cell.rjust(width) if column in table.right else cell.ljust(width)
            for cell, width, column in zip(line, widths, table.columns, strict=True)
        ]
        _print("  ".join(cells).rstrip(), sys.stdout)


def _cell(cell: object, is_count: bool) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if is_count and type(cell) is int else printable(str(cell))


def _draw(table: Table, rows: Sequence[Sequence[str]], *, wide: bool) -> None:
    """Draw a table on a terminal, without some of its extra columns, folded, or as blocks if it is too wide."""
    import rich.box  # noqa: PLC0415 - a tenth of a second that only a terminal needs
    import rich.cells  # noqa: PLC0415 - likewise
    import rich.console  # noqa: PLC0415 - likewise
    import rich.table  # noqa: PLC0415 - likewise
    import rich.text  # noqa: PLC0415 - likewise

    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    console = rich.console.Console(file=sys.stdout, highlight=False, color_system=colours)
    names = [column.upper() for column in table.columns]
    cells = [[names[index], *(row[index] for row in rows)] for index in range(len(names))]
    folds = [
        index == len(names) - 1 or any(" " in cell for cell in cells[index][1:]) for index in range(len(names))
    ]  # names and figures are never broken, except in the last column
    widths = [max(map(rich.cells.cell_len, column)) for column in cells]
    least = [
        min(width, _FOLDED) if folds[index] and table.columns[index] not in table.right else width
        for index, width in enumerate(widths)
    ]
    shown = list(range(len(names)))
    for column in () if wide else table.extra:
        if sum(least[index] + 2 for index in shown) - 2 <= console.width:
            break
        shown.remove(table.columns.index(column))
    if sum(least[index] + 2 for index in shown) - 2 > console.width:
        longest = [max(map(rich.cells.cell_len, " ".join(column).split())) for column in cells]
        least = [min(w, longest[i]) if folds[i] and i < len(names) - 1 else w for i, w in enumerate(least)]
    if sum(least[index] + 2 for index in shown) - 2 > console.width:
        _blocks(table.title, names, rows)
        return
    spare = console.width + 2 - sum(least[index] + 2 for index in shown)
    given = list(least)
    for index in reversed(shown):  # the last column first: it has the longest texts
        given[index] += min(widths[index] - least[index], spare)
        spare -= given[index] - least[index]
    drawn = rich.table.Table(
        box=rich.box.SIMPLE_HEAD,
        title=table.title,
        title_justify="left",
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for index in shown:
        justify: Literal["left", "right"] = "right" if table.columns[index] in table.right else "left"
        drawn.add_column(
            names[index],
            justify=justify,
            overflow="fold",
            no_wrap=least[index] == widths[index],
            width=given[index],
        )
    for row in rows:
        drawn.add_row(*(rich.text.Text(row[index]) for index in shown))
    console.print(drawn)


def _blocks(title: str | None, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print each row as a block of its own, as psql does on a terminal that is too narrow."""
    if title:
        _print(printable(title), sys.stdout)
    wide = max(len(name) for name in names)
    for number, row in enumerate(rows):
        if number:
            _print("", sys.stdout)
        for name, cell in zip(names, row, strict=True):
            if cell != "-":
                _print(f"{name.ljust(wide)}  {cell}", sys.stdout)
