"""`tandem erase` on a real pair: two generations and a checkpoint lose a key, and nothing else; the pair goes on."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from support.pairs.in_process import tandem
from support.pairs.instances import QUICK, Pair, PairMaker, merge
from support.pairs.outcomes import UNCLEANED
from support.restores.cases import ends_of, read_all

from tandem.backup_avro.chain.entries import iso
from tandem.backup_avro.errors import ExitCode
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.job import RestoreRequest, restore
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import TopicNaming
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.clusters.topics import TopicMaker

pytestmark = [pytest.mark.integration, pytest.mark.spark]

PARTITIONS = 2
KEY = b"customer-7"
Changes = Iterable[tuple[int, bytes, bytes | None]]
State = dict[tuple[int, bytes], bytes]


def write(bootstrap: str, topic: str, changes: Changes) -> None:
    """Write records (partition, key, value), acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for partition, key, value in changes:
        producer.produce(topic, partition=partition, key=key, value=value)
    assert producer.flush(30) == 0


def others(turn: int) -> Iterator[tuple[int, bytes, bytes | None]]:
    """What else is written, neighbours of the key by name among them; a tenth are tombstones."""
    for number in range(200):
        yield number % PARTITIONS, b"customer-%d" % (70 + number), None if number % 10 == turn else b"v-%d" % turn


def state_of(bootstrap: str, topic: str) -> State:
    """What a plain consumer folds a topic into."""
    found: State = {}
    for partition in range(PARTITIONS):
        for _, key, value, _ in read_all(bootstrap, topic, partition):
            assert key is not None
            if value is None:
                found.pop((partition, key), None)
            else:
                found[partition, key] = value
    return found


def stored_records(pair: Pair, key: bytes) -> list[tuple[int, int, bool]]:
    """Partition, offset and whether it has a value of each record of a key in any object, by another reader of Avro."""
    found = []
    for info in pair.store.list(f"{pair.name}/"):
        if info.key.endswith(".avro"):
            found += [
                (row["partition"], row["offset"], row["value"] is not None)
                for row in fastavro.reader(io.BytesIO(pair.store.get(info.key)))
                if row["key"] == key
            ]
    return found


def settled(pair: Pair, bootstrap: str, topic: str) -> None:
    """Wait until the backup holds all that the topic holds now."""
    ends = {(topic, number): end for number, end in enumerate(ends_of(bootstrap, topic))}
    pair.wait("all is committed", lambda: pair.covered(ends))


def restored(pair: Pair, kafka: KafkaServer, spark: SparkSession, topic: str, **options: Any) -> State:
    """Restore into another topic and return what is in it."""
    name = f".r{time.monotonic_ns()}"
    request = RestoreRequest(
        address=StoreAddress(root=pair.root, settings=pair.store_settings),
        reader=ChainReader(pair.store, pair.name),
        target=TargetCluster({"bootstrap.servers": kafka.bootstrap}),
        options=RestoreOptions(naming=TopicNaming(suffix=name), **options),
        now=lambda: round(time.time() * 1000),
    )
    assert not restore(spark, request).mismatches
    return state_of(kafka.bootstrap, topic + name)


@pytest.fixture
def two(kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, spark: SparkSession) -> tuple[Pair, str]:
    """A pair with a sealed generation that is kept, a checkpoint in it, and a complete one."""
    assert spark is not None
    topic = make_topic(partitions=PARTITIONS, config=UNCLEANED)
    write(kafka.bootstrap, topic, [*others(0), (0, KEY, b"a name"), (1, KEY, b"the same, moved")])
    sections: dict[str, Any] = {"recovery": {"window": "1d"}}
    merge(sections, QUICK)
    pair = new_pair([topic], **sections)
    pair.start("a", first="a")
    pair.start("b", first="a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    write(kafka.bootstrap, topic, [*others(1), (0, KEY, b"another name")])
    settled(pair, kafka.bootstrap, topic)
    tandem(pair, "checkpoint", "create", "--id", "before", "--wait")
    return pair, topic


def test_a_key_is_gone_from_all_copies(kafka: KafkaServer, two: tuple[Pair, str], spark: SparkSession) -> None:
    """Refused while the topic has it; then proven gone, with all else as it was, at the moment, checkpoint and now."""
    pair, topic = two
    at_checkpoint = state_of(kafka.bootstrap, topic)
    time.sleep(1.2)  # a mark is made once a second
    moment = now_ms(pair.store)
    pair.activate("b", 2)
    pair.wait("generation 1 is sealed", lambda: (found := pair.generation(1)) and found.sealed)
    write(kafka.bootstrap, topic, others(2))
    settled(pair, kafka.bootstrap, topic)

    _, told = tandem(pair, "erase", topic, "--key", KEY.decode(), "--yes", expected=ExitCode.REFUSED)
    assert "TDM-T016" in told
    plan, told = tandem(pair, "erase", topic, "--key", KEY.decode(), "--dry-run", expected=ExitCode.REFUSED)
    assert "TDM-T016" in told
    assert (plan["plan"]["found"], plan["live"]["values"]) == (1, 2)
    write(kafka.bootstrap, topic, [(0, KEY, None), (1, KEY, None)])
    settled(pair, kafka.bootstrap, topic)
    now = state_of(kafka.bootstrap, topic)
    before = stored_records(pair, KEY)
    assert len({record[:2] for record in before}) == 5
    objects = [(info.key, info.size) for info in pair.store.list(f"{pair.name}/") if info.key.endswith(".avro")]

    keys = ("--key", KEY.decode(), "--key", "nobody")
    plan, told = tandem(pair, "erase", topic, *keys, "--dry-run", expected=ExitCode.UNHEALTHY)
    assert (plan["plan"]["keys"], plan["plan"]["found"], plan["plan"]["records"]) == (2, 1, 3 + 5)
    assert [one["checkpoints"] for one in plan["plan"]["generations"]] == [["before"], []]
    former = [{"partition": 0, "keys": 1, "values": 2}, {"partition": 1, "keys": 1, "values": 1}]
    assert plan["live"] == {"values": 0, "shadowed": 2, "tombstones": 0, "former": former}
    assert (plan["restored"], "3 former values" in plan["pending"]) == ([], True)
    _, told = tandem(pair, "erase", topic, "--key", KEY.decode(), expected=ExitCode.REFUSED)
    assert "TDM-C020" in told
    assert [(i.key, i.size) for i in pair.store.list(f"{pair.name}/") if i.key.endswith(".avro")] == objects

    # The copies are proven to have none, and it is not over: the log has values that a turn reads again.
    done, told = tandem(pair, "erase", topic, "--key", KEY.decode(), "--yes", expected=ExitCode.UNHEALTHY)
    assert (done["result"]["clean"], done["result"]["remains"], "pending" in done) == (True, 0, True)
    assert sum(one["records"] for one in done["result"]["generations"]) == 8
    assert stored_records(pair, KEY) == []
    for state in ((), ("--generation", "1"), ("--checkpoint", "before"), ("--at", iso(moment))):
        found, _ = tandem(pair, "records", "--topic", topic, "--key", KEY.decode(), *state)
        assert found["records"] == []
    assert tandem(pair, "verify")[0]["findings"] == []
    tandem(pair, "verify", "--against-topic", "--topics", topic)  # a tombstone that only the topic has is no difference
    assert restored(pair, kafka, spark, topic) == now
    expected = {place: value for place, value in at_checkpoint.items() if place[1] != KEY}
    assert len(expected) == len(at_checkpoint) - 2
    assert restored(pair, kafka, spark, topic, checkpoint="before") == expected
    assert restored(pair, kafka, spark, topic, at=moment) == expected

    found, _ = tandem(pair, "erase", topic, "--key", KEY.decode(), "--yes", expected=ExitCode.UNHEALTHY)
    assert ("result" in found, len(found["restored"])) == (False, 3), "topics that were restored are named"
    write(kafka.bootstrap, topic, others(3))
    settled(pair, kafka.bootstrap, topic)
    pair.activate("a", 3)
    pair.wait("generation 3 is complete", lambda: pair.complete(3))
    pair.wait("generation 2 is sealed", lambda: (found := pair.generation(2)) and found.sealed)
    # The log still has all records: the next generation reads them again, as was said.
    assert {record[:2] for record in stored_records(pair, KEY)} == {record[:2] for record in before}
    again = ("--set", "recovery.window=0s", "erase", topic, "--key", KEY.decode(), "--yes")
    tandem(pair, *again, expected=ExitCode.UNHEALTHY)
    assert stored_records(pair, KEY) == []
    assert tandem(pair, "verify")[0]["findings"] == []
    states = {state.number: state for state in pair.history()}
    assert all(not state.taints for state in states.values())
    assert restored(pair, kafka, spark, topic) == state_of(kafka.bootstrap, topic)
    _empty(kafka.bootstrap, topic)
    found, _ = tandem(pair, *again)
    assert ("result" in found, "pending" in found) == (False, False), "it is over: the log has none any more"


def _empty(bootstrap: str, topic: str) -> None:
    """Take all records out of a topic, as if its cleaner had passed over those of the key."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deletes = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    policy = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[deletes])
    for future in admin.incremental_alter_configs([policy]).values():
        future.result(30)
    ends = [TopicPartition(topic, number, end) for number, end in enumerate(ends_of(bootstrap, topic))]
    for deleted in admin.delete_records(ends).values():
        deleted.result(30)


@pytest.mark.slow  # tests/unit/spark_jobs/erasure/test_erasing_histories.py kills it between any two of its steps
def test_a_run_that_is_killed_is_given_again(kafka: KafkaServer, two: tuple[Pair, str]) -> None:
    """Killed when the first generation is rewritten; the Active reads on; the same command ends it."""
    pair, topic = two
    pair.activate("b", 2)
    pair.wait("generation 1 is sealed", lambda: (found := pair.generation(1)) and found.sealed)
    write(kafka.bootstrap, topic, [(0, KEY, None), (1, KEY, None)])
    settled(pair, kafka.bootstrap, topic)
    running = pair.begin("erase", topic, "--key", KEY.decode(), "--yes", "--skip-live")
    pair.wait("the first one is rewritten", lambda: (found := pair.generation(1)) and found.erased)
    running.kill()
    running.wait()
    write(kafka.bootstrap, topic, others(4))
    settled(pair, kafka.bootstrap, topic)
    for pin in pins.list_pins(pair.store, pair.name):
        if not pin.lasting:
            pins.release_pin(pair.store, pair.name, pin)  # it would end two minutes later
    done, _ = tandem(pair, "erase", topic, "--key", KEY.decode(), "--yes", expected=ExitCode.UNHEALTHY)
    assert "result" not in done or done["result"]["clean"]
    assert "pending" in done
    assert stored_records(pair, KEY) == []
    assert tandem(pair, "verify")[0]["findings"] == []
