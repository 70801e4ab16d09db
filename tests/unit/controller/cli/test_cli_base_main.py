"""The `tandem` command itself: help, version, exit codes, errors, what is imported, broken pipes."""

from __future__ import annotations

import ast
import gc
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.controller.cli.main import COMMANDS, run
from tandem.sink.process import log

ROOT = Path(__file__).parents[4]
UNEXPECTED = """\
error: unexpected RuntimeError: first line second line [TDM-C052]
what to do: run `tandem --debug …` (or set TANDEM_DEBUG=1) for the traceback, and report it
"""
HEAVY = ("kafka", "confluent_kafka", "pyspark", "botocore", "pydantic", "fastavro", "stamina")
MODULES = {
    "run/run.py": """\
import logging, os, time, typer, structlog
from tandem.backup_avro.errors import *
from tandem.controller.cli.options.invocation import ConfigOption, SetOption, invocation, load
from tandem.controller.config import values
app = typer.Typer()  # with completion options of its own, as an author may forget to turn them off

@app.command()
def go(what: str, context: typer.Context, config: ConfigOption = None, overrides: SetOption = None) -> int | None:
    "Do what is asked."
    match what:
        case "ok":
            print("data")
        case "three":
            return ExitCode.UNHEALTHY
        case "exit":
            raise typer.Exit(4)
        case "tandem":
            raise RefusedError("generation 7: not covered", code="TDM-X001", remedy="wait for generation 8")
        case "bare":
            raise TandemError("plain", code="TDM-X002")
        case "bug":
            raise RuntimeError("first line\\nsecond line")
        case "interrupt":
            raise KeyboardInterrupt
        case "abort":
            raise typer.Abort
        case "die":
            raise SystemExit("library says no")
        case "log":
            structlog.get_logger("tandem.controller").warning("careful")
            structlog.get_logger("tandem.controller").info("chatty")
            logging.getLogger("kafka.conn").error("the client's own")
        case "config":
            loaded = load(context, config, overrides)
            print(loaded.pair, loaded.instance, loaded.rotation.interval, invocation(context).debug)
            raise RuntimeError(f"says {loaded.kafka['sasl.password'].get_secret_value()}")
        case "flood":
            for number in range(100000):
                print("line", number)
        case "collector":
            import gc
            print(gc.get_threshold()[0])
        case "wait":
            print("waiting", flush=True)
            time.sleep(60)
""",
    "maintain/verify.py": """\
import gc, typer
app = typer.Typer()

@app.command()
def go() -> None:
    "Look at the collector."
    print(gc.get_threshold()[0])
""",
    "inspect/status.py": "import does_not_exist_anywhere\n",
    "maintain/retention.py": """\
import typer
app = typer.Typer()

@app.command()
def go(module: str) -> None:
    "Need a package of an extra."
    __import__(module)
""",
    "inspect/coordination.py": """\
import typer
app = typer.Typer(help="Group.", no_args_is_help=True)

@app.command()
def tail() -> None:
    "Follow."
    print("tailing")

@app.command()
def reset() -> None:
    "Not really."
""",
}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of the caller's, no log and no threshold left behind."""
    thresholds = gc.get_threshold()
    for name in ("TANDEM_CONFIG", "TANDEM_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    yield
    log.reset()
    gc.set_threshold(*thresholds)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package of commands that go wrong in all ways."""
    folder = tmp_path_factory.mktemp("commands")
    for name, text in MODULES.items():
        module = folder / "odd_commands" / name
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(text)
    return folder


@pytest.fixture
def package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of that package, importable."""
    monkeypatch.syspath_prepend(str(folder))
    return "odd_commands"


def spawn(folder: Path, *arguments: str, script: str = "") -> subprocess.Popen[bytes]:
    """Start the command line on the odd commands in a process of its own."""
    script = script or (
        f"import sys; sys.path.insert(0, {str(folder)!r}); from tandem.controller.cli.main import run; "
        "sys.exit(run(sys.argv[1:], package='odd_commands'))"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TANDEM_")}
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environ,
    )


def test_a_process_that_a_library_ends_says_where_it_was(tmp_path: Path) -> None:
    """An assertion in C gives no traceback; its stacks are on stderr all the same."""
    script = "import os; from tandem.controller.cli import main; main.run = lambda _: os.abort(); main.main()"
    process = spawn(tmp_path, script=script)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in err.decode()
    assert re.search(r"main\.py\", line \d+ in main$", err.decode(), re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "code", "out", "err"),
    [
        (["run", "ok"], 0, "data\n", ""),
        (["run", "three"], 3, "", ""),
        (["run", "exit"], 4, "", ""),
        (["run", "tandem"], 5, "", "error: generation 7: not covered [TDM-X001]\nwhat to do: wait for generation 8\n"),
        (["run", "bare"], 1, "", "error: plain [TDM-X002]\n"),
        (
            ["run", "bug"],
            1,
            "",
            UNEXPECTED,
        ),
        (["run", "interrupt"], 130, "", ""),
        (["run", "abort"], 1, "", "aborted\n"),
        (["run", "die"], 1, "", "error: library says no [TDM-C051]\n"),
        (["coordination", "tail"], 0, "tailing\n", ""),
    ],
)
def test_every_end_has_its_exit_code(
    *, arguments: list[str], code: int, out: str, err: str, package: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Data on stdout, one line of error and one of remedy on stderr, never a traceback."""
    assert run(arguments, package=package) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (out, err)


@pytest.mark.parametrize("module", ["pyspark.sql", "numpy", "pyarrow"])
def test_a_command_names_the_extra_that_it_lacks(
    *, module: str, package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code, exit code 2 and the command that installs it; other modules that are missing stay unexpected errors."""
    for name in [name for name in sys.modules if name.partition(".")[0] == module.partition(".")[0]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module.partition(".")[0], None)
    assert run(["retention", module], package=package) == 2
    assert capsys.readouterr().err == (
        f"error: this needs the extra [spark], which is not installed: there is no {module} [TDM-P069]\n"
        "what to do: pip install 'tandem-kafka-backup[spark]'\n"
    )
    assert run(["status"], package=package) == 1
    assert "TDM-C052" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["runn"], "No such command 'runn'. Did you mean 'run'?"),
        (["run"], "Missing argument"),
        (["run", "ok", "--colour"], "No such option: --colour"),
        (["--nope"], "No such option: --nope"),
        (["coordination", "tial"], "Did you mean 'tail'?"),
        (["run", "ok", "--install-completion"], "No such option"),
    ],
)
def test_usage_errors_end_with_2(
    arguments: list[str], says: str, package: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the usage line and the nearest thing that exists, without boxes."""
    assert run(arguments, package=package) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.startswith("Usage: tandem")
    assert captured.err.isascii()
    assert captured.out == ""


def test_debug_shows_the_traceback(
    package: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By flag or by variable, also for errors on purpose; then the hint is gone."""
    assert run(["--debug", "run", "bug"], package=package) == 1
    captured = capsys.readouterr()
    assert "Traceback (most recent call last)" in captured.err
    assert "--debug" not in captured.err
    monkeypatch.setenv("TANDEM_DEBUG", "1")
    assert run(["run", "tandem"], package=package) == 5
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    monkeypatch.setenv("TANDEM_DEBUG", "0")
    assert run(["run", "bug"], package=package) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_a_command_that_cannot_be_imported_fails_alone(package: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing dependency is told when the command is used; help and other commands work."""
    assert run(["status"], package=package) == 1
    assert "unexpected ModuleNotFoundError: No module named 'does_not_exist_anywhere'" in capsys.readouterr().err
    assert run(["--help"], package=package) == 0
    help_text = capsys.readouterr().out
    assert COMMANDS["status"] in help_text
    assert "failover" not in help_text, "a command without a module is not offered"


def test_logs_before_configuration_go_to_stderr(package: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Warnings only, and never on stdout, where data is expected."""
    assert run(["run", "log"], package=package) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert '"event": "careful"' in captured.err
    assert "chatty" not in captured.err
    assert "the client's own" not in captured.err


def test_the_configuration_may_be_named_in_three_places(
    package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the command beats before it, that beats TANDEM_CONFIG; overrides add up; its secrets are hidden at once."""
    for name in ("one", "two", "three"):
        (tmp_path / name).write_text(
            f"{{pair: {name}, topics: {{include: [t]}}, store: {{root: s3://bucket}},"
            " kafka: {bootstrap.servers: h, sasl.password: canary-7f3a9}}"
        )
    monkeypatch.setenv("TANDEM_CONFIG", str(tmp_path / "three"))
    before = ["--config", str(tmp_path / "two"), "--set", "instance=b", "--set", "rotation.interval=1d"]
    after = ["-c", str(tmp_path / "one"), "--set", "rotation.interval=2d"]
    for arguments, expected in (
        (["run", "config"], "three None 7 days, 0:00:00 False\n"),
        ([*before, "run", "config"], "two b 1 day, 0:00:00 False\n"),
        ([*before, "run", "config", *after], "one b 2 days, 0:00:00 False\n"),
        (["--debug", "run", "config", *after], "one None 2 days, 0:00:00 True\n"),
    ):
        assert run(arguments, package=package) == 1
        captured = capsys.readouterr()
        assert captured.out == expected
        assert "unexpected RuntimeError: says ********" in captured.err
        assert "canary" not in captured.err


def test_help_of_all_levels_is_plain(package: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit codes are documented where people look first."""
    assert run(["--help"], package=package) == 0
    out = capsys.readouterr().out
    assert "5 refused for safety" in " ".join(out.split())
    assert "TANDEM_CONFIG" in out
    assert "..." not in out.partition("Look:")[2], "a summary is too long for 80 columns"
    for arguments in (["run", "-h"], ["coordination", "--help"], ["coordination", "tail", "-h"]):
        assert run(arguments, package=package) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"Usage: tandem {' '.join(arguments[:-1])}")
        assert out.isascii()
        assert "completion" not in out


def test_nothing_at_all_shows_help(package: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`tandem` alone is a usage error that says what there is."""
    assert run([], package=package) == 2
    assert "Look:" in capsys.readouterr().err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    """One line on stdout."""
    assert run(["--version"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("tandem ")
    assert out.split()[1][0].isdigit()


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    """Neither Kafka nor Spark nor S3 nor pydantic nor a log is needed to list commands."""
    unneeded = (*HEAVY, "structlog", "rich", "asyncio", "yaml")
    script = (
        "import sys; from tandem.controller.cli.main import run; code = run(['--help']); "
        f"sys.stderr.write(' '.join(name for name in {unneeded!r} if name in sys.modules)); sys.exit(code)"
    )
    started = time.monotonic()
    process = spawn(ROOT, script=script)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert err == b""
    assert b"config" in out
    assert time.monotonic() - started < 10, "an import that takes seconds has crept in"


def test_config_needs_neither_kafka_nor_spark() -> None:
    """Checking a configuration works on a machine that has only the configuration."""
    script = (
        "import sys; from tandem.controller.cli.main import run; code = run(['config', 'schema']); "
        f"sys.stderr.write(' '.join(name for name in {HEAVY!r} if name in sys.modules)); sys.exit(code)"
    )
    process = spawn(ROOT, script=script)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert err == b"pydantic"


def test_looking_at_a_pair_loads_nothing_that_reads_logs(tmp_path: Path) -> None:
    """A command that only shows what is stored starts in a second; readers and pipelines, and Spark, take another."""
    looking = ["status", "--s3-only", "--root", tmp_path.as_uri(), "--pair", "orders"]
    unneeded = ["kafka", "boto3", "obstore", "pyspark", "tandem.sink.pipeline", "tandem.spark_jobs"]
    script = (
        f"import sys; from tandem.controller.cli.main import run; code = run({looking!r}); "
        f"print('loaded:', [name for name in {unneeded!r} if name in sys.modules]); sys.exit(code)"
    )
    out, _ = spawn(ROOT, script=script).communicate(timeout=30)
    assert b"the brokers were not asked" in out
    assert out.endswith(b"loaded: []\n"), out


@pytest.mark.parametrize(
    ("arguments", "said", "loaded"),
    [
        (["restore", "orders", "--to", "other", "--yes"], "planning", ["pydantic"]),
        (["retention", "--horizon", "7d"], "planning retention", ["pydantic"]),
        (["catch-up"], "catching up", ["kafka", "pydantic"]),
        (["verify"], "verifying", ["pyspark", "pydantic"]),
    ],
)
def test_what_takes_long_says_so_first(arguments: list[str], said: str, loaded: list[str], tmp_path: Path) -> None:
    """The first line comes within 0.7 s, before what only a job needs is loaded.

    Measured is processor time, and three times of it allowed: the machine of a test has other work.
    """
    config = tmp_path / "tandem.yaml"
    config.write_text(
        "{pair: p, topics: {include: [orders]}, kafka: {bootstrap.servers: 'nowhere:1'}, "
        f"store: {{root: '{tmp_path.as_uri()}'}}}}"
    )
    script = f"""\
import os, sys, time
from tandem.controller.cli.main import run
from tandem.controller.cli.output import output
def note(text):
    print(repr((text, [name for name in {HEAVY!r} if name in sys.modules], time.process_time())), flush=True)
    os._exit(0)
output.note = note
run({[*arguments, "-c", str(config)]!r})
"""
    out, err = spawn(ROOT, script=script).communicate(timeout=60)
    text, modules, seconds = ast.literal_eval(out.decode())
    assert text.startswith(said), err
    assert modules == loaded
    assert seconds < 3 * 0.7, "the first line comes late"


@pytest.mark.parametrize("what", ["flood", "ok"])
def test_a_reader_that_goes_away_is_no_error_message(folder: Path, what: str) -> None:
    """`tandem history | head`: quiet, whether the pipe breaks in the middle or at the last flush."""
    process = spawn(folder, "run", what)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=30) == 1
    assert err == b""
    process.stderr.close()


def test_control_c_ends_with_130_and_without_a_word(folder: Path) -> None:
    """The signal itself, in a real process."""
    process = spawn(folder, "run", "wait")
    assert process.stdout is not None
    assert process.stdout.readline() == b"waiting\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == b""


def test_cycles_are_looked_for_as_a_process_needs_it(package: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands that end seldom look for cycles among millions of objects; an instance, which stays, does as ever."""
    before, usual = gc.get_threshold(), 700
    gc.set_threshold(usual, 10, 10)  # a command that ran in this process may have set another one
    try:
        assert run(["run", "collector"], package=package) == 0
        assert run(["verify"], package=package) == 0
    finally:
        gc.set_threshold(*before)
    instance, command = map(int, capsys.readouterr().out.split())
    assert instance == usual
    assert command > 10 * usual
