"""Results for scripts and for people: documents, tables, messages, durations, sizes, ages."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml

from tandem.backup_avro.json_fields import NOT_IN_JSON, TIME_MS, UNLESS_NONE, in_json
from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, Table
from tandem.sink.process import log, safe_text


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Claim to be one."""
        return True


@pytest.fixture(autouse=True)
def _no_secrets() -> Iterator[None]:
    """Secrets registered by a test are forgotten after it."""
    yield
    log.reset()


class Colour(Enum):
    """An enum of the test."""

    RED = "red"


@dataclass
class Point:
    """A dataclass of the test."""

    at: datetime
    took: timedelta


class Level(IntEnum):
    """A numbered enum of the test."""

    HIGH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A dataclass of the test with all marks of `json_fields`."""

    taken_ms: int | None = field(metadata=TIME_MS)
    age_s: float
    inner_key: str = field(default="hush", metadata=NOT_IN_JSON)
    error: str | None = field(default=None, metadata=UNLESS_NONE)

    @property
    @in_json
    def level(self) -> Level:
        """Printed by its name."""
        return Level.HIGH

    @property
    def hidden(self) -> int:
        """A property without a mark."""
        return 1


def test_a_dataclass_says_what_its_document_holds() -> None:
    """Marks of fields and properties decide; times in ms become times, also what is beyond the last of them."""
    assert output.document("Sample", Sample(taken_ms=1_500, age_s=2.0)) == {
        "schemaVersion": 1,
        "kind": "Sample",
        "takenMilliseconds": "1970-01-01T00:00:01.500000Z",
        "ageSeconds": 2.0,
        "level": "HIGH",
    }
    document = output.document("Sample", Sample(taken_ms=None, age_s=0.0, error="no answer"))
    assert (document["takenMilliseconds"], document["error"]) == (None, "no answer")
    assert str(output.plain(Sample(taken_ms=2**62, age_s=0.0))).count("9999-")


BODY: dict[str, object] = {
    "point": Point(
        at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=1))), took=timedelta(milliseconds=1500)
    ),
    "colour": Colour.RED,
    "ids": (UUID(int=1), Path("/x")),
    "names": frozenset({"b", "a"}),
    "none": None,
    "yes": True,
    "text": "ü",
    "by": {Colour.RED: 1},
}
PLAIN = {
    "schemaVersion": 1,
    "kind": "Thing",
    "point": {"at": "2026-01-02T02:04:05Z", "took": 1.5},
    "colour": "red",
    "ids": ["00000000-0000-0000-0000-000000000001", "/x"],
    "names": ["a", "b"],
    "none": None,
    "yes": True,
    "text": "ü",
    "by": {"red": 1},
}


@pytest.mark.parametrize(("form", "parse"), [(OutputFormat.JSON, json.loads), (OutputFormat.YAML, yaml.safe_load)])
def test_documents_carry_version_and_kind(form: OutputFormat, parse: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Same content in both forms, ASCII, on stdout, in the order given."""
    output.show(kind="Thing", body=BODY, output=form, tables=())
    captured = capsys.readouterr()
    assert parse(captured.out) == PLAIN
    assert list(parse(captured.out)) == list(PLAIN)
    assert captured.out.isascii()
    assert captured.out.endswith("\n")
    assert captured.err == ""


def test_streams_are_one_document_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    """So `tail --follow` can be read line by line."""
    for number in range(2):
        output.show(kind="Event", body={"n": number}, output=OutputFormat.JSON, tables=(), stream=True)
    assert [json.loads(line)["n"] for line in capsys.readouterr().out.splitlines()] == [0, 1]
    for number in range(2):
        output.show(kind="Event", body={"n": number}, output=OutputFormat.YAML, tables=(), stream=True)
    assert [item["n"] for item in yaml.safe_load_all(capsys.readouterr().out)] == [0, 1]


@pytest.mark.parametrize("value", [b"bytes", object(), Point])
def test_what_has_no_form_is_refused(value: object) -> None:
    """Better an error in a test than `<object at 0x…>` in somebody's script."""
    with pytest.raises(TypeError, match="no form in JSON"):
        output.plain({"x": value})


def test_not_a_number_is_refused() -> None:
    """NaN is not JSON."""
    with pytest.raises(ValueError, match="JSON"):
        output.show(kind="X", body={"x": float("nan")}, output=OutputFormat.JSON, tables=())


TABLE = Table(
    columns=("name", "lag"), rows=[("airports", 7), ("x" * 200, None), ("a\x1b[31mb\n", 1234)], right=frozenset({"lag"})
)


def test_piped_tables_are_aligned_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is cut off, empty cells are `-`, control characters are escaped."""
    output.show(kind="X", body={}, output=OutputFormat.TABLE, tables=["a line", TABLE])
    assert capsys.readouterr().out.splitlines() == [
        "a line",
        "",
        "NAME".ljust(200) + "    LAG",
        "airports".ljust(200) + "      7",
        "x" * 200 + "      -",
        "a\\x1b[31mb\\n".ljust(200) + "  1,234",
    ]


def test_counts_have_separators_and_places_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    """An offset or the number of an entry is copied into the next command."""
    columns = ("version", "generation", "entry", "next offset", "records")
    numbers = Table(columns=columns, rows=[(1234,) * 5], right=frozenset(columns) - {"version"})
    output.show(kind="X", body={}, output=OutputFormat.TABLE, tables=[numbers])
    assert capsys.readouterr().out.splitlines()[1].split() == ["1234", "1234", "1234", "1234", "1,234"]


def test_tables_on_a_terminal_are_drawn_but_hold_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Same cells; markup in a name is text; what came from a topic can't steer the terminal."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    table = Table(columns=("name",), rows=[("[red]x[/red]",), ("a\x1b[31mb",)])
    output.show(kind="X", body={}, output=OutputFormat.TABLE, tables=[table])
    text = terminal.getvalue()
    assert "[red]x[/red]" in text
    assert "a\\x1b[31mb" in text
    assert "─" in text


WIDE = Table(
    columns=("name", "a middle one", "size", "what happens"),
    rows=[("orders", "x" * 20, 7, "words that take more than the rest of the line has"), ("b", None, 12, "nothing")],
    right=frozenset({"size"}),
)


def on_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int, *tables: Table | output.VerdictLines | str, colours: bool = False
) -> str:
    """What a terminal so wide gets."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not colours:
        monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    output.show(kind="X", body={}, output=OutputFormat.TABLE, tables=tables)
    return terminal.getvalue()


def test_the_last_column_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers and names stay whole; a text at the end goes on below itself."""
    lines = on_terminal(monkeypatch, 70, WIDE).splitlines()
    assert all(len(line.rstrip()) <= 70 for line in lines)
    assert any("orders" in line and "x" * 20 in line and "words that take" in line for line in lines)
    assert any(line.startswith(" " * 30) and "line has" in line for line in lines)


def test_a_narrow_terminal_gets_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What can't be folded is told line by line, and what there is not is left out."""
    lines = on_terminal(monkeypatch, 50, WIDE).splitlines()
    assert lines[:2] == ["NAME          orders", "A MIDDLE ONE  " + "x" * 20]
    assert lines[4:] == ["", "NAME          b", "SIZE          12", "WHAT HAPPENS  nothing"]
    numbers = Table(columns=("name", "size"), rows=[("x" * 30, "1" * 30)], right=frozenset({"size"}))
    assert on_terminal(monkeypatch, 50, numbers) == f"NAME  {'x' * 30}\nSIZE  {'1' * 30}\n"


def test_a_verdict_has_its_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line of several is green or red, where colours are wanted."""
    good = output.VerdictLines(text="pair x\nHEALTHY\nmore", line=1, good=True)
    assert on_terminal(monkeypatch, 80, good, colours=True) == "pair x\n\x1b[32;1mHEALTHY\x1b[0m\nmore\n"
    bad = output.VerdictLines(text="pair x\nUNHEALTHY\nmore", line=1, good=False)
    assert on_terminal(monkeypatch, 80, bad, colours=True) == "pair x\n\x1b[31;1mUNHEALTHY\x1b[0m\nmore\n"
    assert on_terminal(monkeypatch, 80, bad) == "pair x\nUNHEALTHY\nmore\n"


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal messages are painted, unless NO_COLOR is set."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stderr", painted := Terminal())
    output.fail("x", code="TDM-X001")
    assert painted.getvalue() == "\x1b[31;1merror:\x1b[0m x [TDM-X001]\n"
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stderr", plain := Terminal())
    output.fail("x\n  and y", code="TDM-X001", remedy="z")
    assert plain.getvalue() == "error: x [TDM-X001]\n  and y\nwhat to do: z\n"
    monkeypatch.setattr("sys.stdout", table := Terminal())
    output.show(kind="X", body={}, output=OutputFormat.TABLE, tables=[TABLE])
    assert "\x1b" not in table.getvalue()


def test_messages_hide_registered_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    """A vendor's message may repeat a password."""
    safe_text.register_secrets(["hunter22"])
    output.note("note hunter22")
    output.warn("warn hunter22")
    output.fail("fail hunter22", code="TDM-X001", remedy="do hunter22")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert (
        captured.err
        == "note ********\nwarning: warn ********\nerror: fail ******** [TDM-X001]\nwhat to do: do ********\n"
    )


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (0, "0s"),
        (0.0042, "4ms"),
        (0.35, "350ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (9.99, "10s"),
        (0.9999, "1s"),
        (0.00001, "1ms"),
        (59.6, "1m"),
        (65, "1m 5s"),
        (3600, "1h"),
        (3605, "1h"),
        (90061, "1d 1h"),
        (7 * 86400, "7d"),
        (timedelta(days=3, hours=4, minutes=5), "3d 4h"),
        (-65, "-1m 5s"),
    ],
)
def test_durations_for_people(span: float | timedelta, text: str) -> None:
    """The two largest units that matter."""
    assert output.duration(span) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (64 * 1024**2, "64.0 MiB"),
        (5 * 1024**4, "5.0 TiB"),
        (1024**6, "1024.0 PiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_sizes_for_people(count: int, text: str) -> None:
    """Binary units with one decimal."""
    assert output.size(count) == text


def test_ages_for_people() -> None:
    """Past, future, just now, never."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    moments = [now - timedelta(minutes=5), now + timedelta(seconds=3), now, None]
    assert [output.age(moment, now=now) for moment in moments] == ["5m ago", "in 3s", "now", "never"]
