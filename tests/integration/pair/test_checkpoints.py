"""Named checkpoints and releases on a real pair: asked for and let go by the commands, held by the chains in S3."""

from __future__ import annotations

import io
import json
import time
from collections import defaultdict
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from support.backups.witness import Row, consume
from support.pairs.instances import Instance, Pair, PairMaker

from tandem.backup_avro.errors import ExitCode, RefusedError
from tandem.controller.cli.main import run
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.job import RestoreRequest, restore
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import TopicNaming
from tandem.spark_jobs.restore.prepare.prepare import prepare_restore
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.clusters.topics import TopicMaker

pytestmark = pytest.mark.integration

UNCLEANED = {"segment.ms": "86400000", "max.compaction.lag.ms": "86400000"}
SLOW: dict[str, Any] = {"flush": {"interval": "1h"}, "handover": {"timeout": "2h"}}
"""What is written after COMPLETE stays out of the chain with these."""

Document = dict[str, Any]


def write(bootstrap: str, topic: str, count: int, *, partitions: int = 1, value: bytes = b"value") -> None:
    """Write records, a tenth of them tombstones, and wait for the broker."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(count):
        content = None if number % 10 == 9 else value
        producer.produce(topic, partition=number % partitions, key=b"key-%d" % number, value=content)
    assert producer.flush(30) == 0


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic and wait for the broker."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # Its answers end with it: it must outlive the wait.
    admin.delete_topics([topic])[topic].result(30)


class Commands:
    """Runs `tandem` commands against a pair to their end, in this process: there are many."""

    def __init__(self, pair: Pair) -> None:
        self._config = str(pair.config("a"))

    def run(self, *arguments: str, expected: ExitCode = ExitCode.OK) -> tuple[Document, str]:
        """Run a command; return its document (empty if there is none) and what it told people."""
        out, told = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(told):
            code = run([*arguments, "-c", self._config, "-o", "json"])
        assert code == expected, f"{arguments}: {code}\n{out.getvalue()}\n{told.getvalue()}"
        return (json.loads(out.getvalue()) if out.getvalue() else {}), told.getvalue()

    def status_of(self, number: int) -> Document:
        """What `tandem status` says of a generation."""
        kept = self.run("status", "--s3-only")[0]["generations"]
        found: Document = next(item for item in kept if item["number"] == number)
        return found


def content(rows: list[Row]) -> dict[int, list[tuple[object, ...]]]:
    """Records by partition in order, without what a restore changes: the topic's name and the offsets."""
    found: dict[int, list[tuple[object, ...]]] = defaultdict(list)
    for row in rows:
        found[row.partition].append((row.timestamp, row.timestamp_type, row.key, row.value, row.headers))
    return dict(found)


def roles(*instances: Instance) -> tuple[str, ...]:
    """What they were last in."""
    return tuple(item.role for item in instances)


@pytest.mark.spark
def test_a_checkpoint_is_restored_exactly_and_keeps_its_generation_until_it_is_deleted(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, spark: SparkSession
) -> None:
    """Created, completed, written beyond, handed over: the cut comes back as it was; deleted, its generation goes."""
    topic, idle = make_topic(partitions=2, config=UNCLEANED), make_topic(config=UNCLEANED)
    pair = new_pair([topic, idle])
    tandem = Commands(pair)
    refused = tandem.run("checkpoint", "create", "--id", "early", expected=ExitCode.REFUSED)[1]
    assert "no complete generation takes records" in refused
    assert tandem.run("checkpoint", "show", "early", expected=ExitCode.ERROR)[0]["status"] == "does-not-exist"

    write(kafka.bootstrap, topic, 100, partitions=2)
    a, b = pair.start("a"), pair.start("b")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    write(kafka.bootstrap, topic, 60, partitions=2, value=b"second")
    cut = consume(kafka.bootstrap, [topic])
    made = tandem.run("checkpoint", "create", "--id", "first", "--reason", "a test", "--timeout", "90s")[0]
    assert (made["status"], made["generation"], made["restorable"]) == ("completed", 1, True)
    ends = {(item["topic"], item["partition"]): item["end"] for item in made["partitions"]}
    assert ends == {**cut.ends, (idle, 0): 0}
    assert "CHECKPOINT" in pair.kinds(1)

    write(kafka.bootstrap, topic, 70, partitions=2, value=b"third")
    write(kafka.bootstrap, idle, 20, value=b"third")
    again, told = tandem.run("checkpoint", "create", "--id", "first")
    assert "asked for before" in told
    assert again == made

    pair.activate("b", 2)
    pair.wait("generation 2 is complete", lambda: pair.complete(2))
    pair.wait("generation 1 is sealed", lambda: (found := pair.generation(1)) and found.sealed)
    pair.wait("roles have changed", lambda: roles(a, b) == ("Passive", "Active"))
    listed = tandem.run("checkpoint", "list")[0]["checkpoints"]
    assert [(item["id"], item["status"], item["restorable"]) for item in listed] == [("first", "completed", True)]
    held = tandem.status_of(1)
    assert (held["state"], held["heldBy"]) == ("SEALED", ["checkpoint first"])
    assert held["waitsFor"] == "nothing: it is kept for checkpoint first"

    planned = tandem.run("restore", "--checkpoint", "first", "--suffix", ".restored", "--dry-run")[0]
    (planned_topic,) = [item for item in planned["topics"] if item["source"] == topic]
    assert [item["end"] for item in planned_topic["partitions"]] == [end for _, end in sorted(cut.ends.items())]
    target = TargetCluster({"bootstrap.servers": kafka.bootstrap})
    reader = ChainReader(pair.store, pair.name)
    options = RestoreOptions(checkpoint="first", naming=TopicNaming(suffix=".restored"))
    address = StoreAddress(root=pair.root, settings=pair.store_settings)
    request = RestoreRequest(
        address=address, reader=reader, target=target, options=options, now=lambda: round(time.time() * 1000)
    )
    report = restore(spark, request)
    assert (report.plan.generation, report.mismatches) == (1, ())
    assert content(consume(kafka.bootstrap, [f"{topic}.restored"]).rows) == content(cut.rows)
    assert consume(kafka.bootstrap, [f"{idle}.restored"]).rows == []

    assert tandem.run("checkpoint", "delete", "first", "--yes")[0]["deleted"] is True
    pair.wait("generation 1 is cleared", lambda: [g.number for g in pair.live()] == [2])
    assert tandem.run("checkpoint", "delete", "first")[0]["deleted"] is False
    assert not pins.list_pins(pair.store, pair.name)
    assert [info.key for info in pair.store.list(f"{pair.name}/checkpoints/")] == []
    with pytest.raises(Exception, match="has no checkpoint first"):
        prepare_restore(reader, target, options)


def test_an_active_killed_in_between_completes_it_or_it_fails_at_its_deadline(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker
) -> None:
    """Killed before its commit reaches the cut, the next process completes it; with nobody there, its time runs out."""
    topic, doomed = make_topic(config=UNCLEANED), make_topic(config=UNCLEANED)
    write(kafka.bootstrap, topic, 50)
    pair = new_pair([topic, doomed])
    tandem = Commands(pair)
    a = pair.start("a", **SLOW)
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    write(kafka.bootstrap, topic, 30, value=b"second")
    cut = consume(kafka.bootstrap, [topic])
    asked = tandem.run("checkpoint", "create", "--id", "mid", "--no-wait", "--timeout", "10m")[0]
    assert (asked["status"], asked["generation"]) == ("ongoing", None)
    assert f"{topic}-0 is at 50, the cut is at 80" in asked["detail"]
    a.kill()
    assert tandem.run("checkpoint", "show", "mid")[0]["status"] == "ongoing"
    a = pair.start("a")
    done = tandem.run("checkpoint", "create", "--id", "mid")[0]
    assert (done["status"], done["requestedAt"]) == ("completed", asked["requestedAt"])
    assert {(item["topic"], item["partition"]): item["end"] for item in done["partitions"]} == {
        **cut.ends,
        (doomed, 0): 0,
    }

    # Nobody there: whoever looks after the deadline makes it failed, and so it stays.
    a.kill()
    write(kafka.bootstrap, topic, 10, value=b"third")
    late = tandem.run("checkpoint", "create", "--id", "late", "--timeout", "2s", expected=ExitCode.TIMED_OUT)[0]
    assert late["status"] == "failed"
    a = pair.start("a")
    log = consume(kafka.bootstrap, [topic])
    pair.wait("the cut is passed", lambda: pair.covered(log.ends))
    shown = tandem.run("checkpoint", "show", "late", expected=ExitCode.UNHEALTHY)[0]
    assert shown == {**late, "kind": "Checkpoint"}
    assert a.terminate() == 0
    with pytest.raises(RefusedError, match="can't be restored: it is failed: not reached by"):
        prepare_restore(
            ChainReader(pair.store, pair.name),
            TargetCluster({"bootstrap.servers": kafka.bootstrap}),
            RestoreOptions(checkpoint="late", naming=TopicNaming(suffix=".late")),
        )

    # A topic that goes before all of it is stored: failed at once, with the reason.
    a = pair.start("a", **SLOW)
    pair.wait("it is Active again", lambda: a.role == "Active")
    write(kafka.bootstrap, doomed, 10)
    tandem.run("checkpoint", "create", "--id", "gone", "--no-wait", "--timeout", "1h")
    delete_topic(kafka.bootstrap, doomed)
    why = tandem.run("checkpoint", "create", "--id", "gone", expected=ExitCode.ERROR)[1]
    assert f"{doomed}-0 was deleted, created anew or taken out of the configuration" in why


def test_a_deleted_topic_stays_over_two_handovers_and_goes_when_it_is_released(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker
) -> None:
    """The last backup of a deleted topic is kept until a person lets it go; what the cluster has is refused."""
    topic, deleted = make_topic(config=UNCLEANED), make_topic(config=UNCLEANED)
    write(kafka.bootstrap, topic, 50)
    write(kafka.bootstrap, deleted, 40)
    pair = new_pair([topic, deleted])
    tandem = Commands(pair)
    a, b = pair.start("a"), pair.start("b")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    delete_topic(kafka.bootstrap, deleted)
    pair.wait("it is seen that the topic is gone", lambda: removed(pair, 1) == {deleted})

    pair.activate("b", 2)
    pair.wait("generation 1 is cleared but for that", lambda: kept(pair, 1) == {deleted})
    pair.wait("roles have changed", lambda: roles(a, b) == ("Passive", "Active"))
    pair.activate("a", 3)
    pair.wait("generation 2 is cleared", lambda: [g.number for g in pair.live()] == [1, 3])
    assert kept(pair, 1) == {deleted}
    assert tandem.status_of(1)["waitsFor"] == "a person to let go what is kept"

    # What was kept belongs to a process that is gone: the next one of the same name clears it.
    a.kill()
    a = pair.start("a")
    pair.wait("it is Active again", lambda: a.role == "Active")
    refused = tandem.run("release", topic, "--yes", expected=ExitCode.REFUSED)[1]
    assert "exists in the cluster and is guarded" in refused
    unasked = tandem.run("release", deleted, expected=ExitCode.REFUSED)[1]
    assert "40 records" in unasked
    assert "no terminal to ask for consent" in unasked
    assert kept(pair, 1) == {deleted}
    done = tandem.run("release", deleted, "--yes", "--reason", "not needed any more")[0]
    assert (done["release"], done["through"], [loss["records"] for loss in done["losses"]]) == (1, 1, [40])
    pair.wait("generation 1 is gone", lambda: [g.number for g in pair.live()] == [3])
    assert not list(pair.store.list(pair.data_prefix("a", 1)))
    nothing = tandem.run("release", deleted, "--yes", expected=ExitCode.USAGE)[1]
    assert "no generation up to 3 holds" in nothing


def test_a_handover_completes_what_it_can_before_it_seals(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker
) -> None:
    """Asked for before a turn and not reached until its last commit: the old generation holds it, the new one can't."""
    topic = make_topic(config=UNCLEANED)
    write(kafka.bootstrap, topic, 50)
    pair = new_pair([topic])
    tandem = Commands(pair)
    a, b = pair.start("a", **SLOW), pair.start("b")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    write(kafka.bootstrap, topic, 30, value=b"second")
    asked = tandem.run("checkpoint", "create", "--id", "turn", "--no-wait", "--timeout", "10m")[0]
    assert asked["status"] == "ongoing"
    write(kafka.bootstrap, topic, 30, value=b"third")
    pair.activate("b", 2)
    pair.wait("generation 2 is complete", lambda: pair.complete(2))
    done = tandem.run("checkpoint", "create", "--id", "turn")[0]
    assert (done["status"], done["generation"], done["requestedAt"]) == ("completed", 1, asked["requestedAt"])
    pair.wait("roles have changed", lambda: roles(a, b) == ("Passive", "Active"))
    assert pair.kinds(1)[-2:] == ["CHECKPOINT", "SEALED"]
    assert "CHECKPOINT" not in pair.kinds(2)

    # Its only witness dies behind the cut; a generation that is read later is beyond it and can't stand in.
    b.kill()
    write(kafka.bootstrap, topic, 10, value=b"fourth")
    tandem.run("checkpoint", "create", "--id", "over", "--no-wait", "--timeout", "1h")
    write(kafka.bootstrap, topic, 10, value=b"fifth")
    pair.activate("a", 3)
    pair.wait("generation 3 is complete", lambda: pair.complete(3))
    shown = tandem.run("checkpoint", "show", "over")[0]
    assert shown["status"] == "ongoing", "the witness may come back"
    assert "generation 2: " in shown["detail"]
    pair.start("b")  # It finds itself covered, seals, and with that nobody will ever reach the cut.
    over = tandem.run("checkpoint", "create", "--id", "over", expected=ExitCode.ERROR)[1]
    assert "took no more records before it reached the cut" in over
    assert "generation 3 was read after the request and beyond the cut" in over


def removed(pair: Pair, number: int) -> set[str]:
    """The topics that a generation knows to be gone."""
    state = pair.generation(number)
    return set() if state is None else {item.name for item in state.topics.values() if item.removed}


def kept(pair: Pair, number: int) -> set[str]:
    """The topics that a generation keeps although it is cleared."""
    state = pair.generation(number)
    if state is None or state.cleared is None:
        return set()
    return {state.topics[key.topic_id].name for key in state.cleared.stays}
