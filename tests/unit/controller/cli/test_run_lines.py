"""Lines that `tandem run` writes on stderr: if its log is JSON, all are, with the error that ends it; else text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]
MODULE = """\
import threading
import typer
from tandem.backup_avro.errors import RefusedError
from tandem.sink.process import log, safe_text
app = typer.Typer()

class Dropped:
    def __del__(self):
        raise ValueError("in a finalizer of hunter22")

@app.command()
def go(how: str, fmt: str = "json", level: str = "info") -> None:
    "End in all ways."
    safe_text.register_secrets(["hunter22"])
    log.configure_instance(level=level, fmt=fmt)
    log.bind(pair="shop", instance="a")
    match how:
        case "refused":
            raise RefusedError("generation 7: not covered by hunter22", code="TDM-X001", remedy="wait\\nfor 8")
        case "bug":
            raise RuntimeError("hunter22")
        case "memory":
            raise MemoryError
        case "text":
            raise SystemExit("library says no")
        case "finalizer":
            Dropped()
        case "thread":
            thread = threading.Thread(target=lambda: {}["hunter22"])
            thread.start()
            thread.join()
"""
_MAIN = (
    "import sys; sys.path.insert(0, '.'); from tandem.controller.cli.main import run; "
    "sys.exit(run(sys.argv[1:], package='odd'))"
)
_REAL = "import sys; from tandem.controller.cli.main import main; main()"


def told(folder: Path, script: str, *words: str, **environ: str) -> tuple[int, str]:
    """Exit code and stderr of the command line in a process of its own, which has no terminal."""
    module = folder / "odd" / "run" / "run.py"
    module.parent.mkdir(parents=True, exist_ok=True)
    module.write_text(MODULE)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TANDEM_")}
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        cwd=folder,
        env={**clean, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def documents(text: str) -> list[dict[str, Any]]:
    """Each line as JSON; a line that is none fails."""
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("level", ["info", "critical"])
@pytest.mark.parametrize(
    ("how", "exit_code", "code", "error", "remedy"),
    [
        ("refused", 5, "TDM-X001", "generation 7: not covered by ********", "wait\nfor 8"),
        ("bug", 1, "TDM-C052", "unexpected RuntimeError: ********", "--debug"),
        ("memory", 1, "TDM-C053", "this process: out of memory", "memory.budget"),
        ("text", 1, "TDM-C051", "library says no", ""),
    ],
)
def test_the_error_that_ends_it_is_a_line_of_the_log(
    *, how: str, exit_code: int, code: str, error: str, remedy: str, level: str, tmp_path: Path
) -> None:
    """With code and remedy, and the fields of all lines; no level of the log leaves it out, no secret is in it."""
    got, text = told(tmp_path, _MAIN, "run", how, "--level", level)
    (line,) = documents(text)
    assert (got, line["code"], line["error"], line["level"]) == (exit_code, code, error, "critical")
    assert remedy in (line["remedy"] or "")
    assert (line["event"], line["pair"], line["instance"]) == ("ended with an error", "shop", "a")


def test_a_traceback_is_a_line_as_well(tmp_path: Path) -> None:
    """If it is asked for."""
    _, text = told(tmp_path, _MAIN, "--debug", "run", "bug")
    first, second = documents(text)
    assert (first["event"], second["event"]) == ("ended with an error", "traceback")
    assert second["exception"]["type"] == "RuntimeError"
    assert "hunter22" not in text


@pytest.mark.parametrize(("how", "event"), [("thread", "thread died"), ("finalizer", "error ignored")])
def test_what_python_would_print_itself_is_a_line(how: str, event: str, tmp_path: Path) -> None:
    """An error of a thread, and one that no code can handle."""
    got, text = told(tmp_path, _MAIN, "run", how)
    (line,) = documents(text)
    assert (got, line["event"]) == (0, event)
    assert line["exception"]["frames"]
    assert "hunter22" not in text


def test_a_console_log_ends_with_text_for_people(tmp_path: Path) -> None:
    """As every other command does."""
    got, text = told(tmp_path, _MAIN, "run", "refused", "--fmt", "console")
    assert got == 5
    assert text == "error: generation 7: not covered by ******** [TDM-X001]\nwhat to do: wait\nfor 8\n"


@pytest.mark.parametrize(
    ("log_section", "words", "variable", "is_json"),
    [
        ("log: {format: json}", (), "", True),
        ("log: {format: console}", (), "", False),
        ("log: {format: console}", (), "json", True),
        ("log: {format: json}", ("--set", "log.format=console"), "json", False),
        ("log: {format: jsno}", (), "", True),
        ("", (), "", True),
        ("log: [", (), "", True),
        ("log: [", (), "console", False),
    ],
)
def test_a_configuration_that_is_refused_decides_as_far_as_it_can_be_read(
    *, log_section: str, words: tuple[str, ...], variable: str, is_json: bool, tmp_path: Path
) -> None:
    """Command line over environment over file; what is not to be known is `auto`, which is JSON without a terminal."""
    (tmp_path / "tandem.yaml").write_text(f"pair: shop\nnonsense: 1\n{log_section}\n")
    environ = {"TANDEM_LOG__FORMAT": variable} if variable else {}
    code, text = told(tmp_path, _REAL, "run", *words, **environ)
    assert code == 2
    if is_json:
        (line,) = documents(text)
        assert line["code"].startswith("TDM-C04")
        assert "tandem.yaml" in line["error"] or "docs/configuration.md" in line["remedy"]
    else:
        assert text.startswith("error: ")
        assert "\nwhat to do: " in text
