"""Command lines: those that we print and write parse, those that are wrong end with 2 and one line of what is wrong."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pages import command_story, documented
from support.pages.command_tree import commands, parse
from support.pages.documented import words

from tandem.controller.cli.main import COMMANDS, SECTIONS, run
from tandem.controller.cli.reference import command_page
from tandem.sink.process import log

ROOT = Path(__file__).parents[4]
_VALUE = "NoSuchOption", "KeyError", "NoSuchCommand"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of the caller's, no log left behind."""
    for name in ("TANDEM_CONFIG", "TANDEM_DEBUG", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    yield
    log.reset()


# --- what we write ----------------------------------------------------------------------------------------------------


def test_the_page_of_commands_is_what_they_say() -> None:
    """docs/cli.md is made from the commands; `python -m tandem.controller.cli.reference.command_page` writes it."""
    assert command_page.PAGE.read_text() == command_page.page()


def test_whole_command_lines_in_the_docs_parse() -> None:
    """Every line of every fenced block, with the values that are written there."""
    found = 0
    for page in documented.pages():
        for line in documented.shown(page):
            found += 1
            try:
                parse(words(line))
            except Exception as error:  # noqa: BLE001 - of any kind, with its place
                pytest.fail(f"{page.relative_to(ROOT)}: tandem {line}: {type(error).__name__} {error}")
    assert found >= 15


def test_commands_and_options_that_are_mentioned_exist() -> None:
    """In prose, and in the messages of the code: values may be place holders, names may not."""
    found = 0
    sources = [*ROOT.glob("controller/**/*.py"), *ROOT.glob("spark_jobs/**/*.py"), *ROOT.glob("sink/**/*.py")]
    for page in [*documented.pages(), *sources]:
        for line in documented.mentioned(page.read_text()):
            mentioned = [word for word in words(line)[1:] if not re.search(r"[{}<>…|\[\]]", word)]
            if not mentioned or mentioned[0].startswith("-"):
                continue
            found += 1
            try:
                parse(mentioned)
            except Exception as error:  # noqa: BLE001 - which of them it is decides
                if type(error).__name__ in _VALUE:
                    pytest.fail(f"{page.relative_to(ROOT)}: {line}: {type(error).__name__} {error}")
    assert found >= 80


def test_every_documented_command_is_run_or_excused() -> None:
    """`test_documented_commands.py` runs them; what is not run has a reason, and nothing is left of lines that went."""
    shown = {line for page in documented.pages() for line in documented.commands(page)}
    run_there = [one.line for one in command_story.CHAPTERS]
    assert shown == {*run_there, *command_story.NOT_RUN}
    assert len(run_there) == len(set(run_there)) >= 100
    assert not {*run_there} & {*command_story.NOT_RUN}
    assert all(len(reason) > 20 for reason in command_story.NOT_RUN.values())


@pytest.mark.parametrize("name", sorted(name for name, _ in commands()))
def test_every_command_has_examples_that_parse(name: str) -> None:
    """Below its options, as somebody would type them."""
    command = dict(commands())[name]
    lines = [line.strip() for line in (command.epilog or "").splitlines() if "tandem " in line]
    assert lines, f"tandem {name} --help has no example"
    for line in lines:
        [found] = documented.lines(line) or [""]
        parse(words(found))


def test_every_option_says_what_it_is_for() -> None:
    """A help text for each, that begins with a capital and ends in a full stop or an environment variable."""
    for name, command in commands():
        for parameter in command.params:
            if parameter.name != "help":
                text = getattr(parameter, "help", None)
                assert text, f"tandem {name}: {parameter.name} has no help"


def test_no_help_points_to_files_of_the_project() -> None:
    """Who installed the package has no docs folder."""
    for name, command in commands():
        texts = [command.help, command.epilog, *(getattr(parameter, "help", None) for parameter in command.params)]
        assert not [text for text in texts if text and ("docs/" in text or ".md" in text)], name


def test_every_command_stands_in_one_group_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """By what it is for, the same on the page; no summary is cut off on 80 columns."""
    grouped = [name for names in SECTIONS.values() for name in names]
    assert sorted(grouped) == sorted(COMMANDS)
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    page = command_page.page()
    for title, names in SECTIONS.items():
        listed = shown.partition(f"\n{title}:\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in listed] == [*names]
        assert not [line for line in listed if "..." in line or len(line) > 80]
        table = page.partition(f"| {title.lower()} | what it does |\n|---|---|\n")[2].partition("\n\n")[0]
        assert re.findall(r"^\| \[`tandem (\S+)`\]", table, re.MULTILINE) == [*names]


# --- what people type wrongly -----------------------------------------------------------------------------------------

BASE = """\
pair: airports
instance: a
topics: {include: [airports]}
kafka: {bootstrap.servers: '127.0.0.1:1'}
store: {root: 'file:///does/not/exist/anywhere'}
"""

WRONG = [
    # commands
    ("statsu", "Did you mean 'status'?"),
    ("fail-over", "Did you mean 'failover'?"),
    ("checkpoints list", "Did you mean 'checkpoint'"),
    ("checkpoint lst", "Did you mean 'list'?"),
    ("checkpoint remove x", "Did you mean 'delete'?"),
    ("config shw", "Did you mean 'show'?"),
    ("sandbox start", "Did you mean 'up'?"),
    ("coordination tial", "Did you mean 'tail'?"),
    ("restore group", "Did you mean 'groups'?"),
    ("backup", "No such command 'backup'. Did you mean 'run'?"),
    ("undo", "Did you mean 'rewind'?"),
    ("bakcup", "No such command 'bakcup'."),
    ("--verison", "--version"),
    ("--json status", "No such option: --json"),
    # options
    ("status --wacth", "--watch"),
    ("status --s3only", "--s3-only"),
    ("status -o xml", "is not one of 'table', 'json', 'yaml'"),
    ("status -w often", "INTERVAL often"),
    ("status -w 1ms", "at least 0.1s"),
    ("restore --until-timestamp noon", "--until-timestamp"),
    ("status 5", "write `tandem status -w 5`"),
    ("status -o", "requires an argument"),
    ("list extra", "unexpected extra argument"),
    (
        "list --root ftp://host/path",
        '--root: "ftp://host/path" is none of s3://bucket/prefix, gs://…, az://container/prefix and file:///absolute/path',
    ),
    ("list --root s3://bucket?x=1", "--root: "),
    ("list --root s3://user:secret@bucket", "--root: must not hold credentials"),
    ("list --root s3://", "does not name a bucket"),
    ("list --root file://relative/path", "needs an absolute path: three slashes"),
    ("list --root file:///does/not/exist/anywhere", "does not exist"),
    ("wait", "Missing option '--for'"),
    ("wait --for ready", "choose complete, steady"),
    ("wait --for generation=x", "choose complete, steady"),
    ("wait --for role=a:Boss", "ROLE one of Passive"),
    ("wait --for role=z:Active", "the pair has no instance 'z'"),
    ("wait --for complete --timeout soon", "--timeout soon"),
    ("describe", "Missing argument 'GENERATION|TOPIC'"),
    ("describe pin/7", "there is no kind 'pin'"),
    ("describe generation/0", "is no generation"),
    ("failover --to z --timeout 1x", "--timeout 1x"),
    ("failover --target b", "No such option: --target"),
    ("reinit a b", "unexpected extra argument"),
    ("failover b", "(b). Did you mean --to?"),
    ("rotate b", "Did you mean --to?"),
    ("history 7", "Did you mean --generation?"),
    ("sandbox up here", "Did you mean --dir?"),
    ("policy s3 viewer", "Missing option '--role'"),
    ("reinit --generation 0", "--generation"),
    ("pause 1h", "(1h). Did you mean --for?"),
    ("pause --for", "requires an argument"),
    ("pause --for yesterday", "--for yesterday"),
    ("history --commits", "--commits needs --generation"),
    ("history --generation seven", "--generation"),
    ("history --generation -1", "--generation"),
    ("coordination tail --since noon", "--since noon"),
    ("coordination tail --folow", "--follow"),
    ("checkpoint create --id has/slash", "has/slash"),
    ("checkpoint create has/slash", "has/slash"),
    ("checkpoint create one --id other", "two names, one and --id other [TDM-H015]"),
    ("checkpoint create --id " + "x" * 129, "has more than 100 characters"),
    ("checkpoint create --keep 1m --timeout 5m", "--keep must be longer than --timeout"),
    ("checkpoint create --keep forever", "--keep forever"),
    ("checkpoint show", "Missing argument 'ID'"),
    ("checkpoint delete ..", "is not a valid name"),
    ("release", "Missing argument 'TOPIC'"),
    ("release orders --partition x", "--partition"),
    ("release orders --partition -1", "--partition"),
    # moments, keys, shares
    ("restore --at yesterday", "--at 'yesterday' is no moment"),
    ("restore --at 2026-05-04T10:00:00", "says no zone"),
    ("restore --at 2026-13-04T10:00:00Z", "is no moment"),
    ("restore --commit 0", "--commit"),
    ("restore --map orders", "--map 'orders' is not OLD=NEW"),
    ("restore --map =new", "is not OLD=NEW"),
    ("restore --until orders", "--until"),
    ("restore --until orders:x=5", "--until"),
    ("restore --rate fast", "--rate"),
    ("restore --compression brotli", "--compression"),
    ("restore --offsets exactly", "--offsets"),
    ("restore --partitions zero", "--partitions"),
    ("restore --key-format rot13 --key x", "--key-format"),
    ("restore --filter-timestamp now", "--filter-timestamp"),
    ("restore --until-timestamp later", "--until-timestamp"),
    ("erase orders", "no key is named [TDM-T015]"),
    ("erase orders --keys-file /does/not/exist", "/does/not/exist: No such file or directory [TDM-C056]"),
    ("erase orders --keys-file /", "--keys-file /: Is a directory [TDM-C056]"),
    ("restore --exclude-keys-file /does/not/exist", "/does/not/exist"),
    ("restore --apply /does/not/exist.json", "/does/not/exist.json"),
    ("restore --map-pattern '(=x'", "--map-pattern"),
    ("restore --no-tombstones", "--no-tombstones"),
    ("restore groups --execute --rollback", "are not allowed together"),
    ("restore groups --map-group x", "--map-group"),
    ("records --topic orders", "Missing option '--key'"),
    ("records --topic orders --key xyz --key-format hex", "--key: a key is not hex"),
    ("records --topic orders --key '?' --key-format base64", "is not base64"),
    ("records --topic orders --key k --at noon", "--at 'noon' is no moment"),
    ("export --format csv --to /tmp/x", "--format 'csv'"),
    ("export --format parquet", "Missing option '--to'"),
    ("verify --sample lots", "--sample 'lots' is no share"),
    ("verify --sample 0%", "is no share"),
    ("verify --sample 101%", "is no share"),
    ("verify --seed 7", "--seed requires --sample"),
    ("verify --against-topic --against-generation 6,7", "are not allowed together"),
    ("verify --against-generation 6;7", "is not N or N,M"),
    ("verify --topics orders", "--topics requires --against-topic"),
    ("verify --yes", "--yes requires --repair"),
    ("drill --at then", "--at 'then' is no moment"),
    ("retention --horizon always", "--horizon"),
    ("retention --max-bytes plenty", "--max-bytes"),
    ("retention --older-than long", "--older-than"),
    ("retention --horizon 7 --execute", "--horizon 7 has no unit"),
    ("retention --horizon 0.5", "--horizon 0.5 has no unit"),
    ("retention --older-than 30", "write 30d, or 30s if seconds are meant"),
    ("retention --abandoned-after 7", "--abandoned-after 7 has no unit"),
    ("retention --max-bytes 50", "--max-bytes 50 has no unit"),
    ("retention --min-gain 101", "--min-gain"),
    ("retention --abandoned-after never", "--abandoned-after"),
    ("drill --topics ''", "--topics '' holds an empty name"),
    ("drill --master foo", "--master 'foo' is none that Spark knows"),
    ("drill --master local[]", "--master 'local[]' is none that Spark knows"),
    ("export --format jsonl --to /tmp/x --topics orders,,prices", "holds an empty name"),
    ("verify --against-topic --topics ' '", "--topics ' ' holds an empty name"),
    ("records --topic '' --key k", "--topic '' holds an empty name"),
    ("records --key k", "no topic is named [TDM-C054]"),
    ("records orders --topic prices --key k", "names several topics"),
    ("export '' --format jsonl --to /tmp/x", "holds an empty name"),
    ("drill orders, ", "holds an empty name"),
    ("verify orders", "--topics requires --against-topic"),
    ("records --topic orders,prices --key k", "names several topics"),
    ("restore --topics '' --dry-run", "--topics '' holds an empty name"),
    ("restore --topics orders --topics ''", "--topics '' holds an empty name"),
    ("restore --map orders=a --map orders=b", "--map names orders twice, as a and as b"),
    ("restore --until orders:0=7 --until orders:00=8", "--until names orders:0 twice, up to 7 and up to 8"),
    ("restore --topic-config retention.ms=7d", "--topic-config 'retention.ms=7d': retention.ms is a whole number of"),
    ("restore --topic-config max.message.bytes=1MB", "max.message.bytes is a whole number of bytes"),
    ("restore --topic-config min.insync.replicas=two", "min.insync.replicas is a whole number from 1"),
    ("restore --topic-config min.insync.replicas=0", "min.insync.replicas is a whole number from 1"),
    ("restore --topic-config retention.ms=1_000", "retention.ms is a whole number"),
    ("restore --topic-config a=b --topic-config a=c", "--topic-config gives a twice: b and c"),
    ("restore --rate 0", "--rate '0' must be more than 0"),
    ("restore --dry-run --master foo", "--master 'foo' is none that Spark knows"),
    ("restore groups --rollback --map-group a=b", "--rollback is not allowed with --map-group or --group-suffix"),
    ("restore groups --rollback --group-suffix .x", "--rollback is not allowed with --map-group or --group-suffix"),
    ("restore groups --rollback --groups a,", "--groups 'a,' holds an empty name"),
    ("restore groups --groups ''", "--groups '' holds an empty name"),
    ("restore groups --map-group a=b --map-group a=c", "--map-group names a twice"),
    ("catch-up --range 5", "--range"),
    ("catch-up --wait long", "--wait long"),
    # configuration, on the line
    ("status --set rotation.interval=soon", "rotation.interval"),
    ("status --set rotation.intervall=7d", "did you mean rotation.interval?"),
    ("status --set nonsense", "must look like key.path=value"),
    ("status --set store.root=", "store.root"),
    ("status --s3-only", "does not exist"),
    ("run --set log.format=console --set instance=", "instance"),
    ("config show -o toml", "is not one of 'table', 'json', 'yaml'"),
]


def test_there_are_a_hundred() -> None:
    """Each is another mistake; those of the file itself are in `test_config_wrong.py`."""
    assert len({line for line, _ in WRONG}) == len(WRONG) >= 100


@pytest.mark.parametrize(("line", "says"), WRONG, ids=[line[:60] for line, _ in WRONG])
def test_a_wrong_line(line: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, nothing on stdout, the place and what is wrong in one line, never a traceback."""
    (tmp_path / "a.yaml").write_text(BASE)
    assert run(["-c", str(tmp_path / "a.yaml"), *shlex.split(line)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert "Traceback" not in captured.err
    assert "secret" not in captured.err.replace("secret_access_key", "")
    told = [text for text in captured.err.splitlines() if text.lower().startswith(("error:", "usage:", "try ", "what"))]
    assert len([text for text in told if text.lower().startswith("error:")]) == 1


# --- completion -------------------------------------------------------------------------------------------------------


def completed(shell: str, line: str) -> str:
    """What the shell is told when Tab is pressed at the end of a line."""
    count = len(line.split(" ")) - 1
    asked = {
        "bash": {"_TANDEM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(count)},
        "zsh": {"_TANDEM_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line},
        "fish": {
            "_TANDEM_COMPLETE": "complete_fish",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            "_TYPER_COMPLETE_ARGS": line,
        },
    }[shell]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TANDEM_")}
    done = subprocess.run(
        [sys.executable, "-c", "from tandem.controller.cli.main import main; main()"],
        env={**environ, **asked},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    """Commands, options of a command that is loaded late, words below a group, and values of a choice."""
    assert "status" in completed(shell, "tandem sta")
    assert "--s3-only" in completed(shell, "tandem status --s3")
    assert "create" in completed(shell, "tandem checkpoint ")
    assert "yaml" in completed(shell, "tandem status -o ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--show-completion` prints that of the shell it runs in, and bash accepts its own."""
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell)
    assert run(["--show-completion"]) == 0
    script = capsys.readouterr().out
    assert "_TANDEM_COMPLETE" in script
    if shell == "bash":
        done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_help_of_every_command_is_plain_and_fits(capsys: pytest.CaptureFixture[str]) -> None:
    """No escapes and no boxes, however it is asked for; summaries are not cut off."""
    for name, _ in commands():
        assert run([*name.split(), "--help"]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert out.startswith("Usage: tandem ")
    assert all(len(summary) <= 70 and summary.endswith(".") for summary in COMMANDS.values())
