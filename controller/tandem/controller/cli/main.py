"""The `tandem` command: finds the command's module, runs it, and turns errors into a message and an exit code.

A command module is `controller.cli.<folder>.<name>` with a typer application `app`: one function for a plain command,
several for a group. It is imported only when its command is called, so `tandem --help` needs neither Kafka nor Spark.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import importlib.util
import io
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final, NoReturn

import typer
import typer.core
import typer.main

from tandem.backup_avro.errors import ExitCode, TandemError
from tandem.controller.cli.options.help_sections import SectionedGroup
from tandem.controller.cli.options.invocation import ConfigOption, Invocation, SetOption
from tandem.controller.cli.output import output
from tandem.controller.process.timed_call import left_behind
from tandem.sink.process import safe_text, stderr_lines
from tandem.sink.process.environment_secrets import hidden_of_environment
from tandem.sink.process.resource_limits import ResourceShortage, resource_shortage

COMMANDS: Final[Mapping[str, str]] = {
    "run": "Run one instance of the pair.",
    "list": "Show the pairs below a root.",
    "status": "Show both instances, their lag, and what can be restored.",
    "wait": "Wait until the pair is as it should be.",
    "check": "Report in one line whether the pair is healthy.",
    "describe": "Show everything that is stored of a generation or a topic.",
    "rotate": "Let the instances change their roles now; both are alive.",
    "failover": "Have the other instance take over, also from a dead one.",
    "switchover": "The same as failover, under its other name.",
    "reinit": "Have an instance build its copy anew.",
    "pause": "Start no turn for a while; the backup itself continues.",
    "resume": "End a pause.",
    "history": "Show claims, completions, handovers and clearings.",
    "keys": "Show which keys encrypted objects need.",
    "report": "Write the status page as a file.",
    "coordination": "Look at the coordination topic.",
    "catch-up": "Have Spark read what a new generation still lacks.",
    "checkpoint": "Name consistent cuts, list and delete them.",
    "restore": "Restore topics from the store.",
    "rewind": "Bring keys of a live topic back to a moment's values.",
    "records": "Show the history of one key.",
    "export": "Write records as Parquet or JSON lines.",
    "verify": "Check chains, checksums and records.",
    "drill": "Rehearse a restore in scratch topics, and keep the result.",
    "retention": "Plan, or carry out, the deletion of expired data.",
    "erase": "Take all records of some keys out of every copy.",
    "release": "Release data that the cluster no longer has.",
    "policy": "Print the rights that each role needs.",
    "signing-key": "Make keys that sign a backup, and show them.",
    "config": "Check and show the configuration.",
    "sandbox": "Start and stop a local Kafka and S3 server to try things.",
    "demo": "Back up, hand over and restore a real topic, as a story.",
    "version": "Show what is installed: build, transcoder, libraries.",
}
# Folder of this package -> commands whose modules it holds.
FOLDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "handover": ("rotate", "failover", "reinit", "pause", "resume", "checkpoint"),
    "inspect": ("list", "status", "wait", "check", "describe", "history", "report", "coordination", "records"),
    "keys": ("keys", "signing-key", "policy"),
    "maintain": ("catch-up", "verify", "retention", "erase", "release"),
    "restore": ("restore", "rewind", "export", "drill"),
    "run": ("run", "config", "sandbox", "demo", "version"),
}
# Title in `tandem --help` and docs/cli.md -> commands below it, in the order of what they are needed for.
SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "Look": ("list", "status", "check", "wait", "describe", "history", "records", "report", "coordination"),
    "Hand over": ("rotate", "failover", "switchover", "reinit", "pause", "resume"),
    "Restore": ("restore", "rewind", "export", "drill", "checkpoint"),
    "Maintain": ("verify", "retention", "erase", "release", "catch-up", "keys"),
    "Set up": ("run", "config", "policy", "signing-key", "sandbox", "demo", "version"),
}
# Alternative names of commands that people know from other products.
ALIASES: Final[Mapping[str, str]] = {"switchover": "failover"}
# Commands without an argument -> the option that takes what people write as one.
_WRITTEN_AS_ARGUMENT: Final[Mapping[str, str]] = {
    "tandem pause": "--for",
    **dict.fromkeys(("tandem rotate", "tandem failover", "tandem switchover"), "--to"),
    **dict.fromkeys(("tandem history", "tandem catch-up"), "--generation"),
    **dict.fromkeys(("tandem demo", "tandem sandbox up"), "--dir"),
}
_INTERRUPTED: Final = 130
# This command has the exit codes of a monitoring plugin, where 2 is an alarm: any error of it is 3 (UNKNOWN).
_PROBE: Final = "check"
_UNKNOWN: Final = 3
# This command runs for long: reference cycles must be collected at Python's normal rate, or memory use grows.
_STAYS: Final = "run"
_COMPLETION_PARAMETERS: Final = frozenset({"install_completion", "show_completion"})


class _Deferred(typer.core.TyperCommand):
    """Placeholder of a command in help and suggestions; it imports the command's module when the command is called."""

    def __init__(self, *, name: str, summary: str, module: str) -> None:
        super().__init__(name=name, help=summary, rich_markup_mode=None)
        self.module = module

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:  # noqa: ANN401 - typer hides click's types
        """Return the context of the real command."""
        if self.name != _STAYS:
            collect_rarely()
        command = typer.main.get_command(importlib.import_module(self.module).app)
        _make_plain(command)
        command.name = self.name
        return command.make_context(info_name, args, parent=parent, **extra)


def collect_rarely() -> None:
    """Run Python's cyclic garbage collector about a hundred times less often; only for short-lived processes.

    Chains and plans have millions of objects and no cycles; the collector's passes over them take a third of the time
    of a plan over a million objects.
    """
    gc.set_threshold(100_000, 50, 100)


def _make_plain(command: Any) -> None:  # noqa: ANN401 - typer hides click's types
    """Remove boxes and per-command completion options from a command and all its subcommands."""
    command.rich_markup_mode = None
    command.params = [parameter for parameter in command.params if parameter.name not in _COMPLETION_PARAMETERS]
    for inner in getattr(command, "commands", {}).values():
        _make_plain(inner)


class _Commands(SectionedGroup):
    """The group of all commands, by what they are for."""

    command_sections = SECTIONS
    other_words = MappingProxyType(
        {
            **dict.fromkeys(("backup", "start", "up", "serve"), "run"),
            **dict.fromkeys(("switch", "swap", "handover", "hand-over", "turn", "switch-over"), "rotate"),
            **dict.fromkeys(("takeover", "promote", "take-over"), "failover"),
            **dict.fromkeys(("rebuild", "resync", "full"), "reinit"),
            **dict.fromkeys(("ls", "pairs", "generations"), "list"),
            **dict.fromkeys(("health", "ping", "doctor"), "check"),
            **dict.fromkeys(("show", "get", "info", "inspect", "topics"), "describe"),
            **dict.fromkeys(("log", "logs", "events", "audit"), "history"),
            **dict.fromkeys(("key", "record", "find", "search", "grep"), "records"),
            **dict.fromkeys(("rollback", "revert", "undo", "undelete"), "rewind"),
            **dict.fromkeys(("recover", "load", "import"), "restore"),
            **dict.fromkeys(("dump", "download", "parquet"), "export"),
            **dict.fromkeys(("rehearse", "test"), "drill"),
            **dict.fromkeys(("snapshot", "savepoint", "tag", "cut"), "checkpoint"),
            **dict.fromkeys(("validate", "scrub", "fsck", "compare"), "verify"),
            **dict.fromkeys(("prune", "gc", "cleanup", "clean", "expire", "sweep", "purge"), "retention"),
            **dict.fromkeys(("delete", "forget", "rm", "gdpr"), "erase"),
            **dict.fromkeys(("acl", "acls", "iam", "rights", "roles"), "policy"),
            **dict.fromkeys(("init", "configure", "settings"), "config"),
            **dict.fromkeys(("unpause", "continue"), "resume"),
            **dict.fromkeys(("stop", "suspend", "freeze"), "pause"),
        }
    )


app = typer.Typer(
    name="tandem",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - slow, and only needed here

        sys.stdout.write(f"tandem {version('tandem-kafka-backup')}\n")
        raise typer.Exit


@app.callback()
def _tandem(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks.  [env: TANDEM_DEBUG]")] = False,
    version: Annotated[  # noqa: ARG001 - the callback acts on it
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Keep a continuous, restorable backup of compacted Kafka topics in an object store.

    Exit codes: 0 ok, 1 error, 2 usage or configuration, 3 unhealthy or mismatch, 4 timed out, 5 refused for safety.
    `tandem check` has those of a monitoring plugin: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.
    """
    _configure_log(debug=debug or _debug_of_environment())
    context.obj = Invocation(config=config, overrides=tuple(overrides or ()), debug=debug)


def module_of(name: str, *, package: str = "tandem.controller.cli") -> str:
    """Return the module of a command, which has its `app`, below `package`."""
    command = ALIASES.get(name, name)
    folder = next(folder for folder, commands in FOLDERS.items() if command in commands)
    return f"{package}.{folder}.{command.replace('-', '_')}"


def _is_there(module: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):  # the folder does not exist
        return importlib.util.find_spec(module) is not None
    return False


def _command(package: str) -> Any:  # noqa: ANN401 - typer hides click's types
    command: Any = typer.main.get_command(app)  # a group, because it has a callback
    for name, summary in COMMANDS.items():
        module = module_of(name, package=package)
        if _is_there(module):
            command.add_command(_Deferred(name=name, summary=summary, module=module))
    return command


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a topic's content must not fail on a narrow locale
    with contextlib.suppress(AttributeError, OSError, ValueError):  # stderr is closed
        faulthandler.enable()  # a crash in native code prints files and lines, no values
    code = run(sys.argv[1:])
    if left_behind():
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)  # a call that timed out left threads that still wait
    gc.freeze()  # or the interpreter looks for cycles among all objects at its end: a third of a second after Spark
    sys.exit(code)


def run(arguments: Sequence[str], *, package: str = "tandem.controller.cli") -> int:
    """Run the command line and return the exit code. A command may return one, or raise `typer.Exit`.

    Command modules are looked for in `package`.
    """
    debug = _debug_of_environment() or _asks_for_debug(arguments)
    failed: str | None = None
    safe_text.register_secrets(hidden_of_environment(os.environ))
    stderr_lines.set_only_json(wanted=False)
    # The store's client logs each retry at a lower level; the final error has the result.
    logging.getLogger("stamina").setLevel(logging.ERROR)
    # Py4J logs a stack trace to the root logger on Ctrl-C, which tells the user nothing.
    logging.getLogger().addFilter(_is_no_interrupt)
    try:
        code = _carried_out(arguments, package)
        sys.stdout.flush()
    except TandemError as error:
        failed = str(error.args[0]) if error.args else type(error).__name__
        output.fail(failed, code=error.code, remedy=error.remedy)
        code = error.exit_code
        _trace(debug=debug)
    except typer.Abort:
        output.note("aborted")
        code = ExitCode.ERROR
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BrokenPipeError:
        code = _abandon_stdout()
    except SystemExit as exit_:
        # Raised by typer when the reader of stdout is gone, or by a library.
        code = _exit_code(exit_.code)
    except (OSError, MemoryError) as error:
        lacking = resource_shortage(error)
        failed = str(error) if lacking is None else lacking.message
        code = _unexpected(error, debug=debug) if lacking is None else _lacking(lacking)
    except Exception as error:  # noqa: BLE001 - the outermost frame: the last place that can report it
        failed = error.format_message() if hasattr(error, "format_message") else str(error) or type(error).__name__
        code = _usage(error) if hasattr(error, "format_message") else _unexpected(error, debug=debug)
    if failed is not None and _is_probe(arguments):
        return _unknown(failed)
    return code if isinstance(code, int) else ExitCode.OK


def _carried_out(arguments: Sequence[str], package: str) -> Any:  # noqa: ANN401 - whatever the command returns
    """Run the command. Raises ConfigError if it needs the extra [spark], which is not installed."""
    try:
        return _command(package).main(list(arguments), prog_name="tandem", standalone_mode=False)
    except ModuleNotFoundError as error:
        from tandem.spark_jobs.spark.session import missing_extra  # noqa: PLC0415 - only then

        if (missing := missing_extra(error)) is None:
            raise
        raise missing from error


def _configure_log(*, debug: bool) -> None:
    """Configure the log of a command."""
    from tandem.sink.process import log  # noqa: PLC0415 - its libraries take as long as all of --help

    log.configure(level="warning", fmt="auto")
    log.quiet_kafka_client("debug" if debug else "warning")


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return not (record.exc_info and record.exc_info[0] is KeyboardInterrupt)


def _exit_code(code: object) -> int:
    if code is None or isinstance(code, int):
        return code or ExitCode.OK
    output.fail(str(code), code="TDM-C051")
    return ExitCode.ERROR


def _debug_of_environment() -> bool:
    return os.environ.get("TANDEM_DEBUG", "") not in {"", "0"}


def _asks_for_debug(arguments: Sequence[str]) -> bool:
    """Return whether `--debug` precedes the command's name: parsing errors occur before typer has read the option."""
    for argument in arguments:
        if argument == "--debug":
            return True
        if argument in COMMANDS or argument == "--":
            return False
    return False


def _is_probe(arguments: Sequence[str]) -> bool:
    """Return whether the first command on the command line is the probe, even if the line has other errors."""
    return next((argument for argument in arguments if argument in COMMANDS), None) == _PROBE


def _unknown(why: str) -> int:
    """Print the UNKNOWN line of a monitoring plugin and return its exit code; the remedy is already on stderr."""
    output.status_line(f"UNKNOWN - {why}")
    return _UNKNOWN


def _usage(error: Any) -> int:  # noqa: ANN401 - typer hides click's exceptions
    """Show a usage error as click does: usage line, hint, error; an argument too many gets the option that is meant."""
    context = getattr(error, "ctx", None)
    option = None if context is None else _WRITTEN_AS_ARGUMENT.get(context.command_path)
    if option is not None and "unexpected extra argument" in error.message:
        error.message += f". Did you mean {option}?"
    error.show()
    return int(getattr(error, "exit_code", ExitCode.USAGE))


def _unexpected(error: Exception, *, debug: bool) -> int:
    text = " ".join(str(error).split())
    hint = None if debug else "run `tandem --debug …` (or set TANDEM_DEBUG=1) for the traceback, and report it"
    output.fail(f"unexpected {type(error).__name__}{': ' + text if text else ''}", code="TDM-C052", remedy=hint)
    _trace(debug=debug)
    return ExitCode.ERROR


def _lacking(what: ResourceShortage) -> int:
    output.fail(what.message, code="TDM-C053", remedy=what.remedy)
    return ExitCode.ERROR


def _trace(*, debug: bool) -> None:
    if debug:
        output.trace()


def _abandon_stdout() -> int:
    """Redirect stdout to /dev/null, so that the interpreter's last flush does not fail: the pipe's reader is gone."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.ERROR
