"""A chain of stages that send messages to each other's partitions, on Spark or in this process.

Each stage runs once for each of its partitions. It gets the messages that the stage before it sent to the partition,
and yields messages, each with the number of the partition of the next stage that it is for. Messages are few and large
(packed rows), so that neither Spark's JVM nor Python handles single records. On Spark every hop between two stages is a
shuffle: messages lie on the executors' disks, encrypted by `spark.io.encryption`, and not in the driver.

Of what the stages know, each partition gets its own part alone, packed, whatever the others work on: the first stage
with its task, the later ones through the shuffle, ahead of the messages.
"""

from __future__ import annotations

import pickle
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from tandem.spark_jobs.spark.session import require_encrypted_disks
from tandem.spark_jobs.spark.worker_log import logged

if TYPE_CHECKING:
    from pyspark.core.context import SparkContext
    from pyspark.core.rdd import RDD

Message = tuple[int, Any]
"""The partition of the next stage, and what is sent there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleStage:
    """One stage: `work(own, partition, messages)` yields messages. The first stage gets no messages.

    `own_part(shared, partition)` is what `work` gets of what the stages share. It is pickled for each partition, so its
    size must not depend on what the others have to do.
    """

    partitions: int
    work: Callable[[Any, int, Iterator[Any]], Iterator[Message]]
    own_part: Callable[[Any, int], Any]


class Shuffle(Protocol):
    """Runs stages, and returns what the last one sends, without the numbers."""

    def __call__(self, shared: Any, stages: Sequence[ShuffleStage], waves: Waves | None = None) -> list[Any]:  # noqa: ANN401 (whatever the stages share)
        """Run all stages; each partition gets its own part of `shared`.

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
                found = [
                    stage.work(stage.own_part(shared, number), number, iter(received.pop(number, ())))
                    for number in wave
                ]
                waves.ended([message for messages in found for _, message in messages])
            return []
        for number in range(stage.partitions):
            for to, message in stage.work(stage.own_part(shared, number), number, iter(received.pop(number, ()))):
                sent.setdefault(to, []).append(message)
    return [message for messages in sent.values() for message in messages]


def shuffle_on(context: SparkContext) -> Shuffle:
    """Return a shuffle that runs on Spark. It raises RefusedError if messages would lie on disks in the clear."""

    def run(shared: Any, stages: Sequence[ShuffleStage], waves: Waves | None = None) -> list[Any]:  # noqa: ANN401 (as above)
        require_encrypted_disks(dict(context.getConf().getAll()))
        first, *others = stages
        parts = [_packed(first.own_part(shared, number)) for number in range(first.partitions)]
        sent = context.parallelize(parts, len(parts)).mapPartitionsWithIndex(logged(partial(_begin, first.work)))
        for stage in others:
            # Both sides have one partitioner, so Spark joins them partition by partition, in this order.
            joined = _sent_on(_own_parts(context, shared, stage), stage.partitions).union(
                _sent_on(sent, stage.partitions)
            )
            sent = joined.mapPartitionsWithIndex(logged(partial(_go_on, stage.work)))
        if waves is None:
            return [message for _, message in sent.collect()]
        for wave in waves.partitions:
            # What was sent to the last stage was sent by the first of these jobs, and stays on the executors.
            waves.ended([message for _, message in context.runJob(sent, _as_they_are, wave)])
        return []

    return run


def _sent_on(messages: RDD[Message], partitions: int) -> RDD[Message]:
    """Return the messages in the partitions of their numbers, as `messages.partitionBy` does.

    But each message goes to the JVM as soon as it is made. PySpark's own function holds up to a thousand of them in
    Python before it looks at their size (`add_shuffle_key` in pyspark.core.rdd, of which these are the same steps).
    """
    from pyspark import serializers  # noqa: PLC0415 - loaded where Spark runs
    from pyspark.core.rdd import RDD, Partitioner  # noqa: PLC0415 - likewise

    context, jvm = messages.ctx, messages.ctx._jvm  # noqa: SLF001 (no public function leaves out the buffer)
    assert jvm is not None
    packed: Any = messages.mapPartitions(logged(_packed_pairs))
    packed._bypass_serializer = True  # noqa: SLF001 (likewise)
    pairs = jvm.PairwiseRDD(packed._jrdd.rdd()).asJavaPairRDD()  # noqa: SLF001 (likewise)
    by_number = pairs.partitionBy(jvm.PythonPartitioner(partitions, id(_itself)))
    batches: Any = serializers.BatchedSerializer
    sent: RDD[Message] = RDD(jvm.PythonRDD.valueOfPair(by_number), context, batches(serializers.CPickleSerializer()))
    sent.partitioner = Partitioner(partitions, _itself)
    return sent


def _packed_pairs(messages: Iterable[Message]) -> Iterator[bytes]:
    """Yield the number of each message, and a batch of it alone, as `PairwiseRDD` takes them in turns."""
    from pyspark import serializers  # noqa: PLC0415 - loaded where Spark runs

    serializer: Any = serializers.CPickleSerializer()
    for number, message in messages:
        yield struct.pack("!q", number)
        yield serializer.dumps([(number, message)])


#: Most bytes of one piece of a packed part, and about the bytes of pieces that one task sends on: Spark limits tasks.
_PIECE: Final = 1 << 20


class _OwnPiece(NamedTuple):
    """A piece, from byte `at` on, of the packed part of a partition, which has `size` bytes."""

    at: int
    size: int
    data: bytes


def _packed(part: Any) -> bytes:  # noqa: ANN401 (whatever a stage needs)
    return zlib.compress(pickle.dumps(part, pickle.HIGHEST_PROTOCOL), 1)


def _unpacked(packed: bytes) -> Any:  # noqa: ANN401 (as above)
    return pickle.loads(zlib.decompress(packed))  # noqa: S301 (the driver has packed it)


def _own_parts(context: SparkContext, shared: Any, stage: ShuffleStage) -> RDD[tuple[int, _OwnPiece]]:  # noqa: ANN401 (as above)
    pieces: list[tuple[int, _OwnPiece]] = []
    total = 0
    for number in range(stage.partitions):
        packed = _packed(stage.own_part(shared, number))
        total += len(packed)
        begins = range(0, len(packed), _PIECE)
        pieces += [(number, _OwnPiece(at, len(packed), packed[at : at + _PIECE])) for at in begins]
    return context.parallelize(pieces, min(len(pieces), max(context.defaultParallelism, total // _PIECE)))


def _as_they_are(messages: Iterable[Message]) -> Iterable[Message]:
    return messages


def _itself(number: int) -> int:
    return number


def _begin(work: Callable[..., Iterator[Message]], number: int, parts: Iterable[bytes]) -> Iterator[Message]:
    [packed] = parts
    return work(_unpacked(packed), number, iter(()))


def _go_on(
    work: Callable[..., Iterator[Message]], number: int, given: Iterator[tuple[int, _OwnPiece | Any]]
) -> Iterator[Message]:
    packed: dict[int, bytes] = {}
    left = 1
    while left:
        _, piece = next(given)
        assert isinstance(piece, _OwnPiece), "the messages came ahead of a partition's own part"
        left = piece.size if not packed else left
        left -= len(piece.data)
        packed[piece.at] = piece.data
    return work(_unpacked(b"".join(data for _, data in sorted(packed.items()))), number, (one for _, one in given))
