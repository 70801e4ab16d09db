"""The class archive of the sandbox's broker: `python -m tandem.controller.sandbox.broker_classes` makes it.

It takes about 15 seconds; `make setup` does it in the background. Brokers start without one as well, seconds later.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tandem.controller.sandbox.jars import kafka_jars
from tandem.controller.sandbox.kafka import FORMATTED, KafkaServer, broker_archive

_NICE: Final = 19
_TOPIC: Final = "classes"
_TIMEOUT_S: Final = 60.0


class _ObservedBroker(KafkaServer):
    """A broker that writes its classes to an archive when it ends."""

    stop_grace_s = 120.0

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        super().__init__(folder)
        self._options = list(options)

    def _classes(self, jars: Path) -> list[str]:
        # Not the program that formats the data folder, which would write an archive of its own.
        return self._options if (self.folder / FORMATTED).exists() else super()._classes(jars)


def _train(options: Sequence[str]) -> bool:
    """Run a broker through what clients ask of it most: a topic, a transaction, a group."""
    with tempfile.TemporaryDirectory() as folder:
        server = _ObservedBroker(Path(folder), options)
        try:
            server.start(timeout_s=_TIMEOUT_S)
            _use(server.bootstrap)
        finally:
            server.stop()
    return True


def _use(bootstrap: str) -> None:
    client: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap}
    topic = NewTopic(_TOPIC, num_partitions=1, replication_factor=1, config={"cleanup.policy": "compact"})
    admin = AdminClient(client)  # kept: its requests end with it
    admin.create_topics([topic])[_TOPIC].result(timeout=_TIMEOUT_S)
    producer = Producer({**client, "transactional.id": _TOPIC, "compression.type": "zstd"})
    producer.init_transactions(_TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(_TOPIC, key=b"key", value=b"value")
    producer.commit_transaction(_TIMEOUT_S)
    consumer = Consumer({**client, "group.id": _TOPIC, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([_TOPIC])
        if consumer.poll(_TIMEOUT_S) is not None:
            consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def main() -> int:
    """Make the archive unless it is there. Exit code 0 also if there is none to be made."""
    os.nice(_NICE)
    try:
        archive = broker_archive(kafka_jars())
        made = archive is None or archive.make(_train)
    except Exception as error:  # noqa: BLE001 - brokers start without it
        print(f"no class archive for brokers: {error}", file=sys.stderr)  # noqa: T201 - a command line
        return 1
    return 0 if made else 1


if __name__ == "__main__":
    sys.exit(main())
