"""Writes the records of keys that vanished into the live topic, and never over a newer record of the key.

A run that was interrupted is repeated: keys that are back have a newer record, and are left alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

from tandem.backup_avro.chain.entries import codecs_of
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.vanished_keys import EncodedBlock
from tandem.sink.kafka.auth.client_config import Value
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.transcode.transcoder_result import Segment
from tandem.spark_jobs.reading.live_log import LiveLog, open_live_log
from tandem.spark_jobs.restore.live_write.guarded_writer import GuardedWriter, PlannedRecord
from tandem.spark_jobs.restore.live_write.live_transactions import LiveTransactions
from tandem.spark_jobs.restore.live_write.watched_log import log_since
from tandem.spark_jobs.restore.plan.plan import TRANSACTIONAL_ID_PREFIX
from tandem.spark_jobs.restore.vanished.find import (
    CopiedPartitions,
    KeptPartition,
    LostRecords,
    asked_epochs,
    find_lost_records,
    lost_records,
    read_lost_keys,
    with_cut,
)
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress


def mark_cuts(
    partitions: Iterable[KeptPartition], generations: Collection[Generation], props: Mapping[str, Value]
) -> list[KeptPartition]:
    """Return the partitions with the offsets at which their logs were truncated. Raises the errors of a fetcher."""
    found = [(one, TopicPartition(one.topic, one.key.partition)) for one in partitions]
    asked = {place: asked_epochs(one) for one, place in found}
    answers: dict[TopicPartition, dict[int, tuple[int, int]]] = {place: {} for place in asked}
    with RawFetcher(props, read_committed=True) as fetcher:
        for number in sorted({number for epochs in asked.values() for number in epochs}):
            wanted = {place: epochs[number] for place, epochs in asked.items() if number in epochs}
            for place, answer in fetcher.epoch_ends(wanted).items():
                answers[place][number] = answer
    return [with_cut(one, generations, answers[place]) for one, place in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteBack:
    """Brings keys of one partition back. `config` has the topic's effective `BATCH_SETTINGS`."""

    partition: KeptPartition
    copies: CopiedPartitions
    pair: str
    cluster: ClusterAddress
    config: Mapping[str, str]

    def find(self, newest: Sequence[Generation]) -> LostRecords:
        """Return the records to bring back, none that is in the log or in one of the `newest` copies, or older.

        Raises the errors of a `LiveLog`, of a fetcher, of the store and of keys, and DamagedError.
        """

        def live(begin: int) -> Iterator[EncodedBlock]:
            with self._open_log(begin, read_committed=True) as log:
                yield from _blocks(log.below(log.head()))

        return find_lost_records(self.copies, self.partition, newest, live)

    def write(self, lost: LostRecords) -> int:
        """Write the records of those keys that are still lost; return how many that were.

        Raises as `find`, and the errors of a producer.
        """
        key = self.partition.key
        transactions = LiveTransactions(
            props=self.cluster.props,
            transactional_id=f"{TRANSACTIONAL_ID_PREFIX}vanished-{self.pair}-{key.topic_id}-{key.partition}",
            place=(self.partition.topic, key.partition),
            config=self.config,
            codecs=codecs_of(part for _, part in self.copies.parts(self.partition.kept, key)),
        )
        with closing(transactions):
            # An earlier run that was killed has left its transaction open: what it holds would count as written.
            transactions.fence()
            return sum(self._write_batch(batch, transactions) for batch in lost.batches)

    def _write_batch(self, batch: array[int], transactions: LiveTransactions) -> int:
        keys = read_lost_keys(self.copies, self.partition, batch)
        records = lost_records(self.copies, self.partition, batch)
        with log_since(lambda read: keys.newer(_blocks(read)), partial(self._open_log, keys.begin)) as log:
            writer = GuardedWriter(log=log, begin=transactions.begin)
            writer.write(PlannedRecord(one.key, one.body) for one in records)
        return writer.written

    @contextmanager
    def _open_log(self, begin: int, *, read_committed: bool) -> Iterator[LiveLog]:
        """Open the log at `begin`, or at its end, if it was truncated below that."""
        topic_id, number = self.partition.key
        with open_live_log(
            self.cluster.props,
            (self.partition.topic, number),
            topic_id=topic_id,
            batch_limit=self.cluster.batch_limit,
            read_committed=read_committed,
        ) as log:
            log.skip_to(min(begin, log.head()))
            yield log


def _blocks(read: Iterable[Segment]) -> Iterator[EncodedBlock]:
    return ((one.body, one.records) for one in read)
