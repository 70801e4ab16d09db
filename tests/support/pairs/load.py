"""A steady load of records for a pair with little room."""

from __future__ import annotations

import os

from confluent_kafka import Producer

from support.repeated import Repeated

PARTITIONS = 4

UNCLEANED = {"segment.ms": "86400000", "max.compaction.lag.ms": "86400000", "segment.bytes": "104857600"}


class Load(Repeated):
    """Writes about 1 MB a second, which does not compress, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(every_s=0.1)
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._topic = topic
        self.records = 0

    def once(self) -> None:
        for _ in range(10):
            self.records += 1
            key, partition = b"key-%d" % self.records, self.records % PARTITIONS
            self._producer.produce(self._topic, key=key, value=os.urandom(10_000), partition=partition)
        self._producer.poll(0)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        assert self._producer.flush(60) == 0
