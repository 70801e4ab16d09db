"""The keys that a live partition has: all its records, also those of transactions that are open or were aborted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tandem.sink.kafka.auth.client_config import Value, for_confluent
from tandem.sink.kafka.cluster.admin import EARLIEST, LATEST, ClusterAdmin
from tandem.sink.kafka.errors.cluster_errors import ClusterTransientError
from tandem.spark_jobs.restore.lease.progress import GROUP

_LOG: Final[Any] = structlog.get_logger()
_SILENCE_S: Final = 60.0
_POLL_S: Final = 1.0


class LivePartition:
    """Reads a partition forward, each record once. `next` is the offset up to which it was read."""

    def __init__(self, props: Mapping[str, Value], admin: ClusterAdmin, topic: str, partition: int) -> None:
        self._admin = admin
        self._place = (topic, partition)
        self._consumer = Consumer(
            for_confluent(
                props,
                group_id=GROUP,
                isolation_level="read_uncommitted",
                enable_auto_commit=False,
                enable_auto_offset_store=False,
                enable_partition_eof=True,
                auto_offset_reset="error",
                logger=_LOG,
            )
        )
        self.next = self._offset(EARLIEST)
        self._consumer.assign([TopicPartition(topic, partition, self.next)])

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def records(self, end: int | None = None) -> Iterator[tuple[int, bytes | None]]:
        """Yield offset and key of each record below `end`, by default below the present end of the log.

        Raises ClusterTransientError if the broker sends nothing for a minute, and the cluster's errors.
        """
        end = self._offset(LATEST) if end is None else end
        heard = time.monotonic()
        while self.next < end:
            message = self._consumer.poll(_POLL_S)
            if message is None:
                if time.monotonic() - heard > _SILENCE_S:
                    raise ClusterTransientError(
                        f"{self._place[0]}-{self._place[1]}: nothing came of offsets {self.next} to {end} for "
                        f"{_SILENCE_S:.0f} s",
                        code="TDM-R133",
                        remedy="check the brokers, then run it again: what was written is not written twice",
                    )
                continue
            heard = time.monotonic()
            yield from self._taken(message)

    def _taken(self, message: Message) -> Iterator[tuple[int, bytes | None]]:
        error = message.error()
        offset = message.offset() or 0
        if error is None:
            self.next = offset + 1
            yield offset, message.key()
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the name that the client gives it
            self.next = max(self.next, offset)
        else:
            raise ClusterTransientError(
                f"reading {self._place[0]}-{self._place[1]}: {KafkaException(error)}",
                code="TDM-R134",
                remedy="check the brokers, then run it again: what was written is not written twice",
            )

    def _offset(self, which: str) -> int:
        [(offset, _)] = self._admin.list_offsets({self._place: which}, read_committed=False).values()
        return offset
