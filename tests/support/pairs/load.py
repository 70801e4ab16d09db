"""A steady load of records for a pair with little room."""

from __future__ import annotations

import threading
from typing import Self

from confluent_kafka import Producer

PARTITIONS = 4

UNCLEANED = {"segment.ms": "86400000", "max.compaction.lag.ms": "86400000", "segment.bytes": "104857600"}


class Load:
    """Writes about 1 MB a second, which does not compress, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self.records = 0

    def _run(self) -> None:
        with open("/dev/urandom", "rb") as noise:  # noqa: PTH123
            while not self._stop.wait(0.1):
                for _ in range(10):
                    self.records += 1
                    self._producer.produce(
                        self._topic,
                        key=b"key-%d" % self.records,
                        value=noise.read(10_000),
                        partition=self.records % PARTITIONS,
                    )
                self._producer.poll(0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)
        assert self._producer.flush(60) == 0
