"""Brokers that are upgraded one after the other, from 3.9.1 to the newest release, under a pair that runs."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.clusters.brokers import Member
from support.clusters.old_brokers import Kafka3, jars_of_release
from support.pairs.instances import QUICK, PairMaker
from support.pairs.outcomes import UNCLEANED, assert_all_stored

from tandem.controller.sandbox.jars import KAFKA_VERSION
from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

BEFORE = "3.9.1"
SETTINGS = {"offsets.topic.replication.factor": "3", "auto.leader.rebalance.enable": "false"}


class OldMember(Kafka3, Member):
    """A member of the cluster that runs the older release."""


def upgraded(node: int, old: KafkaServer, first: KafkaServer) -> KafkaServer:
    """Return the node with the newest release, not started: the same folder, addresses and settings."""
    if node == 1:
        return KafkaServer(old.folder, overrides=old.overrides, ports=old.ports)
    made = Member(old.folder, first, node, port=old.ports["broker"])
    made.overrides |= SETTINGS
    return made


@contextmanager
def writing(bootstrap: str, topic: str) -> Iterator[None]:
    """Write all the time, each record acknowledged by all replicas; nothing that was written may be lost."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 20})
    done = threading.Event()

    def run() -> None:
        number = 0
        while not done.wait(0.01):
            producer.produce(topic, key=b"key-%d" % (number % 500), value=b"value-%d" % number, partition=number % 3)
            producer.poll(0)
            number += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        assert producer.flush(60) == 0


def upgrade_features(server: KafkaServer) -> None:
    """Let the brokers speak the newest release's formats among themselves, which ends an upgrade."""
    command = [*server._java("-Xmx128m"), "org.apache.kafka.tools.FeatureCommand"]
    command += ["--bootstrap-server", server.bootstrap, "upgrade", "--release-version", KAFKA_VERSION[:3]]
    done = subprocess.run(command, cwd=server.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_brokers_are_upgraded_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, new_pair: PairMaker, topic_name: str
) -> None:
    """No generation is tainted or claimed anew, a turn on mixed releases is as any other, and all is stored once."""
    jars = jars_of_release(BEFORE)
    first = Kafka3(tmp_path_factory.mktemp("broker1"), jars=jars, overrides=SETTINGS)
    with ExitStack() as stack:
        nodes: dict[int, KafkaServer] = {1: first}
        stack.callback(lambda: [node.kill() for node in nodes.values()])
        first.start(timeout_s=120)
        for number in (2, 3):
            member = OldMember(tmp_path_factory.mktemp(f"broker{number}"), first, number)
            member._jars = jars
            member.overrides |= SETTINGS
            nodes[number] = member
            member.start(timeout_s=120)
        addresses = ",".join(node.bootstrap for node in nodes.values())
        admin = AdminClient({"bootstrap.servers": addresses})
        new = NewTopic(topic_name, num_partitions=3, replication_factor=3, config=UNCLEANED)
        admin.create_topics([new])[topic_name].result(30)
        pair = new_pair([topic_name], kafka=first, **QUICK)
        pair.settings["kafka"]["bootstrap.servers"] = addresses
        pair.settings["coordination"]["replication_factor"] = 3
        with writing(addresses, topic_name):
            instances = [pair.start(name, first="a") for name in "ab"]
            pair.wait("generation 1 is complete", lambda: pair.complete(1))
            for number in (2, 3, 1):
                nodes[number].stop()
                nodes[number] = upgraded(number, nodes[number], nodes[1])
                nodes[number].start(timeout_s=120)
                if number == 2:
                    pair.activate("b", 2)
                    pair.wait("generation 2 is complete", lambda: pair.complete(2))
                    pair.wait("generation 1 is cleared", lambda: [one.number for one in pair.live()] == [2])
            upgrade_features(nodes[1])
            pair.activate("a", 3)
            pair.wait("generation 3 is complete", lambda: pair.complete(3))
            pair.wait("generation 2 is cleared", lambda: [one.number for one in pair.live()] == [3])
        assert_all_stored(pair, addresses, [topic_name])
        assert [state.number for state in pair.history()] == [1, 2, 3]
        assert not [state.taints for state in pair.history() if state.taints]
        assert [one.process.poll() for one in instances] == [None, None]
        assert pair.status()["problems"] == []
