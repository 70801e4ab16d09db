"""`tandem retention` on real stores: what goes, what stays, beside a running writer, and what verify says after."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import EntryKind
from tandem.backup_avro.chain.generation import ChainError, Generation
from tandem.backup_avro.documents.outcome import JobKind
from tandem.controller.sandbox.s3 import REGION
from tandem.sink.store import ObjectStore, StoreAccess, open_store
from tandem.sink.store.chain import outcomes as kept_results
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter, now_ms
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.retention.retention_job import RetentionJob, StepOutcome
from tandem.spark_jobs.retention.retention_steps import RetentionAction, RetentionRules
from tandem.spark_jobs.verify.verify_objects import VerifyRequest, verify_objects

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark]

HOUR = 3_600_000
ORDERS = TopicSpec("orders", 2)
LOGS = TopicSpec("logs", config={"cleanup.policy": "delete", "retention.ms": str(HOUR)})
AT_ONCE = RetentionRules(grace=0)


@pytest.fixture
def folder(tmp_path: Path) -> StoreAddress:
    """A folder, where the kind of store does not matter."""
    return StoreAddress(root=tmp_path.as_uri(), settings=StoreAccess())


def begin_upload(address: StoreAddress, key: str) -> None:
    """Leave an upload behind as a process that was killed does."""
    if address.root.startswith("file:"):
        path = Path(address.root.removeprefix("file://")) / ".tandem-uploads" / f"{key}~0123456789abcdef"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
        return
    bucket, _, prefix = address.root.removeprefix("s3://").partition("/")
    client = boto3.client(
        "s3",
        endpoint_url=address.settings.endpoint_url,
        region_name=REGION,
        aws_access_key_id=address.settings.access_key_id,
        aws_secret_access_key=address.settings.secret_access_key,
    )
    client.create_multipart_upload(Bucket=bucket, Key=f"{prefix}/{key}")
    client.close()


def stored(store: ObjectStore, instance: str, number: int) -> set[str]:
    """The keys below a generation's data prefix."""
    return {info.key for info in store.list(f"{PAIR}/{instance}/generation={number:08d}/")}


def expiring(store: ObjectStore, number: int, instance: str) -> Backup:
    """A complete generation with two expired objects, a newest one and a compacted topic."""
    backup = Backup.claim(store, topics=[ORDERS, LOGS], number=number, instance=instance)
    old = now_ms(store) - 9 * HOUR
    backup.commit([*records("orders", 0, range(30)), *records("logs", 0, range(5), timestamp=old)])
    backup.commit(records("logs", 0, range(5, 10), timestamp=old))
    backup.commit(records("logs", 0, range(10, 15), timestamp=old))
    backup.complete()
    return backup


def outcomes(found: list[StepOutcome]) -> list[tuple[RetentionAction, int | None, int]]:
    """What was done, where, to how many."""
    assert [outcome for outcome in found if outcome.failed] == []
    return [(outcome.step.action, outcome.step.generation, outcome.count) for outcome in found]


def test_a_grown_backup_is_tidied_up(spark: SparkSession, address: StoreAddress) -> None:
    """Everything of section "retention" at once, in two runs; what remains is clean, and a third run finds nothing."""
    store = address.open()
    Backup.begun(store, records("orders", 0, range(30)), topics=[ORDERS])
    sealed = Backup.completed(store, records("orders", 0, range(30)), topics=[ORDERS], number=2, instance="b")
    lost = sealed.put_object([(("orders", 1), records("orders", 1, range(3)), None)], journal=False)
    begin_upload(address, lost.key + ".part")
    active = expiring(store, 3, "a")
    first, second, newest = [item.key for item in active.writer.state.objects.values() if "logs" in item.key]
    uploading = active.put_object([(("orders", 1), records("orders", 1, range(3)), None)], journal=False)
    begin_upload(address, uploading.key + ".part")
    sealed.seal()
    pin = pins.put_pin(store, PAIR, generation=2, owner="restore", until=now_ms(store) - HOUR)
    before = {number: stored(store, name, number) for number, name in ((1, "a"), (2, "b"), (3, "a"))}

    job = RetentionJob(spark, address, PAIR, AT_ONCE)
    plan = job.plan()
    assert [(step.action, step.generation, step.count) for step in plan.steps] == [
        (RetentionAction.EXPIRE, 3, 2),
        (RetentionAction.ORPHANS, 2, 1),
        (RetentionAction.CLEAR, 1, 1),
        (RetentionAction.UPLOADS, 2, 1),
        (RetentionAction.PINS, None, 1),
    ]
    assert {number: stored(store, name, number) for number, name in ((1, "a"), (2, "b"), (3, "a"))} == before
    assert outcomes(job.execute(plan)) == [
        (RetentionAction.EXPIRE, 3, 2),
        (RetentionAction.ORPHANS, 2, 1),
        (RetentionAction.CLEAR, 1, 1),
        (RetentionAction.UPLOADS, 2, 1),
        (RetentionAction.PINS, None, 1),
    ]
    assert stored(store, "a", 1) == set()
    assert stored(store, "b", 2) == before[2] - {lost.key}
    assert stored(store, "a", 3) == before[3]
    assert pin not in pins.list_pins(store, PAIR)

    job = RetentionJob(spark, address, PAIR, AT_ONCE)
    assert outcomes(job.execute(job.plan())) == [(RetentionAction.REPLACED, 3, 2)]
    assert stored(store, "a", 3) == before[3] - {first, second}
    assert newest in stored(store, "a", 3)
    assert [upload.key for upload in store.list_uploads(f"{PAIR}/")] == [uploading.key + ".part"]

    assert RetentionJob(spark, address, PAIR, AT_ONCE).plan().steps == ()
    result = verify_objects(spark, VerifyRequest(address=address, pair=PAIR))
    assert result.clean
    assert [(g.generation, g.records) for g in result.generations] == [(2, 30), (3, 35)]
    assert ChainReader(store, PAIR).load(1).gone


def test_a_running_active_and_the_janitor_do_not_disturb_each_other(spark: SparkSession, folder: StoreAddress) -> None:
    """The Active commits all the time; every record of it is there afterwards, the expired objects are not."""
    store = folder.open()
    active = expiring(store, 1, "a")
    stop, committed = threading.Event(), 0

    def write() -> None:
        nonlocal committed
        while not stop.is_set():
            active.commit(records("orders", 1, range(committed, committed + 3)))
            committed += 3

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(2):
            job = RetentionJob(spark, folder, PAIR, AT_ONCE)
            outcomes(job.execute(job.plan()))
    finally:
        stop.set()
        writer.join()
    active.seal()
    state = ChainReader(store, PAIR).load(1)
    assert len(state.replaced) == 2
    assert not set(state.replaced) & stored(store, "a", 1)
    result = verify_objects(spark, VerifyRequest(address=folder, pair=PAIR))
    assert result.clean
    assert result.generations[0].records == 35 + committed
    assert committed > 0


def test_clearing_waits_for_a_pin_and_another_janitor_finishes_it(spark: SparkSession, folder: StoreAddress) -> None:
    """The pin was put between plan and execution. The builder notices at its next entry that it was given up."""
    store = folder.open()
    given_up = Backup.begun(store, records("orders", 0, range(30)), topics=[ORDERS])
    Backup.completed(store, records("orders", 0, range(30)), topics=[ORDERS], number=2)
    job = RetentionJob(spark, folder, PAIR, AT_ONCE)
    plan = job.plan()
    later = ChainWriter(store, ChainReader(store, PAIR).load(1), "x", stop=threading.Event())
    pin = pins.put_pin(store, PAIR, generation=1, owner="verify", until=now_ms(store) + HOUR)
    (outcome,) = job.execute(plan)
    assert outcome.note == "no longer so; left alone"
    pins.release_pin(store, PAIR, pin)

    late = []

    class PinsAfterClearing(RetentionJob):
        """Somebody puts a pin after the last look at the plan and before CLEARING."""

        def _writer(self, state: Generation) -> ChainWriter:
            late.append(pins.put_pin(store, PAIR, generation=1, owner="verify", until=now_ms(store) + HOUR))
            return super()._writer(state)

    job = PinsAfterClearing(spark, folder, PAIR, AT_ONCE)
    (outcome,) = job.execute(job.plan())
    assert outcome.count == 0
    assert "deletion waits for pins of verify" in str(outcome.note)
    assert stored(store, "a", 1)
    with pytest.raises(ChainError, match="may follow SEALED or CLEARING"):
        given_up.commit(records("orders", 0, range(30, 40)))
    assert later.state.clearing is None

    pins.release_pin(store, PAIR, *late)
    job = RetentionJob(spark, folder, PAIR, AT_ONCE)
    assert outcomes(job.execute(job.plan())) == [(RetentionAction.CLEAR, 1, 2)]
    assert stored(store, "a", 1) == set()
    assert ChainReader(store, PAIR).load(1).gone


def test_what_changed_since_the_plan_is_left_alone(spark: SparkSession, folder: StoreAddress) -> None:
    """The topic became compacted, and the generation that was to be cleared became complete."""
    store = folder.open()
    slow = Backup.begun(store, records("orders", 0, range(30)), topics=[ORDERS])
    active = expiring(store, 2, "a")
    job = RetentionJob(spark, folder, PAIR, AT_ONCE)
    plan = job.plan()
    assert {step.action for step in plan.steps} == {RetentionAction.EXPIRE, RetentionAction.CLEAR}
    compacted = replace(active.topics["logs"], config={"cleanup.policy": "compact"})
    active.append(EntryKind.COMMIT, topics=(compacted,))
    slow.complete()
    assert [outcome.note for outcome in job.execute(plan)] == ["no longer so; left alone"] * 2
    assert verify_objects(spark, VerifyRequest(address=folder, pair=PAIR)).clean


def test_orphans_of_a_killed_process_go_after_its_restart(spark: SparkSession, address: StoreAddress) -> None:
    """The next incarnation's TAKEOVER proves that nobody can commit them; what it uploads itself stays."""
    store = address.open()
    backup = Backup.completed(store, records("orders", 0, range(3)), topics=[ORDERS])
    lost = backup.put_object([(("orders", 1), records("orders", 1, range(3)), None)], journal=False)
    assert RetentionJob(spark, address, PAIR, AT_ONCE).plan().steps == ()
    backup.restart()
    own = backup.put_object([(("orders", 1), records("orders", 1, range(3)), None)], journal=False)
    job = RetentionJob(spark, address, PAIR, AT_ONCE)
    assert outcomes(job.execute(job.plan())) == [(RetentionAction.ORPHANS, 1, 1)]
    assert own.key in stored(store, "a", 1)
    assert lost.key not in stored(store, "a", 1)


def test_the_command_plans_by_default_and_executes_on_request(tmp_path: Path, tandem: Callable[..., Any]) -> None:
    """The plan changes nothing and says so; the grace time is the configured one; the document is complete."""
    store = open_store((tmp_path / "store").as_uri())
    expiring(store, 1, "a")
    before = stored(store, "a", 1)
    head = ChainReader(store, PAIR).load(1).seq
    code, out, _ = tandem("retention")
    assert code == 0
    assert "nothing was changed: --execute carries it out" in out
    assert "without --horizon nothing of them goes that is in the chain: orders" in out
    assert ChainReader(store, PAIR).load(1).seq == head
    assert kept_results.latest_outcome(store, PAIR, JobKind.RETENTION) is None
    code, out, err = tandem("retention", "--execute", "-o", "json")
    kept = kept_results.latest_outcome(store, PAIR, JobKind.RETENTION)
    assert kept is not None
    assert (kept.clean, kept.findings, kept.what, kept.error) == (True, 0, "1 step", None)
    assert kept.bytes > 0
    document = json.loads(out)
    assert (code, document["kind"], document["executed"]) == (0, "Retention", True)
    assert [(step["action"], step["count"], step["topics"]) for step in document["steps"]] == [("expire", 2, ["logs"])]
    assert [(outcome["count"], outcome["note"]) for outcome in document["outcomes"]] == [(2, None)]
    assert "expire of generation 1: 2 done" in err
    assert stored(store, "a", 1) == before
    code, out, _ = tandem("retention", "--execute")
    assert (code, stored(store, "a", 1)) == (0, before)
    assert "the grace time of the last of them ends" in out
    code, out, _ = tandem("--set", "grace.rewrite=0", "retention", "--execute")
    assert code == 0
    assert len(before - stored(store, "a", 1)) == 2
    store.delete([layout.entry_key(PAIR, 1, 2)])
    assert tandem("retention", "--execute")[0] == 3
    kept = kept_results.latest_outcome(store, PAIR, JobKind.RETENTION)
    assert kept is not None
    assert kept.clean is False
    assert kept.error is not None


def test_the_command_refuses_what_it_does_not_understand(tandem: Callable[..., Any]) -> None:
    """Wrong durations and an empty store are usage errors."""
    code, _, err = tandem("retention", "--older-than", "soon")
    assert code == 2
    assert "--older-than soon is not a duration" in err
    code, _, err = tandem("retention")
    assert code == 2
    assert "has no generation" in err
    for wrong in (("--horizon", "soon"), ("--max-bytes", "much"), ("--min-gain", "101")):
        code, _, err = tandem("retention", *wrong)
        assert code == 2
        assert wrong[0] in err


def test_the_command_sweeps_before_a_horizon(tmp_path: Path, tandem: Callable[..., Any]) -> None:
    """A plan says what would go, the run does it, and tables and documents agree; the next run finds nothing more."""
    store = open_store((tmp_path / "store").as_uri())
    backup = Backup.claim(store, topics=[ORDERS, LOGS])
    for first in (0, 100, 200):
        backup.commit(records("orders", 0, range(first, first + 30)))
    backup.complete()
    backup.commit(records("orders", 0, range(300, 310)))
    before, head = stored(store, "a", 1), backup.writer.state.seq
    code, out, _ = tandem("retention", "--horizon", "0s")
    assert code == 0
    assert "superseded before the horizon, nothing was changed" in out
    assert "then no earlier moment can be restored" in out
    assert (stored(store, "a", 1), ChainReader(store, PAIR).load(1).seq) == (before, head)
    code, out, err = tandem("retention", "--horizon", "0s", "--execute", "-o", "json")
    assert code == 0, err
    (topic,) = json.loads(out)["sweeps"]["topics"]
    assert (topic["topic"], topic["records"], topic["objects"], topic["dropped"]) == ("orders", 70, 3, 0)
    assert "generation 1, orders-0: 70 records of 3 objects" in err
    state = ChainReader(store, PAIR).load(1)
    assert sum(item.records for item in state.objects.values()) == 30
    kept = kept_results.latest_outcome(store, PAIR, JobKind.RETENTION)
    assert kept is not None
    assert (kept.clean, kept.records) == (True, 70)
    assert kept.what.endswith("swept")
    code, out, _ = tandem("retention", "--horizon", "0s", "--execute")
    assert code == 0
    assert "not enough is new below the horizon" in out
    assert "without --horizon" not in out
