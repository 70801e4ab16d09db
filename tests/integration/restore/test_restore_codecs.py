"""Restored batches have a codec that the topic had, by the log files of the broker and by a client without codecs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from kafka.record import MemoryRecords
from support.pairs.instances import QUICK, PairMaker
from support.restores.cases import read_all

from tandem.backup_avro.errors import ExitCode
from tandem.controller.cli.main import run
from tandem.controller.sandbox.kafka import KafkaServer

if TYPE_CHECKING:
    from support.clusters.topics import TopicMaker

pytestmark = [pytest.mark.integration, pytest.mark.spark]

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_EACH = 40
#: A consumer as pip installs it: the libraries of all codecs but gzip can't be imported.
_PLAIN_CLIENT = """
import sys
for name in ("zstandard", "zstd", "lz4", "lz4f", "lz4framed", "snappy", "cramjam"):
    sys.modules[name] = None
from kafka import KafkaConsumer, TopicPartition
consumer = KafkaConsumer(bootstrap_servers=sys.argv[1], consumer_timeout_ms=20000, auto_offset_reset="earliest")
place = TopicPartition(sys.argv[2], 0)
consumer.assign([place])
consumer.seek_to_beginning(place)
found = []
for record in consumer:
    found.append(record.key.decode())
    if len(found) == int(sys.argv[3]):
        break
print(",".join(found))
"""


def _produce(kafka: KafkaServer, topic: str, *codecs: str) -> None:
    """Write as many records with each codec; they are large enough to become smaller."""
    for turn, codec in enumerate(codecs):
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "compression.type": codec, "linger.ms": 50})
        for number in range(_EACH):
            producer.produce(topic, key=b"%d" % (turn * _EACH + number), value=b"value " * 100)
        assert producer.flush(30) == 0


def _codecs_in_log(kafka: KafkaServer, topic: str) -> set[str]:
    """Return the codecs of the batches with records in the broker's own files of the topic's only partition."""
    found = set()
    for path in Path(kafka.folder, "data", f"{topic}-0").glob("*.log"):
        batches: Any = MemoryRecords(path.read_bytes())
        while batches.has_next():
            batch = batches.next_batch()
            if batch is not None and not batch.is_control_batch:
                found.add(_CODECS[batch.compression_type])
    return found


def test_codecs_are_as_they_were(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each codec alone and mixed; a topic whose broker compresses; one that was chosen for all."""
    made = {make_topic(config={"cleanup.policy": "compact"}): (codec,) for codec in _CODECS}
    mixed = make_topic(config={"cleanup.policy": "compact"})
    recoded = make_topic(config={"cleanup.policy": "compact", "compression.type": "snappy"})
    made |= {mixed: ("gzip", "none", "lz4"), recoded: ("zstd",)}
    for topic, codecs in made.items():
        _produce(kafka, topic, *codecs)
    had = {topic: _codecs_in_log(kafka, topic) for topic in made}
    assert had == {topic: set(codecs) for topic, codecs in made.items()} | {recoded: {"snappy"}}

    pair = new_pair(list(made), **QUICK)
    pair.start("a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    config = str(pair.config("a"))
    capsys.readouterr()
    assert run(["restore", "-c", config, "--suffix", ".back", "--dry-run", "-o", "json"]) == ExitCode.OK
    planned = {topic["source"]: topic for topic in json.loads(capsys.readouterr().out)["topics"]}
    assert {name: set(topic["codecs"]) for name, topic in planned.items()} == had
    assert planned[mixed]["compression"] == "lz4"

    assert run(["restore", "-c", config, "--suffix", ".back"]) == ExitCode.OK
    for topic, codecs in made.items():
        assert len(read_all(kafka.bootstrap, f"{topic}.back", 0)) == _EACH * len(codecs)
        assert _codecs_in_log(kafka, f"{topic}.back") == {planned[topic]["compression"]}
        assert _codecs_in_log(kafka, f"{topic}.back") <= had[topic]
    chosen = ["--topics", mixed, "--to", f"{mixed}.chosen", "--compression", "zstd"]
    assert run(["restore", "-c", config, *chosen]) == ExitCode.OK
    assert _codecs_in_log(kafka, f"{mixed}.chosen") == {"zstd"}

    [plain] = [topic for topic, codecs in made.items() if codecs == ("none",)]
    read = [sys.executable, "-c", _PLAIN_CLIENT, kafka.bootstrap]
    done = subprocess.run([*read, f"{plain}.back", str(_EACH)], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip().split(",") == [str(number) for number in range(_EACH)], done.stderr
    wrong = [*read, f"{mixed}.chosen", "1"]
    done = subprocess.run(wrong, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0, "what this client can't read would show nothing"
