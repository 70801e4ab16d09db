"""`tandem check`: findings with a severity, and figures, from one view of the pair. Pure.

It judges the same view that `tandem status` shows. Findings from the store always count; a value that the brokers did
not answer is a finding only if a limit is set on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import IntEnum
from typing import Final

from tandem.backup_avro.chain.integers import utc_time
from tandem.backup_avro.documents.outcome import JobKind, JobOutcome
from tandem.backup_avro.errors import TandemError
from tandem.backup_avro.selection.losses import LossCause, is_of_keys
from tandem.controller.cli.output.output import at, duration
from tandem.controller.decision.loss_sign_format import LossSignStatus
from tandem.controller.decision.recovery_window import RecoveryWindow
from tandem.controller.status.health import Fault, Problem, problems
from tandem.controller.status.key_use import ConfiguredKeys
from tandem.controller.status.overview import (
    GenerationState,
    GenerationStatus,
    LossStatus,
    Overview,
)
from tandem.controller.status.pair_view import PairView


class Severity(IntEnum):
    """What a plugin of Nagios and its kin ends with: the names and numbers are theirs."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


# Faults that keep new records from being backed up, or the backup from being restored, or mean that topics lost keys.
_CRITICAL: Final = frozenset(
    {
        Fault.CHAIN_DAMAGED,
        Fault.ROLLED_BACK,
        Fault.OBJECTS_LOST,
        Fault.KEY_MISSING,
        Fault.KEYS_VANISHED,
        Fault.OBJECTS_EXPIRE,
        Fault.WRONG_CLUSTER,
        Fault.NO_COMPLETE_BACKUP,
        Fault.NO_ACTIVE,
        Fault.ACTIVE_SILENT,
        Fault.NOT_COMMITTING,
    }
)
_UNREACHABLE: Final = frozenset(
    {Fault.NOT_KNOWN, Fault.WRONG_CLUSTER, Fault.TOPIC_MISSING, Fault.CHAIN_DAMAGED, Fault.OBJECTS_EXPIRE}
)
_BY_WEIGHT: Final = (Severity.CRITICAL, Severity.WARNING, Severity.UNKNOWN, Severity.OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLimits:
    """The value of each figure above which there is a finding; None: never. Lag in offsets, ages in seconds."""

    lag_warning: int | None = None
    lag_critical: int | None = None
    commit_age_warning_s: float | None = None
    commit_age_critical_s: float | None = None
    complete_age_warning_s: float | None = None
    complete_age_critical_s: float | None = None
    verify_age_s: float | None = None
    drill_age_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFinding:
    """Something that a person should look at. `fault` is that of `tandem status`, None where it has no problem."""

    severity: Severity
    fault: Fault | None
    message: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFigure:
    """One measured value in base units (`s` seconds, `B` bytes, empty a count); None if it is not known."""

    name: str
    value: float | None
    unit: str
    warning: float | None = None
    critical: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """`tandem check`. `summary` says how it stands in a few words; findings are the worst first."""

    pair: str
    at: datetime
    severity: Severity
    summary: str
    findings: tuple[CheckFinding, ...]
    figures: tuple[CheckFigure, ...]


def check_pair(
    found: Overview,
    ran: Mapping[JobKind, JobOutcome | None],
    limits: CheckLimits,
    *,
    keys: ConfiguredKeys | None = None,
    unwritable: TandemError | None = None,
) -> CheckReport:
    """Return the report on one view of the pair. `ran` are the last verification and the last drill.

    Without `keys` it is not checked whether encrypted objects can be opened. `unwritable` is the error of a trial put.
    """
    figures = tuple(_figures(found, ran, limits))
    findings = [
        *_faults(found),
        *_kept_copies(found),
        *_paused(found),
        *_window(found.recovery_window),
        *_loss_signs(found.loss_signs),
        *_exceeded(figures, found),
        *_runs(found.at, ran, limits),
        *_keys(keys),
        *_unwritable(unwritable),
    ]
    findings.sort(key=lambda one: _BY_WEIGHT.index(one.severity))
    return CheckReport(
        pair=found.pair,
        at=found.at,
        severity=findings[0].severity if findings else Severity.OK,
        summary=_summary(found),
        findings=tuple(findings),
        figures=figures,
    )


def connections(
    seen: PairView,
    keys: ConfiguredKeys | None = None,
    *,
    unwritable: TandemError | None = None,
    obstacles: Iterable[TandemError] = (),
) -> CheckReport:
    """Report whether all services that an instance needs answer, whatever the state of the backup.

    The store has answered already. `obstacles` are the errors for which a restore into the pair's own cluster would be
    refused: each is a warning.
    """
    findings = [_finding(one, Severity.CRITICAL) for one in problems(seen) if one.fault in _UNREACHABLE]
    findings += [replace(one, severity=Severity.CRITICAL) for one in (*_keys(keys), *_unwritable(unwritable))]
    findings += [
        CheckFinding(severity=Severity.WARNING, fault=None, message=str(one.args[0]), remedy=one.remedy or "")
        for one in obstacles
    ]
    topics = {} if seen.brokers is None else seen.brokers.guarded.topics
    partitions = sum(count for _, count in topics.values())
    return CheckReport(
        pair=seen.pair,
        at=utc_time(seen.at),
        severity=findings[0].severity if findings else Severity.OK,
        summary=f"pair {seen.pair}: the store and the brokers answer; guarded topics: {len(topics):,}, "
        f"partitions: {partitions:,}",
        findings=tuple(findings),
        figures=(
            CheckFigure(name="topics", value=None if seen.brokers is None else len(topics), unit=""),
            CheckFigure(name="partitions", value=None if seen.brokers is None else partitions, unit=""),
        ),
    )


def _faults(found: Overview) -> Iterator[CheckFinding]:
    for problem in found.problems:
        if problem.fault is Fault.NOT_KNOWN:
            continue  # The store alone suffices; `_exceeded` reports unknown values that have a limit.
        severity = Severity.CRITICAL if problem.fault in _CRITICAL else Severity.WARNING
        yield _finding(problem, severity)


def _kept_copies(found: Overview) -> Iterator[CheckFinding]:
    """Yield a warning for each topic of which an older copy alone has what the log, or the cluster, has lost.

    Vanished keys are a problem of their own (`Fault.KEYS_VANISHED`).
    """
    lost: dict[tuple[int, str, LossCause], list[LossStatus]] = {}
    for one in found.losses:
        if not is_of_keys(one.reason):
            lost.setdefault((one.generation, one.topic, one.cause), []).append(one)
    for (generation, topic, cause), (first, *others) in lost.items():
        where = f"{topic}-{first.partition}" + (f" and {len(others)} more partitions" if others else "")
        yield CheckFinding(
            severity=Severity.WARNING,
            fault=None,
            message=f"only generation {generation} still has records of {where} ({cause.value}): {first.reason}",
            remedy=f"`{first.commands[0]}` restores them beside the topic; `{first.commands[1]}` lets them go",
        )


def _finding(problem: Problem, severity: Severity) -> CheckFinding:
    return CheckFinding(severity=severity, fault=problem.fault, message=problem.message, remedy=problem.remedy)


def _paused(found: Overview) -> Iterator[CheckFinding]:
    """Yield a warning for a pause: it is intended, but no instance takes over meanwhile."""
    pause = found.pause
    if pause is not None:
        why = f" ({pause.reason})" if pause.reason else ""
        yield CheckFinding(
            severity=Severity.WARNING,
            fault=None,
            message=f"paused by {pause.by} for another {duration(pause.left_s)}{why}",
            remedy="`tandem resume` ends it",
        )


def _keys(keys: ConfiguredKeys | None) -> Iterator[CheckFinding]:
    """Yield a finding for each key that is missing or unreadable here, before a restore needs it."""
    if keys is None:
        return
    messages = [f"keys can't be read: {keys.unreadable}"] if keys.unreadable is not None else []
    messages += [
        f"generation {use.generation} needs key {use.key_id}, which is not at hand"
        for use in keys.uses
        if not use.at_hand and keys.unreadable is None
    ]
    for message in messages:
        yield CheckFinding(
            severity=Severity.WARNING,
            fault=None,
            message=message,
            remedy="name the key in the `encryption` section; `tandem keys` shows which are needed",
        )


def _unwritable(error: TandemError | None) -> Iterator[CheckFinding]:
    """Yield a finding for a failed trial put: a full store is full for instances too; a right may be missing here."""
    if error is not None:
        yield CheckFinding(
            severity=Severity.WARNING,
            fault=None,
            message=f"the store can't be written from here: {error.args[0]}",
            remedy=error.remedy or "see whether the instances can write to it",
        )


def _window(found: RecoveryWindow | None) -> Iterator[CheckFinding]:
    if found is not None and found.missing_s:
        yield CheckFinding(
            severity=Severity.WARNING,
            fault=None,
            message=f"{duration(found.length_s)} can be restored, of {duration(found.promised_s)} that recovery.window "
            f"promises{_most_copies(found)}: older copies are gone",
            remedy=f"if recovery.window was raised, wait until {at(found.full_at)}; else find out who removed them",
        )


def _most_copies(found: RecoveryWindow) -> str:
    """Return what a promised window costs, for a bracket behind its name."""
    return f" ({found.copies:,} copies at most, by the schedule of turns)"


def _loss_signs(signs: Iterable[LossSignStatus]) -> Iterator[CheckFinding]:
    """Yield a warning for each sign: a person on purpose, or an accident that a restore can still undo."""
    for sign in signs:
        yield CheckFinding(
            severity=Severity.WARNING,
            fault=None,
            message=f"{sign.topic} may have lost records: {sign.what}",
            remedy="if nobody did that on purpose, look at what differs since: "
            + ", or ".join(f"`{command}`" for command in sign.commands),
        )


# --- figures and limits -----------------------------------------------------------------------------------------------


def _figures(found: Overview, ran: Mapping[JobKind, JobOutcome | None], limits: CheckLimits) -> Iterator[CheckFigure]:
    restore = found.restore
    base = None if restore is None else next(g for g in found.generations if g.number == restore.generation)
    yield CheckFigure(
        name="lag",
        value=None if restore is None else restore.lag,
        unit="",
        warning=limits.lag_warning,
        critical=limits.lag_critical,
    )
    yield CheckFigure(
        name="commit_age",
        value=None if restore is None else restore.window.age_s,
        unit="s",
        warning=limits.commit_age_warning_s,
        critical=limits.commit_age_critical_s,
    )
    yield CheckFigure(
        name="complete_age",
        value=_since(None if base is None else base.completed_at, found.at),
        unit="s",
        warning=limits.complete_age_warning_s,
        critical=limits.complete_age_critical_s,
    )
    for kind, limit in ((JobKind.VERIFY, limits.verify_age_s), (JobKind.DRILL, limits.drill_age_s)):
        last = ran.get(kind)
        at = None if last is None else utc_time(last.at)
        yield CheckFigure(name=f"{kind.value}_age", value=_since(at, found.at), unit="s", warning=limit)
    yield CheckFigure(name="bytes", value=sum(g.bytes for g in found.generations), unit="B")
    yield CheckFigure(name="generations", value=len(found.generations), unit="")


def _since(at: datetime | None, now: datetime) -> float | None:
    return None if at is None else max(0.0, (now - at).total_seconds())


_MEANING: Final[Mapping[str, tuple[str, str]]] = {
    "lag": ("the log has {} offsets that no restore would bring back", "look at the log of the Active"),
    "commit_age": ("the newest moment that can be restored is {} old", "look at the log of the Active"),
    "complete_age": (
        "the generation that a restore would use became complete {} ago",
        "see with `tandem status` why no turn came to its end, or raise the limit above rotation.interval",
    ),
}


def _exceeded(figures: Iterable[CheckFigure], found: Overview) -> Iterator[CheckFinding]:
    for figure in figures:
        if figure.name not in _MEANING or (figure.warning is None and figure.critical is None):
            continue
        message, remedy = _MEANING[figure.name]
        if figure.value is None:
            if found.restore is not None:  # without a restorable generation, that is the finding
                yield _not_known(figure.name, found)
            continue
        for severity, limit in ((Severity.CRITICAL, figure.critical), (Severity.WARNING, figure.warning)):
            if limit is not None and figure.value > limit:
                shown = duration(figure.value) if figure.unit == "s" else f"{figure.value:,.0f}"
                yield CheckFinding(severity=severity, fault=None, message=message.format(shown), remedy=remedy)
                break


def _not_known(name: str, found: Overview) -> CheckFinding:
    gap = next((problem for problem in found.problems if problem.fault is Fault.NOT_KNOWN), None)
    why = f": {gap.message}" if gap is not None else ": the brokers were not asked"
    return CheckFinding(
        severity=Severity.UNKNOWN,
        fault=Fault.NOT_KNOWN,
        message=f"the {name} is not known{why}",
        remedy=gap.remedy if gap is not None else "leave --s3-only out, or the limits on the lag",
    )


def _runs(now: datetime, ran: Mapping[JobKind, JobOutcome | None], limits: CheckLimits) -> Iterator[CheckFinding]:
    for kind, limit in ((JobKind.VERIFY, limits.verify_age_s), (JobKind.DRILL, limits.drill_age_s)):
        last, severity = ran.get(kind), Severity.WARNING
        # Findings of a job count with or without a limit: the backup does not match its chains.
        if last is not None and last.error is None and not last.clean:
            severity = Severity.CRITICAL
            message = f"the last `tandem {kind.value}` found {kind.findings(last.findings)}"
        elif last is not None and last.unsettled:
            severity, before = Severity.CRITICAL, last.unsettled[-1]
            ago = duration(_since(utc_time(before.at), now) or 0.0)
            message = (
                f"a `tandem {kind.value}` found {kind.findings(before.findings)} {ago} ago ({before.what}), "
                "and none has read that again since"
            )
        elif limit is None:
            continue
        elif last is None:
            message = f"no `tandem {kind.value}` was ever run"
        elif last.error is not None:
            message = f"the last `tandem {kind.value}` did not come to its end: {last.error}"
        elif (age_s := _since(utc_time(last.at), now)) is not None and age_s > limit:
            message = f"the last `tandem {kind.value}` was {duration(age_s)} ago"
        else:
            continue
        yield CheckFinding(severity=severity, fault=None, message=message, remedy=f"run `tandem {kind.value}`")


# --- in words ---------------------------------------------------------------------------------------------------------


def _summary(found: Overview) -> str:
    restore = found.restore
    if restore is None:
        return f"pair {found.pair}: nothing can be restored"
    ago = "now" if restore.window.age_s < 1 else f"{duration(restore.window.age_s)} ago"
    lag = "" if restore.lag is None else f", lag {restore.lag:,}"
    active, window = _active(found.generations), found.recovery_window
    who = f"{active.instance} is Active" if active is not None else "nobody is Active"
    said = f"pair {found.pair}: generation {restore.generation} restores up to {ago}{lag}, {who}"
    if window is not None and window.promised_s:
        said += f", recovery.window {duration(window.promised_s)}{_most_copies(window)}"
    return said


def _active(generations: Iterable[GenerationStatus]) -> GenerationStatus | None:
    found = [one for one in generations if one.state is GenerationState.COMPLETE]
    return max(found, key=lambda one: one.number, default=None)


def line(report: CheckReport) -> str:
    """Return the report as a plugin prints it: `OK - …|name=value;warning;critical …`, always one line."""
    said = "; ".join(one.message for one in report.findings) or report.summary
    text = " ".join(said.replace("|", "/").split())
    return f"{report.severity.name} - {text}|{' '.join(map(_perfdata, report.figures))}"


def _perfdata(figure: CheckFigure) -> str:
    if figure.value is None:
        return f"{figure.name}=U"
    value = f"{_number(figure.value)}{figure.unit}"
    if figure.warning is None and figure.critical is None:
        return f"{figure.name}={value}"
    limits = ";".join("" if limit is None else _number(limit) for limit in (figure.warning, figure.critical))
    return f"{figure.name}={value};{limits}".rstrip(";")


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")
