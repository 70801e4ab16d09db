"""`tandem check`: the pair's state in one line and an exit code, as monitoring plugins have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandem.backup_avro.errors import ConfigError, RefusedError, TandemError, TimedOutError
from tandem.controller.cli.options.backup_place import PairOption, RootOption, configured, stored
from tandem.controller.cli.options.durations import SHORTEST_S, at_least, span
from tandem.controller.cli.options.invocation import ConfigOption, SetOption
from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, OutputOption

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tandem.backup_avro.documents.outcome import JobKind, JobOutcome
    from tandem.controller.config import Config
    from tandem.controller.status.check import CheckLimits
    from tandem.controller.status.key_use import ConfiguredKeys
    from tandem.controller.status.pair_view import PairView
    from tandem.sink.store import ObjectStore

_BOTH: Final = ("warning", "critical")
# The share of --timeout for the brokers; the rest is for reading the last results and for printing.
_BROKERS: Final = 0.8

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def _age(name: str, what: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(name, metavar="DURATION", help=what)
    return found


@app.command(
    epilog="\b\nExamples:\n  tandem check -c a.yaml\n"
    "  tandem check --lag-warning 10000 --lag-critical 1000000 --verify-age 8d --drill-age 35d\n"
    "  tandem check --s3-only --commit-age-critical 1h -o json\n  tandem check --connections --timeout 30"
)
def check(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    lag_warning: Annotated[
        int | None, typer.Option("--lag-warning", min=0, metavar="OFFSETS", help="Lag above which it is a WARNING.")
    ] = None,
    lag_critical: Annotated[
        int | None, typer.Option("--lag-critical", min=0, metavar="OFFSETS", help="Lag above which it is CRITICAL.")
    ] = None,
    commit_age_warning: Annotated[
        str | None, _age("--commit-age-warning", "Age of the newest restorable moment above which it is a WARNING.")
    ] = None,
    commit_age_critical: Annotated[
        str | None, _age("--commit-age-critical", "Age of the newest restorable moment above which it is CRITICAL.")
    ] = None,
    complete_age_warning: Annotated[
        str | None, _age("--complete-age-warning", "Time since COMPLETE above which it is a WARNING.")
    ] = None,
    complete_age_critical: Annotated[
        str | None, _age("--complete-age-critical", "Time since COMPLETE above which it is CRITICAL.")
    ] = None,
    verify_age: Annotated[
        str | None, _age("--verify-age", "A WARNING if the last verify is older, failed, or there was none.")
    ] = None,
    drill_age: Annotated[
        str | None, _age("--drill-age", "A WARNING if the last drill is older, failed, or there was none.")
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="DURATION", help="Longest time for all answers; then it is UNKNOWN."),
    ] = None,
    s3_only: Annotated[bool, typer.Option("--s3-only", help="Ask the store alone.")] = False,
    connections: Annotated[
        bool,
        typer.Option(
            "--connections", help="Only whether store, keys, brokers and topics answer, not how the backup stands."
        ),
    ] = False,
    root: RootOption = None,
    pair: PairOption = None,
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Report in one line whether the pair is healthy, for Nagios and similar monitoring.

    Exit code 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN: these are a plugin's, not those of the other commands. UNKNOWN is
    also a store that does not answer, and a wrong command line. The store is enough; brokers that can be reached add
    the lag and what is known of the instances, and those that can't cost nothing but a limit on the lag.

    A store that is a folder is tried with a small object, which is deleted again; one that is full or can't be written
    is a WARNING, with --connections CRITICAL.

    --connections is for after an installation: CRITICAL if the store, a key, the brokers, the coordination topic or a
    guarded topic does not answer or is not there, however far the first backup is. WARNING if brokers allow
    transactions less time than a restore needs, as far as they may be asked.

    With --timeout nothing is waited for longer than that. A store that has not answered by then is UNKNOWN; brokers
    have four fifths of it, and are left out then. Without it a store that hangs is given up after half a minute or so.

    CRITICAL is what keeps records from being backed up or restored, lifecycle rules of the bucket that delete or
    archive objects of the pair (s3:// alone; with the right to read them), and mismatches that a `tandem verify` or
    `drill` found and none since has settled; WARNING everything else that `tandem status` calls a problem; and, where
    the configuration names keys, those that can't be read and those that are needed and not named. After the | come
    figures: lag in offsets, ages in seconds, bytes, generations.
    """
    from tandem.controller.process.timed_call import TimedCall  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.controller.status import check as judge  # noqa: PLC0415 - likewise
    from tandem.controller.status.overview import overview  # noqa: PLC0415 - likewise

    limits = _limits(
        lag=(lag_warning, lag_critical),
        commit_age=(commit_age_warning, commit_age_critical),
        complete_age=(complete_age_warning, complete_age_critical),
        verify_age=verify_age,
        drill_age=drill_age,
    )
    if connections and (s3_only or limits != judge.CheckLimits()):
        raise ConfigError(
            "--connections is not allowed with --s3-only or limits",
            code="TDM-C001",
            remedy="leave them out: --connections does not judge the backup",
        )
    longest_s = None if timeout is None else at_least("--timeout", timeout, SHORTEST_S)
    settings = configured(context, config, overrides, root=root, pair=pair, unless=None if s3_only else "--s3-only")
    brokers_s = None if longest_s is None else _BROKERS * longest_s

    def ask() -> tuple[_Answers, list[TandemError]]:
        answers = _ask(settings, root, s3_only=s3_only, brokers_s=brokers_s)
        return answers, _obstacles(settings) if connections and answers.seen.brokers is not None else []

    try:
        found, obstacles = TimedCall(ask, name="check").result(longest_s)
    except TimeoutError:
        raise TimedOutError(
            f"no answer from the store {settings.store.root} within {longest_s:g} s",
            code="TDM-C002",
            remedy="see whether it can be reached from here, or give it more with --timeout",
        ) from None
    report = (
        judge.connections(found.seen, found.keys, obstacles=obstacles, unwritable=found.unwritable)
        if connections
        else judge.check_pair(overview(found.seen), found.ran, limits, keys=found.keys, unwritable=found.unwritable)
    )
    if output_ is OutputFormat.TABLE:
        output.status_line(judge.line(report))
    else:
        output.show(kind="Check", body=report, output=output_, tables=[])
    raise typer.Exit(report.severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answers:
    """What store and brokers said. `unwritable` is the error of a trial put."""

    seen: PairView
    keys: ConfiguredKeys | None
    ran: Mapping[JobKind, JobOutcome | None]
    unwritable: TandemError | None


def _ask(settings: Config, root: str | None, *, s3_only: bool, brokers_s: float | None) -> _Answers:
    from tandem.controller.local_state.remembered_heads import remembered_heads  # noqa: PLC0415 - loaded when the command runs
    from tandem.controller.status.key_use import look_at_keys  # noqa: PLC0415 - likewise
    from tandem.controller.status.outside_view import view_pair  # noqa: PLC0415 - likewise
    from tandem.sink.encryption.key_ring import keys_of  # noqa: PLC0415 - likewise
    from tandem.sink.store.chain import outcomes  # noqa: PLC0415 - likewise

    store = stored(settings, root)
    try:
        memory = remembered_heads(settings)
        sight = view_pair(settings, store, s3_only=s3_only, brokers_s=brokers_s, remembered=memory)
        return _Answers(
            seen=sight,
            keys=look_at_keys(keys_of(store), sight.generations),
            ran=outcomes.latest_of_each(store, settings.pair),
            unwritable=_try_to_write(settings, store),
        )
    finally:
        store.close()


def _try_to_write(settings: Config, store: ObjectStore) -> TandemError | None:
    """Return the error of a test write into a file:// store, or None. A bucket gets none: a check may only read it."""
    from tandem.sink.store.contract.probe import LARGEST_PROBE, probe_key  # noqa: PLC0415 - loaded when the command runs, not for --help

    if settings.store.scheme != "file":
        return None
    key = probe_key("")
    try:
        try:
            store.put_if_absent(key, bytes(LARGEST_PROBE))
        finally:
            store.delete([key])
    except TandemError as error:
        return error
    return None


def _obstacles(settings: Config) -> list[TandemError]:
    """Return the errors that would refuse a restore into the pair's own cluster; empty if the cluster does not answer.

    Without the right to read the brokers' settings the list is empty as well.
    """
    from tandem.controller.coordination.topic_reader import ANSWER_S  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.sink.kafka.cluster.admin import ClusterAdmin  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.restore.target.target_cluster import refuse_if_impatient  # noqa: PLC0415 - likewise

    with ClusterAdmin(dict(settings.kafka.reveal()), timeout_s=ANSWER_S) as admin:
        try:
            refuse_if_impatient(admin)
        except RefusedError as error:
            return [error]
        except TandemError:  # brokers that don't answer are already reported
            return []
    return []


def _limits(
    *,
    lag: tuple[int | None, int | None],
    commit_age: tuple[str | None, str | None],
    complete_age: tuple[str | None, str | None],
    verify_age: str | None,
    drill_age: str | None,
) -> CheckLimits:
    from tandem.controller.status.check import CheckLimits  # noqa: PLC0415 - Kafka and S3 are slow to import

    commit = [_seconds(f"--commit-age-{which}", text) for which, text in zip(_BOTH, commit_age, strict=True)]
    complete = [_seconds(f"--complete-age-{which}", text) for which, text in zip(_BOTH, complete_age, strict=True)]
    for name, (warning, critical) in (("lag", lag), ("commit-age", commit), ("complete-age", complete)):
        if warning is not None and critical is not None and critical < warning:
            raise ConfigError(
                f"--{name}-critical is below --{name}-warning",
                code="TDM-C003",
                remedy="set the warning limit at or below the critical limit",
            )
    return CheckLimits(
        lag_warning=lag[0],
        lag_critical=lag[1],
        commit_age_warning_s=commit[0],
        commit_age_critical_s=commit[1],
        complete_age_warning_s=complete[0],
        complete_age_critical_s=complete[1],
        verify_age_s=_seconds("--verify-age", verify_age),
        drill_age_s=_seconds("--drill-age", drill_age),
    )


def _seconds(option: str, text: str | None) -> float | None:
    return None if text is None else span(option, text).total_seconds()
