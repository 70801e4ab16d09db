"""The volume of a broker is put back to a snapshot, and others are written with the offsets and epochs of old."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.backups.witness import rows_of
from support.pairs.instances import Instance, Pair, PairMaker

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.coverage import cut_off
from tandem.backup_avro.selection.losses import NOT_PROVEN_KEPT
from tandem.backup_avro.selection.restorable_state import select
from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

AWAY = pytest.mark.parametrize("away", [True, False], ids=["while nobody reads", "while the process goes on"])
DAY_MS = "86400000"
KEPT = {"cleanup.policy": "compact", "segment.ms": DAY_MS, "max.compaction.lag.ms": DAY_MS}


def write(bootstrap: str, topic: str, count: int, word: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 60_000})
    for number in range(count):
        producer.produce(topic, key=f"{word}-{number}".encode(), value=word.encode())
    assert producer.flush(60) == 0


def words(pair: Pair, number: int, topic: str) -> dict[bytes | None, int]:
    """Count the values that a generation holds of a topic."""
    selection = replace(select(pair.live(), number=number, merge=False, removed=True), incomplete=())
    found: dict[bytes | None, int] = {}
    for row in rows_of(pair.store, selection):
        if row.topic == topic:
            found[row.value] = found.get(row.value, 0) + 1
    return found


def position(state: Generation, topic: str) -> tuple[int, int]:
    """Return (offset, epoch) of the topic's one partition."""
    (found,) = (at for key, at in state.positions.items() if state.topics[key.topic_id].name == topic)
    return found.offset, found.epoch


@AWAY
def test_two_histories_of_one_epoch_are_not_mixed(
    own_kafka: Callable[..., KafkaServer], new_pair: PairMaker, topic_name: str, away: bool
) -> None:
    """100 records are backed up and lost by the brokers, 200 others take their offsets: a new generation has these."""
    server = own_kafka()
    pair = _with_snapshot(server, new_pair, topic_name)
    a, one = _backed_up(pair, server, topic_name, 100)
    was = position(one, topic_name)

    _set_back_under(a, pair, server, topic_name, then="a" if away else None)

    two = pair.wait("generation 2 is complete", lambda: pair.complete(2))
    assert was[0] == 200
    assert position(two, topic_name) == (300, was[1]), "by offset and epoch, the log went on"
    one = pair.wait("generation 1 is sealed", lambda: (g := pair.generation(1)) and g.sealed and g)
    (taint,) = one.taints.values()
    assert "has another record at offset 199 than the one that was read" in taint.reason
    assert (taint.offset, taint.cut_at) == (200, 100)
    (key,) = one.positions
    assert cut_off(one, key), "it is kept until a person releases it"
    assert words(pair, 1, topic_name) == {b"first": 100, b"lost": 100}
    assert words(pair, 2, topic_name) == {b"first": 100, b"other": 200}


@AWAY
def test_a_log_without_records_is_known_by_having_none(
    own_kafka: Callable[..., KafkaServer], new_pair: PairMaker, topic_name: str, away: bool
) -> None:
    """All records were deleted before the first claim; the volumes bring 100 of them back; 200 others follow."""
    server = own_kafka()
    pair = _with_snapshot(server, new_pair, topic_name, {"cleanup.policy": "compact,delete", "retention.ms": "-1"})
    write(server.bootstrap, topic_name, 100, "gone")
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    (deleted,) = admin.delete_records([KafkaTopicPartition(topic_name, 0, 200)]).values()
    deleted.result(30)
    a = pair.start("a")
    one = pair.wait("generation 1 is complete", lambda: pair.complete(1))
    was = position(one, topic_name)
    assert was[0] == 200

    _set_back_under(a, pair, server, topic_name, then="a" if away else None)

    two = pair.wait("generation 2 is complete", lambda: pair.complete(2))
    assert position(two, topic_name) == (300, was[1]), "by offset and epoch, the log went on"
    one = pair.wait("generation 1 is sealed", lambda: (g := pair.generation(1)) and g.sealed and g)
    (taint,) = one.taints.values()
    assert ", where none was found when it was read: " in taint.reason
    pair.wait("generation 1 is cleared, it holds nothing", lambda: (g := pair.generation(1)) is None or g.gone)
    assert words(pair, 2, topic_name) == {b"first": 100, b"other": 200}


def test_a_copy_stays_whose_topic_was_recreated_before_a_broker_was_asked(
    own_kafka: Callable[..., KafkaServer], new_pair: PairMaker, topic_name: str
) -> None:
    """Instance b has built a copy of the log that was set back. When a is back, no broker knows the former log."""
    server = own_kafka()
    pair = _with_snapshot(server, new_pair, topic_name)
    a, one = _backed_up(pair, server, topic_name, 100)
    (key,) = one.positions
    _set_back_under(a, pair, server, topic_name, then="b")
    two = pair.wait("generation 2 is complete", lambda: pair.complete(2))
    assert position(two, topic_name) == (300, position(one, topic_name)[1]), "by offset and epoch, the log went on"

    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.delete_topics([topic_name])[topic_name].result(30)
    pair.wait("the topic is gone", lambda: topic_name not in admin.list_topics(timeout=10).topics)
    admin.create_topics([NewTopic(topic_name, 1, 1, config=KEPT)])[topic_name].result(30)
    write(server.bootstrap, topic_name, 5, "anew")
    pair.start("a")
    one = pair.wait("generation 1 is cleared as far as may be", lambda: (g := pair.generation(1)) and g.cleared and g)
    assert not one.taints, "nobody could ask"
    assert one.cleared is not None
    assert one.cleared.stays == {key: NOT_PROVEN_KEPT}
    assert words(pair, 1, topic_name) == {b"first": 100, b"lost": 100}


def test_a_copy_of_another_history_is_marked_though_its_instance_is_gone(
    own_kafka: Callable[..., KafkaServer], new_pair: PairMaker, topic_name: str
) -> None:
    """Instance a is gone for good, and nobody writes: b stands below it with its build, and marks it after a minute."""
    server = own_kafka()
    pair = _with_snapshot(server, new_pair, topic_name)
    a, _ = _backed_up(pair, server, topic_name, 1, 99)
    _set_back_under(a, pair, server, topic_name, then="b", count=95)
    one = pair.wait("generation 1 is marked", lambda: (g := pair.generation(1)) and g.taints and g)
    (taint,) = one.taints.values()
    assert (taint.offset, taint.cut_at) == (200, 100)
    assert one.holder == one.claim.incarnation, "nobody has taken it over"
    pair.wait("generation 2 is complete", lambda: pair.complete(2))
    assert words(pair, 2, topic_name) == {b"first": 100, b"other": 95}
    newest = replace(select(pair.live()), incomplete=())
    assert {row.value for row in rows_of(pair.store, newest) if row.topic == topic_name} == {b"first", b"other"}


def _with_snapshot(
    server: KafkaServer, new_pair: PairMaker, topic_name: str, config: Mapping[str, str] = MappingProxyType({})
) -> Pair:
    """Create the topics, write 100 records and take a snapshot of the broker's volume. `config` is set on the topic."""
    pair = new_pair(
        [topic_name], kafka=server, groups={"enabled": False}, peer={"timeout": "1s"}, liveness={"timeout": "5s"}
    )
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    for topic, more in ((topic_name, config), (pair.settings["coordination"]["topic"], {})):
        admin.create_topics([NewTopic(topic, 1, 1, config={**KEPT, **more})])[topic].result(30)
    write(server.bootstrap, topic_name, 100, "first")
    server.stop()
    shutil.copytree(server.data, server.folder / "snapshot")
    server.start()
    return pair


def _backed_up(pair: Pair, server: KafkaServer, topic: str, *counts: int) -> tuple[Instance, Generation]:
    """Start instance a, and have its generation 1 back up these numbers of records, one after the other."""
    a = pair.start("a")
    one = pair.wait("generation 1 is complete", lambda: pair.complete(1))
    for at, count in enumerate(counts, start=1):
        write(server.bootstrap, topic, count, "lost")
        end = 100 + sum(counts[:at])
        one = pair.wait("all is committed", lambda end=end: pair.covered({(topic, 0): end}))
    return a, one


def _set_back_under(
    instance: Instance, pair: Pair, server: KafkaServer, topic: str, *, then: str | None, count: int = 200
) -> None:
    """Put the broker's volume back to its snapshot and write records, while the instance sees nothing of it.

    It has ended, and `then` is who is started afterwards; None: it goes on.
    """
    if then is not None:
        instance.terminate()
    else:
        instance.process.send_signal(signal.SIGSTOP)
    server.stop()
    shutil.rmtree(server.data)
    shutil.copytree(server.folder / "snapshot", server.data)
    server.start()
    write(server.bootstrap, topic, count, "other")
    if then is not None:
        pair.start(then)
    else:
        instance.process.send_signal(signal.SIGCONT)
