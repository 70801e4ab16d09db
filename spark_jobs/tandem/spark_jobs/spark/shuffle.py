"""A chain of stages that send messages to each other's partitions, on Spark or in this process.

Each stage runs once for each of its partitions. It gets the messages that the stage before it sent to the partition,
and yields messages, each with the number of the partition of the next stage that it is for. Messages are few and large
(packed rows), so that neither Spark's JVM nor Python handles single records. On Spark every hop between two stages is a
shuffle: messages lie on the executors' disks, encrypted by `spark.io.encryption`, and not in the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from tandem.spark_jobs.spark.session import require_encrypted_disks
from tandem.spark_jobs.spark.worker_log import logged

if TYPE_CHECKING:
    from pyspark.core.context import SparkContext

Message = tuple[int, Any]
"""The partition of the next stage, and what is sent there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleStage:
    """One stage: `work(shared, partition, messages)` yields messages. The first stage gets no messages."""

    partitions: int
    work: Callable[[Any, int, Iterator[Any]], Iterator[Message]]


class Shuffle(Protocol):
    """Runs stages, and returns what the last one sends, without the numbers."""

    def __call__(self, shared: Any, stages: Sequence[ShuffleStage], waves: Waves | None = None) -> list[Any]:  # noqa: ANN401 (whatever the stages share)
        """Run all stages; `shared` is handed to each of them, and should be small.

        With `waves` the last stage runs wave by wave, and nothing is returned.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Waves:
    """The order in which the partitions of a last stage run: those of one wave side by side, then those of the next.

    `ended` is called with what a wave has sent. If it raises an error, the waves behind it don't run.
    """

    partitions: Sequence[Sequence[int]]
    ended: Callable[[list[Any]], None]


def shuffle_here(shared: Any, stages: Sequence[ShuffleStage], waves: Waves | None = None) -> list[Any]:  # noqa: ANN401 (as above)
    """Run all stages in this process, with all messages in memory."""
    sent: dict[int, list[Any]] = {}
    for stage in stages:
        received, sent = sent, {}
        if waves is not None and stage is stages[-1]:
            for wave in waves.partitions:
                found = [stage.work(shared, number, iter(received.pop(number, ()))) for number in wave]
                waves.ended([message for messages in found for _, message in messages])
            return []
        for number in range(stage.partitions):
            for to, message in stage.work(shared, number, iter(received.pop(number, ()))):
                sent.setdefault(to, []).append(message)
    return [message for messages in sent.values() for message in messages]


def shuffle_on(context: SparkContext) -> Shuffle:
    """Return a shuffle that runs on Spark. It raises RefusedError if messages would lie on disks in the clear."""

    def run(shared: Any, stages: Sequence[ShuffleStage], waves: Waves | None = None) -> list[Any]:  # noqa: ANN401 (as above)
        require_encrypted_disks(dict(context.getConf().getAll()))
        value = context.broadcast(shared)
        try:
            first, *others = stages
            sent = context.parallelize(range(first.partitions), first.partitions).mapPartitionsWithIndex(
                logged(partial(_begin, value, first.work))
            )
            for stage in others:
                sent = sent.partitionBy(stage.partitions, _itself).mapPartitionsWithIndex(
                    logged(partial(_go_on, value, stage.work))
                )
            if waves is None:
                return [message for _, message in sent.collect()]
            for wave in waves.partitions:
                # What was sent to the last stage was sent by the first of these jobs, and stays on the executors.
                waves.ended([message for _, message in context.runJob(sent, _as_they_are, wave)])
            return []
        finally:
            value.unpersist()

    return run


def _as_they_are(messages: Iterable[Message]) -> Iterable[Message]:
    return messages


def _itself(number: int) -> int:
    return number


def _begin(value: Any, work: Callable[..., Iterator[Message]], number: int, _: Iterable[Any]) -> Iterator[Message]:  # noqa: ANN401 (a broadcast)
    return work(value.value, number, iter(()))


def _go_on(
    value: Any,  # noqa: ANN401 (a broadcast)
    work: Callable[..., Iterator[Message]],
    number: int,
    messages: Iterable[Message],
) -> Iterator[Message]:
    return work(value.value, number, (message for _, message in messages))
