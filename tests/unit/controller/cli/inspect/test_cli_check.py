"""`tandem check`: one line, a plugin's exit codes, limits, and what is said when nothing can be found out."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from support.backups.build_backup import CLUSTER, PAIR, Backup, TopicSpec, records
from support.pairs.sights import listening, message, sight

from tandem.backup_avro.chain import layout
from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.backup_avro.documents.outcome import JobKind, JobOutcome, JobScope, UnsettledFindings
from tandem.backup_avro.errors import RefusedError
from tandem.controller.cli.inspect import check as check_command
from tandem.controller.cli.main import run
from tandem.controller.process.timed_call import TimedCall, left_behind
from tandem.controller.status import outside_view
from tandem.controller.status.check import CheckLimits, CheckReport, Severity, check_pair, connections, line
from tandem.controller.status.health import Fault
from tandem.controller.status.key_use import ConfiguredKeys
from tandem.controller.status.overview import overview
from tandem.controller.status.pair_view import Gap
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain import outcomes
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.sink.store.contract.lifecycle_rules import LifecycleRule

ORDERS = TopicSpec("orders", partitions=2)
BOTH = {"a": 1.0, "b": 2.0}
HOUR_MS = 3_600_000


def completed(store: ObjectStore, number: int = 1, instance: str = "a") -> Backup:
    """A generation that is COMPLETE."""
    return Backup.completed(store, records("orders", 0, range(100)), topics=[ORDERS], number=number, instance=instance)


def judged(
    store: ObjectStore,
    limits: CheckLimits | None = None,
    ran: dict[JobKind, JobOutcome | None] | None = None,
    **seen: object,
) -> CheckReport:
    """What is reported of a store, and of what else is seen."""
    return check_pair(overview(sight(store, **seen)), ran or {}, limits or CheckLimits())  # type: ignore[arg-type]  # as `sight` has it


def outcome(at: int, kind: JobKind = JobKind.VERIFY) -> JobOutcome:
    """A clean run that ended then."""
    return JobOutcome(kind=kind, pair=PAIR, at=at, by="me@here", clean=True, what="all", findings=0, records=1, bytes=1)


def test_all_is_well(store: ObjectStore) -> None:
    """OK, what a restore would bring back, and every figure with its unit."""
    completed(store)
    found = judged(store, heard_s=BOTH, topics=[ORDERS], ends={("orders", 0): 103, ("orders", 1): 0})
    assert (found.severity, found.findings) == (Severity.OK, ())
    assert re.fullmatch(
        r"OK - pair shop: generation 1 restores up to (now|\d+\S* ago), lag 3, a is Active"
        r"\|lag=3 commit_age=[\d.]+s complete_age=[\d.]+s verify_age=U drill_age=U bytes=\d+B generations=1",
        line(found),
    )


@pytest.mark.parametrize(
    ("limits", "severity"),
    [
        (CheckLimits(lag_warning=3, lag_critical=3), Severity.OK),
        (CheckLimits(lag_warning=2), Severity.WARNING),
        (CheckLimits(lag_warning=2, lag_critical=3), Severity.WARNING),
        (CheckLimits(lag_warning=1, lag_critical=2), Severity.CRITICAL),
        (CheckLimits(lag_critical=0), Severity.CRITICAL),
    ],
)
def test_a_limit_counts_when_it_is_exceeded(store: ObjectStore, limits: CheckLimits, severity: Severity) -> None:
    """At the limit is still well; the worse of two limits wins, and is told once."""
    completed(store)
    found = judged(store, limits, heard_s=BOTH, topics=[ORDERS], ends={("orders", 0): 103, ("orders", 1): 0})
    assert found.severity is severity
    assert len(found.findings) == (severity is not Severity.OK)
    warning, critical = limits.lag_warning, limits.lag_critical
    expected = f"lag=3;{'' if warning is None else warning};{'' if critical is None else critical}".rstrip(";")
    assert f"|{expected} " in line(found)


def test_ages_are_measured_by_the_store(store: ObjectStore) -> None:
    """Age of the newest moment and of COMPLETE, against their limits, in seconds."""
    completed(store)
    limits = CheckLimits(commit_age_warning_s=60, complete_age_critical_s=100)
    assert judged(store, limits, heard_s=BOTH, later_s=50).severity is Severity.OK
    found = judged(store, limits, heard_s=BOTH, later_s=70)
    assert (found.severity, found.findings[0].message) == (
        Severity.WARNING,
        "the newest moment that can be restored is 1m 10s old",
    )
    found = judged(store, limits, heard_s=BOTH, later_s=110)
    assert [one.severity for one in found.findings] == [Severity.CRITICAL, Severity.WARNING]
    assert "complete_age=110" in line(found)


def test_a_lag_that_is_not_known_is_no_lag_of_nothing(store: ObjectStore) -> None:
    """Brokers that do not answer count only if there is a limit on the lag: then it is UNKNOWN, and says why."""
    completed(store)
    gap = Gap(message="nothing is known of the logs' ends: no answer", remedy="check the brokers")
    found = judged(store, gaps=(gap,))
    assert (found.severity, found.findings) == (Severity.OK, ())
    assert "|lag=U " in line(found)
    found = judged(store, CheckLimits(lag_warning=5), gaps=(gap,))
    assert (found.severity, found.findings[0].message) == (
        Severity.UNKNOWN,
        "the lag is not known: nothing is known of the logs' ends: no answer",
    )
    assert found.findings[0].remedy.startswith("check the brokers")
    assert "the brokers were not asked" in judged(store, CheckLimits(lag_warning=5)).findings[0].message


def test_connections_are_well_before_anything_is_stored(store: ObjectStore) -> None:
    """After an installation: what answers counts, not how far the first backup is."""
    found = connections(sight(store, heard_s={}, topics=[ORDERS]), ConfiguredKeys(uses=()))
    assert line(found) == (
        "OK - pair shop: the store and the brokers answer; guarded topics: 1, partitions: 2|topics=1 partitions=2"
    )
    Backup.claim(store, topics=[ORDERS]).commit(records("orders", 0, range(100)))  # it reads still
    assert connections(sight(store, heard_s={"a": 500.0}, topics=[ORDERS])).severity is Severity.OK


def test_what_a_restore_would_be_refused_for_is_a_warning(store: ObjectStore) -> None:
    """The backup is well, but nobody wants to hear of that in the night of the restore."""
    obstacle = RefusedError("transactions are too short", code="TDM-X001", remedy="make them longer")
    found = connections(sight(store, heard_s={}, topics=[ORDERS]), obstacles=[obstacle])
    assert found.severity is Severity.WARNING
    assert [(one.message, one.remedy) for one in found.findings] == [("transactions are too short", "make them longer")]


@pytest.mark.parametrize(
    ("seen", "keys", "fault"),
    [
        ({"gaps": (Gap(message="nothing is known of the brokers", remedy=None),)}, None, Fault.NOT_KNOWN),
        ({"topics": [ORDERS], "missing": ["order"]}, None, Fault.TOPIC_MISSING),
        ({"topics": []}, None, Fault.TOPIC_MISSING),
        ({"topics": [ORDERS], "cluster_id": "other"}, None, Fault.WRONG_CLUSTER),
        ({"topics": [ORDERS]}, ConfiguredKeys(uses=(), unreadable="no such file"), None),
    ],
)
def test_what_does_not_answer_is_critical(
    store: ObjectStore, seen: dict[str, object], keys: ConfiguredKeys | None, fault: Fault | None
) -> None:
    """Each of it alone, although a complete backup is there and all else is well."""
    completed(store)
    found = connections(sight(store, **seen), keys)  # type: ignore[arg-type]  # as `sight` has it
    assert (found.severity, [one.fault for one in found.findings]) == (Severity.CRITICAL, [fault])


def test_connections_on_the_command_line(store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Brokers that are not there are CRITICAL, where a check without it is OK; limits have no meaning."""
    completed(store)
    assert run(["check", "-c", config, "--timeout", "20"]) == 0
    assert run(["check", "-c", config, "--timeout", "20", "--connections"]) == 2
    assert "CRITICAL - nothing is known of" in capsys.readouterr().out
    for other in (("--s3-only",), ("--lag-warning", "5")):
        assert run(["check", "-c", config, "--connections", *other]) == 3
        assert "[TDM-C001]" in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_folder_that_takes_nothing_is_told(
    number: int, store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filled or read-only: a WARNING, with --connections CRITICAL; where it can be written, no object stays of it."""
    completed(store)
    before = [info.key for info in store.list("")]
    assert run(["check", "-c", config, "--s3-only"]) == 0
    assert [info.key for info in store.list("")] == before
    capsys.readouterr()

    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    assert run(["check", "-c", config, "--s3-only", "-o", "json"]) == 1
    [finding] = json.loads(capsys.readouterr().out)["findings"]
    assert os.strerror(number) in finding["message"]
    assert finding["remedy"]
    assert run(["check", "-c", config, "--connections"]) == 2
    assert os.strerror(number) in capsys.readouterr().out


def test_a_lifecycle_rule_is_critical_before_it_takes_anything(
    store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In both forms of the command; and it is a problem of the pair, that its status has too."""
    completed(store)
    rule = LifecycleRule(name="r", prefix="x/", effect="deletes, 30 days after they were written,")
    monkeypatch.setattr(type(store), "lifecycle_rules", lambda *_: [rule], raising=False)
    assert run(["check", "-c", config, "--s3-only", "-o", "json"]) == 2
    [finding] = json.loads(capsys.readouterr().out)["findings"]
    assert (
        finding["message"]
        == f"{rule}"
        == ("lifecycle rule 'r' deletes, 30 days after they were written, objects below 'x/'")
    )
    assert finding["remedy"]
    assert finding["fault"] == Fault.OBJECTS_EXPIRE.value
    assert run(["check", "-c", config, "--connections"]) == 2
    assert f"{rule}" in capsys.readouterr().out
    assert run(["status", "-c", config, "--s3-only"]) == 3
    assert f"* {rule}" in capsys.readouterr().out


def test_nothing_to_restore_is_critical_and_told_once(store: ObjectStore) -> None:
    """Limits say nothing beside it: there is nothing they could be held against."""
    found = judged(store, CheckLimits(lag_warning=1, commit_age_warning_s=1), heard_s={})
    assert found.severity is Severity.CRITICAL
    assert [one.fault for one in found.findings if one.severity is Severity.CRITICAL] == [Fault.NO_COMPLETE_BACKUP]
    assert found.summary == "pair shop: nothing can be restored"


def test_an_active_that_is_dead_for_ever_is_critical(store: ObjectStore) -> None:
    """By its voice and its chain where the brokers answer, by its chain alone where they do not."""
    completed(store)
    heard = judged(store, heard_s={"b": 1}, later_s=3600)
    assert heard.severity is Severity.CRITICAL
    assert heard.findings[0].fault is Fault.ACTIVE_SILENT
    alone = judged(store, later_s=3600)
    assert (alone.severity, alone.findings[0].fault) == (Severity.CRITICAL, Fault.NOT_COMMITTING)


def test_what_can_wait_is_a_warning(store: ObjectStore) -> None:
    """A peer that is away, a taint that both instances cure: the backup goes on."""
    backup = completed(store)
    away = judged(store, heard_s={"a": 1})
    assert (away.severity, away.findings[0].fault) == (Severity.WARNING, Fault.INSTANCE_SILENT)
    backup.taint("orders", 0, 100)
    found = judged(store, heard_s=BOTH)
    assert (found.severity, found.findings[0].fault) == (Severity.WARNING, Fault.TAINTED)


def test_a_verification_and_a_drill_are_asked_for_by_limits(store: ObjectStore) -> None:
    """Never, too long ago, not ended: WARNING, and without a limit nothing. With mismatches: CRITICAL, always."""
    completed(store)
    now = now_ms(store)
    limits = CheckLimits(verify_age_s=7200, drill_age_s=7200)
    never = judged(store, limits, heard_s=BOTH)
    assert [one.message for one in never.findings] == [
        "no `tandem verify` was ever run",
        "no `tandem drill` was ever run",
    ]
    fresh = {kind: outcome(now - HOUR_MS, kind) for kind in JobKind}
    assert judged(store, limits, {**fresh}, heard_s=BOTH).severity is Severity.OK
    old = {**fresh, JobKind.DRILL: outcome(now - 3 * HOUR_MS, JobKind.DRILL)}
    assert judged(store, limits, {**old}, heard_s=BOTH).findings[0].message == "the last `tandem drill` was 3h ago"
    broken = {**fresh, JobKind.VERIFY: replace(outcome(now), clean=False, error="no answer")}
    assert judged(store, limits, {**broken}, heard_s=BOTH).severity is Severity.WARNING
    for unasked in ({}, old, broken):
        assert judged(store, None, {**unasked}, heard_s=BOTH).severity is Severity.OK
    found = {**fresh, JobKind.VERIFY: replace(outcome(now), clean=False, findings=7)}
    for limit in (limits, None):
        report = judged(store, limit, {**found}, heard_s=BOTH)
        assert (report.severity, report.findings[0].message) == (
            Severity.CRITICAL,
            "the last `tandem verify` found 7 mismatches",
        )
    before = UnsettledFindings(at=now - 3 * HOUR_MS, scope=JobScope.SAMPLE, what="a sample", findings=7)
    left = {**fresh, JobKind.VERIFY: replace(outcome(now), unsettled=(before,))}
    for limit in (limits, None):
        report = judged(store, limit, {**left}, heard_s=BOTH)
        assert report.severity is Severity.CRITICAL
        assert "a `tandem verify` found 7 mismatches 3h ago (a sample), and none has read that again" in line(report)
    not_read = {**fresh, JobKind.VERIFY: replace(outcome(now), clean=False, error="no answer", unsettled=(before,))}
    assert judged(store, None, {**not_read}, heard_s=BOTH).severity is Severity.CRITICAL


def test_the_worst_comes_first_and_all_is_one_line(store: ObjectStore) -> None:
    """A message with a bar or a line break can't be taken for figures; CRITICAL goes before WARNING."""
    completed(store)
    trouble = message(instance="a", at=now_ms(store), state="Active", details={"trouble": "x|lag=0\ny"})
    said = line(judged(store, listener=listening(trouble, message(CoordinationEvent.LEAVING, instance="b", at=1))))
    assert said.startswith("WARNING - a: x/lag=0 y; b ")
    assert said.count("|") == 1
    wrong = judged(store, heard_s={"a": 1}, topics=[ORDERS], cluster_id=f"not-{CLUSTER}")
    assert [one.severity for one in wrong.findings] == [Severity.CRITICAL, Severity.WARNING]


def test_the_command_asks_the_store_alone(store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code and line; nothing on stderr."""
    completed(store)
    assert run(["check", "-c", config, "--s3-only"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("OK - pair shop: generation 1 restores up to ")
    assert (printed.out.count("\n"), printed.err) == (1, "")


def test_brokers_that_do_not_answer_do_not_matter(
    store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store suffices: OK without them, UNKNOWN only where a limit needs them."""
    completed(store)
    assert run(["check", "-c", config]) == 0
    assert run(["check", "-c", config, "--lag-critical", "5"]) == 3
    assert capsys.readouterr().out.splitlines()[1].startswith("UNKNOWN - the lag is not known: ")


def test_the_document(store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has the findings with their remedies and every figure with its limits, beside the same exit code."""
    store.put_if_absent(layout.claim_key(PAIR, 1), b"{}")
    assert run(["check", "-c", config, "--s3-only", "--lag-warning", "5", "-o", "json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert (told["schemaVersion"], told["kind"], told["severity"]) == (1, "Check", "CRITICAL")
    assert told["findings"][0]["fault"] == "chain damaged"
    assert told["findings"][0]["remedy"]
    assert told["figures"][0] == {"name": "lag", "value": None, "unit": "", "warning": 5, "critical": None}


def test_the_last_run_is_read_from_the_store(
    store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 as long as nobody verified, 0 afterwards."""
    completed(store)
    arguments = ["check", "-c", config, "--s3-only", "--verify-age", "8d"]
    assert run(arguments) == 1
    outcomes.put_outcome(store, outcome(now_ms(store)))
    assert run(arguments) == 0
    assert ";691200 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--nope"], "No such option: --nope"),
        (["--lag-warning", "many"], "--lag-warning"),
        (["--verify-age", "8 fortnights"], "--verify-age 8 fortnights"),
        (["--lag-warning", "5", "--lag-critical", "4"], "--lag-critical is below --lag-warning"),
        (["-c", "/does/not/exist.yaml"], "/does/not/exist.yaml"),
        (["--set", "store.root=file:///does/not/exist/anywhere"], "does not exist"),
    ],
)
def test_what_can_not_be_found_out_is_unknown(
    config: str, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 3, never the 2 that would be an alarm; one line on stdout for the monitoring, the remedy on stderr."""
    assert run(["-c", config, "check", *arguments]) == 3
    printed = capsys.readouterr()
    assert printed.out.startswith("UNKNOWN - ")
    assert says in printed.out
    assert printed.out.count("\n") == 1
    assert printed.err


def test_a_store_that_hangs_is_unknown_after_the_timeout(config: str, silent_port: int) -> None:
    """Exit code 3 and one line within the time, and the process ends then, though its threads still wait."""
    began = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from tandem.controller.cli.main import main; main()", "check", "-c", config),
            *("--set", "store.root=s3://bucket/prefix", "--set", f"store.endpoint_url=http://127.0.0.1:{silent_port}"),
            *("--timeout", "1.5"),
        ],
        env={**os.environ, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    took_s = time.monotonic() - began
    assert done.returncode == 3, done.stderr
    assert done.stdout == "UNKNOWN - no answer from the store s3://bucket/prefix within 1.5 s\n"
    assert "Traceback" not in done.stderr
    assert 1.5 <= took_s < 18  # two reads of 10 s each without it


def test_brokers_that_hang_are_left_out_after_their_share(
    store: ObjectStore,
    config: str,
    silent_port: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store's answer counts, in time; what needs the brokers is UNKNOWN, and says how long it waited."""
    assert check_command._BROKERS == 0.8
    monkeypatch.setattr(check_command, "_BROKERS", 0.05)
    monkeypatch.setattr(outside_view, "ANSWER_S", 4.0)  # as users have it: longer than their share
    completed(store)
    arguments = ["check", "-c", config, "--set", f"kafka.bootstrap.servers=127.0.0.1:{silent_port}", "--timeout", "8"]
    assert run(arguments) == 0
    assert run([*arguments, "--lag-critical", "5"]) == 3
    assert "no answer of the brokers within 0.4 s" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", ["0", "-1", "soon"])
def test_a_timeout_is_a_number_of_seconds(config: str, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Anything else is a wrong command line, which is UNKNOWN."""
    assert run(["check", "-c", config, "--timeout", wrong]) == 3
    assert "--timeout" in capsys.readouterr().out


def test_an_errand_hands_on_what_comes_of_it() -> None:
    """The value, the error, and that nobody is left behind once it has ended."""
    assert TimedCall(lambda: 7, name="seven").result(5) == 7
    with pytest.raises(ZeroDivisionError):
        TimedCall(lambda: 1 // 0, name="nothing").result()
    gate = threading.Event()
    slow = TimedCall(gate.wait, name="slow")
    with pytest.raises(TimeoutError):
        slow.result(0.01)
    assert left_behind()
    gate.set()
    assert slow.result(5) is True
