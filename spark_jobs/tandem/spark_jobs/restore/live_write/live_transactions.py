"""Transactions into one partition of a live topic, on a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tandem.sink.kafka.auth.client_config import Value
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.spark_jobs.restore.live_write.guarded_writer import OpenTransaction
from tandem.spark_jobs.restore.live_write.offset_ranges import OffsetRange
from tandem.spark_jobs.restore.plan.target_codec import choose_codec
from tandem.spark_jobs.restore.progress.batch_producer import BatchProducer, ProduceError

_MAX_MESSAGE_BYTES: Final = "max.message.bytes"
#: The topic's settings that `LiveTransactions` keeps to.
BATCH_SETTINGS: Final = (_MAX_MESSAGE_BYTES, "compression.type")
_BATCH_RECORDS: Final = 20_000
_BATCH_BYTES: Final = 900_000
_ANSWER_S: Final = 60.0


@dataclass(slots=True, kw_only=True)
class LiveTransactions:
    """Opens transactions; one that is abandoned is aborted by a new producer, which fences the one before.

    `config` has the effective `BATCH_SETTINGS` of the topic, `codecs` the compression codecs that its batches had (bits
    as in `Part.codecs`): a value that came compressed may be larger than the topic's limit without.
    """

    props: Mapping[str, Value]
    transactional_id: str
    place: tuple[str, int]
    config: Mapping[str, str]
    codecs: int
    _producer: BatchProducer | None = field(default=None, init=False)

    def fence(self) -> BatchProducer:
        """Open a producer, which ends the transaction of any earlier one; ProduceError is retried for a minute."""
        deadline = time.monotonic() + _ANSWER_S
        while True:
            producer = BatchProducer(self.props, self.transactional_id)
            try:
                producer.init_transactions()
                producer.know(self.place[0])
            except BaseException as error:
                producer.discard()
                if not isinstance(error, ProduceError) or time.monotonic() > deadline:
                    raise
            else:
                self._producer = producer
                return producer

    def begin(self) -> OpenTransaction:
        """Begin a transaction."""
        producer = self._producer or self.fence()
        producer.begin()
        return _LiveTransaction(producer, self, self._abandon)

    def _abandon(self) -> None:
        """Abort the open transaction: left alone, it would hold back all readers of committed records for minutes."""
        self.close()
        self.fence()

    def close(self) -> None:
        """Discard the producer."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.discard()


class _LiveTransaction:
    """A transaction of one partition."""

    def __init__(self, producer: BatchProducer, of: LiveTransactions, abandon: Callable[[], None]) -> None:
        self._producer = producer
        self._of = of
        self.abandon = abandon

    def send(self, bodies: Sequence[bytes]) -> list[OffsetRange]:
        """Send records and wait for the broker. Raises the errors of a producer."""
        topic, partition = self._of.place
        batches = best_bodies().build_batches(
            b"".join(bodies),
            len(bodies),
            max_batch_bytes=min(_BATCH_BYTES, int(self._of.config[_MAX_MESSAGE_BYTES]) * 9 // 10),
            max_batch_records=_BATCH_RECORDS,
            compression=choose_codec(self._of.config, self._of.codecs, None),
        )
        ranges = []
        for sent in [self._producer.append(topic, partition, one.data, one.records) for one in batches]:
            base = sent.base_offset(_ANSWER_S)
            if base < 0:  # the response to a repeated request
                raise ProduceError(
                    f"{topic}-{partition}: the broker has a batch, but does not say where",
                    code="TDM-R138",
                    remedy="run it again: what was written is not written twice",
                )
            ranges.append((base, base + sent.records - 1))
        return ranges

    def commit(self) -> None:
        """Commit. After ProduceError it is unknown whether it took effect: the next attempt finds out."""
        self._producer.commit()
