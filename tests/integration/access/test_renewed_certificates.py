"""Certificates that are renewed on disk while an instance runs, as an operator or cert-manager does it."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.backups.witness import consume
from support.clusters.topics import TopicMaker
from support.pairs.instances import Pair, store_section
from support.servers.certificates import Authority

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.ports import LOOPBACK, pick_ports
from tandem.controller.sandbox.s3 import S3Server

pytestmark = pytest.mark.integration


def issue(authority: Authority, folder: Path) -> None:
    """Put certificates of an authority into the places from which the broker and the instance read theirs."""
    broker, user = authority.issue("broker", address=LOOPBACK), authority.issue("tandem")
    contents = {
        "broker.pem": broker.key + broker.certificate,
        "ca.crt": authority.pem,
        "user.crt": user.certificate,
        "user.key": user.key,
    }
    for name, content in contents.items():
        (folder / f"{name}.new").write_text(content)
        (folder / f"{name}.new").rename(folder / name)


def write(bootstrap: str, topic: str) -> None:
    """Write a hundred records."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(100):
        producer.produce(topic, key=b"key-%d" % number, value=b"value")
    assert producer.flush(30) == 0


def test_an_instance_goes_on_with_renewed_certificates(
    tmp_path: Path, make_topic: TopicMaker, s3: S3Server, bucket_root: str, topic_name: str
) -> None:
    """The broker takes no old certificate any more, and has one that only the new authority's clients trust."""
    plain, controller, mtls = pick_ports(3)
    (folder := tmp_path / "certificates").mkdir()
    issue(Authority("Old"), folder)
    listeners = f"PLAINTEXT://{LOOPBACK}:{plain},MTLS://{LOOPBACK}:{mtls}"
    server = KafkaServer(
        tmp_path / "kafka",
        ports={"broker": plain, "controller": controller},
        overrides={
            "listeners": f"{listeners},CONTROLLER://{LOOPBACK}:{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,MTLS:SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / "ca.crt"),
            "listener.name.mtls.ssl.client.auth": "required",
        },
    )
    props = {
        "bootstrap.servers": f"{LOOPBACK}:{mtls}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(folder / "ca.crt"),
        "ssl.certificate.location": str(folder / "user.crt"),
        "ssl.key.location": str(folder / "user.key"),
    }
    try:
        server.start()
        bootstrap = server.bootstrap
        topic = make_topic(topic_name, bootstrap=bootstrap)
        write(bootstrap, topic)
        store = store_section(bucket_root, s3)
        with Pair(tmp_path, bootstrap=bootstrap, store=store, topics=[topic], kafka=props) as pair:
            a = pair.start("a")
            pair.wait("generation 1 is complete", lambda: pair.complete(1))
            server.stop()
            issue(Authority("New"), folder)
            server.start()
            write(bootstrap, topic)
            pair.wait("the records written since are stored", lambda: pair.covered(consume(bootstrap, [topic]).ends))
            heard = pair.status()["instances"][0]["heardAt"]
            pair.wait("heartbeats arrive again", lambda: pair.status()["instances"][0]["heardAt"] not in {None, heard})
            assert not [one for one in pair.status()["problems"] if "coordination" in one["message"]]
            assert a.terminate() == 0
    finally:
        server.stop()
