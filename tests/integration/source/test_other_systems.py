"""Topics that a schema registry, Connect and Kafka Streams keep, backed up by a preset and restored; real broker."""

from __future__ import annotations

import json
import struct

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.pairs.instances import PairMaker
from support.restores.cases import read_all

from tandem.backup_avro.errors import ExitCode
from tandem.controller.cli.main import run
from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = [pytest.mark.integration, pytest.mark.spark]

_Records = list[tuple[int, bytes | None, bytes | None]]


def _compact(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _schema(subject: str, version: int, number: int, field: str) -> tuple[int, bytes, bytes]:
    """A schema as a registry writes it: the id is in the value."""
    schema = _compact({"type": "record", "name": "R", "fields": [{"name": field, "type": "string"}]}).decode()
    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    value = {"subject": subject, "version": version, "id": number, "schema": schema, "deleted": False}
    return 0, _compact(key), _compact(value)


_SCHEMAS: _Records = [
    (0, _compact({"keytype": "NOOP", "magic": 0}), None),
    (0, _compact({"keytype": "CONFIG", "subject": None, "magic": 0}), _compact({"compatibilityLevel": "BACKWARD"})),
    _schema("orders-value", 1, 1, "a"),
    _schema("users-value", 1, 2, "b"),
    _schema("orders-value", 2, 7, "c"),
    (0, _compact({"keytype": "DELETE_SUBJECT", "subject": "users-value", "magic": 0}), _compact({"version": 1})),
    (0, _compact({"keytype": "SCHEMA", "subject": "gone-value", "version": 1, "magic": 1}), None),
]

_OFFSETS: _Records = [
    (number % 5, _compact(["source-1", {"file": f"f{number}"}]), _compact({"position": number})) for number in range(20)
] + [(3, _compact(["source-1", {"file": "f3"}]), None)]


def _window(key: str, begin: int, sequence: int) -> bytes:
    """A windowed key as Streams stores it: key, begin of the window in ms, sequence number."""
    return key.encode() + struct.pack(">qi", begin, sequence)


_CHANGELOG: _Records = [
    (number % 3, _window(f"k{number}", 1_700_000_000_000 + number, 0), struct.pack(">qq", number, -1))
    for number in range(30)
] + [(0, _window("k0", 1_700_000_000_000, 0), None)]


def _write(kafka: KafkaServer, topic: str, partitions: int, records: _Records) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    [future] = admin.create_topics(
        [NewTopic(topic, num_partitions=partitions, replication_factor=1, config={"cleanup.policy": "compact"})]
    ).values()
    future.result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for partition, key, value in records:
        producer.produce(topic, key=key, value=value, partition=partition)
    assert producer.flush(30) == 0


def test_what_other_systems_remember(
    kafka: KafkaServer, new_pair: PairMaker, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Schemas keep their ids, connectors their positions, state stores their bytes, in the partitions that they had."""
    connect, changelog = f"{topic_name}-connect-offsets", f"{topic_name}-store-changelog"
    wanted = {"_schemas": (1, _SCHEMAS), connect: (5, _OFFSETS), changelog: (3, _CHANGELOG)}
    for topic, (partitions, records) in wanted.items():
        _write(kafka, topic, partitions, records)
    try:
        presets = ["schema-registry", "connect", "streams"]
        pair = new_pair({"presets": presets, "exclude": [f"(?!{topic_name}|_schemas).*"]})
        pair.start("a")
        pair.wait("generation 1 is complete", lambda: pair.complete(1))
        config = str(pair.config("a"))
        assert run(["restore", "-c", config, "--suffix", ".back", "--keep-load-config"]) == ExitCode.OK
        capsys.readouterr()
        for topic, (partitions, records) in wanted.items():
            for number in range(partitions):
                rows = read_all(kafka.bootstrap, f"{topic}.back", number)
                assert [(row[1], row[2]) for row in rows] == [(k, v) for place, k, v in records if place == number]
        rows = read_all(kafka.bootstrap, "_schemas.back", 0)
        ids = {
            (key["subject"], key["version"]): json.loads(row[2])["id"]
            for row in rows
            if row[1] is not None and row[2] is not None
            for key in [json.loads(row[1])]
            if key["keytype"] == "SCHEMA"
        }
        assert ids == {("orders-value", 1): 1, ("users-value", 1): 2, ("orders-value", 2): 7}
    finally:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for future in admin.delete_topics(list(wanted)).values():
            future.result(30)
