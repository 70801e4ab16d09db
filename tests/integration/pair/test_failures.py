"""What goes wrong around an instance: a clear message and exit code, or a wait that ends by itself and says so."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.backups.build_backup import Backup, TopicSpec, records
from support.clusters.topics import TopicMaker
from support.pairs.instances import Instance, Pair, PairMaker
from support.pairs.outcomes import ERROR, REFUSED, UNCLEANED, USAGE, assert_all_stored, assert_ends, messages, write
from support.servers.careless_store import careless_store

from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.controller.decision.decide import Reason
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.ports import LOOPBACK, pick_ports
from tandem.controller.sandbox.s3 import S3Server

pytestmark = pytest.mark.integration

LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "tandem"}


# --- what only a person can mend: the process ends --------------------------------------------------------------------


def test_wrong_bucket(new_pair: PairMaker) -> None:
    """A bucket that does not exist ends the process; the message names bucket, endpoint and remedy."""
    pair = new_pair(["any"])
    a = pair.start("a", store={"root": "s3://no-such-bucket/backup"})
    assert_ends(a, USAGE, "no-such-bucket", "NoSuchBucket", "create the bucket, or correct its name", "endpoint_url")


def test_wrong_secret(new_pair: PairMaker) -> None:
    """A wrong secret ends the process; the message names what to check and shows neither the wrong nor a right one."""
    pair = new_pair(["any"])
    a = pair.start("a", store={"secret_access_key": "not-the-secret-at-all"})
    assert_ends(a, ERROR, "SignatureDoesNotMatch", "check access_key_id and secret_access_key")
    assert "not-the-secret-at-all" not in a.text()


def test_unknown_key(new_pair: PairMaker) -> None:
    """A key that the configuration does not know is a usage error; the message names it with its place."""
    pair = new_pair(["any"])
    a = pair.start("a", flush={"intervall": "2s"})
    assert_ends(a, USAGE, "a.yaml:", "flush.intervall: unknown key; did you mean flush.interval?")


def test_store_that_ignores_the_condition(new_pair: PairMaker) -> None:
    """A store that overwrites despite If-None-Match is refused before anything is read."""
    pair = new_pair(["any"])
    with careless_store() as url:
        a = pair.start("a", store={"endpoint_url": url})
        assert_ends(a, REFUSED, "put-if-absent replaced the existing object", "If-None-Match", "AWS S3")


def test_root_of_another_cluster(new_pair: PairMaker, kafka: KafkaServer) -> None:
    """Backups of another cluster under the same root and pair: refused, both clusters named; nothing is claimed."""
    pair = new_pair(["any"])
    Backup.claim(pair.store, pair=pair.name, topics=[TopicSpec("any")]).commit(records("any", 0, range(3)))
    a = pair.start("a")
    assert_ends(a, REFUSED, "cluster-1", str(kafka.cluster_id), "choose another `pair` or `store.root`")
    assert [g.number for g in pair.history()] == [1]


# --- what comes back by itself: the process waits ---------------------------------------------------------------------


def test_brokers_away_at_start_and_in_mid_run(
    tmp_path: Path, make_topic: TopicMaker, new_pair: PairMaker, topic_name: str
) -> None:
    """With nobody listening it waits and names the address; after an outage in mid-run it goes on by itself."""
    server, guarded = broker_with_passwords(tmp_path / "kafka")
    pair = new_pair([topic_name], kafka=server)
    a = pair.start("a")
    (line,) = pair.wait("it waits for the brokers", lambda: a.said("the brokers can't be reached"))
    assert server.bootstrap in line["error"]
    assert "check bootstrap.servers and the network" in line["error"]
    try:
        server.start()
        pair.wait("it says that they are there", lambda: a.said("the brokers can be reached"))
        make_topic(topic_name, bootstrap=server.bootstrap, config=UNCLEANED)
        write(server.bootstrap, topic_name, 100)
        b = pair.start("b", kafka={"bootstrap.servers": guarded, **LOGIN, "sasl.password": "not-the-password"})
        assert_ends(b, ERROR, guarded, "refuse the credentials", "TDM-K064", "security.protocol", "sasl.password")
        assert not b.said("the brokers can't be reached"), "no reason to wait"
        assert "not-the-password" not in b.text()
        pair.wait("generation 1 is complete", lambda: pair.complete(1))

        server.stop()
        pair.wait("it notices", lambda: a.said("trouble while reading"))
        server.start()
        write(server.bootstrap, topic_name, 100)
        pair.wait("it says that they are back", lambda: a.said("trouble is over"))
        assert len(a.text().splitlines()) < 60, "an outage is told, not counted out"
        assert_all_stored(pair, server.bootstrap, [topic_name])
        assert [g.number for g in pair.history()] == [1]
        assert a.terminate() == 0
    finally:
        server.stop()


def broker_with_passwords(folder: Path) -> tuple[KafkaServer, str]:
    """A broker that was not started yet, and the address of its second listener, which asks for a password."""
    broker, controller, guarded = pick_ports(3)
    listeners = f"PLAINTEXT://{LOOPBACK}:{broker},SASL://{LOOPBACK}:{guarded}"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    overrides = {
        "listeners": f"{listeners},CONTROLLER://{LOOPBACK}:{controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f'{module} required user_tandem="right";',
    }
    server = KafkaServer(folder, ports={"broker": broker, "controller": controller}, overrides=overrides)
    return server, f"{LOOPBACK}:{guarded}"


def test_told_to_stop_while_it_waits(new_pair: PairMaker) -> None:
    """With no store listening it says so and waits; SIGTERM ends the wait, in time and without an error."""
    (port,) = pick_ports(1)
    pair = new_pair(["any"])
    a = pair.start("a", store={"endpoint_url": f"http://{LOOPBACK}:{port}"})
    (line,) = pair.wait("it waits for the store", lambda: a.said("the store can't be reached, waiting"))
    assert str(port) in line["error"]
    began = time.monotonic()
    assert a.terminate() == 0
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("seconds", [4, pytest.param(120, marks=pytest.mark.slow)])
def test_store_away_in_mid_run(
    own_s3: Callable[[], S3Server], kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, seconds: int
) -> None:
    """While S3 is down nothing is lost and nothing ends; when it is back all is committed, and the log says both."""
    topic = make_topic(config=UNCLEANED)
    write(kafka.bootstrap, topic, 100)
    server = own_s3()
    pair = new_pair([topic], s3=server, shutdown={"grace": "6s"})
    a = pair.start("a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    server.stop()
    stopped = time.monotonic()
    write(kafka.bootstrap, topic, 100)
    pair.wait("it notices", lambda: a.said("cannot read the chains, trying again"))
    pair.wait("a commit waits", lambda: a.said("store does not take an object, trying until it does"))
    pair.wait("time has passed", lambda: time.monotonic() - stopped > seconds, timeout_s=seconds + 30)
    server.start()
    pair.wait("it says that the store is back", lambda: a.said("the store answers again"))
    pair.wait("the commit went on", lambda: a.said("store has taken the object"))
    write(kafka.bootstrap, topic, 100)
    assert_all_stored(pair, kafka.bootstrap, [topic])
    assert [g.number for g in pair.history()] == [1]
    assert not pair.generation(1).taints  # type: ignore[union-attr]  # it is there
    assert len(a.text().splitlines()) < 60, "an outage is told, not counted out"

    # Told to stop while the store hangs it can't commit, but leaves in time; the next life reads again what it had.
    server.suspend()
    write(kafka.bootstrap, topic, 100)
    pair.wait("it has read all", lambda: records_read(pair, kafka, a) >= 400)
    began = time.monotonic()
    assert a.terminate() == 0
    assert time.monotonic() - began < 25
    assert a.said("left", clean=False)
    server.resume()
    a = pair.start("a")
    assert_all_stored(pair, kafka.bootstrap, [topic])
    assert a.terminate() == 0


def test_missing_topic_is_waited_for_and_sigterm_commits(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, topic_name: str
) -> None:
    """A guarded topic that is not there is named and waited for; SIGTERM commits what was read, and says goodbye."""
    pair = new_pair([topic_name], flush={"interval": "5s"})
    a = pair.start("a")
    (line,) = pair.wait("the topic is named", lambda: a.said("a topic of topics.include does not exist"))
    assert line["topic"] == topic_name
    pair.wait("the reason is given", lambda: a.said("decision", reason=Reason.WAITING_FOR_TOPICS))
    make_topic(topic_name, config=UNCLEANED)
    write(kafka.bootstrap, topic_name, 50)
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    assert a.said("a missing topic is there now")
    assert a.terminate() == 0

    # With a flush interval this long nothing but the end makes it commit.
    a = pair.start("a", flush={"interval": "10m"}, rotation={"interval": "1d"}, handover={"timeout": "20m"})
    pair.wait("it is Active again", lambda: a.role == "Active")
    before = pair.kinds(1)
    write(kafka.bootstrap, topic_name, 500)
    pair.wait("it has read all", lambda: records_read(pair, kafka, a) >= 500)
    assert "COMMIT" not in pair.kinds(1)[len(before) :]
    began = time.monotonic()
    assert a.terminate() == 0
    assert time.monotonic() - began < 25
    assert a.said("left", clean=True)
    assert messages(pair, kafka)[-1].event is CoordinationEvent.LEAVING
    assert_all_stored(pair, kafka.bootstrap, [topic_name])


def records_read(pair: Pair, kafka: KafkaServer, instance: Instance) -> int:
    """How many records the process says it has read, in its last heartbeat."""
    found = [
        m
        for m in messages(pair, kafka)
        if m.event is CoordinationEvent.PROGRESS and m.incarnation == instance.incarnation
    ]
    return int((found[-1].details or {}).get("records", 0)) if found else 0


def test_second_process_of_the_same_name(kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker) -> None:
    """It waits while the first one lives, which goes on undisturbed, and takes over when that one is gone."""
    topic = make_topic(config=UNCLEANED)
    write(kafka.bootstrap, topic, 100)
    pair = new_pair([topic], coordination={"heartbeat_interval": "2s"})  # three may be missed on a busy machine
    first = pair.start("a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    second = pair.start("a")
    twin = "another process with this instance name was heard a moment ago"
    pair.wait("the second one waits", lambda: second.said("decision", reason=twin))
    before = len(heartbeats(pair, kafka, first))
    write(kafka.bootstrap, topic, 100)
    assert_all_stored(pair, kafka.bootstrap, [topic])
    seq = len(pair.kinds(1))
    pair.wait("it has waited longer than a missed heartbeat", lambda: len(heartbeats(pair, kafka, first)) > before + 4)
    assert "TAKEOVER" not in pair.kinds(1)
    assert (first.role, second.role) == ("Active", "Passive")

    first.kill()
    pair.wait("the second one takes over", lambda: "TAKEOVER" in pair.kinds(1)[seq - 1 :])
    pair.wait("it is Active", lambda: second.role == "Active")
    write(kafka.bootstrap, topic, 100)
    assert_all_stored(pair, kafka.bootstrap, [topic])
    assert [g.number for g in pair.history()] == [1]
    assert second.terminate() == 0


def heartbeats(pair: Pair, kafka: KafkaServer, instance: Instance) -> list[Any]:
    """The heartbeats of a process."""
    return [
        m
        for m in messages(pair, kafka)
        if m.event is CoordinationEvent.PROGRESS and m.incarnation == instance.incarnation
    ]
