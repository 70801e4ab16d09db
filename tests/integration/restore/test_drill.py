"""`tandem drill` on a real broker: the scratch topics hold what the backup holds, and are gone however it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.requests import cut_request
from support.patience import soon

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.documents.checkpoint import CheckpointOutcome, checkpoint_entry
from tandem.backup_avro.documents.outcome import JobKind, JobScope
from tandem.backup_avro.errors import TransientError
from tandem.controller.cli.main import run
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.store import ObjectStore, open_store
from tandem.sink.store.chain import checkpoints, outcomes
from tandem.spark_jobs.restore import job, worker_calls
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark]


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """A folder for a backup."""
    (tmp_path / "store").mkdir()
    return open_store((tmp_path / "store").as_uri())


@pytest.fixture
def tandem(
    tmp_path: Path, store: ObjectStore, kafka: KafkaServer, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command on that folder and the shared broker; returns exit code, stdout, stderr."""
    assert spark is not None
    config = tmp_path / "tandem.yaml"
    config.write_text(
        f"pair: {PAIR}\ntopics: {{patterns: ['.*']}}\nkafka: {{bootstrap.servers: '{kafka.bootstrap}'}}\n"
        f"store: {{root: '{store.url}'}}\n"
    )

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(["-c", str(config), *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def scratch(kafka: KafkaServer, topic: str) -> list[str]:
    """The scratch topics of a topic that there are now."""
    admin = ClusterAdmin({"bootstrap.servers": kafka.bootstrap})
    return [info.name for info in admin.topics((), [rf"{topic}\.drill-.*"])]


def left_of(kafka: KafkaServer, topic: str) -> list[str]:
    """Those that stay: brokers list one for a moment after they have deleted it."""
    return soon(lambda: scratch(kafka, topic), lambda left: not left)


def names_checkpoint(store: ObjectStore, backup: Backup, ends: dict[tuple[str, int], int]) -> None:
    """Complete the checkpoint `half` with this cut."""
    ids = {topic.name: topic_id for topic_id, topic in backup.writer.state.topics.items()}
    request = cut_request(
        id="half",
        topics={topic_id: name for name, topic_id in ids.items()},
        cut={PartitionKey(ids[name], partition): end for (name, partition), end in ends.items()},
        deadline=10**13,
    )
    checkpoints.put_request(store, request)
    entry = backup.writer.append(checkpoint_entry(request))
    outcome = CheckpointOutcome(id="half", nonce=request.nonce, at=entry.at, by="a", generation=1, seq=entry.seq)
    checkpoints.settle_request(store, request, outcome)


def test_a_drill_restores_checks_and_leaves_nothing(
    store: ObjectStore,
    kafka: KafkaServer,
    tandem: Callable[..., tuple[int, str, str]],
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clean, kept, with a mismatch, with damage: said, recorded for status, and no topic is left but the kept one."""
    backup = Backup.begun(
        store,
        [*records(topic_name, 0, range(50), tombstones=[9]), *records(topic_name, 1, range(20))],
        topics=[TopicSpec(topic_name, 2), TopicSpec(f"{topic_name}.other")],
    )
    backup.commit(records(f"{topic_name}.other", 0, range(5)), journal=True)
    backup.complete()

    code, out, err = tandem("drill", "-o", "json")
    document = json.loads(out)
    assert (code, document["kind"], document["clean"], document["records"]) == (0, "Drill", True, 75)
    assert {topic["source"] for topic in document["topics"]} == {topic_name, f"{topic_name}.other"}
    assert sorted(document["deleted"]) == sorted(topic["target"] for topic in document["topics"])
    assert set(document["phases"]) == {"plan", "load", "check", "topics and config", "delete"}
    assert left_of(kafka, topic_name) == []
    kept = outcomes.latest_outcome(store, PAIR, JobKind.DRILL)
    assert kept is not None
    assert (kept.clean, kept.records, kept.generations, kept.what) == (
        True,
        75,
        {1: backup.writer.state.seq},
        "all topics",
    )

    names_checkpoint(store, backup, {(topic_name, 0): 30, (topic_name, 1): 10, (f"{topic_name}.other", 0): 5})
    code, out, _ = tandem("drill", "--checkpoint", "half", "-o", "json")
    assert (code, json.loads(out)["records"]) == (0, 45)
    kept = outcomes.latest_outcome(store, PAIR, JobKind.DRILL)
    assert kept is not None
    assert (kept.what, kept.scope) == ("all topics of checkpoint half", JobScope.PART)
    code, out, err = tandem("drill", "--checkpoint", "half", "--at", "1m")
    assert (code, out) == (2, "")
    assert "TDM-" in err

    code, out, _ = tandem("drill", "--topics", f"{topic_name}.other", "--keep")
    assert (code, "still there: kept, as was asked for" in out) == (0, True)
    (left,) = scratch(kafka, rf"{topic_name}\.other")

    look = job.check_partition.check_partition

    def careless(tasks: Any) -> Any:
        """A target that lacks records."""
        return (replace(item, records=1) for task in tasks for item in look(task))

    monkeypatch.setattr(worker_calls, "check_all", careless)
    code, out, err = tandem("drill", "--topics", topic_name)
    assert code == 3
    assert "mismatches: 2" in out
    assert "other records" in out
    assert f"{left} is of another drill" in err
    assert left_of(kafka, topic_name) == []

    def in_a_marker(tasks: Any) -> Any:
        """A target on which applications that read to the end would wait for ever."""
        return (replace(item, marker_last=True) for task in tasks for item in look(task))

    monkeypatch.setattr(worker_calls, "check_all", in_a_marker)
    code, out, _ = tandem("drill", "--topics", topic_name, "-o", "json")
    assert code == 3
    assert [item["markerLast"] for item in json.loads(out)["mismatches"]] == [True, True]
    monkeypatch.undo()

    for key in backup.writer.state.objects:
        if "/topics/" in key:
            data = store.get(key)
            store.delete([key])
            store.put_if_absent(key, data[:-1] + bytes([data[-1] ^ 1]))
    code, out, err = tandem("drill", "--topics", topic_name)
    assert (code, out) == (3, "")
    assert "SHA-256" in err
    assert left_of(kafka, topic_name) == []

    _, out, _ = tandem("status", "--s3-only", "-o", "json")
    last = json.loads(out)["lastDrill"]
    assert (last["clean"], "SHA-256" in last["error"], last["what"]) == (False, True, topic_name)
    assert json.loads(out)["lastVerify"] is None
    assert "last drill " in tandem("status", "--s3-only")[1]

    def refuse(*_: Any, **__: Any) -> None:
        """A broker that does not answer."""
        raise TransientError("no broker answers", code="TDM-X001")

    monkeypatch.setattr(TargetCluster, "make_ready", refuse)
    code, _, err = tandem("drill", "--topics", f"{topic_name}.other")
    assert (code, "no broker answers" in err) == (1, True)
    assert len(list(store.list(f"{PAIR}/results/drill-"))) == 7
    ClusterAdmin({"bootstrap.servers": kafka.bootstrap}).delete_topic(left)
