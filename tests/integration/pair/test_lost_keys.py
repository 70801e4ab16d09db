"""A topic that only compacts loses keys by accident, and a turn comes before anybody notices."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from support.backups.witness import rows_of
from support.clusters.topic_config import set_config
from support.clusters.topics import TopicMaker
from support.pairs.instances import QUICK, Pair, PairMaker
from support.pairs.outcomes import UNCLEANED, assert_all_stored, cleared, policy_and_start, write

from tandem.backup_avro.selection.restorable_state import select
from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = pytest.mark.integration


def lose_records(pair: Pair, bootstrap: str, topic: str, before: int) -> None:
    """Set a policy that deletes for a while, and delete records meanwhile, all known to the Active."""
    set_config(bootstrap, topic, {"cleanup.policy": "compact,delete", "retention.ms": "-1"})
    pair.wait("the policy is known", lambda: policy_and_start(pair, topic)[0] == "compact,delete")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        assert future.result(30).low_watermark == before
    pair.wait("the log start is known", lambda: policy_and_start(pair, topic)[1] == before)
    set_config(bootstrap, topic, {"cleanup.policy": "compact"})
    pair.wait("the policy is known", lambda: policy_and_start(pair, topic)[0] == "compact")


def write_one(bootstrap: str, topic: str, key: bytes, value: bytes) -> None:
    """One record, acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value, key, partition=0)
    assert producer.flush(30) == 0


def abort_one(bootstrap: str, topic: str, key: bytes) -> None:
    """One record of a transaction that is aborted, as a run that was killed leaves it behind."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"aborted-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"aborted", key, partition=0)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)


def newest_values(bootstrap: str, topic: str) -> dict[bytes, bytes | None]:
    """The newest committed value of each key that a consumer reads from the beginning to the end of partition 0."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "witness", "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: dict[bytes, bytes | None] = {}
    try:
        while (message := consumer.poll(30)) is not None and message.error() is None:
            found[message.key()] = message.value()
    finally:
        consumer.close()
    assert message is not None, "the topic was not read to its end"
    return found


def gone(pair: Pair) -> bool:
    """Whether nothing of generation 1 is left."""
    state = cleared(pair)
    return state is not None and state.gone


def test_the_copy_that_alone_has_lost_keys_stays_until_it_is_released(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, topic_name: str
) -> None:
    """It is named within the turn, a restore of it has every lost key, and what lost nothing is cleared."""
    bootstrap = kafka.bootstrap
    hurt, whole = (make_topic(f"{topic_name}-{name}", config=UNCLEANED) for name in ("hurt", "whole"))
    for topic in hurt, whole:
        write(bootstrap, topic, 100)
    write(bootstrap, hurt, 10)
    pair = new_pair([hurt, whole], **QUICK)
    a = pair.start("a", first="a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    pair.start("b", first="a")
    lose_records(pair, bootstrap, hurt, 60)
    assert not a.said("tainted")

    pair.activate("b", 2)
    one = pair.wait("generation 1 is cleared but for what is kept", lambda: cleared(pair))
    assert one.cleared is not None
    assert [one.name_of(key) for key in one.cleared.stays] == [f"{hurt}-0"]
    (why,) = one.cleared.stays.values()
    assert why.startswith("keys vanished: 50, which generation 2 lacks"), why
    (said,) = a.said("keys vanished from the log")
    assert (said["keys"], said["offsets"]) == (50, [10, 11, 12, 13, 14])
    problem = next(one for one in pair.status()["problems"] if one["fault"] == "keys vanished")
    assert f"{hurt}-0 (50; likely cause: policy changed)" in problem["message"]
    selection = select(pair.live(), number=1, wanted=lambda item: item.name == hurt, merge=False)
    lost = {row.key for row in rows_of(pair.store, selection)}
    assert lost == {b"key-%d" % number for number in range(100)}
    assert_all_stored(pair, bootstrap, [hurt, whole])

    write_one(bootstrap, hurt, b"key-10", b"newer")
    abort_one(bootstrap, hurt, b"key-11")
    plan = pair.tandem("restore", "vanished", hurt, "--dry-run", "--show-keys", "-o", "json")
    assert plan.returncode == 0, plan.stderr
    (row,) = json.loads(plan.stdout)["partitions"]
    assert (row["vanished"], row["newer"], row["restorable"], row["written"]) == (50, 1, 49, 0)
    assert row["sample"] == [f"key-{number}" for number in range(11, 16)]
    refused = pair.tandem("restore", "vanished", whole, "--yes")
    assert (refused.returncode, "TDM-R136" in refused.stderr) == (5, True), refused.stderr
    back = pair.tandem("restore", "vanished", hurt, "--yes", "-o", "json")
    assert back.returncode == 0, back.stderr
    assert json.loads(back.stdout)["partitions"][0]["written"] == 49
    now = newest_values(bootstrap, hurt)
    assert set(now) == {b"key-%d" % number for number in range(100)}
    assert now[b"key-10"] == b"newer"
    copied = {row.key: row.value for row in rows_of(pair.store, selection)}
    assert {key: now[key] for key in lost - {b"key-10"}} == {key: copied[key] for key in lost - {b"key-10"}}
    set_config(bootstrap, hurt, {"cleanup.policy": "compact,delete", "retention.ms": "86400000"})
    refused = pair.tandem("restore", "vanished", hurt, "--yes")
    assert (refused.returncode, "TDM-R133" in refused.stderr) == (5, True), "retention may delete it at once"
    set_config(bootstrap, hurt, {"cleanup.policy": "compact"})
    again = pair.tandem("restore", "vanished", hurt, "--yes", "-o", "json")
    assert json.loads(again.stdout)["partitions"][0]["restorable"] == 0, again.stderr

    done = pair.tandem("release", hurt, "--yes", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["losses"][0]["generation"] == 1
    pair.wait("all of generation 1 is cleared", lambda: gone(pair))
    assert not list(pair.store.list(pair.data_prefix("a", 1)))


def test_what_is_only_compacted_is_cleared_at_once(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, topic_name: str
) -> None:
    """Keys that are written anew and deleted, before, during and after the cleaning, are no loss."""
    bootstrap = kafka.bootstrap
    often = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "60000"}
    topic = make_topic(topic_name, config=often)
    pair = new_pair([topic], **QUICK)
    a = pair.start("a", first="a")
    for _ in range(4):
        write(bootstrap, topic, 50)
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    pair.start("b", first="a")
    for count in (50, 20, 5):
        write(bootstrap, topic, count)
    pair.activate("b", 2)
    pair.wait("generation 1 is cleared", lambda: gone(pair))
    assert a.said("compared keys before clearing", generation=1, partitions=1, not_comparable=0)
    assert not a.said("keys vanished")
    assert not [one for one in pair.status()["problems"] if one["fault"] == "keys vanished"]
