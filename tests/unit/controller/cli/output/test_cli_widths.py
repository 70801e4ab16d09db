"""Tables for terminals: 80 columns without cards, a row for each topic, --wide for partitions; progress in place."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from support.backups.build_backup import Backup, TopicSpec, records

from tandem.controller.cli.main import run
from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, Table
from tandem.controller.cli.output.point_lines import POINT_COLUMNS, POINT_EXTRA, point_rows
from tandem.controller.cli.output.topic_rows import TopicRows
from tandem.controller.cli.restore.view import telling
from tandem.controller.decision.restore_points import PointKind, RestorePoint
from tandem.sink.store import ObjectStore

TOPIC = "payments.customer-accounts.v2.compacted.x"[:40]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Claim to be one."""
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal of 80 columns without colours as stdout."""
    monkeypatch.setenv("NO_COLOR", "1")
    return shown_on(monkeypatch, "sys.stdout", columns=80)


def shown_on(monkeypatch: pytest.MonkeyPatch, stream: str, *, columns: int) -> Terminal:
    """A terminal of so many columns as one of the streams."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(stream, terminal := Terminal())
    return terminal


def backed_up(store: ObjectStore, partitions: int = 3) -> None:
    """A complete generation of topics with long names."""
    topics = [TopicSpec(TOPIC, partitions=partitions), TopicSpec("orders", partitions=2)]
    Backup.completed(store, records(TOPIC, 0, range(12_000), tombstones=[3]), topics=topics)


def rows_of(text: str) -> list[str]:
    """The lines of tables: what is drawn, not the sentences above and below."""
    blocks = [block for block in text.split("\n\n") if "─" in block]
    return [line.rstrip() for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize(
    ("command", "columns"),
    [
        ("status --s3-only", ("GENERATION", "OWNER", "STATE", "LAST COMMIT", "PARTITIONS", "RECORDS", "SIZE")),
        ("list", ("PAIR", "ACTIVE", "GENERATIONS", "RECORDS", "SIZE")),
        ("describe 1", ("TOPIC", "PARTITIONS", "RECORDS", "SIZE", "READ THROUGH")),
        (f"describe {TOPIC}", ("TOPIC", "PARTITIONS", "RECORDS", "READ THROUGH")),
        ("history", ("TIME", "GENERATION", "EVENT", "INSTANCE", "REASON")),
    ],
)
def test_common_tables_fit_80_columns(
    command: str, columns: Sequence[str], store: ObjectStore, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each table stands as a table, with the columns that matter, at a topic name of 40 characters."""
    backed_up(store)
    terminal = on_terminal(monkeypatch)
    assert run([*command.split(), "-c", config]) == 0
    text = terminal.getvalue()
    drawn = rows_of(text)
    assert all(any(column in line for line in drawn) for column in columns), text
    assert max(map(len, drawn)) <= 80, text
    assert not any(line.startswith("TOPIC  ") and "PARTITIONS" not in line for line in text.splitlines()), text


def test_ten_thousand_partitions_are_a_screen(store: ObjectStore, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the state of a pair nor the description of its generation prints a line for each partition."""
    backed_up(store, partitions=10_000)
    terminal = on_terminal(monkeypatch)
    for command in (["status", "--s3-only"], ["describe", "1"]):
        terminal.seek(0)
        terminal.truncate()
        assert run([*command, "-c", config]) == 0
        assert "10002" in terminal.getvalue().replace(",", "")
        assert len(terminal.getvalue().splitlines()) <= 60


FIVE = Table(columns=("name", "a", "b", "c"), rows=[("x" * 30, "1" * 20, "2" * 20, "3" * 20)], extra=("b", "a"))


def test_extra_columns_go_until_a_table_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of them first, and no more than needed; --wide and a file keep all."""
    terminal = on_terminal(monkeypatch)
    output.show(kind="X", body={}, output=OutputFormat.TABLE, tables=[FIVE])
    text = terminal.getvalue()
    assert ("1" * 20 in text, "2" * 20 in text, "3" * 20 in text, "─" in text) == (True, False, True, True)
    terminal.truncate(terminal.seek(0))
    output.show(kind="X", body={}, output=OutputFormat.TABLE, tables=[FIVE], wide=True)
    assert terminal.getvalue().splitlines()[2] == f"B     {'2' * 20}"
    monkeypatch.setattr("sys.stdout", plain := io.StringIO())
    output.show(kind="X", body={}, output=OutputFormat.TABLE, tables=[FIVE])
    assert "2" * 20 in plain.getvalue()


def test_texts_fold_and_names_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reason in the middle goes on below itself; the topic beside it stays whole."""
    terminal = on_terminal(monkeypatch)
    reason = "generation 7 of b is complete and covers everything that this one has"
    table = Table(columns=("topic", "reason", "result"), rows=[(TOPIC, reason, "3 done")])
    output.show(kind="X", body={}, output=OutputFormat.TABLE, tables=[table])
    lines = terminal.getvalue().splitlines()
    assert max(map(len, (line.rstrip() for line in lines))) <= 80
    assert any(TOPIC in line for line in lines)
    assert [line[:40].strip() for line in lines[2:]] == [TOPIC, *[""] * (len(lines) - 3)]
    assert len(lines) > 4


@dataclass
class Part:
    """A partition of the test."""

    partition: int
    records: int


def test_topics_are_summed_and_wide_shows_partitions() -> None:
    """A row for each topic, one for all; with `wide` none but those of partitions."""
    rows = TopicRows(
        names=("topic", "target"),
        groups=[(("a", "a.r"), [Part(0, 3), Part(1, 4)]), (("b", "b.r"), [Part(0, 5)])],
        figures=("records",),
        sums=lambda items: (sum(one.records for one in items),),
    )
    table = rows.table(wide=False)
    assert table.columns == ("topic", "target", "partitions", "records")
    assert list(table.rows) == [("a", "a.r", 2, 7), ("b", "b.r", 1, 5), ("2 in all", "", 3, 12)]
    wide = rows.table(wide=True)
    assert wide.columns == ("topic", "target", "partition", "records")
    assert list(wide.rows) == [("a", "a.r", 0, 3), ("a", "a.r", 1, 4), ("b", "b.r", 0, 5)]


def test_progress_on_a_terminal_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text takes the place of the one before, and what is printed next takes the last one's."""
    shown = shown_on(monkeypatch, "sys.stderr", columns=20)
    output.progress("1 of 2 partitions")
    output.progress("2 of 2 partitions, and much more than fits")
    output.note("done")
    assert shown.getvalue() == "\r\x1b[K1 of 2 partitions\r\x1b[K2 of 2 partitions,…\r\x1b[Kdone\n"


def test_progress_elsewhere_is_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing steers a terminal that is not there, and nothing is said twice in a row."""
    for text in ("7 of 9 objects", "7 of 9 objects", "9 of 9 objects"):
        output.progress(text)
    output.note(f"{datetime(2026, 1, 1, tzinfo=UTC):%Y}")
    output.progress("9 of 9 objects")
    assert capsys.readouterr().err == "7 of 9 objects\n9 of 9 objects\n2026\n9 of 9 objects\n"


def test_the_bar_of_a_restore_goes_on_in_the_next_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """A phase without figures has none of those before it, which were complete."""
    shown = shown_on(monkeypatch, "sys.stderr", columns=80)
    with telling(100.0) as tell:
        tell.phase("loading")
        tell.records(7, 7)
        time.sleep(0.3)  # the bar is drawn ten times a second
        tell.phase("verifying")
        time.sleep(0.3)
    drawn = shown.getvalue().rpartition("verifying")[2]
    assert "7/7" in shown.getvalue()
    assert "0/?" in drawn
    assert "7/7" not in drawn


def test_the_bar_of_a_restore_has_its_rate_and_what_is_left_on_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a restore that takes hours, which has the widest figures."""
    shown = shown_on(monkeypatch, "sys.stderr", columns=80)
    with telling(1000.0) as tell:
        tell.phase("loading")
        for done in range(0, 4_000_000, 1_000_000):
            tell.records(done, 900_000_000)
            time.sleep(0.15)
    (line, *_) = [each for each in re.split(r"[\r\n]", shown.getvalue()) if "3000000/900000000" in each]
    assert re.search(r"[\d,]+\.\d MB/s .*left \S*\d", line), line
    assert "…" not in line


def test_restore_points_keep_their_moments_on_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """From, to and the command stay, for `status` and, with the pair's name, for `list`; times fold between words."""
    at = datetime(2026, 11, 29, 5, 54, 20, tzinfo=UTC)
    restored = "tandem restore --checkpoint before-migration"
    points = [
        RestorePoint(
            kind=PointKind.CHECKPOINT, name="before-migration", start=at, end=at, kept_until=at, command=restored
        ),
        RestorePoint(
            kind=PointKind.NEWEST, name="1", start=at - timedelta(hours=1), end=at, command="tandem restore --at MOMENT"
        ),
    ]
    rows = list(point_rows(points))
    for columns, shown in ((POINT_COLUMNS, rows), (("pair", *POINT_COLUMNS), [("payments-eu", *row) for row in rows])):
        terminal = on_terminal(monkeypatch)
        table = Table(columns=columns, rows=shown, extra=POINT_EXTRA)
        output.show(kind="X", body={}, output=OutputFormat.TABLE, tables=[table])
        text = terminal.getvalue()
        lines = [line.rstrip() for line in text.splitlines()]
        assert all(name in lines[0] + lines[1] for name in ("FROM", "TO", "COMMAND")), text
        assert max(map(len, lines)) <= 80, text
        assert "04:54:20Z" in text
        assert text.count("2026-11-29") == 3
