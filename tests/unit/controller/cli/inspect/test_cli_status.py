"""`tandem status --s3-only` on a folder store: table, JSON, exit codes, and what is said when something is wrong."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import yaml
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.requests import cut_request, job_outcome
from support.pairs.sights import listening, message, sight
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain import layout
from tandem.backup_avro.documents.checkpoint import CheckpointOutcome
from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.backup_avro.documents.outcome import JobKind, JobScope
from tandem.backup_avro.documents.pause import Pause
from tandem.controller.cli.inspect.status import _tables
from tandem.controller.cli.main import run
from tandem.controller.cli.output import output
from tandem.controller.cli.output.slow_notice import patience
from tandem.controller.status.overview import overview
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain import checkpoints, outcomes
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.sink.store.chain.pauses import PauseReader

ORDERS = TopicSpec("orders", partitions=2)


def completed(store: ObjectStore, number: int = 1, instance: str = "a") -> Backup:
    """A generation that is COMPLETE."""
    return Backup.completed(
        store, records("orders", 0, range(1500), tombstones=[3]), topics=[ORDERS], number=number, instance=instance
    )


def test_healthy(store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0; the first lines say that all is well and what a restore would use; nothing goes to stderr."""
    completed(store)
    assert run(["status", "-c", config, "--s3-only"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].startswith(f"pair shop in {store.url} at 20")
    assert lines[1] == "HEALTHY"
    assert re.match(r"A restore would use generation 1 of a, as of its commit of \S+ \S+Z \(.*\)\.$", lines[2])
    assert "1  a      COMPLETE" in printed.out
    assert "1,500" in printed.out
    assert "the brokers were not asked" in lines[-1]
    assert printed.err == ""


def test_a_pause_stands_beside_the_verdict(store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is wrong, but no instance would take over; exit code 0, as without a pause."""
    completed(store)
    now = now_ms(store)
    PauseReader(store, PAIR).append(Pause(number=0, pair=PAIR, at=now, until=now + 60_000, by="me", reason="upgrade"))
    assert run(["status", "-c", config, "--s3-only"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "HEALTHY, and paused: no instance takes a turn by itself"
    assert any(line.startswith("the pair is paused by me until") for line in lines)


def test_unhealthy(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3; each problem comes with what to do."""
    assert run(["status", "-c", config, "--s3-only"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:5] == [
        "UNHEALTHY: 1 problem",
        "  * there is no complete backup: nothing is stored yet",
        "    what to do: start both instances (`tandem run`)",
        "A restore is not possible.",
    ]


def test_restore_points(store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All moments with their commands, checkpoints too; without a configuration nothing is said of what is promised."""
    backup = completed(store)
    request = cut_request(at=now_ms(store), deadline=now_ms(store) + 60_000, witnesses=(1,))
    checkpoints.put_request(store, request)
    outcome = CheckpointOutcome(
        id="nightly", nonce=request.nonce, at=request.at, by="a", generation=1, seq=backup.writer.state.seq
    )
    checkpoints.settle_request(store, request, outcome)
    store.put_if_absent(f"{layout.checkpoints_prefix(PAIR)}torn.json", b"{}")
    assert run(["status", "-c", config, "--s3-only"]) == 0
    text = capsys.readouterr().out
    for line in (
        r"newest +- +20\S+ \S+Z +- +tandem restore",
        r"generation 1 +- +20\S+ \S+Z +the turn due 20\S+ \S+Z +tandem restore --at MOMENT",
        r"checkpoint nightly +- +20\S+ \S+Z +a person, who may delete it +tandem restore --checkpoint nightly",
        r"checkpoint torn +- +- +- +none: it can't be read: .*",
    ):
        assert re.search(rf"^{line}$", text, re.MULTILINE), line
    assert "recovery.window promises none" in text
    assert run(["status", "--s3-only", "--root", store.url, "--pair", PAIR]) == 0
    text = capsys.readouterr().out
    assert "recovery.window" not in text
    assert "the turn due" not in text
    assert re.search(r"^generation 1 +- +20\S+ \S+Z +- +tandem restore --at MOMENT$", text, re.MULTILINE)


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_documents(store: ObjectStore, config: str, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON and YAML hold the same: base units, ISO times, every position."""
    completed(store)
    assert run(["status", "-c", config, "--s3-only", "-o", form]) == 0
    text = capsys.readouterr().out
    told = json.loads(text) if form == "json" else yaml.safe_load(text)
    assert (told["schemaVersion"], told["kind"], told["pair"], told["healthy"]) == (1, "Status", PAIR, True)
    one = told["generations"][0]
    assert (one["number"], one["state"], one["records"], one["tombstones"]) == (1, "COMPLETE", 1500, 1)
    assert isinstance(one["bytes"], int)
    assert datetime.fromisoformat(one["window"]["start"]).tzinfo == UTC
    assert [(place["topic"], place["partition"], place["offset"], place["lag"]) for place in one["positions"]] == [
        ("orders", 0, 1500, None),
        ("orders", 1, 0, None),
    ]


def test_damage_is_shown_beside_the_rest(store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged chain is a problem with exit code 3, not an error without a picture."""
    completed(store)
    completed(store, 2, "b")
    store.delete([layout.entry_key(PAIR, 1, 1)])
    store.put_if_absent(layout.entry_key(PAIR, 1, 1), b"{}")
    assert run(["status", "-c", config, "--s3-only"]) == 3
    text = capsys.readouterr().out
    assert "  * generation 1 can't be read: " in text
    assert "A restore would use generation 2 of b" in text


def test_a_store_that_is_not_there(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the store there is nothing to show: an error with its remedy."""
    code = run(["status", "-c", config, "--s3-only", "--set", "store.root=file:///does/not/exist/anywhere"])
    assert code != 0
    assert "what to do:" in capsys.readouterr().err


def test_the_table_of_instances(capsys: pytest.CaptureFixture[str]) -> None:
    """Roles, silence and departure in words; what an instance does, and what it complains about."""
    store = MemoryStore(clock_ms=1_790_000_000_000)  # a real clock goes on between two lines, and "5s" becomes "5.1s"
    completed(store)
    at = now_ms(store)
    details = {"phase": "scanning", "base_remaining": "12000", "reason": "nothing to do", "trouble": "orders-1: slow"}
    details |= {"transcoder": "compiled", "failing": "Seal of generation 1 fails: 403"}
    heard = listening(
        message(instance="a", incarnation="0123456789", at=at - 2000, state="Catch-up", lag_records=5, details=details),
        message(instance="b", at=at - 200_000, state="Active", details={"reason": "nothing to do"}),
    )
    slow = message(instance="a", at=at, state="Active", details={"phase": "reading", "transcoder": "reference"})
    assert "reading; without the compiled transcoder, slow" in drawn(store, listening(slow), capsys)
    text = drawn(store, heard, capsys)
    assert re.search(
        r"^a +Catch-up +[23]\S* ago +01234567 +- +5  "
        r"scanning; 12,000 offsets of the first reading to go; Seal of generation 1 fails: 403; orders-1: slow$",
        text,
        re.MULTILINE,
    )
    assert re.search(r"^b +was Active +silent for 3m 2\ds +process- +- +-  -$", text, re.MULTILINE)
    heard = listening(message(CoordinationEvent.LEAVING, instance="b", at=at - 5000))
    assert re.search(r"^b +- +left [56]\S*s ago ", drawn(store, heard, capsys), re.MULTILINE)
    assert re.search(r"^a +- +never ", drawn(store, heard, capsys), re.MULTILINE)


def drawn(store: ObjectStore, heard: object, capsys: pytest.CaptureFixture[str]) -> str:
    """The table as it is printed."""
    found = overview(sight(store, listener=heard, topics=[ORDERS]))  # type: ignore[arg-type]  # a Listener
    output.show(kind="Status", body={}, output=output.OutputFormat.TABLE, tables=_tables(found, s3_only=False))
    return capsys.readouterr().out


def test_what_is_missing_is_named_up_to_five(store: ObjectStore, capsys: pytest.CaptureFixture[str]) -> None:
    """The first obstacles by name, then how many more."""
    Backup.begun(store, records("orders", 0, range(3)), topics=[ORDERS])
    found = overview(sight(store, heard_s={"a": 1, "b": 1}, topics=[ORDERS, TopicSpec("new", partitions=7)]))
    output.show(kind="Status", body={}, output=output.OutputFormat.TABLE, tables=_tables(found, s3_only=False))
    text = capsys.readouterr().out
    assert "generation 1 waits for COMPLETE: 7 things are missing\n  new-0 is not read yet\n" in text
    assert "  new-4 is not read yet\n  … and 2 more: -o json lists all" in text


def test_what_topics_hold_cannot_steer_the_terminal(store: ObjectStore, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters in a heartbeat are shown as escapes."""
    completed(store)
    heard = listening(message(instance="a", at=now_ms(store), details={"trouble": "\x1b[2Jgone"}))
    text = drawn(store, heard, capsys)
    assert "\x1b" not in text
    assert "\\x1b[2Jgone" in text


def test_a_slow_answer_is_announced_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Who waits is told that the command is at work; a quick answer comes without a word."""
    with patience("reading", after_s=30):
        pass
    assert capsys.readouterr().err == ""
    said = ""
    with patience("reading", after_s=0.01):
        deadline = time.monotonic() + 30
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
            said += capsys.readouterr().err
    assert said + capsys.readouterr().err == "reading …\n"


def test_the_last_runs_are_shown_and_do_not_count(
    store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """When was verified and drilled last, how it went, and that a failed one leaves the pair healthy."""
    completed(store)
    run_of = job_outcome(
        at=now_ms(store) - 65_000,
        what="all chains and objects",
        records=1500,
        generations={1: 3},
        phases={"verify": 2.5},
    )
    outcomes.put_outcome(store, run_of)
    failed = replace(run_of, kind=JobKind.DRILL, clean=False, error="no broker answers", what="orders")
    outcomes.put_outcome(store, failed)
    swept = replace(run_of, kind=JobKind.RETENTION, clean=False, findings=2, what="5 steps")
    outcomes.put_outcome(store, swept)
    assert run(["status", "-c", config, "--s3-only"]) == 0
    last = capsys.readouterr().out.splitlines()[-3:]
    assert re.match(r"last verify    1m \d+s ago, 2.5s: clean \(all chains and objects\)$", last[0])
    assert re.match(r"last drill     1m \d+s ago, 2.5s: failed: no broker answers \(orders\)$", last[1])
    assert re.match(r"last retention 1m \d+s ago, 2.5s: 2 steps failed \(5 steps\)$", last[2])
    assert run(["status", "-c", config, "--s3-only", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["lastVerify"]["clean"], document["lastVerify"]["generations"]) == (True, {"1": 3})
    assert (document["lastDrill"]["error"], document["lastDrill"]["seconds"]) == ("no broker answers", 2.5)
    outcomes.put_outcome(store, replace(run_of, at=run_of.at + 1, clean=False, findings=7))
    assert run(["status", "-c", config, "--s3-only"]) == 0
    assert "7 mismatches" in capsys.readouterr().out
    sampled = replace(run_of, scope=JobScope.SAMPLE, what="a sample", at=run_of.at + 2)
    for one in (replace(sampled, clean=False, findings=7, hurt=(1,)), replace(sampled, at=sampled.at + 1)):
        outcomes.put_outcome(store, one)
    assert run(["status", "-c", config, "--s3-only"]) == 0
    last = capsys.readouterr().out.splitlines()[-4:-2]
    assert re.match(r"last verify    1m \d+s ago, 2.5s: clean \(a sample\)$", last[0])
    assert re.match(r" {15}1m \d+s ago: 7 mismatches \(a sample\), not read again since: tandem verify$", last[1])
    assert run(["status", "-c", config, "--s3-only", "-o", "json"]) == 0
    (left,) = json.loads(capsys.readouterr().out)["lastVerify"]["unsettled"]
    assert (left["scope"], left["findings"], left["hurt"]) == ("sample", 7, [1])
