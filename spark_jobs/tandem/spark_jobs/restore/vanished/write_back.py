"""Writes the records of keys that vanished into the live topic, and never over a newer record of the key.

A run that was interrupted is repeated: keys that are back have a newer record, and are left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass

from tandem.backup_avro.chain.generation import Generation
from tandem.sink.kafka.auth.client_config import Value
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.sink.transcode.transcoder_result import Segment
from tandem.spark_jobs.reading.live_log import LiveLog, open_live_log
from tandem.spark_jobs.restore.live_write.guarded_writer import GuardedWriter, PlannedRecord
from tandem.spark_jobs.restore.live_write.live_transactions import LiveTransactions
from tandem.spark_jobs.restore.live_write.watched_log import log_since
from tandem.spark_jobs.restore.plan.plan import TRANSACTIONAL_ID_PREFIX
from tandem.spark_jobs.restore.vanished.find import KeptPartition, LostKeys, LostRecord, asked_epochs, with_cut
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
    """Brings the keys of one partition back. `config` has the topic's effective `BATCH_SETTINGS`.

    `codecs` are those of the batches that the kept copy was read from, as `Part.codecs`.
    """

    lost: LostKeys
    codecs: int
    pair: str
    cluster: ClusterAddress
    config: Mapping[str, str]

    def compare(self) -> None:
        """Read the live log's committed records: keys that have a newer one are left as they are.

        Raises the errors of a `LiveLog` and of a fetcher.
        """
        with self._open_log(read_committed=True) as log:
            for key, offset in self._newer(log.below(log.head())):
                self.lost.drop(key, offset)

    def write(self, records: Iterable[LostRecord]) -> int:
        """Write those records whose keys are still lost; return how many that were.

        Raises as `compare`, and the errors of a producer.
        """
        key = self.lost.partition.key
        transactions = LiveTransactions(
            props=self.cluster.props,
            transactional_id=f"{TRANSACTIONAL_ID_PREFIX}vanished-{self.pair}-{key.topic_id}-{key.partition}",
            place=(self.lost.partition.topic, key.partition),
            config=self.config,
            codecs=self.codecs,
        )
        with closing(transactions):
            # An earlier run that was killed has left its transaction open: what it holds would count as written.
            transactions.fence()
            with log_since(self._newer, self._open_log) as log:
                writer = GuardedWriter(log=log, begin=transactions.begin)
                writer.write(PlannedRecord(one.key, one.body) for one in records if one.key in self.lost.offsets)
        return writer.written

    def _open_log(self, *, read_committed: bool) -> AbstractContextManager[LiveLog]:
        topic_id, number = self.lost.partition.key
        return open_live_log(
            self.cluster.props,
            (self.lost.partition.topic, number),
            topic_id=topic_id,
            batch_limit=self.cluster.batch_limit,
            read_committed=read_committed,
        )

    def _newer(self, segments: Iterable[Segment]) -> Iterator[tuple[bytes, int]]:
        """Yield key and offset of the records that stand in the log for a key of `lost`, or are newer."""
        for one in segments:
            for span in best_bodies().spans(one.body, one.records):
                key = one.body[span[6] : span[7]] if span[5] >= 0 else None
                if key is not None and self.lost.has(key, span[2]):
                    yield key, span[2]
