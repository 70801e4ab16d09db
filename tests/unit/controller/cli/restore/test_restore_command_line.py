"""How `tandem restore` reads its command line, and the sections of the help."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer.main

from tandem.controller.cli.main import COMMANDS, run
from tandem.controller.cli.options import durations, invocation
from tandem.controller.cli.restore import restore as command
from tandem.controller.cli.restore.command_line import TOPICS_ARGUMENT, RestoreGroup
from tandem.controller.cli.restore.view import progress_line


@pytest.mark.parametrize(
    ("words", "topics"),
    [
        (["orders"], ["orders"]),
        (["orders", "--suffix", ".r", "users", "-c", "a.yaml"], ["orders", "users"]),
        (["--suffix", "list", "orders"], ["orders"]),
        (["orders", "list"], ["orders", "list"]),
        (["--topics", "groups"], None),
        ([], None),
    ],
)
def test_words_are_topics(words: list[str], topics: list[str] | None) -> None:
    """Before and behind options; only the first word can be the name of a subcommand."""
    group = typer.main.get_command(command.app)
    context = group.make_context("restore", list(words))
    assert (context.params.get(TOPICS_ARGUMENT) or None) == topics


@pytest.mark.parametrize("word", ["groups", "list", "abandon"])
def test_the_name_of_a_subcommand_calls_it(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With options of its own behind it."""
    assert run(["restore", word, "--help"]) == 0
    assert f"Usage: tandem restore {word}" in capsys.readouterr().out


def test_an_option_before_a_subcommand_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """It would be ignored; the value of an option is no subcommand."""
    assert run(["restore", "--suffix", ".r", "groups"]) == 2
    assert "--suffix stands before `groups`" in capsys.readouterr().err


def test_each_option_of_restore_stands_in_one_section() -> None:
    """A new option needs a place in the help."""
    named = [name for names in RestoreGroup.option_sections.values() for name in names]
    options = {one.name for one in typer.main.get_command(command.app).params if one.param_type_name == "option"}
    assert sorted(named) == sorted(options - {"help"})


def test_the_help_shows_all_commands_in_sections(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command once, none below the title for what has no section."""
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert sorted(re.findall(r"^  ([a-z][a-z-]*)  +[A-Z]", text, re.MULTILINE)) == sorted(COMMANDS)
    assert "\nCommands:" not in text
    assert text.index("Look:") < text.index("Hand over:") < text.index("Restore:") < text.index("Maintain:")


def test_a_moment_may_be_given_as_its_age(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It becomes an absolute time, which is printed: a killed restore is resumed with that one."""
    monkeypatch.setattr(durations, "time", SimpleNamespace(time=lambda: 1_790_000_000.0))
    assert (
        durations.moment_text("--at", "2h") == durations.moment_text("--at", " 120m ago") == "2026-09-21T12:13:20.000Z"
    )
    assert "give --at 2026-09-21T12:13:20.000Z" in capsys.readouterr().err
    for text in ("2026-05-04T10:00:00Z", "2", "yesterday", "2 years", "-2h"):
        assert durations.moment_text("--at", text) == text


def test_the_file_of_the_folder_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tandem.yaml` counts if no file is named; a file that is named counts alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(invocation.CONFIG_VARIABLE, raising=False)
    (tmp_path / "tandem.yaml").write_text("pair: [a\n")
    assert run(["status"]) == 2
    assert "tandem.yaml" in capsys.readouterr().err
    assert run(["status", "-c", "other.yaml"]) == 2
    assert "other.yaml: no such file" in capsys.readouterr().err


def test_a_command_with_root_and_pair_reads_no_file_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The two say where the backup is; a file that lies around must not change that."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(invocation.CONFIG_VARIABLE, raising=False)
    (tmp_path / "tandem.yaml").write_text("pair: [a\n")
    (tmp_path / "store").mkdir()
    store = f"file://{tmp_path}/store"
    assert run(["history", "--root", store]) == 2
    assert "tandem.yaml" in capsys.readouterr().err
    run(["history", "--root", store, "--pair", "p"])
    assert "tandem.yaml" not in capsys.readouterr().err


def test_lines_of_progress() -> None:
    """The rate counts what arrived since the start, which a resumed restore has behind it."""
    assert progress_line(500, 2000, since=0, seconds=0.0, each_bytes=50_000.0) == "500 of 2000 records"
    assert progress_line(1000, 2000, since=500, seconds=5.0, each_bytes=50_000.0) == (
        "1000 of 2000 records, 100 records/s, 5.0 MB/s stored, about 10s left"
    )
